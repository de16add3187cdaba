"""Models on the plugins of this repository, end to end against onnxruntime's CPU kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import oplet
import oplet.onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from oplet.testing.compare import Tolerance, compare

FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32
CONTRIB = "com.microsoft"

#: relative to each row, whose values every node here mixes
TOLERANCE = Tolerance(2e-6, 0.0, "two float32 computations, 1e-6 each")

Weights = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def registry() -> oplet.Registry:
    return oplet.Registry()


def model(
    nodes: Sequence[Any],
    inputs: Mapping[str, tuple[int, Sequence[Any]]],
    outputs: Sequence[str],
    weights: Weights,
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, *spec) for name, spec in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(CONTRIB, 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def onnxruntime_session(source: bytes, optimized: Path | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if optimized is not None:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(optimized)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def random(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def agree(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype
    assert compare(got, want, TOLERANCE) is None


def places(session: oplet.onnx.InferenceSession) -> list[tuple[str, str, int | None]]:
    return [(one.op.rpartition(".")[2], one.place, one.batch) for one in session.report().placements]


@pytest.mark.parametrize("activation", ["Relu", "Tanh", "LeakyRelu", "Sigmoid"])
def test_a_model_that_onnxruntime_optimized(registry: oplet.Registry, tmp_path: Path, activation: str) -> None:
    rng = np.random.default_rng(9)
    weights = {
        "w1": random(rng, 32, 24, scale=0.2),
        "b1": random(rng, 24),
        "w2": random(rng, 8, 24, scale=0.2),
        "b2": random(rng, 8),
    }
    extra = {"alpha": 0.2} if activation == "LeakyRelu" else {}
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], name="up", alpha=0.5),
        helper.make_node(activation, ["h"], ["a"], name="bend", **extra),
        helper.make_node("Gemm", ["a", "w2", "b2"], ["z"], name="down", transB=1, beta=2.0),
        helper.make_node(activation, ["z"], ["c"], name="bend_too", **extra),
        helper.make_node("Softmax", ["c"], ["y"], name="softmax"),
    ]
    path = tmp_path / "optimized.onnx"
    plain = onnxruntime_session(model(nodes, {"x": (FLOAT, ["rows", 32])}, ["y"], weights), path)
    session = oplet.onnx.InferenceSession(path, registry=registry)
    for rows in (1, 7):
        x = random(rng, rows, 32)
        agree(session.run(None, {"x": x})[0], plain.run(None, {"x": x})[0])
    assert places(session) == [("FusedGemm", "device", 1), ("FusedGemm", "device", 1), ("Softmax", "host", None)]


# A transformer block on packed tokens, and the same on the padded grid ---------------------------------

HIDDEN, HEADS, INNER = 32, 4, 64


def block(attention: Sequence[Any], dense: Callable[..., list[Any]]) -> list[Any]:
    """One post-norm block of BERT around an attention that turns q, k and v into `context`."""
    return [
        *(node for name in "qkv" for node in dense("x", f"w{name}", f"b{name}", name)),
        *attention,
        *dense("context", "wo", "bo", "projected"),
        helper.make_node("Add", ["x", "projected"], ["sum1"]),
        helper.make_node("LayerNormalization", ["sum1", "g1", "n1"], ["normed"], axis=-1, epsilon=1e-5),
        *dense("normed", "w1", "b1", "inner", "Relu"),
        *dense("inner", "w2", "b2", "outer"),
        helper.make_node("Add", ["normed", "outer"], ["sum2"]),
        helper.make_node("LayerNormalization", ["sum2", "g2", "n2"], ["y"], axis=-1, epsilon=1e-5),
    ]


def fused(x: str, w: str, b: str, y: str, activation: str = "") -> list[Any]:
    attributes = {"activation": activation} if activation else {}
    return [helper.make_node("FusedGemm", [x, w, b], [y], name=y, domain=CONTRIB, **attributes)]


def unfused(x: str, w: str, b: str, y: str, activation: str = "") -> list[Any]:
    last = f"{y}_before" if activation else y
    nodes = [helper.make_node("MatMul", [x, w], [f"{y}_product"]), helper.make_node("Add", [f"{y}_product", b], [last])]
    return [*nodes, helper.make_node(activation, [last], [y])] if activation else nodes


def block_weights(rng: np.random.Generator) -> Weights:
    weights = {}
    for name in ("wq", "wk", "wv", "wo"):
        weights[name] = random(rng, HIDDEN, HIDDEN, scale=HIDDEN**-0.5)
        weights[name.replace("w", "b")] = random(rng, HIDDEN, scale=0.1)
    weights |= {"w1": random(rng, HIDDEN, INNER, scale=HIDDEN**-0.5), "b1": random(rng, INNER, scale=0.1)}
    weights |= {"w2": random(rng, INNER, HIDDEN, scale=INNER**-0.5), "b2": random(rng, HIDDEN, scale=0.1)}
    for name in ("g1", "n1", "g2", "n2"):
        weights[name] = 1 + random(rng, HIDDEN, scale=0.1)
    return weights


def test_a_transformer_block_on_packed_tokens_against_the_padded_one(registry: oplet.Registry) -> None:
    rng = np.random.default_rng(10)
    weights = block_weights(rng)
    packed = helper.make_node(
        "PackedMultiHeadAttention",
        ["q", "k", "v", "", "token_offset", "cumulative", "distance"],
        ["context"],
        name="attention",
        domain=CONTRIB,
        num_heads=HEADS,
    )
    padded = helper.make_node(
        "MultiHeadAttention",
        ["q", "k", "v", "", "mask", "distance"],
        ["context"],
        domain=CONTRIB,
        num_heads=HEADS,
    )
    distance = (FLOAT, [1, HEADS, "sequence", "sequence"])
    session = oplet.onnx.InferenceSession(
        model(
            block([packed], fused),
            {
                "x": (FLOAT, ["tokens", HIDDEN]),
                "token_offset": (INT32, ["batch", "sequence"]),
                "cumulative": (INT32, ["batch_1"]),
                "distance": distance,
            },
            ["y"],
            weights,
        ),
        registry=registry,
    )
    oracle = onnxruntime_session(
        model(
            block([padded], unfused),
            {
                "x": (FLOAT, ["batch", "sequence", HIDDEN]),
                "mask": (INT32, ["batch", "sequence"]),
                "distance": distance,
            },
            ["y"],
            weights,
        )
    )
    for lengths in ([5, 3, 7], [1], [4, 0, 6]):
        longest = max(lengths)
        taken = np.arange(longest) < np.array(lengths)[:, None]
        grid = random(rng, len(lengths), longest, HIDDEN) * taken[..., None]
        offsets = np.concatenate([np.flatnonzero(taken), np.flatnonzero(~taken)]).astype(np.int32)
        bias = random(rng, 1, HEADS, longest, longest)
        (got,) = session.run(
            None,
            {
                "x": grid[taken],
                "token_offset": offsets.reshape(taken.shape),
                "cumulative": np.cumsum([0, *lengths]).astype(np.int32),
                "distance": bias,
            },
        )
        (want,) = oracle.run(None, {"x": grid, "mask": taken.astype(np.int32), "distance": bias})
        agree(got, want[taken])
    assert places(session) == [
        *[("FusedGemm", "device", 1)] * 3,
        ("PackedMultiHeadAttention", "device", 1),
        ("FusedGemm", "device", 1),
        ("Add", "host", None),
        ("LayerNormalization", "host", None),
        ("FusedGemm", "device", 2),
        ("FusedGemm", "device", 2),
        ("Add", "host", None),
        ("LayerNormalization", "host", None),
    ]
    with pytest.raises(oplet.InputError, match=r"^node 'attention' \(com\.microsoft\.PackedMultiHeadAttention\): "):
        session.run(
            None,
            {
                "x": grid[taken],
                "token_offset": offsets.reshape(taken.shape),
                "cumulative": np.array([0, 99, 4, 10], np.int32),
                "distance": bias,
            },
        )


def test_linear_attention_and_an_engram_gate(registry: oplet.Registry) -> None:
    rng = np.random.default_rng(11)
    tokens, heads, size, streams = 6, 2, 16, 2
    hidden = heads * size
    weights = {
        "heads": np.array([1, tokens, heads, size], np.int64),
        "rows": np.array([1, tokens, hidden], np.int64),
        "streams": np.array([1, tokens, streams, hidden], np.int64),
        "wk": random(rng, hidden, streams * hidden, scale=hidden**-0.5),
        "wq": random(rng, hidden, streams * hidden, scale=hidden**-0.5),
        "key_scale": 1 + random(rng, streams, hidden, scale=0.1),
        "query_scale": 1 + random(rng, streams, hidden, scale=0.1),
        "conv_scale": 1 + random(rng, streams, hidden, scale=0.1),
    }
    nodes = [
        *(helper.make_node("Reshape", [name, "heads"], [f"{name}_heads"]) for name in ("q", "k", "v")),
        helper.make_node(
            "GatedDeltaNet",
            ["q_heads", "k_heads", "v_heads", "", "decay", "beta", "state"],
            ["mixed", "state_after"],
            name="mix",
            domain=CONTRIB,
            update_rule="gated_delta",
            beta_activation="sigmoid",
            qk_l2_norm=1,
        ),
        helper.make_node("Reshape", ["mixed", "rows"], ["mixed_rows"]),
        helper.make_node("MatMul", ["mixed_rows", "wk"], ["keys"]),
        helper.make_node("MatMul", ["mixed_rows", "wq"], ["queries"]),
        helper.make_node("Reshape", ["keys", "streams"], ["key_streams"]),
        helper.make_node("Reshape", ["queries", "streams"], ["query_streams"]),
        helper.make_node(
            "EngramGate",
            ["key_streams", "query_streams", "mixed_rows", "key_scale", "query_scale", "conv_scale"],
            ["gated", "normed"],
            name="gate",
            domain=CONTRIB,
            epsilon=1e-6,
        ),
        helper.make_node("Add", ["gated", "normed"], ["y"]),
    ]
    inputs = {
        **{name: (FLOAT, [1, tokens, hidden]) for name in ("q", "k", "v")},
        "decay": (FLOAT, [1, tokens, heads]),
        "beta": (FLOAT, [1, tokens, heads]),
        "state": (FLOAT, [1, heads, size, size]),
    }
    source = model(nodes, inputs, ["y", "state_after", "normed"], weights)
    session = oplet.onnx.InferenceSession(source, registry=registry)
    oracle = onnxruntime_session(source)
    state = random(rng, 1, heads, size, size, scale=0.1)
    for _ in range(2):  # the state goes from one run to the next
        feeds = {
            **{name: random(rng, 1, tokens, hidden) for name in ("q", "k", "v")},
            "decay": -np.abs(random(rng, 1, tokens, heads)),
            "beta": random(rng, 1, tokens, heads),
            "state": state,
        }
        got, want = session.run(None, feeds), oracle.run(None, feeds)
        for one, other in zip(got, want, strict=True):
            agree(one, other)
        state = got[1]
    assert [one.node for one in session.report().placements if one.place == "device"] == ["mix", "gate"]


def test_convolution_recurrence_and_norm_are_one_batch(registry: oplet.Registry) -> None:
    rng = np.random.default_rng(12)
    lengths, heads, value_heads, size, taps = [7, 2, 20], 2, 4, 16, 4
    tokens, requests = sum(lengths), len(lengths)
    channels = (2 * heads + value_heads) * size
    weights = {
        "taps": random(rng, channels, 1, taps, scale=0.5),
        "scale": 1 + random(rng, size, scale=0.1),
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
    }
    nodes = [
        helper.make_node(
            "VarlenCausalConvWithState",
            ["qkv", "taps", "offsets", "", "past"],
            ["mixed", "past_after"],
            name="convolve",
            domain=CONTRIB,
            activation="silu",
        ),
        helper.make_node(
            "GatedDeltaNet",
            ["mixed", "", "", "offsets", "decay", "beta", "state"],
            ["read", "state_after"],
            name="recur",
            domain=CONTRIB,
            beta_activation="sigmoid",
            qk_l2_norm=1,
        ),
        helper.make_node("GatedRMSNorm", ["read", "scale", "gate"], ["y"], name="norm", domain=CONTRIB, epsilon=1e-6),
    ]
    inputs = {
        "qkv": (FLOAT, [tokens, channels]),
        "past": (FLOAT, [requests, channels, taps - 1]),
        "decay": (FLOAT, [tokens, value_heads]),
        "beta": (FLOAT, [tokens, value_heads]),
        "state": (FLOAT, [requests, value_heads, size, size]),
        "gate": (FLOAT, [tokens, value_heads, size]),
    }
    source = model(nodes, inputs, ["y", "past_after", "state_after"], weights)
    session = oplet.onnx.InferenceSession(source, registry=registry)
    oracle = onnxruntime_session(source)
    feeds = {name: random(rng, *shape) for name, (_, shape) in inputs.items()}
    feeds["decay"] = -np.abs(feeds["decay"])
    got, want = session.run(None, feeds), oracle.run(None, feeds)
    agree(got[0], want[0])
    np.testing.assert_array_equal(got[1], want[1])
    agree(got[2], want[2])
    assert [one.node for one in session.report().placements if one.place == "device"] == ["convolve", "recur", "norm"]
    assert len({one.batch for one in session.report().placements}) == 1


def test_the_default_registry(tmp_path: Path) -> None:
    nodes = fused("x", "w", "b", "y", "Relu")
    weights = {"w": np.ones((4, 2), np.float32), "b": np.zeros(2, np.float32)}
    session = oplet.onnx.InferenceSession(model(nodes, {"x": (FLOAT, [1, 4])}, ["y"], weights))
    np.testing.assert_array_equal(session.run(None, {"x": np.ones((1, 4), np.float32)})[0], [[4, 4]])
