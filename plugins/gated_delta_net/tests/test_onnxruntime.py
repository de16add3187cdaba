"""onnxruntime's CPU kernel as the oracle, of the reference and of every variant: 400 random calls."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import attrs
import numpy as np
import onnx
import onnxruntime
import oplet
import pytest
from oplet.testing.compare import Tolerance, compare
from oplet_gated_delta_net.cases import random_call, scale
from oplet_gated_delta_net.reference import Inputs
from oplet_gated_delta_net.shapes import Delta

OP = "com.microsoft.GatedDeltaNet"
CASES = 400
# Twice that of test.json: onnxruntime computes in float32 too, so two errors add up. In one of these calls it is 1.4e-6
# of the scale off both the float64 reference and every variant.
TOLERANCE = Tolerance(2e-6, 1e-37, "two float32 computations")

#: TensorProto.DataType
ELEMENTS = {"float32": 1, "float16": 10, "int32": 6}


@attrs.frozen(eq=False)
class Case:
    inputs: dict[str, np.ndarray]
    attributes: dict[str, Any]
    outputs: tuple[str, ...]
    request: oplet.Request
    want: dict[str, np.ndarray]
    scale: dict[str, np.ndarray]

    def mismatch(self, name: str, got: np.ndarray) -> str | None:
        allowed = self.scale[name]
        if got.dtype == np.float16:
            # onnxruntime's result is rounded too, perhaps to the other side: half a unit, of a subnormal 2^-25.
            allowed = allowed + np.maximum(np.abs(self.want[name]) * 2.0**-11, 2.0**-25) / TOLERANCE.rtol
        found = compare(got, self.want[name], TOLERANCE, allowed)
        return found and found.describe(name, TOLERANCE)


def run_onnxruntime(
    manifest: oplet.Manifest, inputs: Mapping[str, np.ndarray], attributes: Mapping[str, Any], outputs: tuple[str, ...]
) -> dict[str, np.ndarray]:
    types = {"outputT": inputs["queryT"].dtype.name, "finalStateT": "float32", "stateUpdateT": "float32"}
    node = onnx.helper.make_node(
        "GatedDeltaNet",
        [port.upstream if port.name in inputs else "" for port in manifest.inputs],
        [port.upstream if port.name in outputs else "" for port in manifest.outputs],
        domain="com.microsoft",
        **attributes,
    )

    def values(ports: tuple[Any, ...], dtypes: Mapping[str, str]) -> list[Any]:
        return [
            onnx.helper.make_tensor_value_info(port.upstream, ELEMENTS[dtypes[port.name]], None)
            for port in ports
            if port.name in dtypes
        ]

    graph = onnx.helper.make_graph(
        [node],
        "one_node",
        values(manifest.inputs, {name: array.dtype.name for name, array in inputs.items()}),
        values(manifest.outputs, {name: types[name] for name in outputs}),
    )
    imports = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {port.upstream: inputs[port.name] for port in manifest.inputs if port.name in inputs}
    return dict(zip(outputs, session.run(None, feeds), strict=True))


@cache
def registry() -> oplet.Registry:
    return oplet.Registry()


@cache
def cases() -> list[Case]:
    op = registry()[OP]
    rng = np.random.default_rng(400)
    made = []
    for _ in range(CASES):
        inputs, attributes = random_call(rng, oracle=True)
        outputs = ("outputT", "finalStateT")
        if "state_update_capacity" in attributes:
            outputs += ("stateUpdateT",)
        specs = {name: oplet.TensorSpec.of(array) for name, array in inputs.items()}
        request = op.bind(specs, attributes, outputs)
        want = run_onnxruntime(op.manifest, inputs, attributes, outputs)
        if "stateUpdateT" in want:
            # Behind the captured tokens onnxruntime leaves anything, and this op zeros.
            want["stateUpdateT"] = np.where(captured(Delta.of(request), inputs), want["stateUpdateT"], 0.0)
        made.append(Case(inputs, attributes, outputs, request, want, scale(request, inputs)))
    return made


def captured(delta: Delta, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Which elements of stateUpdateT are of captured tokens."""
    counts = np.array(Inputs.of(delta, inputs).capture)[:, None]
    slots = np.arange(delta.capacity)
    widths = (delta.decay_width, delta.hq * delta.dk, delta.hv * delta.dv)
    return np.concatenate([np.repeat(slots, width)[None] < counts for width in widths], axis=1)


def test_the_cases_have_everything() -> None:
    requests = [case.request for case in cases()]
    deltas = [Delta.of(request) for request in requests]
    for rule in ("linear", "gated", "delta", "gated_delta"):
        assert sum(request.attrs["update_rule"] == rule for request in requests) > 20
    for gate in ("none", "qwen", "softplus", "sigmoid", "kda"):
        assert sum(request.attrs["gate_activation"] == gate for request in requests) > 20
    for name in ("packed", "ragged", "per_key", "capacity", "initial", "beta_sigmoid"):
        assert sum(bool(getattr(delta, name)) for delta in deltas) > 20, name
    assert sum(delta.dtype == "float16" for delta in deltas) > 100
    assert sum(delta.gate_dtype == "float16" for delta in deltas) > 20
    assert {delta.hv // delta.hq for delta in deltas} == {1, 2, 3}
    assert max(delta.longest for delta in deltas) > 128


def test_reference() -> None:
    op = registry()[OP]
    wrong = []
    for number, case in enumerate(cases()):
        results = op.reference(case.request, case.inputs)
        for name in case.outputs:
            result = results[name].astype(case.want[name].dtype)
            if found := case.mismatch(name, result):
                wrong.append(f"{number}: {found}")
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize("variant", ["decode", "recurrent", "chunked", "decode_nosg", "recurrent_nosg", "chunked_nosg"])
def test_variant(variant: str) -> None:
    op = registry()[OP]
    caps = registry().device.capabilities
    (kernel,) = (one for one in op.variants if one.name == variant)
    if not variant.endswith("_nosg") and "subgroups" not in caps.features:
        pytest.skip(f"{caps.adapter.name} has no subgroups")
    wrong = []
    ran = 0
    for number, case in enumerate(cases()):
        if kernel.rejects(case.request, caps) is not None:
            delta = Delta.of(case.request)
            special = delta.per_key or delta.capacity
            lacking = delta.dtype == "float16" and "shader-f16" not in caps.features
            assert lacking or (special and not variant.startswith("recurrent")), case.attributes
            continue
        ran += 1
        results = registry().run(OP, attrs=case.attributes, outputs=case.outputs, variant=variant, **case.inputs)
        for name in case.outputs:
            if found := case.mismatch(name, getattr(results, name).numpy()):
                wrong.append(f"{number}: {found}")
    assert not wrong, f"{len(wrong)} wrong\n" + "\n".join(wrong[:5])
    assert ran > CASES / 4
