"""com.microsoft.GatedRMSNorm: the kit's cases, onnxruntime's CPU kernel as the oracle, and the contract."""

from __future__ import annotations

from functools import cache
from typing import Any

import attrs
import numpy as np
import onnxruntime
import oplet
import pytest
from oplet.bench.peers import PeerCase, one_node_model
from oplet.capabilities import FLOOR, Adapter
from oplet.testing import conformance
from oplet.testing.compare import Tolerance, compare
from oplet.testing.suite import Suite
from oplet_gated_delta_net.gated_rms_norm.cases import inputs, scale
from oplet_gated_delta_net.gated_rms_norm.variants import VARIANTS

OP = "com.microsoft.GatedRMSNorm"
SUITE = Suite.read("oplet_gated_delta_net.gated_rms_norm")
CASES = 200
#: Twice that of test.json, since both are float32 computations. onnxruntime's exponential is the worse of the two: of
#: some values it is 1.6e-6 off.
TOLERANCE = Tolerance(2e-6, 1e-35, "two float32 computations")

test_conformance = conformance(OP)

GPU = oplet.Capabilities(
    features=frozenset({"subgroups", "shader-f16"}),
    limits={**FLOOR, "maxComputeInvocationsPerWorkgroup": 1024},
    subgroup_size=32,
    subgroup_matrix_configs=(),
    dialect="naga",
    adapter=Adapter("a GPU", "", "Vulkan", is_cpu=False),
)
BARE = attrs.evolve(GPU, features=frozenset(), subgroup_size=0)


@cache
def registry() -> oplet.Registry:
    return oplet.Registry()


@pytest.fixture(params=[variant.name for variant in VARIANTS])
def variant(request: pytest.FixtureRequest) -> str:
    if request.param.startswith("subgroup") and "subgroups" not in registry().device.capabilities.features:
        pytest.skip("the adapter has no subgroups")
    return str(request.param)


@attrs.frozen(eq=False)
class Answered:
    """A call, and what onnxruntime makes of it."""

    arrays: dict[str, np.ndarray]
    attrs: dict[str, Any]
    want: np.ndarray
    scale: np.ndarray

    def mismatch(self, got: np.ndarray) -> str | None:
        allowed = self.scale
        if got.dtype == np.float16:
            # onnxruntime's result is rounded too, perhaps to the other side: half a unit.
            allowed = allowed + np.abs(np.spacing(self.want)).astype(np.float64) / 2 / TOLERANCE.rtol
        found = compare(got, self.want.astype(np.float64), TOLERANCE, allowed)
        return found and f"X {got.shape}: {found.describe('Y', TOLERANCE)}"


@cache
def answered() -> list[Answered]:
    op = registry()[OP]
    rng = np.random.default_rng(20261130)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    made = []
    for number in range(CASES):
        dtype = (np.float32, np.float16)[number % 2]
        # Every other width is a multiple of 4, which the vec4 variants need, and as many fit the smallest subgroups.
        most = (32, 300)[int(rng.integers(2))]
        width = int(rng.integers(1, most + 1)) if number % 4 < 2 else 4 * int(rng.integers(1, most // 4 + 1))
        lead = tuple(int(n) for n in rng.integers(1, 6, rng.integers(0, 4)))
        arrays = inputs(rng, (*lead, width * int(rng.integers(1, 5))), width, dtype)
        attributes = {
            "activation": ("silu", "swish", "sigmoid")[number % 3],
            "epsilon": float(rng.choice([1e-5, 1e-6, 0.1])),
        }
        request = op.bind({name: oplet.TensorSpec.of(array) for name, array in arrays.items()}, attributes, None)
        model = one_node_model(PeerCase(op, request, arrays, request.attrs))
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        (want,) = session.run(["Y"], arrays)
        made.append(Answered(arrays, attributes, want, scale(request, arrays)["Y"]))
    return made


def check_onnxruntime(variant: str) -> None:
    wrong, ran = [], 0
    for case in answered():
        try:
            got = registry().run(OP, **case.arrays, attrs=case.attrs, variant=variant)
        except oplet.NoVariantError:
            continue
        ran += 1
        wrong += [found for found in [case.mismatch(got.numpy())] if found]
    assert not wrong, f"{len(wrong)} wrong\n" + "\n".join(wrong[:5])
    # Every case but those of float16, and of those a quarter that are neither too wide nor no multiple of 4.
    assert ran >= CASES // 8


def test_the_reference_agrees_with_onnxruntime() -> None:
    check_onnxruntime("reference")


def test_a_variant_agrees_with_onnxruntime(variant: str) -> None:
    check_onnxruntime(variant)


def test_more_workgroups_than_one_dimension_holds() -> None:
    # So wide that a group takes a whole workgroup, which is smaller on a software device.
    caps = registry().device.capabilities
    width = 63 if caps.adapter.is_cpu else 255
    groups = 65_537
    arrays = inputs(np.random.default_rng(1), (groups, width), width, np.float32)
    op = registry()[OP]
    specs = {name: oplet.TensorSpec.of(array) for name, array in arrays.items()}
    (launch,) = op.plan(op.bind(specs, {}, None), caps, "workgroup_scalar").launches
    assert launch.workgroups == groups
    request = op.bind(specs, {}, None)
    got = registry().run(OP, **arrays, variant="workgroup_scalar").numpy()
    mismatch = compare(got, op.reference(request, arrays)["Y"], SUITE.tolerance["float32"], scale(request, arrays)["Y"])
    assert mismatch is None, mismatch.describe("Y", SUITE.tolerance["float32"])


def test_groups_of_a_packed_row_are_groups_alone(variant: str) -> None:
    arrays = inputs(np.random.default_rng(2), (5, 4 * 12), 12, np.float32)
    packed = registry().run(OP, **arrays, variant=variant).numpy()
    alone = {name: array if name == "scale" else array.reshape(5, 4, 12) for name, array in arrays.items()}
    np.testing.assert_array_equal(registry().run(OP, **alone, variant=variant).numpy().reshape(packed.shape), packed)


def test_nan_stays_in_its_group(variant: str) -> None:
    arrays = inputs(np.random.default_rng(3), (6, 24), 12, np.float32)
    arrays["X"][2, 15] = np.nan
    arrays["gate"][4, 3] = np.nan
    y = registry().run(OP, **arrays, variant=variant).numpy()
    want = np.zeros((6, 24), bool)
    want[2, 12:] = want[4, 3] = True
    np.testing.assert_array_equal(np.isnan(y), want)


BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("not whole groups", {"scale": np.ones(5, np.float32)}, {}, "X"),
    ("no element", {"scale": np.ones(0, np.float32)}, {}, "scale"),
    ("a scalar", {"X": np.float32(1), "gate": np.float32(1)}, {}, "X"),
    ("gate of another shape", {"gate": np.ones((1, 24), np.float32)}, {}, "gate"),
    ("epsilon", {}, {"epsilon": -1e-5}, "epsilon"),
    ("epsilon NaN", {}, {"epsilon": float("nan")}, "epsilon"),
    ("activation", {}, {"activation": "gelu"}, "activation"),
]


@pytest.mark.parametrize(("_", "changes", "changed", "argument"), BAD, ids=[bad[0] for bad in BAD])
def test_refused_by_name(_: str, changes: dict[str, Any], changed: dict[str, Any], argument: str) -> None:
    arrays = inputs(np.random.default_rng(0), (3, 24), 12, np.float32)
    with pytest.raises(oplet.InputError) as caught:
        registry().run(OP, attrs=changed, **{**arrays, **changes})
    assert caught.value.argument == argument
    first, *_rest, last = str(caught.value).split("\n")
    assert argument in first
    assert last


@pytest.mark.parametrize(
    ("caps", "dtype", "width", "chosen"),
    [
        (GPU, "float32", 128, "subgroup_vec4"),
        (GPU, "float16", 256, "subgroup_vec4"),
        (GPU, "float32", 1024, "workgroup_vec4"),
        (GPU, "float32", 4096, "workgroup_vec4"),
        (GPU, "float16", 30, "subgroup_scalar"),
        (GPU, "float16", 1030, "workgroup_scalar"),
        (BARE, "float32", 128, "workgroup_vec4"),
        (BARE, "float32", 30, "workgroup_scalar"),
    ],
)
def test_choice(caps: oplet.Capabilities, dtype: str, width: int, chosen: str) -> None:
    op = registry()[OP]
    shapes = {"X": (64, 2 * width), "scale": (width,), "gate": (64, 2 * width)}
    specs = {name: oplet.TensorSpec(shape, dtype) for name, shape in shapes.items()}
    picked, _ = op.choose(op.bind(specs, {}, None), caps)
    assert picked.name == chosen


@pytest.mark.parametrize("kernel", VARIANTS, ids=lambda kernel: kernel.name)
def test_float16_needs_its_feature(kernel: oplet.Variant) -> None:
    shapes = {"X": (2, 8), "scale": (8,), "gate": (2, 8)}
    request = registry()[OP].bind(
        {name: oplet.TensorSpec(shape, "float16") for name, shape in shapes.items()}, {}, None
    )
    assert kernel.rejects(request, attrs.evolve(GPU, features=frozenset({"subgroups"}))) == (
        "float16 needs the device feature shader-f16"
    )
    assert kernel.rejects(request, GPU) is None
