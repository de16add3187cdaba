"""ONNX models on made-up ops: how nodes are placed, mapped and run, and what is refused in which words."""

from __future__ import annotations

import subprocess
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import acme_scale
import attrs
import numpy as np
import onnx
import oplet
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from oplet import InputError, UnknownOpError
from oplet.onnx import InferenceSession

FLOAT, HALF, DOUBLE, INT64, BOOL = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.DOUBLE,
    TensorProto.INT64,
    TensorProto.BOOL,
)
X = np.arange(6, dtype=np.float32).reshape(2, 3)
NEG = helper.make_node("Neg", ["x"], ["y"])
INPUT = helper.make_tensor_value_info("x", FLOAT, ["rows", 3])


def scale(inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attributes: Any) -> Any:
    return helper.make_node("Scale", inputs, outputs, name=name, domain="com.acme", **attributes)


def model(
    nodes: Sequence[Any],
    *,
    inputs: Sequence[Any] = (INPUT,),
    outputs: Sequence[str] = ("y",),
    initializers: Mapping[str, np.ndarray] | None = None,
    functions: Sequence[Any] = (),
    acme: int = 1,
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (initializers or {}).items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.acme", acme)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions)
    return bytes(made.SerializeToString())


@pytest.fixture
def submits(registry: oplet.Registry, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each submit of programs."""
    made: list[int] = []
    device = registry.device
    flush, submit = device._flush, device._submit
    monkeypatch.setattr(device, "_flush", lambda batch: (made.append(1), flush(batch))[1])
    monkeypatch.setattr(device, "_submit", lambda *arguments: (made.append(1), submit(*arguments))[1])
    return made


# Placing and running ----------------------------------------------------------------------------------


def test_consecutive_nodes_are_one_submit_and_others_run_on_the_host(
    registry: oplet.Registry, submits: list[int]
) -> None:
    nodes = [
        scale(["x"], ["a"], "first"),
        scale(["a"], ["b"], factor=4.0),
        helper.make_node("Add", ["b", "x"], ["c"], name="add"),
        scale(["c"], ["y"], "last"),
    ]
    session = InferenceSession(model(nodes), registry=registry)
    before = session.report()
    assert [(one.node, one.op, one.place, one.batch, one.variant) for one in before.placements] == [
        ("first", "com.acme.Scale", "device", 1, ""),
        ("#1", "com.acme.Scale", "device", 1, ""),
        ("add", "ai.onnx.Add", "host", None, ""),
        ("last", "com.acme.Scale", "device", 2, ""),
    ]
    assert submits == []
    (y,) = session.run(None, {"x": X})
    np.testing.assert_array_equal(y, 2 * (8 * X + X))
    assert len(submits) == 2
    assert [one.variant for one in session.report().placements] == ["scalar", "scalar", "", "scalar"]
    assert str(session.report()).splitlines()[0] == "3 of 4 nodes on the device, in batches: 2"
    assert "<td" in session.report()._repr_html_()


def test_optional_inputs_and_outputs_are_matched_by_their_place(registry: oplet.Registry) -> None:
    nodes = [
        scale(["x", "b"], ["", "negated"], "one"),
        scale(["x", ""], ["plain", ""], "two"),
        scale(["x", "b"], ["both", "negated_too"], "three", mode="absolute"),
    ]
    names = ("negated", "plain", "both", "negated_too")
    session = InferenceSession(
        model(nodes, outputs=names, initializers={"b": np.full((2, 3), -20, np.float32)}), registry=registry
    )
    negated, plain, both, negated_too = session.run(None, {"x": X})
    np.testing.assert_array_equal(negated, 20 - 2 * X)
    np.testing.assert_array_equal(plain, 2 * X)
    np.testing.assert_array_equal(both, 20 - 2 * X)
    np.testing.assert_array_equal(negated_too, 2 * X - 20)
    (only,) = session.run(["both"], {"x": X})
    np.testing.assert_array_equal(only, both)


def test_initializers_are_uploaded_once_and_values_of_a_run_are_let_go_of(
    registry: oplet.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        scale(["x", "b"], ["a"]),
        scale(["a", "b"], ["c"]),
        helper.make_node("Neg", ["c"], ["d"]),
        scale(["d", "b"], ["y"]),
    ]
    b = np.ones((2, 3), np.float32)
    session = InferenceSession(model(nodes, initializers={"b": b}), registry=registry)
    uploaded: list[np.ndarray] = []
    upload = registry.tensor
    monkeypatch.setattr(registry, "tensor", lambda array: (uploaded.append(array), upload(array))[1])
    pool = registry.device.pool
    counts = []
    for number in range(5):
        (y,) = session.run(None, {"x": X + number})
        np.testing.assert_array_equal(y, 2 * -(2 * (2 * (X + number) + 1) + 1) + 1)
        pool.settle()
        counts.append((pool.live_count, pool.live_bytes, pool.idle_bytes))
    assert counts == counts[:1] * 5
    assert sum(np.array_equal(array, b) for array in uploaded) == 1
    assert len(uploaded) == 1 + 2 * 5  # beside it, x and d of each run


def test_a_feed_replaces_an_initializer_of_its_name(registry: oplet.Registry) -> None:
    default = helper.make_tensor_value_info("b", FLOAT, [2, 3])
    ones = np.ones((2, 3), np.float32)
    session = InferenceSession(
        model([scale(["x", "b"], ["y"])], inputs=[INPUT, default], initializers={"b": ones}), registry=registry
    )
    assert [one.name for one in session.get_inputs()] == ["x"]
    for feeds, bias in (({}, 1), ({"b": 5 * ones}, 5), ({}, 1), ({"b": registry.tensor(3 * ones)}, 3)):
        np.testing.assert_array_equal(session.run(None, {"x": X, **feeds})[0], 2 * X + bias)


def test_a_tensor_may_be_fed_and_is_not_read(registry: oplet.Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    session = InferenceSession(model([scale(["x"], ["a"]), scale(["a"], ["y"])]), registry=registry)
    reads: list[int] = []
    read = registry.device.read
    monkeypatch.setattr(registry.device, "read", lambda *arguments: (reads.append(1), read(*arguments))[1])
    (y,) = session.run(None, {"x": registry.tensor(X)})
    np.testing.assert_array_equal(y, 4 * X)
    assert reads == [1]


def test_a_constant_between_nodes_does_not_part_them(registry: oplet.Registry) -> None:
    ones = np.ones((2, 3), np.float32)
    nodes = [
        scale(["x"], ["a"]),
        helper.make_node("Constant", [], ["b"], value=numpy_helper.from_array(ones)),
        scale(["a", "b"], ["y"]),
    ]
    session = InferenceSession(model(nodes, outputs=["y", "b"]), registry=registry)
    y, b = session.run(None, {"x": X})
    np.testing.assert_array_equal(y, 4 * X + 1)
    assert [one.batch for one in session.report().placements] == [1, 1]
    b[:] = 9  # the caller's own
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], y)


def test_outputs_are_not_the_memory_of_feeds_and_initializers(registry: oplet.Registry) -> None:
    reshape = helper.make_node("Reshape", ["b", "flat"], ["view"])
    weights = {"b": np.ones((1, 2), np.float32), "flat": np.array([-1])}
    session = InferenceSession(
        model([scale(["x"], ["y"]), reshape], outputs=["y", "x", "b", "view"], initializers=weights),
        registry=registry,
    )
    x = X.copy()
    for array in session.run(None, {"x": x}):
        array[:] = -1
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(session.run(["y"], {"x": x})[0], 2 * X)
    np.testing.assert_array_equal(session.run(["b"], {"x": x})[0], [[1, 1]])


def test_float16_runs_where_the_device_has_it(registry: oplet.Registry) -> None:
    x16 = helper.make_tensor_value_info("x", HALF, [2, 3])
    session = InferenceSession(model([scale(["x"], ["y"], "half")], inputs=[x16]), registry=registry)
    if "shader-f16" in registry.device.capabilities.features:
        (y,) = session.run(None, {"x": X.astype(np.float16)})
        assert y.dtype == np.float16
        np.testing.assert_array_equal(y, 2 * X)
    else:
        with pytest.raises(oplet.NoVariantError, match=r"node 'half' .*no variant can serve"):
            session.run(None, {"x": X.astype(np.float16)})


def test_a_subgraph_on_the_host_sees_the_values_around_it(registry: oplet.Registry) -> None:
    def branch(op: str) -> Any:
        value = helper.make_tensor_value_info("z", FLOAT, None)
        return helper.make_graph([helper.make_node(op, ["a", "x"], ["z"])], op, [], [value])

    nodes = [
        scale(["x"], ["a"]),
        helper.make_node("If", ["flag"], ["y"], then_branch=branch("Add"), else_branch=branch("Sub")),
    ]
    flag = helper.make_tensor_value_info("flag", BOOL, [])
    session = InferenceSession(model(nodes, inputs=[INPUT, flag]), registry=registry)
    np.testing.assert_array_equal(session.run(None, {"x": X, "flag": np.array(True)})[0], 3 * X)
    np.testing.assert_array_equal(session.run(None, {"x": X, "flag": np.array(False)})[0], X)


def test_loops_and_sequences_pass_through_the_host(registry: oplet.Registry) -> None:
    carried = helper.make_tensor_value_info("total", FLOAT, [2, 3])
    body = helper.make_graph(
        [helper.make_node("Add", ["total", "a"], ["more"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [
            helper.make_tensor_value_info("number", INT64, []),
            helper.make_tensor_value_info("go", BOOL, []),
            carried,
        ],
        [helper.make_tensor_value_info("on", BOOL, []), helper.make_tensor_value_info("more", FLOAT, [2, 3])],
    )
    nodes = [
        scale(["x"], ["a"]),
        helper.make_node("Loop", ["times", "yes", "x"], ["sum"], body=body),
        scale(["sum"], ["b"]),
        helper.make_node("SequenceConstruct", ["b", "x"], ["both"]),
        helper.make_node("ConcatFromSequence", ["both"], ["joined"], axis=0),
        scale(["joined"], ["y"]),
    ]
    session = InferenceSession(
        model(nodes, initializers={"times": np.array(3), "yes": np.array(True)}), registry=registry
    )
    (y,) = session.run(None, {"x": X})
    np.testing.assert_array_equal(y, 2 * np.concatenate([2 * (X + 3 * 2 * X), X]))


def test_functions_of_a_model_are_inlined_but_for_a_plugins_own_op(registry: oplet.Registry) -> None:
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.acme", 1)]
    twice = helper.make_function("com.acme", "Twice", ["p"], ["q"], [scale(["p"], ["m"]), scale(["m"], ["q"])], opsets)
    fallback = helper.make_function("com.acme", "Scale", ["p"], ["q"], [helper.make_node("Neg", ["p"], ["q"])], opsets)
    nodes = [helper.make_node("Twice", ["x"], ["y"], domain="com.acme")]
    session = InferenceSession(model(nodes, functions=[twice, fallback]), registry=registry)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], 4 * X)
    assert [one.op for one in session.report().placements] == ["com.acme.Scale"] * 2


def test_threads_may_share_a_session(registry: oplet.Registry) -> None:
    nodes = [scale(["x", "b"], ["a"]), helper.make_node("Neg", ["a"], ["c"]), scale(["c", "b"], ["y"])]
    session = InferenceSession(model(nodes, initializers={"b": np.ones((2, 3), np.float32)}), registry=registry)

    def work(thread: int) -> None:
        for number in range(25):
            x = X + 100 * thread + number
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], 2 * -(2 * x + 1) + 1)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [None] * 4


def test_a_model_is_read_from_a_file(registry: oplet.Registry, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model([scale(["x"], ["y"])]))
    for source in (path, str(path)):
        session = InferenceSession(source, registry=registry)
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], 2 * X)
    (x,), (y,) = session.get_inputs(), session.get_outputs()
    assert (x.name, x.type, x.shape, y.name, y.shape) == ("x", "tensor(float)", ["rows", 3], "y", None)


def test_the_shape_of_a_feed_is_a_list_of_the_callers_own(registry: oplet.Registry) -> None:
    session = InferenceSession(model([scale(["x"], ["y"])]), registry=registry)
    for one in (session.get_inputs, session.get_outputs):
        assert {one()[0]} == {one()[0]}
    session.get_inputs()[0].shape[1] = 4
    assert session.get_inputs()[0].shape == ["rows", 3]
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], 2 * X)


def test_no_names_of_outputs_mean_all_of_them(registry: oplet.Registry) -> None:
    session = InferenceSession(model([scale(["x"], ["y"])]), registry=registry)
    for names in (None, [], ()):
        (y,) = session.run(names, {"x": X})
        np.testing.assert_array_equal(y, 2 * X)


def test_a_model_as_onnx_has_it_is_copied(registry: oplet.Registry) -> None:
    made = ModelProto.FromString(model([scale(["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]))
    session = InferenceSession(made, registry=registry)
    made.graph.node[1].op_type = "Abs"
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], -2 * X)


class TestExplain:
    """Why a node's variant runs: for shapes that the model tells, and those of the last run."""

    FIXED = helper.make_tensor_value_info("x", FLOAT, [2, 3])

    def test_before_a_run_where_the_model_tells_the_shapes(self, registry: oplet.Registry, submits: list[int]) -> None:
        nodes = [scale(["x", "b"], ["a"], "first"), scale(["a"], ["y"], factor=4.0)]
        bias = {"b": np.ones((2, 3), np.float32)}
        session = InferenceSession(model(nodes, inputs=[self.FIXED], initializers=bias), registry=registry)
        first, second = session.explain("first"), session.explain("#1")
        assert {port: str(spec) for port, spec in first.inputs.items()} == {
            "X": "float32 (2, 3)",
            "biasT": "float32 (2, 3)",
        }
        assert (second.variant, str(second.inputs["X"])) == ("scalar", "float32 (2, 3)")
        assert submits == []

    def test_after_a_run_for_its_shapes(self, registry: oplet.Registry) -> None:
        nodes = [helper.make_node("Neg", ["x"], ["a"], name="host"), scale(["a"], ["y"], "late")]
        session = InferenceSession(model(nodes), registry=registry)
        with pytest.raises(InputError, match=r"^node 'late' .*: the shape of 'a' is not known before a run\nrun the"):
            session.explain("late")
        session.run(None, {"x": X})
        assert str(session.explain("late").inputs["X"]) == "float32 (2, 3)"

    def test_of_what_is_not_on_the_device(self, registry: oplet.Registry) -> None:
        nodes = [helper.make_node("Neg", ["x"], ["a"], name="host"), scale(["a"], ["y"], "late")]
        session = InferenceSession(model(nodes, inputs=[self.FIXED]), registry=registry)
        assert session.explain("late").variant == "scalar", "onnx infers the shape"
        for name, fault in (("host", "runs on the host"), ("absent", "is not in the model")):
            with pytest.raises(InputError, match=f"^node: '{name}' {fault}\non the device: late\n"):
                session.explain(name)


# What is refused --------------------------------------------------------------------------------------


def test_an_op_that_nobody_has_names_its_node(registry: oplet.Registry) -> None:
    node = helper.make_node("Shear", ["x"], ["y"], name="odd", domain="com.acme")
    with pytest.raises(UnknownOpError, match=r"^node 'odd' \(com\.acme\.Shear\): no plugin offers(.|\n)*look for"):
        InferenceSession(model([node]), registry=registry)
    node = helper.make_node("NoSuchOp", ["x"], ["y"], name="odder")
    with pytest.raises(UnknownOpError, match=r"^node 'odder' \(ai\.onnx\.NoSuchOp\)(.|\n)*update the package onnx"):
        InferenceSession(model([node]), registry=registry)


def test_a_dtype_that_the_op_does_not_take_names_its_node(registry: oplet.Registry) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=DOUBLE),
        scale(["wide"], ["y"], "wide one"),
    ]
    with pytest.raises(InputError, match=r"^node 'wide one' \(com\.acme\.Scale\): data: the value 'wide' is float64"):
        InferenceSession(model(nodes), registry=registry)
    session = InferenceSession(
        model([scale(["x", "b"], ["y"], "mixed")], initializers={"b": np.ones((2, 3), np.int32)}), registry=registry
    )
    with pytest.raises(InputError, match=r"^node 'mixed' \(com\.acme\.Scale\): bias: is int32, and data is float32"):
        session.run(None, {"x": X})


def test_what_an_op_refuses_at_run_names_its_node(registry: oplet.Registry) -> None:
    session = InferenceSession(
        model([scale(["x", "b"], ["y"], "biased")], initializers={"b": np.ones((1, 3), np.float32)}), registry=registry
    )
    with pytest.raises(InputError, match=r"^node 'biased' \(com\.acme\.Scale\): bias: \(1, 3\) is not data's") as e:
        session.run(None, {"x": X})
    assert e.value.argument == "bias", "ONNX's name, which the model's author knows"


@pytest.mark.parametrize(
    ("node", "fault"),
    [
        (scale(["x"], ["y"], "odd", factor="two"), "factor: 'two' is of type str"),
        (scale(["x"], ["y"], "odd", factr=2.0), "factr: no such attribute"),
        (scale(["", "x"], ["y"], "odd"), "data: is required and was not given\npass data="),
    ],
)
def test_what_a_node_lacks_or_has_wrong_is_told_when_the_model_is_loaded(
    registry: oplet.Registry, node: Any, fault: str
) -> None:
    with pytest.raises(InputError, match=rf"^node 'odd' \(com\.acme\.Scale\): {fault}"):
        InferenceSession(model([node]), registry=registry)


def test_a_list_for_an_attribute_names_its_node(registry: oplet.Registry) -> None:
    with pytest.raises(InputError, match=r"^node 'listed' .*: factor: the attribute is neither a float"):
        InferenceSession(model([scale(["x"], ["y"], "listed", factor=[1.0, 2.0])]), registry=registry)


def test_surplus_inputs_name_their_node(registry: oplet.Registry) -> None:
    with pytest.raises(InputError, match=r"^node 'many' .*: it has more inputs than its op: 'x'"):
        InferenceSession(model([scale(["x", "x", "x"], ["y"], "many")]), registry=registry)


def test_an_older_domain_than_the_ops_names_its_node(device: oplet.Device) -> None:
    registry = oplet.Registry(device=device, discover=False)
    manifest = oplet.Manifest.read("acme_scale")
    newer = oplet.Manifest(
        **{field: getattr(manifest, field) for field in manifest.__slots__ if not field.startswith("__")}
        | {"since_version": 2}
    )
    registry.register(acme_scale.ID, acme_scale.changed(manifest=lambda: newer))
    with pytest.raises(InputError, match=r"^node 'old' .*: the model imports version 1 of the domain 'com.acme'"):
        InferenceSession(model([scale(["x"], ["y"], "old")]), registry=registry)
    session = InferenceSession(model([scale(["x"], ["y"])], acme=3), registry=registry)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], 2 * X)


def test_a_plugins_node_in_a_subgraph_is_refused(registry: oplet.Registry) -> None:
    value = helper.make_tensor_value_info("z", FLOAT, None)
    branch = helper.make_graph([scale(["x"], ["z"], "inner")], "branch", [], [value])
    node = helper.make_node("If", ["flag"], ["y"], name="outer", then_branch=branch, else_branch=branch)
    flag = helper.make_tensor_value_info("flag", BOOL, [])
    with pytest.raises(InputError, match=r"^node 'outer' \(ai\.onnx\.If\): node 'inner' \(com\.acme\.Scale\)"):
        InferenceSession(model([node], inputs=[INPUT, flag]), registry=registry)


def test_values_that_numpy_cannot_do_name_the_node(registry: oplet.Registry) -> None:
    session = InferenceSession(model([helper.make_node("MatMul", ["x", "x"], ["y"], name="square")]), registry=registry)
    with pytest.raises(InputError, match=r"^node 'square' \(ai\.onnx\.MatMul\): onnx's .* failed: .*\n  x float32"):
        session.run(None, {"x": X})


def test_a_plugin_may_look_at_values_of_every_run(device: oplet.Device) -> None:
    def check(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> None:
        if "biasT" in arrays and (arrays["biasT"] < 0).any():
            raise InputError("biasT: it has a negative value\npass none", argument="biasT")

    registry = oplet.Registry(device=device, discover=False)
    registry.register(acme_scale.ID, acme_scale.changed(check=check))
    b = helper.make_tensor_value_info("b", FLOAT, None)
    session = InferenceSession(model([scale(["x", "b"], ["y"], "watched")], inputs=[INPUT, b]), registry=registry)
    ones = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": X, "b": ones})[0], 2 * X + 1)
    with pytest.raises(InputError, match=r"^node 'watched' .*bias: it has a negative value"):
        session.run(None, {"x": X, "b": -ones})


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "x: is an input of the model and was not fed"),
        ({"x": X, "w": X}, "w: is not an input of the model\ninputs: x"),
        ({"x": X.astype(np.float64)}, r"x: float64 was fed, and the model takes tensor\(float\)"),
        ({"x": X.T}, r"x: shape \(3, 2\) was fed, and the model takes \(rows, 3\)"),
        ({"x": X[0]}, r"x: shape \(3,\) was fed"),
        ({"x": X.tolist()}, "x: list is not an array"),
    ],
)
def test_feeds_are_held_against_the_model(feeds: Mapping[str, Any], message: str, registry: oplet.Registry) -> None:
    session = InferenceSession(model([scale(["x"], ["y"])]), registry=registry)
    with pytest.raises(InputError, match=f"^input_feed: {message}"):
        session.run(None, feeds)


def test_feeds_are_a_mapping(registry: oplet.Registry) -> None:
    session = InferenceSession(model([scale(["x"], ["y"])]), registry=registry)
    with pytest.raises(
        InputError, match=r"^input_feed: list is not a mapping of arrays by input name\npass \{'x': …\}"
    ):
        session.run(None, [X])  # type: ignore[arg-type]


def test_an_output_that_the_model_has_not(registry: oplet.Registry) -> None:
    session = InferenceSession(model([scale(["x"], ["y"])]), registry=registry)
    with pytest.raises(InputError, match=r"^output_names: the model has no output 'z'\noutputs: y"):
        session.run(["z"], {"x": X})
    with pytest.raises(InputError, match=r"^output_names: 'y' is not a list of names\npass \['y'\]"):
        session.run("y", {"x": X})


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (b"", "the bytes: not an ONNX model\nit has no graph"),
        (b"no protobuf", "the bytes: not an ONNX model\nDecodeError: "),
        (Path("missing.onnx"), "missing.onnx: it cannot be read\nNo such file or directory"),
        (ModelProto(), "the ModelProto: not an ONNX model\nit has no graph"),
        ([bytes(1000)], "the list: it is neither a path, bytes nor a ModelProto\n"),
    ],
    ids=range(5),
)
def test_what_is_no_model(source: Any, fault: str, registry: oplet.Registry) -> None:
    with pytest.raises(InputError) as caught:
        InferenceSession(source, registry=registry)
    assert str(caught.value).startswith(f"model: {fault}")
    assert len(str(caught.value)) < 300


def test_data_in_another_file_that_is_missing_or_too_short(registry: oplet.Registry, tmp_path: Path) -> None:
    path, data = tmp_path / "model.onnx", tmp_path / "weights.bin"
    made = ModelProto.FromString(model([scale(["x", "b"], ["y"])], initializers={"b": np.ones((2, 3), np.float32)}))
    onnx.save(made, path, save_as_external_data=True, location=data.name, size_threshold=0)
    (y,) = InferenceSession(path, registry=registry).run(None, {"x": X})
    np.testing.assert_array_equal(y, 2 * X + 1)
    data.write_bytes(b"short")
    for _ in range(2):
        with pytest.raises(
            InputError, match=r"^model: .*model\.onnx: the data that it has in other files cannot be read"
        ):
            InferenceSession(path, registry=registry)
        data.unlink(missing_ok=True)
    with pytest.raises(InputError, match=r"^model: b: its data is in a file of its own"):
        InferenceSession(onnx.load(path, load_external_data=False), registry=registry)


@pytest.mark.parametrize(
    ("node", "domain"), [(scale(["x"], ["y"]), "com.acme"), (NEG, "ai.onnx")], ids=["acme", "onnx"]
)
def test_a_domain_that_the_model_does_not_import(registry: oplet.Registry, node: Any, domain: str) -> None:
    made = ModelProto.FromString(model([node]))
    kept = [one for one in made.opset_import if one.domain != node.domain]
    del made.opset_import[:]
    made.opset_import.extend(kept)
    with pytest.raises(
        InputError, match=rf"^node '#0' \(.*\): the model does not import the domain {domain}\nit imports"
    ):
        InferenceSession(made, registry=registry)


class TestBothSpellingsOfOnnxsDomain:
    """The empty one and "ai.onnx" are the same, in a model's imports and in its nodes."""

    @pytest.fixture(params=[("", "ai.onnx"), ("ai.onnx", ""), ("ai.onnx", "ai.onnx")], ids=lambda both: "-".join(both))
    def spelled(self, request: pytest.FixtureRequest) -> Callable[[bytes], bytes]:
        """Spells the domain as a pair says in imports and in nodes, the main graph's and all others."""
        imported, used = request.param

        def respell(model: bytes) -> bytes:
            made = ModelProto.FromString(model)
            for one in (*made.opset_import, *(one for function in made.functions for one in function.opset_import)):
                one.domain = one.domain or imported
            nodes = [*made.graph.node, *(node for function in made.functions for node in function.node)]
            for node in nodes:
                node.domain = node.domain or used
                nodes += [inner for attribute in node.attribute for inner in attribute.g.node]
            return bytes(made.SerializeToString())

        return respell

    def test_a_node(self, registry: oplet.Registry, spelled: Callable[[bytes], bytes]) -> None:
        relu = helper.make_node("Relu", ["x"], ["a"])
        session = InferenceSession(spelled(model([relu, scale(["a"], ["y"])])), registry=registry)
        np.testing.assert_array_equal(session.run(None, {"x": X - 2})[0], 2 * np.maximum(X - 2, 0))
        assert [one.op for one in session.report().placements] == ["ai.onnx.Relu", "com.acme.Scale"]

    def test_a_node_in_a_subgraph_and_in_a_function(
        self, registry: oplet.Registry, spelled: Callable[[bytes], bytes]
    ) -> None:
        value = helper.make_tensor_value_info("z", FLOAT, None)
        branch = helper.make_graph([helper.make_node("Neg", ["x"], ["z"])], "branch", [], [value])
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.acme", 1)]
        inside = [helper.make_node("Abs", ["p"], ["m"]), scale(["m"], ["q"])]
        function = helper.make_function("com.acme", "Distance", ["p"], ["q"], inside, opsets)
        nodes = [
            helper.make_node("If", ["flag"], ["a"], then_branch=branch, else_branch=branch),
            helper.make_node("Distance", ["a"], ["y"], domain="com.acme"),
        ]
        flag = helper.make_tensor_value_info("flag", BOOL, [])
        session = InferenceSession(spelled(model(nodes, inputs=[INPUT, flag], functions=[function])), registry=registry)
        (y,) = session.run(None, {"x": X, "flag": np.array(True)})
        np.testing.assert_array_equal(y, 2 * X)

    @pytest.mark.parametrize("since", [20, 21])
    def test_a_plugins_op(self, device: oplet.Device, spelled: Callable[[bytes], bytes], since: int) -> None:
        registry = oplet.Registry(device=device, discover=False)
        manifest = attrs.evolve(oplet.Manifest.read("acme_scale"), id="ai.onnx.Scale", since_version=since)
        registry.register("ai.onnx.Scale", acme_scale.changed(manifest=lambda: manifest))
        source = spelled(model([helper.make_node("Scale", ["x"], ["y"])]))
        if since > 20:
            with pytest.raises(InputError, match=r": the model imports version 20 of the domain 'ai\.onnx'\n"):
                InferenceSession(source, registry=registry)
            return
        session = InferenceSession(source, registry=registry)
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], 2 * X)
        assert [one.place for one in session.report().placements] == ["device"]


def test_onnxruntimes_providers_are_refused(registry: oplet.Registry) -> None:
    with pytest.raises(InputError, match=r"^providers: there are none to choose from: (.|\n)*registry= chooses"):
        InferenceSession(
            model([NEG]),
            registry=registry,
            providers=["CPUExecutionProvider"],  # type: ignore[arg-type]
        )


def tampered(change: Callable[[Any], object]) -> bytes:
    """A model with the initializer `bias` in which something is wrong."""
    nodes = [scale(["x"], ["a"]), helper.make_node("Add", ["a", "bias"], ["y"], name="add")]
    made = ModelProto.FromString(model(nodes, initializers={"bias": X}))
    change(made.graph)
    return bytes(made.SerializeToString())


def vast(graph: Any) -> None:
    graph.initializer[0].dims[:] = [1 << 40, 1 << 20]


def vast_and_packed(graph: Any) -> None:
    graph.initializer[0].CopyFrom(TensorProto(name="bias", data_type=TensorProto.INT4, dims=[1 << 40]))


def vast_constant(graph: Any) -> None:
    value = TensorProto(name="c", data_type=TensorProto.INT4, dims=[1 << 40])
    graph.node.insert(0, helper.make_node("Constant", [], ["c"], value=value))


def elsewhere(graph: Any) -> None:
    graph.initializer[0].data_location = TensorProto.EXTERNAL
    graph.initializer[0].external_data.add(key="location", value="secret.bin")


def cut_off(graph: Any) -> None:
    graph.initializer[0].raw_data = graph.initializer[0].raw_data[:7]


def of_no_type(graph: Any) -> None:
    graph.initializer[0].data_type = 99


def input_of_no_type(graph: Any) -> None:
    graph.input[0].type.tensor_type.elem_type = 99


def constants_of_one(graph: Any) -> None:
    value = numpy_helper.from_array(X)
    graph.node.insert(0, helper.make_node("Constant", [], ["c", "d"], name="two", value=value))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (vast, r"bias: shape \(1099511627776, 1048576\) is more than its \d+ bytes can hold"),
        (vast_and_packed, r"bias: shape \(1099511627776,\) is more than its \d+ bytes can hold"),
        (vast_constant, r"c: shape \(1099511627776,\) is more than its \d+ bytes can hold"),
        (elsewhere, "bias: its data is in a file of its own"),
        (cut_off, "bias: ValueError: buffer size must be a multiple"),
        (of_no_type, "bias: KeyError: 99"),
        (input_of_no_type, "x: ValueError: "),
        (constants_of_one, r"node 'two' \(ai\.onnx\.Constant\): "),
    ],
)
def test_a_model_that_lies(
    change: Callable[[Any], object],
    message: str,
    registry: oplet.Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "secret.bin").write_bytes(X.tobytes())
    monkeypatch.chdir(tmp_path)  # where a name in a model of bytes must not lead
    tracemalloc.start()
    with pytest.raises(InputError, match=f"^(model: )?{message}"):
        InferenceSession(tampered(change), registry=registry)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_without_onnx_the_extra_is_named(child: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    result = child(
        "import sys; sys.modules['onnx'] = None; import oplet; assert 'asyncio' not in sys.modules\nimport oplet.onnx"
    )
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "pip install 'oplet[onnx]'"


def test_values_that_nothing_makes(registry: oplet.Registry) -> None:
    with pytest.raises(InputError, match=r"^node 'first' .*: nothing before it makes the value 'b'"):
        InferenceSession(model([scale(["b"], ["y"], "first"), scale(["x"], ["b"])]), registry=registry)
    with pytest.raises(InputError, match=r"^model: nothing makes its output 'z'"):
        InferenceSession(model([scale(["x"], ["y"])], outputs=["y", "z"]), registry=registry)
