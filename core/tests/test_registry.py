"""Running ops: what goes in, what comes out, and what a registry remembers."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import acme_scale
import ml_dtypes
import numpy as np
import oplet
import pytest
from oplet import InputError, TensorSpec, UnknownOpError, Variant

SCALE = acme_scale.ID
ONES = np.ones((2, 3), np.float32)


def with_plugin(device: oplet.Device, plugin: Any) -> oplet.Registry:
    registry = oplet.Registry(device=device, discover=False)
    registry.register(plugin.manifest().id, plugin)
    return registry


# Finding ops ------------------------------------------------------------------------------------------


def test_a_registry_without_discovery_has_what_is_registered() -> None:
    registry = oplet.Registry(discover=False)
    assert (registry.offers, registry.ids) == ((), ())
    registry.register(SCALE, acme_scale)
    assert registry.ids == (SCALE,)
    assert SCALE in registry
    assert "com.acme.Other" not in registry
    assert 7 not in registry
    assert registry[SCALE].manifest.id == SCALE
    assert repr(registry) == "Registry(no device yet, 0 offers)", "neither opened a device"


def test_registering_again_replaces(device: oplet.Device) -> None:
    registry = with_plugin(device, acme_scale)
    assert registry.run(SCALE, X=ONES).numpy()[0, 0] == 2
    tripled = acme_scale.changed(reference=lambda request, arrays: {"Y": 3 * arrays["X"]}, variants=lambda: ())
    registry.register(SCALE, tripled)
    assert registry.run(SCALE, X=ONES, variant="reference").numpy()[0, 0] == 3
    with pytest.raises(oplet.NoVariantError):
        registry.run(SCALE, X=ONES)


def test_a_call_made_ready_while_its_op_is_replaced_is_not_remembered(device: oplet.Device) -> None:
    planning, replaced = threading.Event(), threading.Event()

    def plan(request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
        planning.set()
        assert replaced.wait(60)
        return acme_scale.plan(request, caps)

    registry = with_plugin(device, acme_scale.with_variants(Variant("old", plan)))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(registry.run, SCALE, X=ONES)
        assert planning.wait(60)
        registry.register(SCALE, acme_scale.with_variants())
        replaced.set()
        np.testing.assert_array_equal(running.result().numpy(), 2 * ONES)
    with pytest.raises(oplet.NoVariantError):
        registry.run(SCALE, X=ONES)


def test_a_plugin_that_breaks_the_contract_is_not_registered() -> None:
    registry = oplet.Registry(discover=False)
    registry.register(SCALE, acme_scale)
    with pytest.raises(oplet.PluginContractError):
        registry.register(SCALE, acme_scale.changed(infer=None))
    assert registry[SCALE].module == "acme_scale"
    with pytest.raises(oplet.PluginContractError, match=r"the manifest of acme_scale is of com\.acme\.Scale"):
        registry.register("com.acme.Other", acme_scale)
    assert registry.ids == (SCALE,)


@pytest.mark.parametrize(
    ("op", "last"),
    [
        ("com.acme.Scal", "did you mean 'com.acme.Scale'?"),
        ("COM.ACME.SCALE", "did you mean 'com.acme.Scale'?"),
        ("scale", "did you mean 'com.acme.Scale'?"),
        ("org.other.Scale", "did you mean 'com.acme.Scale'?"),
        ("com.microsoft.FusedGemm", "pip install oplet-fused-gemm"),
        ("com.microsoft.PackedMultiHeadAttention", "pip install oplet-packed-mha"),
        ("\n", "an op id is a domain and a name, such as com.microsoft.FusedGemm"),
        ("gemm; rm -r", "an op id is a domain and a name, such as com.microsoft.FusedGemm"),
        # A command would install what anyone may have put there.
        ("com.acme.Gate", "look for a package that offers it, by convention oplet-acme-gate"),
        ("org.example.PackedMHA", "look for a package that offers it, by convention oplet-example-packed-mha"),
        ("org.example.nn.RMSNorm_2", "look for a package that offers it, by convention oplet-nn-rms-norm-2"),
    ],
)
def test_an_unknown_op(op: str, last: str) -> None:
    registry = oplet.Registry(discover=False)
    registry.register(SCALE, acme_scale)
    with pytest.raises(UnknownOpError) as caught:
        registry[op]
    assert str(caught.value).splitlines() == [f"no plugin offers {op!r}", "installed: com.acme.Scale", last]
    assert isinstance(caught.value, LookupError)


@pytest.mark.parametrize("op", [None, 7, ["com.acme.Scale"], {}, b"com.acme.Scale", np.zeros(3)], ids=repr)
def test_an_op_id_is_a_string(registry: oplet.Registry, op: Any) -> None:
    for call in (lambda: registry[op], lambda: registry.run(op, X=ONES), lambda: registry.explain(op, X=ONES)):
        with pytest.raises(UnknownOpError, match="is not an op id\nan op id is a string"):
            call()


@pytest.mark.parametrize("op", ["", " ", "Größe", "__class__", "com.acme.", "a\nb"])
def test_strange_op_ids_are_unknown(registry: oplet.Registry, op: str) -> None:
    with pytest.raises(UnknownOpError, match="no plugin offers"):
        registry.run(op, X=ONES)


@pytest.mark.parametrize("max_bytes", [-1, 1.5, True, "1"])
def test_max_bytes_is_a_number_of_bytes(max_bytes: Any) -> None:
    with pytest.raises(InputError, match=r"max_bytes: .* is not a number of bytes"):
        oplet.Registry(max_bytes=max_bytes)


def test_max_bytes_is_not_for_a_device_that_others_use(device: oplet.Device) -> None:
    with pytest.raises(InputError, match=r"max_bytes: the device is given.*\npass max_bytes to open_device") as caught:
        oplet.Registry(device=device, max_bytes=1 << 20)
    assert caught.value.argument == "max_bytes"
    assert device.pool.max_bytes is None


def test_prefer_and_block_are_checked_at_once() -> None:
    with pytest.raises(InputError, match="prefer: "):
        oplet.Registry(prefer="com.acme.Scale=oplet-acme")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="block: "):
        oplet.Registry(block="oplet-acme")


# What goes in -----------------------------------------------------------------------------------------


def test_inputs_by_either_name_as_arrays_scalars_and_tensors(registry: oplet.Registry) -> None:
    np.testing.assert_array_equal(registry.run(SCALE, data=ONES, bias=ONES).numpy(), 3 * ONES)
    np.testing.assert_array_equal(registry.run(SCALE, X=registry.tensor(ONES), biasT=ONES).numpy(), 3 * ONES)
    scalar = registry.run(SCALE, X=np.float32(5)).numpy()
    assert (scalar.shape, scalar.item()) == ((), 10)
    assert registry.run(SCALE, X=np.array(5, np.float32)).numpy().item() == 10


def test_none_is_absent(registry: oplet.Registry) -> None:
    np.testing.assert_array_equal(registry.run(SCALE, X=None, data=ONES, bias=None).numpy(), 2 * ONES)
    with pytest.raises(InputError, match="X: is required and was not given"):
        registry.run(SCALE, X=None)
    for _ in range(2):
        registry.run(SCALE, X=ONES)
        with pytest.raises(InputError, match="bais: no such input"):
            registry.run(SCALE, X=ONES, bais=None)


@pytest.mark.parametrize(
    "value",
    [[1.0], (1.0,), 1.0, 1, "x", b"x", range(3), (n for n in [1.0]), {}, memoryview(b"abcd"), object(), SCALE, oplet],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_array_is_refused(registry: oplet.Registry, value: Any) -> None:
    for call, told in (
        (registry.run, r"is neither a numpy array nor a tensor\nconvert with np\.asarray"),
        (registry.explain, r"is none of a numpy array, a tensor and a TensorSpec\npass one such as oplet\.TensorSpec"),
    ):
        with pytest.raises(InputError, match=f"X: .* {told}") as e:
            call(SCALE, X=value)
        assert e.value.argument == "X"
    with pytest.raises(InputError, match=r"array: .* is not an array"):
        registry.tensor(value)


def test_a_value_under_a_name_that_is_no_inputs(registry: oplet.Registry) -> None:
    for name, told in (("factor", "is an attribute, and was given as an input"), ("factr", "no such input")):
        for call in (registry.run, registry.explain, registry.prewarm):
            with pytest.raises(InputError, match=f"^{SCALE}: {name}: {told}") as e:
                call(SCALE, X=ONES, **{name: 3.0})
            assert e.value.argument == name


@pytest.mark.parametrize(
    "array",
    [
        ONES.astype(bool),
        ONES.astype(np.int64),
        ONES.astype(np.float64),
        ONES.astype(np.complex64),
        ONES.astype(object),
        ONES.astype("U3"),
        ONES.astype("datetime64[s]"),
        ONES.astype(ml_dtypes.bfloat16),
        ONES.astype(ml_dtypes.float8_e4m3fn),
        np.zeros(3, [("a", np.float32)]),
        np.zeros(3, np.longdouble),
        np.zeros(0, np.float64),
        np.float64(1),
        np.recarray(2, [("x", np.float32)]),
    ],
    ids=lambda array: str(array.dtype),
)
def test_no_dtype_is_cast(registry: oplet.Registry, array: Any) -> None:
    with pytest.raises(InputError, match=r"X: .* is not one of float32, float16, int32, uint32\nconvert with X.astype"):
        registry.run(SCALE, X=array)
    with pytest.raises(InputError, match=r"array: .* is not one of float32, float16, int32, uint32"):
        registry.tensor(array)


def test_a_masked_array_is_refused_also_after_a_plain_one(registry: oplet.Registry) -> None:
    registry.run(SCALE, X=ONES)
    masked = np.ma.masked_array(ONES, mask=ONES == 1)
    for call in (lambda: registry.run(SCALE, X=masked), lambda: registry.tensor(masked)):
        with pytest.raises(InputError, match=r"MaskedArray is .*\nconvert with (X|array)\.filled"):
            call()


def test_subclasses_of_ndarray_are_arrays(registry: oplet.Registry, tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(2, 3))
    mapped[:] = 4
    np.testing.assert_array_equal(registry.run(SCALE, X=mapped).numpy(), 8 * ONES)
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix(ONES)
    assert type(registry.run(SCALE, X=matrix).numpy()) is np.ndarray


def test_a_port_may_have_any_name(registry: oplet.Registry) -> None:
    document = json.loads((acme_scale.templates().parent / "manifest.json").read_text())
    document["id"] = "com.acme.Odd"
    document["inputs"] = [
        {"name": name, "type": "T", "shape": "any"} for name in ("op", "self", "inputs", "attributes")
    ]
    plugin = acme_scale.changed(
        manifest=lambda: oplet.Manifest.parse(json.dumps(document), "odd"),
        infer=lambda request: {"Y": request.inputs["op"]},
        reference=lambda request, arrays: {"Y": sum(arrays.values())},
    )
    registry.register("com.acme.Odd", plugin)
    inputs = dict.fromkeys(("op", "self", "inputs", "attributes"), ONES)
    np.testing.assert_array_equal(registry.run("com.acme.Odd", variant="reference", **inputs).numpy(), 4 * ONES)


def test_a_device_tensor_of_another_device_is_refused(registry: oplet.Registry) -> None:
    with oplet_device() as other:
        there = with_plugin(other, acme_scale)
        for foreign in (there.tensor(ONES), there.tensor(ONES[:0])):
            bias = np.zeros(foreign.shape, np.float32)
            with pytest.raises(
                InputError, match=r"X: the tensor is on another device\n.*registry.tensor\(X.numpy"
            ) as e:
                registry.run(SCALE, X=foreign, bias=bias)
            assert e.value.argument == "X"
        with pytest.raises(InputError, match=r"data: .*\n.*registry.tensor\(data.numpy"):
            registry.run(SCALE, data=there.tensor(ONES))
        with pytest.raises(InputError, match="result: the tensor is on another device"):
            registry.run(SCALE, X=ONES, out={"result": there.empty((2, 3))})
        with pytest.raises(InputError, match="Y: the tensor is on another device"):
            registry.run(SCALE, X=ONES, out={"Y": there.empty((2, 3))})
        moved = registry.tensor(there.run(SCALE, X=ONES).numpy())
        np.testing.assert_array_equal(registry.run(SCALE, X=moved).numpy(), 4 * ONES)


class oplet_device:  # noqa: N801  # reads as the context manager that it is
    """A second device, for as long as it is needed."""

    def __enter__(self) -> oplet.Device:
        self.device = oplet.open_device()
        return self.device

    def __exit__(self, *exception: object) -> None:
        self.device.gpu.destroy()


def test_an_array_may_change_as_soon_as_run_returns(registry: oplet.Registry) -> None:
    array = np.ones(1 << 16, np.float32)
    y, x = registry.run(SCALE, X=array), registry.tensor(array)
    array[:] = -1
    assert (y.numpy() == 2).all()
    assert (x.numpy() == 1).all()


# What comes out ---------------------------------------------------------------------------------------


def test_one_output_is_a_tensor_several_are_a_namedtuple(registry: oplet.Registry) -> None:
    assert isinstance(registry.run(SCALE, X=ONES), oplet.Tensor)
    assert isinstance(registry.run(SCALE, X=ONES, outputs=("negated",)), oplet.Tensor)
    both = registry.run(SCALE, X=ONES, outputs=("negated", "result"))
    assert type(both).__name__ == "ScaleOutputs"
    assert both._fields == ("Y", "negatedY"), "the manifest's names, in its order"
    assert (both.result, both.negated) == (both.Y, both.negatedY), "ONNX's names read them too"
    y, negated = both
    np.testing.assert_array_equal(y.numpy(), 2 * ONES)
    np.testing.assert_array_equal(negated.numpy(), -2 * ONES)


def test_names_in_out_count_as_asked_for(registry: oplet.Registry) -> None:
    negated = registry.empty((2, 3))
    both = registry.run(SCALE, X=ONES, out={"negated": negated})
    assert both.negatedY is negated
    np.testing.assert_array_equal(both.Y.numpy(), 2 * ONES)
    only = registry.run(SCALE, X=3 * ONES, outputs=("negatedY",), out={"negatedY": negated})
    assert only is negated
    np.testing.assert_array_equal(negated.numpy(), -6 * ONES)


def test_out_may_be_a_view(registry: oplet.Registry) -> None:
    flat = registry.empty(6)
    registry.run(SCALE, X=ONES, out={"Y": flat.reshape(2, 3)})
    np.testing.assert_array_equal(flat.numpy(), 2 * ONES.ravel())


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (lambda r: {"Z": r.empty((2, 3))}, "'Z' is not a known output"),
        (lambda r: {"Y": r.empty((2, 3)), "result": r.empty((2, 3))}, "result is named twice"),
        (lambda r: {"Y": r.empty((3, 2))}, r"out: Y: it is float32 \(3, 2\), and the call makes float32 \(2, 3\)"),
        (lambda r: {"Y": r.empty((2, 3), "int32")}, r"out: Y: it is int32 \(2, 3\), and the call makes float32"),
        (lambda r: {"Y": np.empty((2, 3), np.float32)}, "out: Y: ndarray is not a device tensor"),
        (lambda r: {"Y": None}, "out: Y: NoneType is not a device tensor"),
        (lambda r: {"Y": r.run(SCALE, X=ONES, variant="reference")}, "out: Y: Tensor is not a device tensor"),
        (lambda r: {7: r.empty((2, 3))}, "'7' is not a known output"),
        (lambda r: [("Y", r.empty((2, 3)))], "out: list is not a mapping"),
        (lambda r: r.empty((2, 3)), "out: Tensor is not a mapping"),
        (lambda r: [], "out: list is not a mapping"),
        (lambda r: 0, "out: int is not a mapping"),
    ],
)
def test_out_refused(registry: oplet.Registry, out: Callable[[oplet.Registry], Any], message: str) -> None:
    registry.run(SCALE, X=ONES)  # a call that is known must not let more pass
    with pytest.raises(InputError, match=message):
        registry.run(SCALE, X=ONES, out=out(registry))


def test_a_known_call_checks_its_arguments_again(registry: oplet.Registry) -> None:
    registry.run(SCALE, X=ONES)
    registry.run(SCALE, X=ONES, outputs=("Y",))
    for arguments in (
        {"outputs": "Y"},
        {"outputs": iter(("Y",))},
        {"outputs": {"Y"}},
        {"outputs": ()},
        {"outputs": 0},
        {"attrs": []},
        {"attrs": 0},
        {"attrs": np.zeros(2)},
        {"attrs": {"factor": True}},
        {"attrs": {"shift": False}},
        {"attrs": {"shift": 0.0}},
        {"attrs": {"factor": [2]}},
        {"attrs": {"factor": {}}},
        {"variant": 7},
        {"variant": ""},
        {"variant": []},
        {"data": ONES},
    ):
        with pytest.raises(InputError):
            registry.run(SCALE, X=ONES, **arguments)
    with pytest.raises(InputError, match="X: TensorSpec is neither a numpy array nor a tensor"):
        registry.run(SCALE, X=TensorSpec((2, 3), "float32"))


def test_equal_attributes_of_other_bits_are_other_calls(device: oplet.Device) -> None:
    seen: list[str] = []

    def plan(request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
        seen.append(float(request.attrs["factor"]).hex())  # type: ignore[arg-type]
        return acme_scale.plan(request, caps)

    registry = with_plugin(device, acme_scale.with_variants(Variant("scalar", plan)))
    for zero in (0.0, -0.0, np.float32(0.0), np.float32(-0.0)):
        registry.run(SCALE, X=ONES, attrs={"factor": zero})
    assert seen == ["0x0.0p+0", "-0x0.0p+0"] * 2


# Calls that repeat ------------------------------------------------------------------------------------


def test_a_repeated_call_is_planned_once(device: oplet.Device) -> None:
    planned = []

    def plan(request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
        planned.append(request)
        return acme_scale.plan(request, caps)

    registry = with_plugin(device, acme_scale.with_variants(Variant("scalar", plan)))
    for factor in (1, 2, 1, 2, float("nan"), float("nan"), np.float32("nan"), np.float32("nan")):
        registry.run(SCALE, X=ONES, attrs={"factor": factor})
    assert [str(request.attrs["factor"]) for request in planned] == ["1.0", "2.0", "nan", "nan"]


def test_the_memory_for_calls_is_bounded(device: oplet.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oplet.registry.MAX_CALLS", 8)
    registry = with_plugin(device, acme_scale)
    for repeat in range(2):
        for shift in range(20):
            assert registry.run(SCALE, X=ONES, attrs={"shift": shift}).numpy()[0, 0] == 2 + shift, repeat
            assert len(registry._calls) <= 8


def test_what_repeats_is_remembered_though_many_other_calls_come(
    device: oplet.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oplet.registry.MAX_CALLS", 8)
    registry = with_plugin(device, acme_scale)
    prepared: list[object] = []
    prepare = registry._prepare
    monkeypatch.setattr(registry, "_prepare", lambda *call: prepared.append(call[1]) or prepare(*call))
    for shift in range(1, 30):
        registry.run(SCALE, X=ONES)
        registry.run(SCALE, X=ONES, attrs={"shift": shift})
    assert prepared.count(None) == 1


def test_values_are_checked_on_every_run_before_anything_else(device: oplet.Device) -> None:
    seen: list[list[str]] = []

    def check(request: oplet.Request, arrays: dict[str, np.ndarray]) -> None:
        seen.append(sorted(arrays))
        if any((array < 0).any() for array in arrays.values()):
            raise InputError("com.acme.Scale: X: negative", argument="X")

    registry = with_plugin(device, acme_scale.changed(check=check))
    x = registry.tensor(ONES)
    registry.run(SCALE, X=ONES, bias=ONES)
    registry.run(SCALE, X=x, bias=ONES)
    registry.run(SCALE, X=x)
    assert seen == [["X", "biasT"], ["biasT"]], "the values of a tensor on the device are not known"
    live = device.pool.live_count
    for _ in range(2):
        with pytest.raises(InputError, match="X: negative"):
            registry.run(SCALE, X=-ONES)
    with pytest.raises(InputError, match="X: negative"):
        registry.run(SCALE, X=-ONES, variant="reference")
    assert device.pool.live_count == live


DATA = {"data": ONES}
SHORT = {"data": ONES, "bias": ONES[:1]}


@pytest.mark.parametrize(
    ("arguments", "name", "message"),
    [
        ({"data": ONES.astype(float)}, "data", r"data: float64 is not one of .*\nconvert with data\.astype"),
        ({"bias": ONES}, "data", "data: is required and was not given\npass data="),
        (SHORT, "bias", r"bias: \(1, 3\) is not data's \(2, 3\)"),
        ({"X": ONES, "bias": ONES[:1]}, "bias", r"bias: \(1, 3\) is not X's \(2, 3\)"),
        ({"data": ONES, "biasT": ONES[:1]}, "biasT", r"biasT: \(1, 3\) is not data's \(2, 3\)"),
        (SHORT | {"outputs": ("Y",)}, "bias", r"bias: \(1, 3\) is not data's \(2, 3\)"),
        ({"X": None, "data": ONES, "bias": ONES[:1]}, "bias", r"bias: \(1, 3\) is not data's \(2, 3\)"),
    ],
)
def test_a_refusal_has_the_callers_names(
    registry: oplet.Registry, arguments: dict[str, Any], name: str, message: str
) -> None:
    for door in (registry.run, registry.explain, registry.prewarm):
        for variant in (None, "reference"):
            with pytest.raises(InputError, match=f"^{SCALE}: {message}") as e:
                door(SCALE, variant=variant, **arguments)
            assert e.value.argument == name


def test_a_refusal_of_values_has_the_names_of_that_call(device: oplet.Device) -> None:
    def check(request: oplet.Request, arrays: dict[str, np.ndarray]) -> None:
        if (arrays["X"] < 0).any():
            raise request.refusal("X", "negative, and so is Y", do="pass abs(X)")

    registry = with_plugin(device, acme_scale.changed(check=check))
    for _ in range(2):
        for inputs, outputs, told in (
            ({"X": -ONES}, None, "X: negative, and so is Y\npass abs(X)"),
            ({"data": -ONES}, None, "data: negative, and so is result\npass abs(data)"),
            ({"data": -ONES}, ("Y",), "data: negative, and so is Y\npass abs(data)"),
            ({"X": -ONES}, ("result",), "X: negative, and so is result\npass abs(X)"),
        ):
            for variant in (None, "reference"):
                with pytest.raises(InputError) as e:
                    registry.run(SCALE, variant=variant, outputs=outputs, **inputs)
                assert (str(e.value), e.value.argument) == (f"{SCALE}: {told}", next(iter(inputs)))


def test_a_refused_out_has_the_callers_name(registry: oplet.Registry) -> None:
    x = registry.tensor(ONES)
    y = registry.empty((2, 3))
    for inputs, out, name, message in (
        (DATA, {"result": ONES}, "result", "out: result: ndarray is not a device tensor"),
        (DATA, {"Y": ONES}, "Y", "out: Y: ndarray is not a device tensor"),
        ({"data": x}, {"result": x}, "result", "result: it is on the same buffer as data\npass .* for result,"),
        ({"X": x}, {"negated": x}, "negated", "negated: it is on the same buffer as X\npass .* for negated,"),
        (DATA, {"Y": y, "negated": y}, "negated", "negated: it is on the same buffer as Y\n"),
    ):
        with pytest.raises(InputError, match=f"^{SCALE}: {message}") as e:
            registry.run(SCALE, out=out, **inputs)
        assert e.value.argument == name


def test_threads_share_a_registry(device: oplet.Device) -> None:
    registry = with_plugin(device, acme_scale)
    start = threading.Barrier(8)

    def work(number: int) -> bool:
        start.wait()
        right = True
        for step in range(10):
            array = np.full((number + 1, step + 1), number, np.float32)
            y = registry.run(SCALE, X=array, attrs={"shift": step})
            right &= bool((registry.run(SCALE, X=y).numpy() == 2 * (2 * number + step)).all())
        return right

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_threads_open_one_device() -> None:
    registry = oplet.Registry(discover=False)
    registry.register(SCALE, acme_scale)
    start = threading.Barrier(4)

    def work(_: int) -> oplet.Device:
        start.wait()
        registry.run(SCALE, X=ONES).numpy()
        return registry.device

    with ThreadPoolExecutor(4) as pool:
        assert len({id(opened) for opened in pool.map(work, range(4))}) == 1
    registry.device.gpu.destroy()


# The reference ----------------------------------------------------------------------------------------


def test_the_reference_needs_no_device() -> None:
    registry = oplet.Registry(discover=False)
    registry.register(SCALE, acme_scale)
    y = registry.run(SCALE, X=ONES, variant="reference")
    both = registry.run(SCALE, X=y, outputs=("Y", "negated"), variant="reference")
    assert y.on_host
    np.testing.assert_array_equal(both.negatedY.numpy(), -4 * ONES)
    assert repr(y) == "Tensor(float32 (2, 3), on host)"
    assert repr(registry).startswith("Registry(no device yet")


def test_a_host_tensor_is_uploaded_where_a_device_takes_it(registry: oplet.Registry) -> None:
    host = registry.run(SCALE, X=ONES, variant="reference").reshape(3, 2)
    y = registry.run(SCALE, X=host)
    assert not y.on_host
    np.testing.assert_array_equal(y.numpy(), 4 * ONES.reshape(3, 2))


def test_the_reference_takes_a_device_tensor(registry: oplet.Registry) -> None:
    y = registry.run(SCALE, X=registry.run(SCALE, X=ONES), variant="reference")
    np.testing.assert_array_equal(y.numpy(), 4 * ONES)


def test_the_reference_never_runs_unasked(device: oplet.Device) -> None:
    registry = with_plugin(device, acme_scale.with_variants())
    with pytest.raises(oplet.NoVariantError, match='pass variant="reference" for numpy'):
        registry.run(SCALE, X=ONES)


def test_the_reference_fills_no_tensor_of_yours(registry: oplet.Registry) -> None:
    for out in ({"Y": registry.empty((2, 3))}, {}, [], np.zeros(2)):
        with pytest.raises(InputError, match='variant="reference" makes host tensors and fills none'):
            registry.run(SCALE, X=ONES, variant="reference", out=out)


def test_the_reference_rounds_once_and_keeps_nothing_of_yours(registry: oplet.Registry) -> None:
    y = registry.run(SCALE, X=np.array([60000, 1], np.float16), variant="reference").numpy()
    assert y.dtype == np.float16
    assert np.isposinf(y[0])
    assert y[1] == 2
    array = ONES.copy()
    registry.register(SCALE, acme_scale.changed(reference=lambda request, arrays: {"Y": arrays["X"]}))
    kept = registry.run(SCALE, X=array, variant="reference")
    array[:] = 7
    kept.numpy()[:] = 8
    np.testing.assert_array_equal(kept.numpy(), ONES)


def test_a_reference_cannot_write_to_your_arrays(registry: oplet.Registry) -> None:
    def reference(request: oplet.Request, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        arrays["X"] *= 2
        return {"Y": arrays["X"]}

    registry.register(SCALE, acme_scale.changed(reference=reference))
    with pytest.raises(oplet.PluginContractError, match=r"reference raised ValueError: .*read-only"):
        registry.run(SCALE, X=ONES, variant="reference")
    assert (ONES == 1).all()
    assert ONES.flags.writeable


def test_a_reference_of_another_shape_is_the_plugins_fault(registry: oplet.Registry) -> None:
    registry.register(SCALE, acme_scale.changed(reference=lambda request, arrays: {"Y": arrays["X"].T}))
    with pytest.raises(oplet.PluginContractError, match=r"reference returned Y of shape \(3, 2\), inferred \(2, 3\)"):
        registry.run(SCALE, X=ONES, variant="reference")


def test_the_reference_runs_where_there_is_no_adapter(child: Callable[..., Any]) -> None:
    result = child(
        "import acme_scale, numpy as np, oplet\n"
        "registry = oplet.Registry(discover=False)\n"
        "registry.register(acme_scale.ID, acme_scale)\n"
        "x = np.ones(3, np.float32)\n"
        "print(registry.run(acme_scale.ID, X=x, variant='reference').numpy())\n"
        "try:\n"
        "    registry.run(acme_scale.ID, X=x)\n"
        "except oplet.DeviceError as error:\n"
        "    print(error)\n",
        VK_DRIVER_FILES="/nonexistent",
        VK_ICD_FILENAMES="/nonexistent",
    )
    assert result.returncode == 0, result.stderr
    first, *message = result.stdout.splitlines()
    assert first == "[2. 2. 2.]"
    assert "finds no Vulkan, Metal or D3D12 adapter" in message[0]
    assert "apt-get install mesa-vulkan-drivers" in message[-1]


# explain ----------------------------------------------------------------------------------------------


def test_explain_tells_without_running(device: oplet.Device) -> None:
    registry = with_plugin(
        device,
        acme_scale.with_variants(
            Variant("vec4", acme_scale.plan, rejects=lambda request, caps: "X is not a multiple of 4 long"),
            Variant("wide", acme_scale.plan, yields=lambda request, caps: "too short to fill the device"),
            Variant("scalar", acme_scale.plan),
            Variant("spare", acme_scale.plan),
        ),
    )
    compiled, live = device.pipelines.compiled, device.pool.live_count
    explanation = registry.explain(SCALE, data=TensorSpec((2, 3), "float32"))
    assert (explanation.variant, explanation.outputs) == ("scalar", {"Y": TensorSpec((2, 3), "float32")})
    assert str(explanation).splitlines() == [
        f'com.acme.Scale on "{device.capabilities.adapter.name}"',
        "  X float32 (2, 3)",
        "  → Y float32 (2, 3)",
        "  scalar   runs",
        "  vec4     rejects: X is not a multiple of 4 long",
        "  wide     yields: too short to fill the device",
        "  spare    later: scalar is preferred",
    ]
    assert registry.explain(SCALE, X=ONES, variant="wide").variant == "wide"
    assert (device.pipelines.compiled, device.pool.live_count) == (compiled, live)


def test_explain_tells_of_the_reference_without_a_device() -> None:
    registry = oplet.Registry(discover=False)
    registry.register(SCALE, acme_scale)
    explanation = registry.explain(SCALE, X=TensorSpec((2, 3), "float32"), variant="reference")
    assert str(explanation).splitlines() == [
        'com.acme.Scale on "host"',
        "  X float32 (2, 3)",
        "  → Y float32 (2, 3)",
        "  reference   runs in numpy on the host: it was asked for, and never runs otherwise",
        "  scalar      later: reference was asked for",
    ]
    assert "it was asked for" in explanation._repr_html_()
    assert repr(registry) == "Registry(no device yet, 0 offers)"


def test_explain_checks_specs(registry: oplet.Registry) -> None:
    with pytest.raises(InputError, match="X: f99 is not one of float32, float16"):
        registry.explain(SCALE, X=TensorSpec((1,), "f99"))


# The default registry ---------------------------------------------------------------------------------


def test_the_default_registry_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oplet.registry._default", [])
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: id(oplet.default_registry()), range(16)))
    assert len(made) == 1
    with pytest.raises(UnknownOpError, match=r"no plugin offers 'com\.acme\.Absent'"):
        oplet.run("com.acme.Absent", X=ONES)
    with pytest.raises(UnknownOpError, match=r"no plugin offers 'com\.acme\.Absent'"):
        oplet.explain("com.acme.Absent", X=ONES)
    oplet.default_registry().register(SCALE, acme_scale)
    np.testing.assert_array_equal(oplet.run(SCALE, X=ONES, variant="reference").numpy(), 2 * ONES)
