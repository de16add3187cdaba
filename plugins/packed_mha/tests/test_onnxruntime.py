"""Random calls on every variant that accepts them, against onnxruntime's attention over the padded grid.

onnxruntime has no CPU kernel of this op, but one of `MultiHeadAttention`, which does the same to sequences
in their padded form: tokens are scattered to it by token_offset and its result gathered again. It masks by
adding -10000 or so, so it is no oracle where biases are as low, nor for float16, nor without any token: there the
op's own float64 numpy tells.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnxruntime
import oplet
import pytest
from onnx import TensorProto, helper
from oplet.testing.compare import Tolerance, compare
from oplet.testing.suite import Suite
from oplet_packed_mha.cases import BROADCASTS, Attributes, Inputs, draw, scale

OP = "com.microsoft.PackedMultiHeadAttention"
CASES = 300
CASES_A_TEST = 20

SUITE = Suite.read("oplet_packed_mha")

#: both are float32 computations with errors of their own, so they may lie twice as far apart
APART = Tolerance(2 * SUITE.tolerance["float32"].rtol, 0.0, "two float32 computations")


@pytest.fixture(scope="module")
def registry() -> oplet.Registry:
    return oplet.Registry()


def random_call(number: int) -> tuple[Inputs, Attributes, bool]:
    rng = np.random.default_rng([2026, number])
    lengths = rng.integers(0, 24, rng.integers(1, 5)).tolist()
    if rng.random() < 0.1:
        lengths[0] = int(rng.integers(60, 100))
    dtype = "float16" if rng.random() < 0.2 else "float32"
    packed = bool(rng.random() < 0.5)
    # Values wider than 16 would compile kernels of their own; the conformance cases have some.
    value_size = int(rng.choice([4, 8, 12, 16])) if rng.random() < 0.7 else int(rng.integers(1, 17))
    head_size = value_size if packed else int(rng.choice([4, 16, 24, 68, 256, rng.integers(1, 80)]))
    broadcast = BROADCASTS[rng.integers(4)] if rng.random() < 0.5 else None
    inputs, attributes = draw(
        rng,
        lengths,
        heads=int(rng.integers(1, 5)),
        head_size=head_size,
        value_size=value_size,
        packed=packed,
        bias=bool(rng.random() < 0.5),
        broadcast=broadcast,
        scale=float(rng.uniform(0.05, 1.5)) if rng.random() < 0.5 else None,
        dtype=dtype,
        padding=str(rng.choice(["left", "right", "gaps"])),
    )
    masked = broadcast is not None and rng.random() < 0.2
    if masked:
        table = inputs["attentionBiasT"]
        table[rng.random(table.shape) < 0.3] = -np.inf
    return inputs, attributes, masked


@functools.cache
def padded_attention(names: tuple[str, ...], num_heads: int, scale_given: float | None) -> Any:
    """A session of one MultiHeadAttention node with these inputs."""
    order = ("query", "key", "value", "bias", "mask", "attention_bias")
    attributes = {"num_heads": num_heads} | ({} if scale_given is None else {"scale": scale_given})
    node = helper.make_node(
        "MultiHeadAttention", [n if n in names else "" for n in order], ["output"], domain="com.microsoft", **attributes
    )
    types = {name: TensorProto.INT32 if name == "mask" else TensorProto.FLOAT for name in names}
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(name, types[name], None) for name in names],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def oracle(inputs: Inputs, attributes: Attributes) -> np.ndarray:
    query = inputs["queryT"]
    offsets = inputs["tokenOffsetT"]
    tokens, places = len(query), offsets.reshape(-1)[: len(query)]

    def pad(rows: np.ndarray) -> np.ndarray:
        grid = np.zeros((offsets.size, rows.shape[1]), np.float32)
        grid[places] = rows
        return grid.reshape(*offsets.shape, -1)

    if query.ndim == 4:
        parts = [np.ascontiguousarray(query[:, :, part]).reshape(tokens, -1) for part in range(3)]
    else:
        parts = [query, inputs["keyT"], inputs["valueT"]]
    feeds = dict(zip(("query", "key", "value"), map(pad, parts), strict=True))
    feeds["mask"] = np.isin(np.arange(offsets.size), places).astype(np.int32).reshape(offsets.shape)
    for name, port in (("bias", "biasT"), ("attention_bias", "attentionBiasT")):
        if port in inputs:
            feeds[name] = inputs[port]
    session = padded_attention(tuple(feeds), attributes["num_heads"], attributes.get("scale"))
    (result,) = session.run(None, feeds)
    return result.reshape(offsets.size, -1)[places]


@pytest.mark.parametrize("first", range(0, CASES, CASES_A_TEST))
def test_random_calls(registry: oplet.Registry, first: int) -> None:
    op, caps = registry[OP], registry.device.capabilities
    accepted = 0
    for number in range(first, first + CASES_A_TEST):
        inputs, attributes, masked = random_call(number)
        request = op.bind({name: oplet.TensorSpec.of(array) for name, array in inputs.items()}, attributes)
        dtype, size = inputs["queryT"].dtype.name, inputs["queryT"].size
        own = op.reference(request, inputs)["outputT"]
        allowed = scale(request, inputs)["outputT"]
        wants = [(own, SUITE.tolerance[dtype])]
        if dtype == "float32" and size and not masked:
            padded = oracle(inputs, attributes)
            assert compare(padded, own, SUITE.tolerance[dtype], allowed) is None, f"case {number}: the reference"
            wants.append((padded, APART))
        for variant in op.variants:
            if variant.rejects(request, caps):
                continue
            accepted += 1
            got = registry.run(OP, attrs=attributes, variant=variant.name, **inputs).numpy()
            for want, tolerance in wants:
                wrong = compare(got, want, tolerance, allowed)
                assert wrong is None, f"case {number}, {variant.name}: {wrong.describe('outputT', tolerance)}"
    assert accepted >= CASES_A_TEST


def test_the_oracle_serves_most_random_calls() -> None:
    calls = [random_call(number) for number in range(CASES)]
    served = [i["queryT"].dtype == np.float32 and i["queryT"].size > 0 and not masked for i, _, masked in calls]
    assert sum(served) > CASES // 2


def test_packed_and_separate_forms_agree_with_the_padded_oracle_on_left_padding(registry: oplet.Registry) -> None:
    rng = np.random.default_rng(7)
    inputs, attributes = draw(
        rng, [3, 17, 9], heads=2, head_size=16, broadcast=(True, True), padding="left", packed=True
    )
    packed = inputs["queryT"]
    parts = [np.ascontiguousarray(packed[:, :, part]).reshape(len(packed), -1) for part in range(3)]
    separate = {**inputs, **dict(zip(("queryT", "keyT", "valueT"), parts, strict=True))}
    want = oracle(inputs, attributes)
    request = registry[OP].bind({name: oplet.TensorSpec.of(array) for name, array in inputs.items()}, attributes)
    allowed = scale(request, inputs)["outputT"]
    results = [registry.run(OP, attrs=attributes, **call).numpy() for call in (inputs, separate)]
    for got in results:
        wrong = compare(got, want, APART, allowed)
        assert wrong is None, wrong.describe("outputT", APART)
    # The rank inside the sequence, which is wrong here, gives something else altogether.
    ranks = np.concatenate([b * inputs["tokenOffsetT"].shape[1] + np.arange(n) for b, n in enumerate((3, 17, 9))])
    rest = np.setdiff1d(np.arange(inputs["tokenOffsetT"].size), ranks)
    inputs["tokenOffsetT"] = np.concatenate([ranks, rest]).astype(np.int32).reshape(3, -1)
    assert compare(registry.run(OP, attrs=attributes, **inputs).numpy(), want, APART, 1e4 * allowed) is not None
