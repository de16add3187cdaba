"""float16 in subgroup matrices: where it is so, on pretended devices, and that it is right, on one that has them.

Few drivers have them: Dawn on a recent GPU, or on Mesa 26's software driver. Elsewhere what needs a device is skipped.
"""

from __future__ import annotations

import re

import attrs
import numpy as np
import oplet
import pytest
from oplet import TensorSpec
from oplet.capabilities import FLOOR, Adapter, SubgroupMatrixConfig
from oplet.op import Op
from oplet.shader import FOLD_PARAMS, PARAM_TYPES
from oplet.testing.compare import compare
from oplet.testing.guard import GuardPool
from oplet.testing.suite import Suite
from oplet_packed_mha import matrices
from oplet_packed_mha.cases import BROADCASTS, draw, scale
from oplet_packed_mha.shapes import Attention

OP = "com.microsoft.PackedMultiHeadAttention"
SUITE = Suite.read("oplet_packed_mha")

#: what Dawn grants on an NVIDIA H200
CARD = oplet.Capabilities(
    features=frozenset({"subgroups", "shader-f16", "timestamp-query", "subgroup-matrix"}),
    limits={**FLOOR, "maxComputeInvocationsPerWorkgroup": 1024, "maxComputeWorkgroupStorageSize": 49152},
    subgroup_size=32,
    subgroup_matrix_configs=tuple(
        SubgroupMatrixConfig("f16", result, 16, n, k)
        for result in ("f16", "f32")
        for n, k in ((16, 16), (8, 16), (8, 8))
    ),
    dialect="tint",
    adapter=Adapter("NVIDIA H200", "NVIDIA", "Vulkan", is_cpu=False, driver="580"),
)
PLAIN = attrs.evolve(CARD, features=CARD.features - {"subgroup-matrix"}, subgroup_matrix_configs=())
FLOORED = attrs.evolve(CARD, limits=dict(FLOOR))


@pytest.fixture(scope="module")
def op() -> Op:
    return oplet.Registry()[OP]


@pytest.fixture(scope="module")
def registry() -> oplet.Registry:
    device = oplet.open_device(experimental=True)
    if "subgroup-matrix" not in device.capabilities.features:
        pytest.skip("needs a device with subgroup matrices")
    return oplet.Registry(device=device)


def call(op: Op, head: int, value: int, *, dtype: str = "float16", bias: bool = False, places: bool = False):
    specs = {
        "queryT": TensorSpec((900, 4 * head), dtype),
        "keyT": TensorSpec((900, 4 * head), dtype),
        "valueT": TensorSpec((900, 4 * value), dtype),
        "tokenOffsetT": TensorSpec((3, 500), "int32"),
        "cumulativeSequenceLengthT": TensorSpec((4,), "int32"),
    }
    if bias:
        specs["biasT"] = TensorSpec((8 * head + 4 * value,), dtype)
    if places:
        specs["attentionBiasT"] = TensorSpec((1, 4, 500, 500), dtype)
    return op.bind(specs, {"num_heads": 4})


@pytest.mark.parametrize(
    ("request_of", "caps", "template"),
    [
        ({"head": 64, "value": 64}, CARD, "flash_matrix.wgsl.jinja"),
        ({"head": 128, "value": 128, "bias": True, "places": True}, CARD, "flash_matrix.wgsl.jinja"),
        ({"head": 24, "value": 40}, CARD, "flash_matrix.wgsl.jinja"),
        ({"head": 64, "value": 64}, FLOORED, "flash_matrix.wgsl.jinja"),
        ({"head": 64, "value": 64}, PLAIN, "flash.wgsl.jinja"),
        ({"head": 64, "value": 64, "dtype": "float32"}, CARD, "flash.wgsl.jinja"),
        ({"head": 20, "value": 20}, CARD, "flash.wgsl.jinja"),
        ({"head": 128, "value": 136}, CARD, "flash.wgsl.jinja"),
        ({"head": 128, "value": 128}, FLOORED, "flash.wgsl.jinja"),
    ],
)
def test_choice(op: Op, request_of, caps: oplet.Capabilities, template: str) -> None:
    request = call(op, **request_of)
    variant, rejections = op.choose(request, caps)
    assert variant.name.endswith("_flash")
    assert variant.plan(request, caps)[0].template == template
    # This is how `explain` tells.
    told = next(one for one in rejections if one.variant == f"{variant.name}_nosg")
    by_matrices = (told.kind, told.reason) == ("yields", "flash multiplies in subgroup matrices")
    assert by_matrices == (template == "flash_matrix.wgsl.jinja")


@pytest.mark.parametrize(
    ("changes", "request_of", "reason"),
    [
        ({}, {}, None),
        ({"features": PLAIN.features}, {}, "needs the device feature subgroup-matrix: Dawn"),
        ({"subgroup_size": 0}, {}, "needs the device feature subgroups"),
        ({}, {"dtype": "float32"}, "matrix units would round float32 to float16"),
        ({}, {"head": 60}, "the head size 60 is not a multiple of 8 up to 128"),
        ({}, {"value": 136}, "the value head size 136 is not a multiple of 8 up to 128"),
        ({"subgroup_matrix_configs": ()}, {}, "multiplies no float16 matrices with float32 sums"),
        (
            {"subgroup_matrix_configs": (SubgroupMatrixConfig("f16", "f32", 16, 16, 32),)},
            {},
            "multiplies no float16 matrices with float32 sums",
        ),
        ({"subgroup_size": 64}, {}, "subgroups of 64 cannot share 16 rows of 32 scores"),
        (
            {"limits": {**CARD.limits, "maxComputeInvocationsPerWorkgroup": 64}},
            {},
            "128 invocations in a workgroup are needed, and the device allows 64",
        ),
        ({"limits": FLOOR}, {"head": 128}, "bytes of workgroup memory are needed, and the device allows 16384"),
    ],
)
def test_reasons(op: Op, changes, request_of, reason: str | None) -> None:
    found = matrices.rejects(
        Attention.of(call(op, **{"head": 64, "value": 64, **request_of})), attrs.evolve(CARD, **changes)
    )
    assert found is None if reason is None else reason in str(found)


def size_of(kind: str) -> int:
    """Bytes of a WGSL type in workgroup memory, with the constants of the template."""
    if array := re.fullmatch(r"array<(.*), (\w+)>", kind):
        count = {"KEYS": "32", "INVOCATIONS": "128"}.get(array[2], array[2])
        return size_of(array[1]) * int(count)
    return {"vec4<u32>": 16, "u32": 4, "Tiles": 12, "atomic<u32>": 4}[kind]


@pytest.mark.parametrize(
    ("head", "value", "extra"), [(64, 64, False), (128, 128, True), (24, 40, True), (8, 128, True)]
)
def test_the_memory_that_is_reckoned_with_is_what_the_shader_takes(op: Op, head: int, value: int, extra: bool) -> None:
    request = call(op, head, value, bias=extra, places=extra)
    variant, _ = op.choose(request, CARD)
    (launch,) = variant.plan(request, CARD)
    params = {name: PARAM_TYPES[number.dtype.name] for name, number in launch.params.items()} | dict(FOLD_PARAMS)
    shader = op.templates.render(
        "oplet_packed_mha",
        launch.template,
        context=launch.context,
        bindings=launch.bindings,
        params=params,
        caps=CARD,
    )
    taken = sum(size_of(kind) for kind in re.findall(r"^var<workgroup> \w+: (.*);", shader.wgsl, re.MULTILINE))
    config = matrices.config_for(CARD)
    assert config is not None
    assert matrices.tile_for(CARD).storage(Attention.of(request), config, 32) == taken


def test_random_calls(registry: oplet.Registry) -> None:
    op, caps = registry[OP], registry.device.capabilities
    for number in range(60):
        rng = np.random.default_rng([2027, number])
        packed = bool(rng.random() < 0.5)
        value_size = int(rng.choice([8, 16]))
        inputs, attributes = draw(
            rng,
            rng.integers(0, 70, rng.integers(1, 5)).tolist(),
            heads=int(rng.integers(1, 4)),
            head_size=value_size if packed else int(rng.choice([8, 16])),
            value_size=value_size,
            packed=packed,
            bias=bool(rng.random() < 0.5),
            broadcast=BROADCASTS[rng.integers(4)] if rng.random() < 0.5 else None,
            scale=float(rng.uniform(-3, 3)) if rng.random() < 0.5 else None,
            dtype="float16",
            padding=str(rng.choice(["left", "right", "gaps"])),
        )
        if "attentionBiasT" in inputs and rng.random() < 0.3:
            table = inputs["attentionBiasT"]
            table[rng.random(table.shape) < 0.3] = -np.inf
        check(registry, op, caps, inputs, attributes, f"call {number}")


@pytest.mark.parametrize("width", [16, 40])
def test_the_tile_of_gpus_is_right(registry: oplet.Registry, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Software drivers choose a smaller one."""
    monkeypatch.setattr(matrices, "_CPU", matrices._GPU)
    inputs, attributes = draw(
        np.random.default_rng(3),
        [70, 5, 0, 130, 64],
        heads=2,
        head_size=24,
        value_size=width,
        bias=True,
        broadcast=(True, False),
        dtype="float16",
    )
    check(registry, registry[OP], registry.device.capabilities, inputs, attributes, "the tile of GPUs")


def test_scores_that_keep_growing(registry: oplet.Registry) -> None:
    """For every other row each tile of keys outgrows the reference by too much for float16, for the rest none does."""
    rng = np.random.default_rng(5)
    inputs, attributes = draw(rng, [100, 60], heads=2, head_size=16, dtype="float16", packed=False, scale=1.0)
    tokens = np.arange(160)
    inputs["keyT"][:, ::16] = (tokens % 100)[:, None] / 2
    inputs["queryT"][:, ::16] = np.where(tokens % 2, 2, -2)[:, None]
    check(registry, registry[OP], registry.device.capabilities, inputs, attributes, "growing scores")


@pytest.mark.parametrize(("block", "expected"), [(0, np.nan), (1, np.nan), (2, np.inf)])
def test_a_projection_bias_that_is_not_finite(registry: oplet.Registry, block: int, expected: float) -> None:
    inputs, attributes = draw(np.random.default_rng(1), [40, 3], heads=2, head_size=16, dtype="float16", bias=True)
    inputs["biasT"][32 * block + 16 + 4] = np.inf  # of the second head
    got = registry.run(OP, attrs=attributes, variant="packed_bias_flash", **inputs).numpy().reshape(43, 2, 16)
    assert np.isfinite(got[:, 0]).all()
    wrong = got[:, 1, 4] if block == 2 else got[:, 1]
    assert np.array_equal(wrong, np.full_like(wrong, expected), equal_nan=True)
    assert np.isfinite(got[:, 1]).sum() == (43 * 15 if block == 2 else 0)


@pytest.mark.parametrize("seed", range(4))
def test_a_malformed_schedule_on_the_device_stays_in_bounds(registry: oplet.Registry, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs, attributes = draw(
        rng, [3, 0, 30, 4], heads=2, head_size=16, packed=False, bias=True, broadcast=(False, False), dtype="float16"
    )
    wild = np.array([0, 1, -1, 20, 37, 38, 2**31 - 1, -(2**31), 5])
    inputs["cumulativeSequenceLengthT"] = rng.choice(wild, 5).astype(np.int32)
    inputs["tokenOffsetT"] = rng.choice(wild, inputs["tokenOffsetT"].shape).astype(np.int32)
    device = oplet.open_device(experimental=True)
    device.pool = GuardPool(device)
    guarded = oplet.Registry(device=device)
    results = []
    for beyond in (False, True):
        with device.pool.zeroed(contents=True, beyond=beyond), device.pool.watch() as taken:
            tensors = {name: guarded.tensor(array) for name, array in inputs.items()}
            output = guarded.run(OP, attrs=attributes, variant="separate_bias_attn_bias_flash", **tensors)
            results.append(output.numpy())
            specs = [tensor.spec for tensor in (*tensors.values(), output)]
            seen = [buffer.look(device, spec) for buffer, spec in zip(taken, specs, strict=True)]
        assert [one.overwritten for one in seen] == [None] * len(seen)
    assert np.array_equal(*map(np.isnan, results)), "something behind a tensor was read"


def check(registry: oplet.Registry, op: Op, caps: oplet.Capabilities, inputs, attributes, what: str) -> None:
    """Runs a call in matrices and compares it with the reference."""
    request = op.bind({name: TensorSpec.of(array) for name, array in inputs.items()}, attributes)
    assert matrices.rejects(Attention.of(request), caps) is None
    variant = next(v for v in op.variants if v.name.endswith("_flash") and v.rejects(request, caps) is None)
    got = registry.run(OP, attrs=attributes, variant=variant.name, **inputs).numpy()
    want, allowed = op.reference(request, inputs)["outputT"], scale(request, inputs)["outputT"]
    wrong = compare(got, want, SUITE.tolerance["float16"], allowed)
    assert wrong is None, f"{what}, {variant.name}: {wrong.describe('outputT', SUITE.tolerance['float16'])}"
