"""From arguments to a plan: what is refused, in which words, and whose fault it is. No device is opened."""

import json
import math
from collections.abc import Callable
from decimal import Decimal
from importlib.metadata import version
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import acme_scale
import attrs
import numpy as np
import oplet
import pytest
from oplet import Binding, InputError, Launch, Manifest, OutOfMemoryError, PluginContractError, TensorSpec, Variant
from oplet.capabilities import FLOOR, Adapter, Capabilities
from oplet.op import Op

CAPS = Capabilities(frozenset(), FLOOR, 0, (), "naga", Adapter("paper device", "", "Vulkan", True))

MIX = {
    "schema": 1,
    "id": "com.acme.Mix",
    "since_version": 1,
    "summary": "every kind of port and attribute",
    "inputs": [
        {"name": "queryT", "upstream": "query", "type": "T", "shape": "(rows, columns)", "rank": 2},
        {"name": "keyT", "upstream": "key", "type": "T", "shape": "(rows, columns)", "rank": 2, "optional": True},
        {"name": "lengths", "type": "int32", "shape": "(rows,)", "rank": 1, "optional": True},
        {"name": "mask", "type": "M", "shape": "any", "optional": True},
    ],
    "outputs": [
        {"name": "outT", "upstream": "output", "type": "T", "shape": "(rows, columns)", "rank": 2},
        {"name": "state", "type": "float32", "shape": "()", "rank": 0},
        {"name": "extraT", "upstream": "extra", "type": "T", "shape": "any", "optional": True},
    ],
    "attributes": [
        {"name": "scale", "type": "float", "default": 1},
        {"name": "heads", "type": "int", "required": True},
        {"name": "window", "type": "int"},
        {"name": "activation", "type": "string", "default": "", "choices": ["", "Relu", "Gelu"]},
        {"name": "bits", "type": "int", "default": 4, "choices": [4, 8]},
    ],
    "types": {"T": ["float32", "float16"], "M": ["uint32", "int32"]},
}

QUERY = TensorSpec((2, 3), "float32")


@pytest.fixture(scope="module")
def mix() -> Op:
    plugin = acme_scale.changed("acme_mix", manifest=lambda: Manifest.parse(json.dumps(MIX), "acme_mix"))
    return Op.of_module("com.acme.Mix", plugin)


def bind(op: Op, attributes: Any = MappingProxyType({"heads": 1}), outputs: Any = None, **inputs: Any) -> oplet.Request:
    return op.bind({"queryT": QUERY, **inputs}, attributes, outputs)


def refused(message: str, argument: str) -> Any:
    return pytest.raises(InputError, match=message, check=lambda error: _refusal(error, argument))


def _refusal(error: InputError, argument: str) -> bool:
    assert (error.argument, error.op) == (argument, "com.acme.Mix")
    assert len(str(error).splitlines()) >= 2, "what to do"
    return str(error).startswith("com.acme.Mix: ")


# Inputs -----------------------------------------------------------------------------------------------


def test_an_input_answers_to_both_of_its_names(mix: Op) -> None:
    by_manifest = bind(mix, keyT=QUERY)
    by_onnx = mix.bind({"key": QUERY, "query": QUERY}, {"heads": 1})
    assert by_manifest == by_onnx
    assert list(by_onnx.inputs) == ["queryT", "keyT"], "in the manifest's order, by manifest name"


def test_both_names_at_once_are_refused(mix: Op) -> None:
    with refused("query and queryT are two names of one input", "query"):
        bind(mix, query=QUERY)


def test_an_unknown_input_gets_its_near_name(mix: Op) -> None:
    with refused("qeryT: no such input\n.*queryT, query, keyT.*\ndid you mean 'queryT'", "qeryT"):
        bind(mix, qeryT=QUERY)


def test_an_attribute_that_is_given_as_an_input(mix: Op) -> None:
    with refused(r"heads: is an attribute, and was given as an input\npass attrs=\{'heads': value\}", "heads"):
        bind(mix, heads=QUERY)


@pytest.mark.parametrize(("name", "meant"), [("attr", "attrs"), ("output", "outputs"), ("varient", "variant")])
def test_a_misspelt_keyword_gets_its_near_name(mix: Op, name: str, meant: str) -> None:
    with refused(rf"{name}: no such input\ndid you mean {meant}=\?", name):
        bind(mix, **{name: QUERY})


@pytest.mark.parametrize("name", ["__class__", "", "Größe", "query ", "quer\ny", "\ud800"])
def test_strange_names_are_unknown_inputs(mix: Op, name: str) -> None:
    with refused("no such input", name):
        bind(mix, **{name: QUERY})


def test_a_required_input_has_to_be_there(mix: Op) -> None:
    with refused("queryT: is required and was not given\npass queryT=", "queryT"):
        mix.bind({"keyT": QUERY}, {"heads": 1})


def test_a_missing_input_goes_by_the_name_that_is_like_the_others(mix: Op) -> None:
    for others, name in ((("key",), "query"), (("lengths",), "queryT"), ((), "queryT")):
        specs = {"key": QUERY, "lengths": TensorSpec((2,), "int32")}
        with refused(f"{name}: is required and was not given\npass {name}=, ", name):
            mix.bind({other: specs[other] for other in others}, {"heads": 1}, ("outT",))


def test_a_refusal_has_the_callers_names(mix: Op) -> None:
    half = TensorSpec((2, 3), "float16")
    wide = TensorSpec((2, 3), "float64")
    with refused(r"query: float64 is not one of .*\nconvert with query\.astype", "query"):
        mix.bind({"query": wide, "keyT": QUERY}, {"heads": 1})
    with refused(r"keyT: is float16, and query is float32; .*\nconvert with keyT\.astype", "keyT"):
        mix.bind({"query": QUERY, "keyT": half}, {"heads": 1})
    with refused("key: is float16, and queryT is float32", "key"):
        bind(mix, key=half)


def test_rank(mix: Op) -> None:
    with refused(r"keyT: has rank 1, shape \(3,\); \(rows, columns\) is of rank 2\npass keyT of rank 2", "keyT"):
        bind(mix, keyT=TensorSpec((3,), "float32"))
    for shape in ((), (1,), (1, 2, 3)):
        assert bind(mix, mask=TensorSpec(shape, "int32")).inputs["mask"].shape == shape


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "bool", "int64", "complex64", "object", "void64", "int32"])
def test_a_dtype_is_never_cast(mix: Op, dtype: str) -> None:
    with refused(
        rf"queryT: {dtype} is not one of float32, float16\nconvert with queryT.astype\(np.float32\)", "queryT"
    ):
        mix.bind({"queryT": TensorSpec((2, 3), dtype)}, {"heads": 1})


def test_a_port_of_a_plain_dtype(mix: Op) -> None:
    with refused(r"lengths: uint32 is not one of int32\nconvert with lengths.astype\(np.int32\)", "lengths"):
        bind(mix, lengths=TensorSpec((2,), "uint32"))


def test_a_type_variable_is_one_dtype(mix: Op) -> None:
    with refused("keyT: is float16, and queryT is float32; both are of type T", "keyT"):
        bind(mix, keyT=TensorSpec((2, 3), "float16"))
    request = mix.bind({"queryT": TensorSpec((2, 3), "float16"), "mask": TensorSpec((), "uint32")}, {"heads": 1})
    assert request.types == {"T": "float16", "M": "uint32"}


# Attributes -------------------------------------------------------------------------------------------


def test_defaults_fill_in(mix: Op) -> None:
    request = bind(mix)
    assert request.attrs == {"scale": 1.0, "heads": 1, "window": None, "activation": "", "bits": 4}
    assert type(request.attrs["scale"]) is float, "an int default of a float attribute"


def test_none_is_as_if_not_given(mix: Op) -> None:
    assert bind(mix, {"heads": 1, "scale": None}).attrs["scale"] == 1.0
    with refused("heads: is a required attribute and was not given", "heads"):
        bind(mix, {"heads": None})


@pytest.mark.parametrize(
    ("value", "bound"),
    [
        (2, 2.0),
        (0.5, 0.5),
        (-0.0, -0.0),
        (float("inf"), float("inf")),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float16(3), 3.0),
        (np.float64(0.25), 0.25),
        (np.int64(7), 7.0),
        (np.uint8(7), 7.0),
    ],
)
def test_a_float_attribute_takes_numbers(mix: Op, value: Any, bound: float) -> None:
    scale = bind(mix, {"heads": 1, "scale": value}).attrs["scale"]
    assert type(scale) is float
    assert scale.hex() == bound.hex()


def test_a_float_attribute_may_be_nan(mix: Op) -> None:
    one, two = (bind(mix, {"heads": 1, "scale": float("nan")}) for _ in range(2))
    assert one == two


@pytest.mark.parametrize(
    "value",
    [True, np.True_, "1", [1.0], (1,), {}, 1j, np.complex64(1), Decimal(1), np.array(1.0), np.array([1.0]), ...],
    ids=repr,
)
def test_a_float_attribute_takes_nothing_else(mix: Op, value: Any) -> None:
    with refused(rf"scale: .* is of type ({type(value).__name__}|complex); the attribute is of type float", "scale"):
        bind(mix, {"heads": 1, "scale": value})


@pytest.mark.parametrize("value", [1.0, np.float32(1), False, np.bool_(0), "1", [1], np.array(1)], ids=repr)
def test_an_int_attribute_takes_ints_only(mix: Op, value: Any) -> None:
    with refused("heads: .* the attribute is of type int", "heads"):
        bind(mix, {"heads": value})


@pytest.mark.parametrize("value", [3, -3, np.int8(3), np.uint64(3), (1 << 63) - 1, -(1 << 63)], ids=repr)
def test_an_int_attribute(mix: Op, value: Any) -> None:
    heads = bind(mix, {"heads": value}).attrs["heads"]
    assert type(heads) is int
    assert heads == value


@pytest.mark.parametrize(
    "value", [1 << 63, -(1 << 63) - 1, 10**400, np.uint64(1 << 63)], ids=lambda v: f"{v:.3g}" if v < 1e300 else "huge"
)
def test_an_int_fits_in_64_bits(mix: Op, value: Any) -> None:
    with refused("heads: .* does not fit in the 64 bits of an ONNX int", "heads"):
        bind(mix, {"heads": value})


@pytest.mark.parametrize("value", [10**400, 1e39, -1e39, np.float64(3.4028236e38)], ids=lambda v: f"{float(str(v)):g}")
def test_a_float_fits_in_32_bits(mix: Op, value: Any) -> None:
    with refused("scale: it does not fit in the 32 bits of an ONNX float", "scale"):
        bind(mix, {"heads": 1, "scale": value})


@pytest.mark.parametrize("value", [3.4028235e38, -3.4028235e38, 1e-50, math.inf, -math.inf], ids=repr)
def test_the_largest_floats(mix: Op, value: float) -> None:
    assert bind(mix, {"heads": 1, "scale": value}).attrs["scale"] == value


@pytest.mark.parametrize("value", [1, 1.5, b"Relu", ["Relu"], True], ids=repr)
def test_a_string_attribute_takes_strings(mix: Op, value: Any) -> None:
    with refused("activation: .* the attribute is of type string", "activation"):
        bind(mix, {"heads": 1, "activation": value})


def test_choices(mix: Op) -> None:
    assert bind(mix, {"heads": 1, "activation": np.str_("Relu")}).attrs["activation"] == "Relu"
    with refused(
        "activation: 'relu' is not a known value\nvalues: \"\", Relu, Gelu\ndid you mean 'Relu'", "activation"
    ):
        bind(mix, {"heads": 1, "activation": "relu"})
    with refused("did you mean 'Gelu'", "activation"):
        bind(mix, {"heads": 1, "activation": "GELU"})
    with refused("bits: '5' is not a known value\nvalues: 4, 8", "bits"):
        bind(mix, {"heads": 1, "bits": 5})


@pytest.mark.parametrize("name", ["haeds", "Heads", "__class__", "", 1, None, ("heads",), b"heads"], ids=repr)
def test_an_unknown_attribute(mix: Op, name: Any) -> None:
    with refused("no such attribute\nattributes: scale, heads, window, activation, bits", str(name)):
        bind(mix, {"heads": 1, name: 1})


@pytest.mark.parametrize("attributes", [[("heads", 1)], "heads", {"heads"}, (("heads", 1),), 1, [], 0], ids=repr)
def test_attrs_is_a_mapping(mix: Op, attributes: Any) -> None:
    with refused("attrs: .* is not a mapping of attribute names to values", "attrs"):
        bind(mix, attributes)


def test_an_op_without_attributes_says_so() -> None:
    document = {**MIX, "attributes": []}
    plugin = acme_scale.changed(manifest=lambda: Manifest.parse(json.dumps(document), "acme"))
    with refused("alpha: no such attribute\nthe op has no attributes\nleave it out", "alpha"):
        bind(Op.of_module("com.acme.Mix", plugin), {"alpha": 1})


# Outputs ----------------------------------------------------------------------------------------------


def test_outputs_default_to_the_required_ones(mix: Op) -> None:
    assert bind(mix).outputs == ("outT", "state")


def test_outputs_answer_to_both_names_and_keep_the_manifests_order(mix: Op) -> None:
    assert bind(mix, outputs=("extra", "output")).outputs == ("outT", "extraT")
    assert bind(mix, outputs=["state"]).outputs == ("state",)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (("outputT",), "outputs: 'outputT' is not a known output\n.*\ndid you mean 'output'"),
        (("outT", "output"), "outputs: output is named twice"),
        ((), "outputs: is empty"),
        ("outT", "outputs: 'outT' is not a tuple of output names"),
        ({"outT"}, "outputs: {'outT'} is not a tuple of output names"),
        ((1,), "outputs: '1' is not a known output"),
        ((None,), "outputs: 'None' is not a known output"),
        (b"outT", "outputs: '111' is not a known output"),
        ((name for name in ["outT"]), "is not a tuple of output names"),
    ],
)
def test_outputs_refused(mix: Op, outputs: Any, message: str) -> None:
    with refused(message, "outputs"):
        bind(mix, outputs=outputs)


# What the plugin answers ------------------------------------------------------------------------------


def scale(**hooks: Callable[..., Any] | None) -> Op:
    return Op.of_module(acme_scale.ID, acme_scale.changed(**hooks))


def request(op: Op, shape: tuple[int, ...] = (4,), dtype: str = "float32", **given: Any) -> oplet.Request:
    return op.bind({"X": TensorSpec(shape, dtype)}, given.get("attributes"), given.get("outputs"))


def at_fault(message: str, dist: str = "acme_changed") -> Any:
    return pytest.raises(PluginContractError, match=message, check=lambda error: error.dist == dist)


SPEC = TensorSpec((4,), "float32")


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (None, "infer returned None"),
        ({}, r"infer returned {} for the outputs \('Y',\)"),
        ({"Y": SPEC, "negatedY": SPEC}, "for the outputs"),
        ({"result": SPEC}, "for the outputs"),
        ([SPEC], "for the outputs"),
        ({"Y": (4,)}, "a TensorSpec is wanted"),
        ({"Y": TensorSpec((4,), "float16")}, "which the manifest makes float32"),
    ],
)
def test_infer_answers_with_the_specs_asked_for(answer: Any, fault: str) -> None:
    op = scale(infer=lambda request: answer)
    with at_fault(fault):
        op.infer(request(op))


@pytest.mark.parametrize(("shape", "dtype"), [((-1,), "float32"), ((4 / 2,), "float32"), ((4,), np.float32)], ids=repr)
def test_a_spec_that_infer_cannot_make_is_the_plugins_fault(shape: Any, dtype: Any) -> None:
    op = scale(infer=lambda request: {"Y": TensorSpec(shape, dtype)})
    with at_fault(r"infer raised SpecError: (shape|dtype): .*\n"):
        op.infer(request(op))


def test_infer_keeps_to_the_manifests_rank() -> None:
    document = json.loads((acme_scale.templates().parent / "manifest.json").read_text())
    document["outputs"][0]["rank"] = 2
    op = scale(manifest=lambda: Manifest.parse(json.dumps(document), "acme"))
    with at_fault("which the manifest makes of rank 2"):
        op.infer(request(op))


def test_an_input_error_of_the_plugin_gets_the_ops_id() -> None:
    def infer(request: oplet.Request) -> Any:
        raise InputError("com.acme.Scale: X: is odd", argument="X")

    op = scale(infer=infer)
    with pytest.raises(InputError, match="is odd") as caught:
        op.infer(request(op))
    assert (caught.value.op, caught.value.argument) == (acme_scale.ID, "X")


@pytest.mark.parametrize("hook", ["reference", "check"])
def test_a_host_without_memory_is_no_fault_of_the_plugin(hook: str) -> None:
    op = scale(**{hook: lambda request, arrays: np.zeros(1 << 56)})
    with pytest.raises(OutOfMemoryError, match=rf"^com.acme.Scale: {hook}: the host has no memory for it: ") as caught:
        getattr(op, hook)(request(op), {"X": np.zeros(4, np.float32)})
    assert str(caught.value).splitlines()[-1] == "split the work into smaller tensors"


@pytest.mark.parametrize("hook", ["infer", "reference", "check"])
def test_a_hook_that_raises_is_the_plugins_fault(hook: str) -> None:
    calls: dict[str, Callable[[Op], Any]] = {
        "infer": lambda op: op.infer(request(op)),
        "reference": lambda op: op.reference(request(op), {"X": np.zeros(4, np.float32)}),
        "check": lambda op: op.check(request(op), {"X": np.zeros(4, np.float32)}),
    }
    op = scale(**{hook: lambda request: 1 // 0})
    with at_fault(f"{hook} raised ZeroDivisionError") as caught:
        calls[hook](op)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert str(caught.value).splitlines()[-1] == "the plugin is at fault; report it to its author"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, r"None for the outputs \('Y',\); a mapping from each to its array"),
        (np.ones(4), r"array\(\[1., 1., 1., 1.\]\) for the outputs"),
        ({}, "arrays for none for the outputs"),
        ({"negatedY": np.zeros(4)}, "arrays for negatedY for the outputs"),
        ({"Y": [1.0]}, r"\[1.0\] for Y; an array of real numbers"),
        ({"Y": "four"}, "'four' for Y; an array of real numbers"),
        ({"Y": np.zeros(4, complex)}, "array.* for Y; an array of real numbers"),
        ({"Y": np.array([{}])}, "array.* for Y; an array of real numbers"),
    ],
    ids=range(8),
)
def test_reference_answers_with_arrays(answer: Any, told: str) -> None:
    op = scale(reference=lambda request: answer)
    with at_fault(f"reference returned {told}.* is wanted"):
        op.reference(request(op), {"X": np.zeros(4, np.float32)})


def test_check_is_optional_and_told() -> None:
    assert not scale().checks_values
    seen: list[Any] = []
    op = scale(check=lambda request, arrays: seen.append(sorted(arrays)))
    assert op.checks_values
    op.check(request(op), {"X": np.zeros(4, np.float32)})
    assert seen == [["X"]]


# Which variant runs -----------------------------------------------------------------------------------


def variant(name: str, *, rejects: Any = None, yields: Any = None, plan: Any = acme_scale.plan) -> Variant:
    return Variant(name, plan, rejects=lambda request, caps: rejects, yields=lambda request, caps: yields)


def choose(*variants: Variant, forced: str | None = None) -> tuple[str, dict[str, tuple[str, str]]]:
    op = scale(variants=lambda: variants)
    chosen, rejections = op.choose(request(op), CAPS, forced)
    return chosen.name, {one.variant: (one.kind, one.reason) for one in rejections}


def test_the_first_that_neither_rejects_nor_yields() -> None:
    assert choose(variant("a", rejects="no"), variant("b", yields="slow"), variant("c"), variant("d")) == (
        "c",
        {"a": ("rejects", "no"), "b": ("yields", "slow"), "d": ("later", "c is preferred")},
    )


def test_else_the_first_that_does_not_reject() -> None:
    assert choose(variant("a", rejects="no"), variant("b", yields="slow"), variant("c", yields="slower")) == (
        "b",
        {"a": ("rejects", "no"), "c": ("yields", "slower")},
    )


def test_a_variant_asked_for_runs_though_it_yields() -> None:
    assert choose(variant("a"), variant("b", yields="slow"), forced="b") == ("b", {"a": ("later", "b was asked for")})


def test_a_variant_asked_for_does_not_run_where_it_rejects() -> None:
    with pytest.raises(oplet.NoVariantError) as caught:
        choose(variant("a"), variant("b", rejects="no"), forced="b")
    assert [one.variant for one in caught.value.rejections] == ["b"]
    assert str(caught.value).splitlines() == [
        'com.acme.Scale: b cannot serve this call on "paper device" (opened with features=[])',
        "  X float32 (4,)",
        "  b   no",
        "leave variant out, or take another",
    ]


def test_an_unknown_variant() -> None:
    with pytest.raises(
        InputError, match=r"'vecc4' is not a known variant\nvariants: vec4, scalar, reference\n.*'vec4'"
    ):
        choose(variant("vec4"), variant("scalar"), forced="vecc4")


def test_no_variant_at_all_has_a_reason_for_each() -> None:
    op = Op.of_module(
        acme_scale.ID,
        acme_scale.with_variants(
            variant("subgroup_rows", rejects="needs the device feature subgroups"),
            variant("scalar", rejects="float16 needs the device feature shader-f16"),
        ),
    )
    call = op.bind({"X": TensorSpec((2, 5), "float16"), "bias": TensorSpec((2, 5), "float16")})
    with pytest.raises(oplet.NoVariantError) as caught:
        op.choose(call, attrs.evolve(CAPS, features=frozenset({"timestamp-query"})))
    assert str(caught.value).splitlines() == [
        'com.acme.Scale: no variant can serve this call on "paper device" (opened with features=[timestamp-query])',
        "  X float16 (2, 5)",
        "  biasT float16 (2, 5)",
        "  subgroup_rows   needs the device feature subgroups",
        "  scalar          float16 needs the device feature shader-f16",
        'change what the reasons name, open another device, or pass variant="reference" for numpy',
    ]
    assert [(one.variant, one.kind) for one in caught.value.rejections] == [
        ("subgroup_rows", "rejects"),
        ("scalar", "rejects"),
    ]


def test_an_op_may_have_no_variants_but_its_reference() -> None:
    with pytest.raises(oplet.NoVariantError, match="no variant can serve this call"):
        choose()


@pytest.mark.parametrize("kind", ["rejects", "yields"])
@pytest.mark.parametrize(
    ("predicate", "fault"),
    [
        (lambda request, caps: 1 // 0, "raised ZeroDivisionError"),
        (lambda request, caps: False, "returned False; a reason or None is wanted"),
        (lambda request, caps: True, "returned True; a reason or None is wanted"),
        (lambda request: None, "raised TypeError"),
    ],
)
def test_a_predicate_answers_with_a_reason_or_none(kind: str, predicate: Any, fault: str) -> None:
    op = scale(variants=lambda: [Variant("odd", acme_scale.plan, **{kind: predicate})])
    with at_fault(f"com.acme.Scale: acme_changed: odd: {kind} {fault}"):
        op.choose(request(op), CAPS)


# What a plan may hold ---------------------------------------------------------------------------------

X, Y = Binding("x", "X", "read", "f32"), Binding("y", "Y", "read_write", "f32")
PAD = TensorSpec((8,), "float32")


def launch(*bindings: Binding, **fields: Any) -> Launch:
    return Launch("scale.wgsl.jinja", fields.pop("workgroups", 1), bindings=bindings, **fields)


@pytest.mark.parametrize(
    ("plan", "fault"),
    [
        (lambda: None, "plan returned None; a list of Launch is wanted"),
        (lambda: launch(X, Y), "plan returned Launch.*; a list of Launch is wanted"),
        (lambda: 1 // 0, "plan raised ZeroDivisionError"),
        (lambda: (1 // 0 for _ in range(1)), "plan raised ZeroDivisionError"),
        (lambda: [launch(workgroups=0)], "plan raised ValueError"),
        (lambda: ["scale.wgsl.jinja"], "which is not a Launch"),
        (list, "no launch writes the output Y"),
        (lambda: [launch(X)], "no launch writes the output Y"),
        (lambda: [launch(X, Binding("y", "Y", "read", "f32"))], "no launch writes the output Y"),
        (lambda: [launch(Y, Binding("b", "biasT", "read", "f32"))], "binds 'biasT', which the call does not have"),
        (lambda: [launch(Y, Binding("n", "negatedY", "read_write", "f32"))], "binds 'negatedY', which the call"),
        (lambda: [launch(Y, Binding("d", "data", "read", "f32"))], "binds 'data', which the call does not have"),
        (lambda: [launch(Y, Binding("x", "X", "read_write", "f32"))], "binds the input X for writing"),
        (lambda: [launch(X, Y, Binding("z", "Y", "read", "f32"))], "binds Y twice"),
        (lambda: [launch(Y, scratch={"X": PAD})], "scratch X is also another tensor"),
        (lambda: [launch(Y, scratch={"s": PAD}), launch(Y, scratch={"s": SPEC})], "scratch s is also another tensor"),
        (
            lambda: [launch(Y, Binding("s", "s", "read", "f32")), launch(Y, scratch={"s": PAD})],
            "binds 's', which the call does not have",
        ),
    ],
)
def test_a_plan_is_checked_before_it_runs(plan: Any, fault: str) -> None:
    op = scale(variants=lambda: [Variant("odd", lambda request, caps: plan())])
    with at_fault(f"com.acme.Scale: acme_changed: odd: .*{fault}"):
        op.plan(request(op), CAPS)


def test_scratch_lives_through_the_launches_of_a_call() -> None:
    scratch = Binding("s", "s", "read_write", "f32")
    launches = [launch(X, scratch, scratch={"s": PAD}), launch(scratch, Y, scratch={"s": PAD})]
    op = scale(variants=lambda: [Variant("two", lambda request, caps: launches)])
    plan = op.plan(request(op), CAPS)
    assert plan.scratch == {"s": PAD}
    assert plan.launches == tuple(launches)
    assert plan.module == "acme_changed"


def test_an_empty_output_needs_no_launch() -> None:
    op = scale()
    assert op.plan(request(op, (3, 0)), CAPS).launches == ()


@pytest.mark.parametrize("shape", [(1 << 32,), (1 << 20, 1 << 20), (1 << 62, 1 << 62)])
def test_more_elements_than_a_shader_can_count_are_refused(shape: tuple[int, ...]) -> None:
    op = scale()
    with pytest.raises(InputError, match=r"X: .* shaders count to 2³² − 1") as caught:
        op.plan(request(op, shape), CAPS)
    assert caught.value.argument == "X"


# Loading ----------------------------------------------------------------------------------------------


def loading(plugin: object) -> Op:
    return Op.of_module(acme_scale.ID, plugin)


@pytest.mark.parametrize("hook", ["manifest", "infer", "reference", "variants", "templates"])
def test_a_missing_hook_is_named(hook: str) -> None:
    with at_fault(f"com.acme.Scale: acme_changed does not implement the hook {hook}"):
        scale(**{hook: None})


def test_an_unknown_hook_is_named_with_the_near_one_and_the_versions() -> None:
    with at_fault("acme_changed implements the hook") as caught:
        scale(refrence=lambda request: {})
    assert str(caught.value).splitlines() == [
        f"com.acme.Scale: acme_changed implements the hook refrence, which oplet {version('oplet')} does not have",
        "  refrence(request) in acme_changed",
        "  hooks: manifest, infer, check, reference, variants, templates",
        "did you mean reference? if not, install versions that go together",
    ]


def test_an_argument_of_another_hook_signature_is_named_with_the_versions() -> None:
    with at_fault("acme_changed: the hook infer takes the argument") as caught:
        scale(infer=lambda request, device, context: {})
    assert str(caught.value).splitlines() == [
        "com.acme.Scale: acme_changed: the hook infer takes the argument device, "
        f"which oplet {version('oplet')} does not give",
        "  infer(request, device, context) in acme_changed",
        "  infer(request) in oplet.hookspecs",
        "install versions that go together, or take the argument out",
    ]


def test_an_unknown_hook_that_is_near_none() -> None:
    with at_fault("the hook zzz, which .*\n.*\n.*\ninstall versions that go together$"):
        scale(zzz=lambda: None)


def test_a_hook_may_leave_arguments_out_and_have_some_with_a_default() -> None:
    assert scale(infer=lambda: {"Y": SPEC}).id == acme_scale.ID
    assert scale(infer=lambda request, spec=SPEC: {"Y": spec}).id == acme_scale.ID


@pytest.mark.parametrize("plugin", [None, 7, "acme_scale", ModuleType("empty"), ...], ids=repr)
def test_what_is_no_plugin_is_a_contract_error(plugin: object) -> None:
    with pytest.raises(PluginContractError, match="does not implement the hook manifest"):
        loading(plugin)


def test_a_plugin_may_be_any_object_and_may_not_raise_when_looked_at() -> None:
    class Odd:
        def __dir__(self) -> list[str]:
            raise RuntimeError("do not look")

    assert loading(SimpleNamespace(**vars(acme_scale.changed()))).module == "SimpleNamespace"
    with pytest.raises(PluginContractError, match=r"does not fit the hooks.*\nRuntimeError: do not look"):
        loading(Odd())


@pytest.mark.parametrize(
    ("hooks", "error", "fault"),
    [
        ({"manifest": lambda: 1 // 0}, PluginContractError, "manifest raised ZeroDivisionError"),
        ({"manifest": lambda: None}, PluginContractError, "the manifest of acme_changed is of None"),
        ({"manifest": lambda: {"id": "com.acme.Scale"}}, PluginContractError, "is of {'id'"),
        ({"manifest": lambda: Manifest.parse(json.dumps(MIX), "m")}, PluginContractError, "is of com.acme.Mix"),
        ({"manifest": lambda: Manifest.parse("{", "m")}, oplet.ManifestError, "m: manifest.json is not a valid op"),
        ({"manifest": lambda: Manifest.read("json")}, oplet.ManifestError, "json: .*\n.*cannot be read"),
        ({"variants": lambda: 1 // 0}, PluginContractError, "variants raised ZeroDivisionError"),
        ({"variants": lambda: 7}, PluginContractError, "variants raised TypeError"),
        ({"variants": lambda: ["scalar"]}, PluginContractError, "'scalar', which is not a Variant"),
        ({"variants": lambda: [variant("a"), variant("a")]}, PluginContractError, "two variants are named a"),
        ({"variants": lambda: [variant("reference")]}, PluginContractError, "a variant is named reference"),
        ({"templates": lambda: 1 // 0}, PluginContractError, "templates raised ZeroDivisionError"),
        ({"templates": lambda: "wgsl"}, PluginContractError, r"templates returned \['wgsl'\], not one Traversable"),
        ({"templates": lambda: None}, PluginContractError, r"templates returned \[\], not one Traversable"),
    ],
)
def test_what_loading_refuses(hooks: dict[str, Any], error: type[oplet.PluginError], fault: str) -> None:
    with pytest.raises(error, match=fault) as caught:
        scale(**hooks)
    assert (caught.value.op, caught.value.dist) == (acme_scale.ID, "acme_changed")
