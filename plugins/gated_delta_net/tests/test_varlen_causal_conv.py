"""com.microsoft.VarlenCausalConvWithState: the kit's cases, onnxruntime's CPU kernel as the oracle, the contract."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import attrs
import numpy as np
import onnxruntime
import oplet
import pytest
from oplet.bench.peers import PeerCase, one_node_model
from oplet.testing import conformance
from oplet.testing.compare import Tolerance, compare
from oplet.testing.guard import GuardPool
from oplet.testing.suite import Suite
from oplet_gated_delta_net.varlen_causal_conv.cases import call, scale
from oplet_gated_delta_net.varlen_causal_conv.variants import VARIANTS

OP = "com.microsoft.VarlenCausalConvWithState"
NAMES = [variant.name for variant in VARIANTS]
CASES = 300
#: both are float32 computations with errors of their own, so they may lie twice as far apart
TOLERANCE = Tolerance(
    2 * Suite.read("oplet_gated_delta_net.varlen_causal_conv").tolerance["float32"].rtol,
    0.0,
    "two float32 computations",
)

test_conformance = conformance(OP)

Inputs = dict[str, np.ndarray]


@cache
def registry() -> oplet.Registry:
    return oplet.Registry()


# onnxruntime -----------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Answered:
    """A call, and what onnxruntime makes of it."""

    request: oplet.Request
    arrays: Inputs
    attrs: dict[str, Any]
    want: Inputs
    scale: Inputs

    def mismatch(self, name: str, got: np.ndarray) -> str | None:
        want, allowed = self.want[name], self.scale[name]
        if name == "output" and got.dtype == np.float16:
            # onnxruntime's result is rounded too, perhaps to the other side: half a unit.
            allowed = allowed + np.abs(np.spacing(want)).astype(np.float64) / 2 / TOLERANCE.rtol
        found = compare(got, want.astype(np.float64), TOLERANCE, allowed)
        return found and f"{self.request}: {found.describe(name, TOLERANCE)}"


@cache
def answered() -> list[Answered]:
    op = registry()[OP]
    rng = np.random.default_rng(20261130)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    made = []
    for number in range(CASES):
        dtype = (np.float32, np.float16)[number % 2]
        taps = int(rng.integers(1, 6))
        channels = int(rng.integers(1, 20)) if number % 4 < 2 else 4 * int(rng.integers(1, 6))
        # onnxruntime wants as many tokens as sequences.
        lengths = [int(rng.integers(1, 41)) for _ in range(rng.integers(1, 5))]
        if len(lengths) > 1 and rng.random() < 0.3:
            lengths[:2] = 0, lengths[1] + 1
        # One combination for each number of taps: each compiles pipelines of its own.
        biased, activation = taps % 2 == 1, ("none", "silu", "swish")[taps % 3]
        dilation, capacity = int(rng.integers(1, 4)), int(rng.integers(0, 9)) if number % 3 == 0 else 0
        arrays, attributes = call(rng, dtype, channels, taps, dilation, lengths, biased, activation, capacity=capacity)
        outputs = ("output", "final_state", *(["state_update"] if capacity else []))
        request = op.bind({name: oplet.TensorSpec.of(array) for name, array in arrays.items()}, attributes, outputs)
        model = one_node_model(PeerCase(op, request, arrays, request.attrs))
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        want = dict(zip(outputs, session.run(list(outputs), arrays), strict=True))
        made.append(Answered(request, arrays, attributes, want, scale(request, arrays)))
    return made


@pytest.mark.parametrize("variant", ["reference", *NAMES])
def test_agrees_with_onnxruntime(variant: str) -> None:
    wrong, ran = [], 0
    for case in answered():
        try:
            results = registry().run(OP, **case.arrays, attrs=case.attrs, outputs=tuple(case.want), variant=variant)
        except oplet.NoVariantError:
            continue
        ran += 1
        wrong += [found for name in case.want if (found := case.mismatch(name, getattr(results, name).numpy()))]
    assert not wrong, f"{len(wrong)} wrong\n" + "\n".join(wrong[:5])
    # Every case but those of float16, of channels that vec4 does not divide, or both.
    assert ran >= CASES // 8


# The contract ----------------------------------------------------------------------------------------


def make(lengths: list[int], *, channels: int = 8, taps: int = 4, dilation: int = 1, **more: Any) -> tuple[Inputs, Any]:
    rng = np.random.default_rng(7)
    return call(rng, np.float32, channels, taps, dilation, lengths, False, "silu", **more)


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint32)


def run(variant: str | None, inputs: Inputs, attributes: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    results = registry().run(OP, attrs=attributes, variant=variant, **inputs)
    return results.output.numpy(), results.final_state.numpy()


@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("variant", NAMES)
def test_two_calls_are_one(variant: str, dilation: int) -> None:
    inputs, attributes = make([70], dilation=dilation)
    output, state = run(variant, inputs, attributes)
    for cut in (0, 1, 2, 8, 40, 70):
        parts, between = [], inputs["initial_state"]
        for first, last in pairwise([0, cut, 70]):
            part = {
                **inputs,
                "input": inputs["input"][first:last],
                "cumulative_sequence_length": np.array([0, last - first], np.int32),
                "initial_state": between,
            }
            out, between = run(variant, part, attributes)
            parts.append(out)
        np.testing.assert_array_equal(bits(np.concatenate(parts)), bits(output))
        np.testing.assert_array_equal(bits(between), bits(state))


@pytest.mark.parametrize("variant", NAMES)
def test_sequences_together_are_sequences_alone(variant: str) -> None:
    lengths = [3, 0, 40, 1, 19]
    inputs, attributes = make(lengths)
    output, state = run(variant, inputs, attributes)
    for number, (first, last) in enumerate(pairwise(inputs["cumulative_sequence_length"].tolist())):
        alone = {
            **inputs,
            "input": inputs["input"][first:last],
            "cumulative_sequence_length": np.array([0, last - first], np.int32),
            "initial_state": inputs["initial_state"][number : number + 1],
        }
        out, final = run(variant, alone, attributes)
        np.testing.assert_array_equal(bits(out), bits(output[first:last]))
        np.testing.assert_array_equal(bits(final[0]), bits(state[number]))


@pytest.mark.parametrize("variant", NAMES)
def test_nan_stays_in_its_channel_and_reach(variant: str) -> None:
    inputs, attributes = make([30, 10])
    inputs["input"][12, 5] = np.nan
    output, state = run(variant, inputs, attributes)
    assert np.argwhere(np.isnan(output)).tolist() == [[token, 5] for token in range(12, 16)]
    assert not np.isnan(state).any()


@pytest.mark.parametrize("variant", NAMES)
def test_outputs_alone(variant: str) -> None:
    inputs, attributes = make([9, 2], capacity=2)
    names = ("output", "final_state", "state_update")
    whole = registry().run(OP, attrs=attributes, outputs=names, variant=variant, **inputs)
    for name in names:
        alone = registry().run(OP, attrs=attributes, outputs=(name,), variant=variant, **inputs)
        np.testing.assert_array_equal(bits(alone.numpy()), bits(getattr(whole, name).numpy()))


def test_a_dilation_of_more_than_all_tokens() -> None:
    inputs, attributes = make([5, 3], channels=4, taps=2, dilation=300_000)
    got, want = (run(variant, inputs, attributes) for variant in ("window_vec4", "reference"))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * np.abs(other).max())


def test_more_workgroups_than_one_dimension_holds() -> None:
    # 65,537 sequences of a token, a workgroup for each: 65 channels, and 64 invocations in a workgroup.
    batch = 65_537
    inputs, attributes = make([1] * batch, channels=65, taps=2)
    got, want = (run(variant, inputs, attributes) for variant in ("window_scalar", "reference"))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * np.abs(other).max())


@pytest.mark.parametrize("unchecked", [False, True], ids=["checked", "unchecked"])
@pytest.mark.parametrize("variant", NAMES)
def test_malformed_lengths_on_the_device_stay_in_bounds(variant: str, unchecked: bool) -> None:
    """Rows of the output are unspecified then; states are those of the clamped lengths, and nothing else is touched."""
    device = oplet.open_device(unchecked=unchecked)
    device.pool = GuardPool(device)
    guarded = oplet.Registry(device=device)
    rng = np.random.default_rng(3)
    inputs, attributes = make([3, 0, 30, 4], dilation=2, capacity=3)
    wild = np.array([0, 1, -1, 20, 36, 37, 38, 2**31 - 1, -(2**31), 5])
    outputs = ("output", "final_state", "state_update")
    op = guarded[OP]
    for attempt in range(24):
        inputs["cumulative_sequence_length"] = (
            rng.choice(wild, 5) if attempt % 2 else rng.integers(-(2**31), 2**31, 5)
        ).astype(np.int32)
        inputs["capture_count"] = rng.integers(-(2**31), 2**31, 4).astype(np.int32)
        with device.pool.watch() as taken:
            tensors = {name: guarded.tensor(array) for name, array in inputs.items()}
            results = guarded.run(OP, attrs=attributes, outputs=outputs, variant=variant, **tensors)
            made = [getattr(results, name) for name in outputs]
            states = [made[1].numpy(), made[2].numpy()]
            specs = [tensor.spec for tensor in (*tensors.values(), *made)]
            seen = [buffer.look(device, spec) for buffer, spec in zip(taken, specs, strict=True)]
        assert [one.overwritten for one in seen] == [None] * len(seen)
        request = op.bind({name: oplet.TensorSpec.of(array) for name, array in inputs.items()}, attributes, outputs)
        want = op.reference(request, inputs)
        for state, name in zip(states, outputs[1:], strict=True):
            np.testing.assert_array_equal(state, want[name].astype(np.float32))


# What is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([1, 3, 9], "entry 0 is 1, not 0"),
        ([0, 10, 9], "entry 2 is 9, less than entry 1, 10"),
        ([0, -3, 9], "entry 1 is -3, less than entry 0, 0"),
        ([0, 3, 8], "entry 2, the last, is 8"),
    ],
)
@pytest.mark.parametrize("variant", [None, "reference"])
def test_malformed_lengths_of_an_array_are_refused_by_their_entry(
    entries: list[int], message: str, variant: str | None
) -> None:
    inputs, attributes = make([4, 5])
    inputs["cumulative_sequence_length"] = np.array(entries, np.int32)
    with pytest.raises(oplet.InputError) as caught:
        run(variant, inputs, attributes)
    assert caught.value.argument == "cumulative_sequence_length"
    assert message in str(caught.value).splitlines()[0]


BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("state of another dilation", {}, {"dilation": 2}, "initial_state"),
    ("state of another batch", {"initial_state": np.zeros((3, 8, 3), np.float32)}, {}, "initial_state"),
    ("bias of other channels", {"bias": np.zeros(7, np.float32)}, {}, "bias"),
    ("weight of other channels", {"weight": np.zeros((7, 1, 4), np.float32)}, {}, "weight"),
    ("weight that is not depthwise", {"weight": np.zeros((8, 2, 4), np.float32)}, {}, "weight"),
    ("no taps", {"weight": np.zeros((8, 1, 0), np.float32)}, {}, "weight"),
    ("no lengths", {"cumulative_sequence_length": np.zeros(0, np.int32)}, {}, "cumulative_sequence_length"),
    ("no sequence", {"cumulative_sequence_length": np.zeros(1, np.int32)}, {}, "cumulative_sequence_length"),
    ("dilation", {}, {"dilation": 0}, "dilation"),
    ("capacity", {"capture_count": np.zeros(2, np.int32)}, {"state_update_capacity": 9}, "state_update_capacity"),
    ("capacity without count", {}, {"state_update_capacity": 2}, "capture_count"),
    ("count without capacity", {"capture_count": np.zeros(2, np.int32)}, {}, "capture_count"),
    ("count of another batch", {"capture_count": np.zeros(3, np.int32)}, {"state_update_capacity": 2}, "capture_count"),
    ("changing taps", {"kernel_delta": np.zeros((9, 2, 8), np.float32)}, {}, "kernel_delta"),
    ("a mask", {"previous_mask": np.zeros((9, 1), np.float32)}, {}, "previous_mask"),
    ("activation", {}, {"activation": "gelu"}, "activation"),
]


@pytest.mark.parametrize(("_", "changes", "changed", "argument"), BAD, ids=[bad[0] for bad in BAD])
def test_refused_by_name(_: str, changes: dict[str, Any], changed: dict[str, Any], argument: str) -> None:
    inputs, attributes = make([4, 5])
    with pytest.raises(oplet.InputError) as caught:
        run(None, {**inputs, **changes}, {**attributes, **changed})
    assert caught.value.argument == argument
    first, *_rest, last = str(caught.value).split("\n")
    assert argument in first
    assert last


def test_an_update_without_room_is_refused() -> None:
    inputs, attributes = make([4, 5])
    with pytest.raises(oplet.InputError, match="state_update: was asked for, and state_update_capacity is 0") as caught:
        registry().run(OP, attrs=attributes, outputs=("output", "state_update"), **inputs)
    assert caught.value.argument == "state_update"


def test_one_tensor_for_both_states_is_refused_by_name() -> None:
    inputs, attributes = make([4, 5])
    state = registry().tensor(inputs["initial_state"])
    with pytest.raises(oplet.InputError, match="final_state: it is on the same buffer as initial_state"):
        registry().run(OP, attrs=attributes, out={"final_state": state}, **{**inputs, "initial_state": state})


# Choice ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channels", "taps", "chosen"),
    [(8192, 4, "window_vec4"), (8190, 4, "window_scalar"), (8192, 8, "window_vec4"), (8192, 9, "taps_scalar")],
)
def test_choice(channels: int, taps: int, chosen: str) -> None:
    shapes = {"input": (64, channels), "weight": (channels, 1, taps), "initial_state": (64, channels, taps - 1)}
    specs = {name: oplet.TensorSpec(shape, "float32") for name, shape in shapes.items()}
    specs["cumulative_sequence_length"] = oplet.TensorSpec((65,), "int32")
    explanation = registry().explain(OP, **specs)
    assert explanation.variant == chosen
    assert all(rejection.reason for rejection in explanation.rejections if rejection.kind != "later")


def test_calls_of_all_sizes_share_their_pipelines() -> None:
    fresh = oplet.Registry()
    for lengths, channels, dilation in (([1], 8, 1), ([3, 0, 200], 12, 1), ([50, 7], 4, 6)):
        inputs, attributes = make(lengths, channels=channels, dilation=dilation)
        fresh.run(OP, attrs=attributes, variant="window_vec4", **inputs)
    assert fresh.device.pipelines.compiled == 1
