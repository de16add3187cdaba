"""What the kit's cases are too small for, and which kernel runs."""

from __future__ import annotations

import attrs
import numpy as np
import oplet
import pytest
from oplet.capabilities import FLOOR, Adapter
from oplet.testing.compare import compare
from oplet.testing.suite import Suite
from oplet_engram_gate.cases import inputs, scale
from oplet_engram_gate.variants import VARIANTS

OP = "com.microsoft.EngramGate"
SUITE = Suite.read("oplet_engram_gate")
PER_STREAM = ("keyNormScaleT", "queryNormScaleT", "convNormScaleT")

GPU = oplet.Capabilities(
    features=frozenset({"subgroups", "shader-f16"}),
    limits={**FLOOR, "maxComputeInvocationsPerWorkgroup": 1024},
    subgroup_size=32,
    subgroup_matrix_configs=(),
    dialect="naga",
    adapter=Adapter("a GPU", "", "Vulkan", is_cpu=False),
)
BARE = attrs.evolve(GPU, features=frozenset(), subgroup_size=0)


@pytest.fixture(scope="module")
def registry() -> oplet.Registry:
    return oplet.Registry()


def check_some(registry: oplet.Registry, arrays: dict[str, np.ndarray], variant: str) -> None:
    """Compares the first and last tokens and some between with the reference, which would take long for all."""
    got = registry.run(OP, **arrays, variant=variant).numpy()
    tokens = arrays["keyT"].shape[1]
    some = np.unique([0, 1, tokens - 2, tokens - 1, *np.random.default_rng(0).integers(0, tokens, 60)])
    part = {name: array if name in PER_STREAM else array[:, some] for name, array in arrays.items()}
    op = registry[OP]
    request = op.bind({name: oplet.TensorSpec.of(array) for name, array in part.items()}, {}, None)
    tolerance = SUITE.tolerance["float32"]
    mismatch = compare(got[:, some], op.reference(request, part)["outputT"], tolerance, scale(request, part)["outputT"])
    assert mismatch is None, mismatch.describe("outputT", tolerance)
    assert np.isfinite(got).all()


@pytest.mark.parametrize("variant", [variant.name for variant in VARIANTS])
def test_more_than_65535_rows(variant: str, registry: oplet.Registry) -> None:
    if variant.startswith("subgroup") and "subgroups" not in registry.device.capabilities.features:
        pytest.skip(f"{registry.device.capabilities.adapter.name} has no subgroups")
    hidden = 5 if variant.endswith("scalar") else 4
    arrays = inputs(np.random.default_rng(1), (1, 23000, 3, hidden), np.float32)
    check_some(registry, arrays, variant)


def test_more_than_65535_workgroups(registry: oplet.Registry) -> None:
    # So wide that a row takes a whole workgroup, which is smaller on a software device.
    hidden = 65 if registry.device.capabilities.adapter.is_cpu else 513
    arrays = inputs(np.random.default_rng(2), (1, 65537, 1, hidden), np.float32)
    op = registry[OP]
    request = op.bind({name: oplet.TensorSpec.of(array) for name, array in arrays.items()}, {}, None)
    (launch,) = op.plan(request, registry.device.capabilities, "packed_rows_scalar").launches
    assert launch.workgroups == 65537
    check_some(registry, arrays, "packed_rows_scalar")


@pytest.mark.parametrize("left", [1e-2, 1e-4])
def test_an_epsilon_that_cancels_the_mean_square(left: float, registry: oplet.Registry) -> None:
    arrays = inputs(np.random.default_rng(4), (1, 50, 2, 40), np.float32)
    for name in ("keyT", "queryT"):
        mean = np.square(arrays[name], dtype=np.float64).mean(-1, keepdims=True)
        arrays[name] = (arrays[name] * np.sqrt((1 + left) / mean)).astype(np.float32)
    arrays["keyNormScaleT"] *= np.float32(left)  # or the gates would all be 0 and 1
    outputs = ("outputT", "gatedValueNormedT")
    op = registry[OP]
    specs = {name: oplet.TensorSpec.of(array) for name, array in arrays.items()}
    request = op.bind(specs, {"epsilon": -1.0}, outputs)
    got = registry.run(OP, **arrays, attrs={"epsilon": -1.0}, outputs=outputs)
    want, allowed = op.reference(request, arrays), scale(request, arrays)
    tolerance = SUITE.tolerance["float32"]
    for name, tensor in zip(outputs, got, strict=True):
        # The second output's own mean square is far from cancelling, or its root is of a number below 0: NaN.
        mismatch = compare(tensor.numpy(), want[name], tolerance, allowed[name])
        assert mismatch is None, mismatch.describe(name, tolerance)


def test_second_output_alone(registry: oplet.Registry) -> None:
    arrays = inputs(np.random.default_rng(3), (2, 3, 2, 40), np.float32)
    _, want = registry.run(OP, **arrays, outputs=("output", "gated_value_normed"))
    got = registry.run(OP, **arrays, outputs=("gated_value_normed",))
    np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_second_output_needs_its_scale(registry: oplet.Registry) -> None:
    arrays = inputs(np.random.default_rng(4), (1, 2, 2, 8), np.float32)
    del arrays["convNormScaleT"]
    with pytest.raises(oplet.InputError, match="convNormScaleT: is needed for the output gatedValueNormedT") as caught:
        registry.run(OP, **arrays, outputs=("outputT", "gatedValueNormedT"))
    assert caught.value.argument == "convNormScaleT"


@pytest.mark.parametrize(
    ("caps", "dtype", "hidden", "chosen"),
    [
        (GPU, "float32", 256, "subgroup_rows_vec4"),
        (GPU, "float16", 1024, "subgroup_rows_vec4"),
        (GPU, "float32", 1024, "packed_rows_vec4"),
        (GPU, "float32", 7168, "packed_rows_vec4"),
        (GPU, "float16", 30, "subgroup_rows_scalar"),
        (GPU, "float16", 1030, "packed_rows_scalar"),
        (BARE, "float32", 256, "packed_rows_vec4"),
        (BARE, "float32", 30, "packed_rows_scalar"),
    ],
)
def test_choice(caps: oplet.Capabilities, dtype: str, hidden: int, chosen: str, registry: oplet.Registry) -> None:
    shapes = {
        "keyT": (1, 64, 4, hidden),
        "queryT": (1, 64, 4, hidden),
        "valueT": (1, 64, hidden),
        "keyNormScaleT": (4, hidden),
        "queryNormScaleT": (4, hidden),
    }
    op = registry[OP]
    request = op.bind({name: oplet.TensorSpec(shape, dtype) for name, shape in shapes.items()}, {}, None)
    variant, _ = op.choose(request, caps)
    assert variant.name == chosen


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_float16_needs_its_feature(variant: oplet.Variant, registry: oplet.Registry) -> None:
    spec = {
        "keyT": (1, 2, 2, 8),
        "queryT": (1, 2, 2, 8),
        "valueT": (1, 2, 8),
        "keyNormScaleT": (2, 8),
        "queryNormScaleT": (2, 8),
    }
    request = registry[OP].bind({name: oplet.TensorSpec(shape, "float16") for name, shape in spec.items()}, {}, None)
    caps = attrs.evolve(GPU, features=frozenset({"subgroups"}))
    assert variant.rejects(request, caps) == "float16 needs the device feature shader-f16"
    assert variant.rejects(request, GPU) is None
