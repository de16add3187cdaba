"""What the contract says beyond single values, on every variant: packing, splitting, strong decay, NaN, bad offsets."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import oplet
import pytest
from oplet_gated_delta_net.cases import scale

OP = "com.microsoft.GatedDeltaNet"
VARIANTS = ["decode", "recurrent", "chunked", "decode_nosg", "recurrent_nosg", "chunked_nosg"]
HQ, HV, DK, DV = 2, 6, 8, 5

Inputs = dict[str, np.ndarray]


@cache
def registry() -> oplet.Registry:
    return oplet.Registry()


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    if not request.param.endswith("_nosg") and "subgroups" not in registry().device.capabilities.features:
        pytest.skip("the adapter has no subgroups")
    return str(request.param)


def make(
    tokens: int, *, batch: int = 1, seed: int = 0, hq: int = HQ, hv: int = HV, dk: int = DK, dv: int = DV
) -> Inputs:
    rng = np.random.default_rng(seed)
    key = rng.standard_normal((tokens, hq, dk))
    return {
        "queryT": rng.standard_normal((tokens, hq, dk)).astype(np.float32),
        "keyT": (key / np.linalg.norm(key, axis=-1, keepdims=True)).astype(np.float32),
        "valueT": rng.standard_normal((tokens, hv, dv)).astype(np.float32),
        "decayT": -rng.exponential(0.2, (tokens, hv)).astype(np.float32),
        "betaT": rng.random((tokens, hv), np.float32),
        "initialStateT": rng.standard_normal((batch, hv, dv, dk)).astype(np.float32),
    }


def run(variant: str | None, inputs: Inputs, **attrs: Any) -> tuple[np.ndarray, np.ndarray]:
    results = registry().run(OP, attrs=attrs, variant=variant, **inputs)
    return results.outputT.numpy(), results.finalStateT.numpy()


def check(variant: str, inputs: Inputs, **attrs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Runs a variant and compares it with the reference, NaN for NaN."""
    got = run(variant, inputs, **attrs)
    for result, want in zip(got, run("reference", inputs, **attrs), strict=True):
        finite = np.abs(want[np.isfinite(want)])
        np.testing.assert_allclose(result, want, rtol=0, atol=1e-6 * finite.max(initial=1.0))
    return got


def cut(inputs: Inputs, first: int, last: int) -> Inputs:
    return {name: array if name == "initialStateT" else array[first:last] for name, array in inputs.items()}


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint32)


@pytest.mark.parametrize("at", [1, 16, 32, 47, 64])
def test_two_calls_are_one(variant: str, at: int) -> None:
    inputs = make(70)
    output, state = run(variant, inputs)
    first, between = run(variant, cut(inputs, 0, at))
    second, final = run(variant, {**cut(inputs, at, 70), "initialStateT": between})
    parts = np.concatenate([first, second])
    if variant.startswith("chunked") and at % 32:
        np.testing.assert_allclose(parts, output, rtol=0, atol=2e-6 * np.abs(output).max())
        np.testing.assert_allclose(final, state, rtol=0, atol=2e-6 * np.abs(state).max())
    else:
        np.testing.assert_array_equal(bits(parts), bits(output))
        np.testing.assert_array_equal(bits(final), bits(state))


def test_layouts_give_equal_bits(variant: str) -> None:
    inputs = make(3 * 37, batch=3)
    output, state = run(variant, inputs)
    four = {
        name: array if array.ndim == 4 else array.reshape(3, 37, *array.shape[1:]) for name, array in inputs.items()
    }
    lengths = {**inputs, "cuSeqlensT": np.arange(4, dtype=np.int32) * 37}
    parts = [inputs[name].reshape(111, -1) for name in ("queryT", "keyT", "valueT")]
    packed = {name: inputs[name] for name in ("decayT", "betaT", "initialStateT")} | {
        "queryT": np.concatenate(parts, 1)
    }
    for other in (four, lengths, packed):
        again, final = run(variant, other)
        np.testing.assert_array_equal(bits(again.reshape(output.shape)), bits(output))
        np.testing.assert_array_equal(bits(final), bits(state))


def test_empty_requests_copy_the_state_bit_for_bit(variant: str) -> None:
    inputs = make(3, batch=4)
    strange = inputs["initialStateT"]
    strange[1, 0, 0, :4] = [np.nan, -0.0, np.inf, 1e-45]
    bits(strange)[1, 0, 0, 0] = 0x7FC12345
    inputs["cuSeqlensT"] = np.array([0, 3, 3, 3, 3], np.int32)
    _, state = run(variant, inputs)
    np.testing.assert_array_equal(bits(state[1:]), bits(strange[1:]))
    del inputs["initialStateT"]
    _, state = run(variant, inputs)
    np.testing.assert_array_equal(bits(state[1:]), 0)


def test_no_tokens_at_all(variant: str) -> None:
    inputs = make(0, batch=2)
    output, state = run(variant, inputs)
    assert output.shape == (0, HV, DV)
    np.testing.assert_array_equal(bits(state), bits(inputs["initialStateT"]))


def test_no_request_at_all(variant: str) -> None:
    inputs = {**make(5), "cuSeqlensT": np.zeros(1, np.int32)}
    inputs["initialStateT"] = inputs["initialStateT"][:0]
    output, state = run(variant, inputs)
    np.testing.assert_array_equal(output, 0)
    assert state.shape == (0, HV, DV, DK)


@pytest.mark.parametrize(
    "offsets",
    [
        [2, 10, 30],  # tokens before the first and behind the last request
        [-5, 20, 99],
        [2**31 - 1, -(2**31), 7],
        [30, 20, 10],  # decreasing: empty ones
        [0, 20, 20],
        [5, 5, 5],
        [40, 41, 42],
    ],
)
def test_offsets_are_clamped_on_the_device(variant: str, offsets: list[int]) -> None:
    check(variant, {**make(37, batch=2), "cuSeqlensT": np.array(offsets, np.int32)})


def test_requests_that_overlap(variant: str) -> None:
    inputs = {**make(70, batch=3), "cuSeqlensT": np.array([0, 40, 10, 70], np.int32)}
    _, state = run(variant, inputs)
    # Two requests write tokens 10 to 39; either may be the last. States are each request's own.
    _, want = run("reference", inputs)
    np.testing.assert_allclose(state, want, rtol=0, atol=1e-6 * np.abs(want).max())


@pytest.mark.parametrize("decay", [-25.0, -104.0, -1e30, -np.inf])
def test_strong_decay(variant: str, decay: float) -> None:
    inputs = make(70)
    inputs["decayT"][5:40] = decay
    inputs["decayT"][40:60:3] = decay
    output, state = check(variant, inputs)
    assert np.isfinite(output).all()
    assert np.isfinite(state).all()


def test_a_huge_state_is_forgotten(variant: str) -> None:
    inputs = make(40)
    # chunked asks the state before it decays, and so its products with keys have to fit float32.
    inputs["initialStateT"][:] = 1e37 if variant.startswith("chunked") else 3e38
    inputs["keyT"] = np.abs(inputs["keyT"])
    inputs["decayT"][0] = -200
    output, state = check(variant, inputs)
    assert np.isfinite(output).all()
    assert np.isfinite(state).all()


@pytest.mark.parametrize("length", [0.0, 1e-30, 1e-7, 1e-6])
@pytest.mark.parametrize("norm", [0, 1])
def test_keys_near_zero(variant: str, length: float, norm: int) -> None:
    inputs = make(40)
    inputs["keyT"][3:30] *= np.float32(length)
    inputs["queryT"][3:30:2] *= np.float32(length)
    output, state = check(variant, inputs, qk_l2_norm=norm)
    assert np.isfinite(output).all()
    assert np.isfinite(state).all()


@pytest.mark.parametrize("token", [0, 5, 33, 39])
def test_nan_stays_where_it_belongs(variant: str, token: int) -> None:
    inputs = make(40)
    inputs["valueT"][token, 1, 2] = np.nan
    output, state = check(variant, inputs)
    assert np.isnan(state).sum() == DK
    assert np.isnan(output).sum() == 40 - token
    inputs = make(40)
    inputs["queryT"][token, 1, 0] = np.nan
    output, state = check(variant, inputs)
    assert np.isnan(output).sum() == HV // HQ * DV
    assert not np.isnan(state).any()
    for name in ("keyT", "betaT", "decayT"):
        inputs = make(40)
        inputs[name][token, 1] = np.nan
        check(variant, inputs)


def test_value_heads_are_grouped(variant: str) -> None:
    inputs = make(9)
    inputs["keyT"][:, 1] = 0
    del inputs["initialStateT"]
    output, _ = run(variant, inputs)
    assert np.abs(output[:, :3]).min() > 0
    np.testing.assert_array_equal(output[:, 3:], 0)


def test_chunk_size_changes_nothing(variant: str) -> None:
    inputs = make(40)
    output, _ = run(variant, inputs)
    for chunk_size in (-1, 0, 1, 128):
        np.testing.assert_array_equal(bits(run(variant, inputs, chunk_size=chunk_size)[0]), bits(output))


@pytest.mark.parametrize("sizes", [(1, 1), (1, 9), (256, 3), (100, 130)])
def test_head_sizes(variant: str, sizes: tuple[int, int]) -> None:
    dk, dv = sizes
    inputs = make(20, hq=1, hv=2, dk=dk, dv=dv)
    caps = registry().device.capabilities
    (kernel,) = (one for one in registry()[OP].variants if one.name == variant)
    request = registry()[OP].bind({name: oplet.TensorSpec.of(array) for name, array in inputs.items()})
    reason = kernel.rejects(request, caps)
    if reason is None:
        check(variant, inputs)
    else:
        assert dk == 256
        assert "maxComputeWorkgroupStorageSize" in reason


def test_larger_heads_are_rejected_with_a_reason() -> None:
    with pytest.raises(oplet.NoVariantError, match="Dk is 260, and kernels are for at most 256"):
        run(None, make(3, dk=260))


def test_chunked_agrees_with_recurrent_on_a_long_prompt() -> None:
    inputs = make(8192, hq=1, hv=2, dk=32, dv=16)
    suffix = "" if "subgroups" in registry().device.capabilities.features else "_nosg"
    for got, want in zip(run(f"chunked{suffix}", inputs), run(f"recurrent{suffix}", inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())


def test_one_tensor_for_both_states_is_refused_by_name() -> None:
    inputs = make(3)
    state = registry().tensor(inputs["initialStateT"])
    with pytest.raises(oplet.InputError, match="finalStateT: it is on the same buffer as initialStateT"):
        registry().run(OP, **{**inputs, "initialStateT": state}, out={"finalStateT": state})


def test_decode_many_steps_with_two_states() -> None:
    inputs = make(12)
    states = [registry().tensor(inputs["initialStateT"]), registry().empty((1, HV, DV, DK))]
    outputs = []
    for t in range(12):
        results = registry().run(
            OP, **{**cut(inputs, t, t + 1), "initialStateT": states[t % 2]}, out={"finalStateT": states[1 - t % 2]}
        )
        outputs.append(results.outputT)
    want, _ = run("reference", inputs)
    got = np.concatenate([output.numpy() for output in outputs])
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * np.abs(want).max())


@pytest.mark.parametrize("limits", [None, "floor"])  # at the floor a launch before it computes the gates
def test_a_step_of_many_requests_gives_the_bits_of_one_call(limits: str | None) -> None:
    if "subgroups" not in registry().device.capabilities.features:
        pytest.skip("the adapter has no subgroups")
    device = oplet.open_device(limits=limits)
    stepping = oplet.Registry(device=device)
    inputs = make(2 * 512, batch=512, hq=1, hv=2, dv=130)  # so many rows are several rounds of a workgroup
    output, state = stepping.run(OP, variant="decode", **inputs)
    between, outputs = inputs["initialStateT"], []
    for t in range(2):
        step = {name: array[t::2] for name, array in inputs.items()} | {"initialStateT": between}
        plan = stepping[OP].plan(
            stepping[OP].bind({name: oplet.TensorSpec.of(array) for name, array in step.items()}),
            device.capabilities,
            "decode",
        )
        assert plan.launches[-1].template == "step.wgsl.jinja"
        assert plan.launches[-1].params["rounds"] > 1
        results = stepping.run(OP, variant="decode", **step)
        outputs.append(results.outputT.numpy())
        for got, want in zip((outputs[t], results.finalStateT.numpy()), run("reference", step), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * np.abs(want).max())
        between = results.finalStateT.numpy()
    np.testing.assert_array_equal(bits(np.stack(outputs, 1).reshape(output.shape)), bits(output.numpy()))
    np.testing.assert_array_equal(bits(between), bits(state.numpy()))


@pytest.mark.parametrize(
    ("tokens", "batch", "expected"), [(1, 1, "decode"), (64, 64, "decode"), (100, 1, "recurrent"), (2048, 1, "chunked")]
)
def test_choice(tokens: int, batch: int, expected: str) -> None:
    if "subgroups" not in registry().device.capabilities.features:
        expected += "_nosg"
    explanation = registry().explain(OP, **make(tokens, batch=batch))
    assert explanation.variant == expected
    assert len(explanation.rejections) == len(VARIANTS) - 1
    assert all(rejection.reason for rejection in explanation.rejections if rejection.kind != "later")


def test_two_shapes_share_their_pipelines() -> None:
    fresh = oplet.Registry()
    for tokens in (1, 3):
        fresh.run(OP, variant="recurrent_nosg", **make(tokens))
    before = fresh.device.pipelines.compiled
    inputs = make(20, batch=2, hq=3, hv=6, dv=9)
    del inputs["initialStateT"]
    inputs["cuSeqlensT"] = np.array([0, 7, 20], np.int32)
    fresh.run(OP, variant="recurrent_nosg", **inputs)
    assert fresh.device.pipelines.compiled == before


def test_chunks_are_prepared_by_one_pipeline_whatever_the_key_size() -> None:
    op, caps = registry()[OP], registry().device.capabilities

    def prepare(dk: int, variant: str) -> oplet.Launch:
        specs = {name: oplet.TensorSpec.of(array) for name, array in make(40, dk=dk).items()}
        return op.plan(op.bind(specs), caps, variant).launches[0]

    first = prepare(16, "chunked_nosg")
    assert first.template == "chunk_prepare.wgsl.jinja"
    others = [prepare(64, "chunked_nosg")]
    if "subgroups" in caps.features:
        others.append(prepare(16, "chunked"))
    assert [(one.context, one.bindings) for one in others] == [(first.context, first.bindings)] * len(others)


BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("rank 4 with offsets", {"cuSeqlensT": np.array([0, 4], np.int32), "rank4": True}, {}, "cuSeqlensT"),
    ("key of another shape", {"keyT": np.zeros((4, HQ, 3), np.float32)}, {}, "keyT"),
    ("no value", {"valueT": None}, {}, "valueT"),
    ("no key", {"keyT": None}, {}, "keyT"),
    ("heads not a multiple", {"valueT": np.zeros((4, 5, DV), np.float32)}, {}, "valueT"),
    ("decay with delta", {}, {"update_rule": "delta"}, "decayT"),
    ("beta with gated", {}, {"update_rule": "gated"}, "betaT"),
    ("no decay", {"decayT": None}, {}, "decayT"),
    ("no beta", {"betaT": None}, {}, "betaT"),
    ("qwen without a_log", {"dtBiasT": np.zeros(HV, np.float32)}, {"gate_activation": "qwen"}, "aLogT"),
    ("a_log without qwen", {"aLogT": np.zeros(HV, np.float32)}, {}, "aLogT"),
    ("state of another batch", {"initialStateT": np.zeros((3, HV, DV, DK), np.float32)}, {}, "initialStateT"),
    (
        "float16 gates of float32",
        {"decayT": np.zeros((4, HV), np.float16), "betaT": np.zeros((4, HV), np.float16)},
        {},
        "decayT",
    ),
    ("capacity", {}, {"state_update_capacity": 9}, "state_update_capacity"),
    ("capacity without count", {}, {"state_update_capacity": 2}, "captureCountT"),
    ("count without capacity", {"captureCountT": np.zeros(1, np.int32)}, {}, "captureCountT"),
    ("rule", {}, {"update_rule": "gatd"}, "update_rule"),
    ("epsilon", {}, {"qk_l2_norm_epsilon": -1.0}, "qk_l2_norm_epsilon"),
]


@pytest.mark.parametrize(("_", "changes", "attrs", "argument"), BAD, ids=[bad[0] for bad in BAD])
def test_refused_by_name(_: str, changes: dict[str, Any], attrs: dict[str, Any], argument: str) -> None:
    inputs: dict[str, Any] = {**make(4), **{name: value for name, value in changes.items() if name != "rank4"}}
    if "rank4" in changes:
        inputs |= {name: inputs[name][None] for name in ("queryT", "keyT", "valueT", "decayT", "betaT")}
    with pytest.raises(oplet.InputError) as caught:
        registry().run(OP, attrs=attrs, **inputs)
    assert caught.value.argument == argument
    first, *_rest, last = str(caught.value).split("\n")
    assert argument in first
    assert last


def test_gates_too_large_to_compute_ahead_are_no_reason_for_a_failure_later() -> None:
    device = oplet.open_device(features=[], limits="floor")
    tokens, heads, keys = 8192, 32, 128  # gates of 135 MB, where a binding has at most 128 MiB
    row = oplet.TensorSpec((tokens, heads, keys), "float32")
    inputs = {
        "queryT": row,
        "keyT": row,
        "valueT": oplet.TensorSpec((tokens, heads, 4), "float32"),
        "decayT": row,
        "betaT": oplet.TensorSpec((tokens, heads), "float32"),
        "initialStateT": oplet.TensorSpec((1, heads, 4, keys), "float32"),
    }
    with pytest.raises(oplet.NoVariantError, match=r"recurrent_nosg.* gates are computed ahead.* 135266304 bytes"):
        oplet.Registry(device=device).prewarm(OP, **inputs)


@pytest.mark.parametrize("length", [0.0, 0.05, 0.3, 1.0, 1.4])
def test_no_result_is_larger_than_what_its_rounding_is_measured_by(length: float) -> None:
    inputs = make(40, dk=1)
    inputs["keyT"] *= np.float32(length)
    op = registry()[OP]
    request = op.bind({name: oplet.TensorSpec.of(array) for name, array in inputs.items()}, {"scale": 1.0})
    for name, array in op.reference(request, inputs).items():
        assert (scale(request, inputs)[name] >= 0.999999 * np.abs(array)).all(), name
