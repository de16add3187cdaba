"""Long requests are walked over in stretches, each a launch: the same bits as in one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import oplet
import pytest
from oplet_gated_delta_net.variants import VARIANTS, launches

OP = "com.microsoft.GatedDeltaNet"

#: two chunks of the largest kind
SHORT = 64


@pytest.fixture(scope="module")
def device() -> Iterator[oplet.Device]:
    device = oplet.open_device()
    yield device
    device.gpu.destroy()


def calls() -> Iterator[dict[str, Any]]:
    """Equal requests, ragged ones of which some are shorter than a stretch or have no token, and a capture."""
    rng = np.random.default_rng(7)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    for tokens, offsets in ((300, None), (130, [0, 0, 1, 128, 130]), (65, [0, 65]), (400, [3, 390])):
        batch = len(offsets) - 1 if offsets else 1
        inputs: dict[str, Any] = {
            "queryT": normal(tokens, 1, 8) / 3,
            "keyT": normal(tokens, 1, 8) / 3,
            "valueT": normal(tokens, 2, 5),
            "decayT": -rng.random((tokens, 2), np.float32),
            "betaT": rng.random((tokens, 2), np.float32),
            "initialStateT": normal(batch, 2, 5, 8),
        }
        if offsets:
            inputs["cuSeqlensT"] = np.array(offsets, np.int32)
        yield {"inputs": inputs, "attrs": {}, "outputs": ("outputT", "finalStateT")}
    del inputs["initialStateT"]
    inputs["captureCountT"] = np.array([3], np.int32)
    yield {"inputs": inputs, "attrs": {"state_update_capacity": 5}, "outputs": ("outputT", "stateUpdateT")}


@pytest.mark.parametrize("variant", [variant.name for variant in VARIANTS])
def test_the_same_bits(device: oplet.Device, monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    whole, cut = oplet.Registry(device=device), oplet.Registry(device=device)
    ran = 0
    for call in calls():
        arguments = {"attrs": call["attrs"], "outputs": call["outputs"], "variant": variant, **call["inputs"]}
        try:
            want = whole.run(OP, **arguments)
        except oplet.NoVariantError:
            continue
        with monkeypatch.context() as patch, cut.profile() as profile:
            patch.setattr(launches, "STRETCH", SHORT)
            got = cut.run(OP, **arguments)
        templates = [one.template for one in profile.dispatches]
        assert max(map(templates.count, templates)) >= 2
        ran += 1
        for name, one, other in zip(call["outputs"], want, got, strict=True):
            assert one.numpy().tobytes() == other.numpy().tobytes(), name
    assert ran >= 4
