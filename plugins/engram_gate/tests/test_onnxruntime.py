"""onnxruntime's CPU kernel as the oracle: of the reference, and of every variant."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import onnxruntime
import oplet
import pytest
from oplet.bench.peers import PeerCase, one_node_model
from oplet.testing.compare import Tolerance, compare
from oplet.testing.suite import Suite
from oplet_engram_gate.cases import inputs, scale

OP = "com.microsoft.EngramGate"
CASES = 300
VARIANTS = ("reference", "subgroup_rows_vec4", "packed_rows_vec4", "subgroup_rows_scalar", "packed_rows_scalar")
OUTPUTS = (("outputT",), ("outputT", "gatedValueNormedT"))

#: both are float32 computations with errors of their own, so they may lie twice as far apart
TOLERANCE = Tolerance(2 * Suite.read("oplet_engram_gate").tolerance["float32"].rtol, 0.0, "two float32 computations")


@attrs.frozen(eq=False)
class Answered:
    """A call, and what onnxruntime makes of it."""

    request: oplet.Request
    arrays: dict[str, np.ndarray]
    outputs: tuple[str, ...]
    attrs: dict[str, float]
    want: dict[str, np.ndarray]


@pytest.fixture(scope="module")
def registry() -> oplet.Registry:
    return oplet.Registry()


@pytest.fixture(scope="module")
def answered(registry: oplet.Registry) -> list[Answered]:
    return list(answers(registry, np.random.default_rng(20260131)))


def answers(registry: oplet.Registry, rng: np.random.Generator) -> Iterator[Answered]:
    op = registry[OP]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for number in range(CASES):
        dtype = (np.float32, np.float16)[number % 2]
        # Every other hidden size is a multiple of 4, which the vec4 variants need.
        hidden = int(rng.integers(1, 1031)) if number % 4 < 2 else 4 * int(rng.integers(1, 258))
        shape = (int(rng.integers(1, 4)), int(rng.integers(1, 6)), int(rng.integers(1, 6)), hidden)
        arrays = inputs(rng, shape, dtype)
        attributes = {"epsilon": float(rng.choice([1e-5, 1e-6, 1e-2]))}
        outputs = OUTPUTS[number // 4 % 2]
        if len(outputs) == 1 and number % 3:
            del arrays["convNormScaleT"]
        specs = {name: oplet.TensorSpec.of(array) for name, array in arrays.items()}
        request = op.bind(specs, attributes, outputs)
        model = one_node_model(PeerCase(op, request, arrays, request.attrs))
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        want = dict(zip(outputs, session.run(list(outputs), arrays), strict=True))
        yield Answered(request, arrays, outputs, attributes, want)


@pytest.mark.parametrize("variant", VARIANTS)
def test_agrees_with_onnxruntime(variant: str, registry: oplet.Registry, answered: list[Answered]) -> None:
    ran = differing = elements = 0
    for call in answered:
        try:
            results = registry.run(OP, **call.arrays, attrs=call.attrs, outputs=call.outputs, variant=variant)
        except oplet.NoVariantError:
            continue
        ran += 1
        tensors = results if len(call.outputs) > 1 else (results,)
        scales = scale(call.request, call.arrays)
        for name, tensor in zip(call.outputs, tensors, strict=True):
            got, want = tensor.numpy(), call.want[name]
            allowed = scales[name]
            if got.dtype == np.float16:
                # A value near the middle between two float16 goes one way here and the other way there; it is rare.
                # onnxruntime's half of the distance; ours is what the comparison allows for the store.
                allowed = allowed + np.abs(np.spacing(want)).astype(np.float64) / 2 / TOLERANCE.rtol
                differing += np.count_nonzero(got != want)
                elements += got.size
            mismatch = compare(got, want.astype(np.float64), TOLERANCE, allowed)
            assert mismatch is None, f"{call.request}: {mismatch.describe(name, TOLERANCE)}"
    caps = registry.device.capabilities
    if variant.startswith("subgroup") and "subgroups" not in caps.features:
        pytest.skip(f"{caps.adapter.name} has no subgroups")
    assert ran, f"{variant} accepted none of {CASES} calls"
    # The middle of two float16, which are 2⁻¹¹ of their value apart at least, lies between values that far apart
    # with a chance of rtol · 2¹¹, 0.4 %; the scale may be somewhat larger than the value.
    assert differing <= elements // 100
