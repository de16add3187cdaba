"""The same call gives the same bits on a device that is new and on one that has done much, by every variant."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import oplet
import pytest
from oplet.testing.kit import Call, Kit

#: elements that a call reads, at most: bits do not differ more with more of them
LARGE = 1 << 16


def calls(op: str) -> Iterator[tuple[str, Call]]:
    """A case for each variant, the largest of those that it serves."""
    kit = Kit(op, seed=0)
    caps = oplet.default_registry().device.capabilities
    small = [call for call in kit.calls if sum(array.size for array in call.arrays.values()) <= LARGE]
    for variant in kit.variants:
        for call in sorted(small, key=lambda call: -sum(array.size for array in call.arrays.values())):
            try:
                kit.op.choose(call.request, caps, variant.name)
            except oplet.NoVariantError:
                continue
            yield variant.name, call
            break


def bits(registry: oplet.Registry, op: str, variant: str, call: Call) -> bytes:
    made = registry.run(op, attrs=call.case.attrs, outputs=call.request.outputs, variant=variant, **dict(call.arrays))
    return b"".join(np.asarray(one).tobytes() for one in ((made,) if isinstance(made, oplet.Tensor) else made))


@pytest.mark.parametrize("op", oplet.default_registry().ids)
def test_the_same_bits_on_a_fresh_device_and_on_a_warm_one(op: str) -> None:
    fresh = oplet.Registry(device=oplet.open_device())
    warm = oplet.default_registry()
    chosen = list(calls(op))
    assert chosen
    first = [bits(warm, op, *one) for one in chosen]
    assert [bits(warm, op, *one) for one in reversed(chosen)] == first[::-1], "in another order"
    assert [bits(fresh, op, *one) for one in chosen] == first
    fresh.device.gpu.destroy()
