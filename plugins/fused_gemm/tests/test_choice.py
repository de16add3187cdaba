"""Which variant runs where, why the others do not, and what is refused. No device is needed."""

from __future__ import annotations

import attrs
import numpy as np
import oplet
import pytest
from oplet.capabilities import FLOOR, Adapter, SubgroupMatrixConfig

OP = "com.microsoft.FusedGemm"

#: an NVIDIA H200: what wgpu grants there, and what Dawn does
GPU = oplet.Capabilities(
    features=frozenset({"subgroups", "shader-f16", "timestamp-query"}),
    limits={
        **FLOOR,
        "maxBufferSize": 1 << 32,
        "maxStorageBufferBindingSize": 1 << 31,
        "maxComputeInvocationsPerWorkgroup": 1024,
        "maxComputeWorkgroupStorageSize": 49152,
    },
    subgroup_size=32,
    subgroup_matrix_configs=(),
    dialect="naga",
    adapter=Adapter("NVIDIA H200", "NVIDIA", "Vulkan", is_cpu=False, driver="580"),
)
MATRIX = attrs.evolve(
    GPU,
    features=GPU.features | {"subgroup-matrix"},
    dialect="tint",
    subgroup_matrix_configs=tuple(
        SubgroupMatrixConfig("f16", result, 16, n, k)
        for result in ("f16", "f32")
        for n, k in ((16, 16), (8, 16), (8, 8))
    ),
)
BARE = attrs.evolve(GPU, features=frozenset(), limits=dict(FLOOR), subgroup_size=0)
CPU = attrs.evolve(GPU, adapter=attrs.evolve(GPU.adapter, is_cpu=True))


@pytest.fixture(scope="module")
def op():
    return oplet.Registry()[OP]


def product(m, n, k, dtype="float32", ta=0, tb=0):
    a, b = (k, m) if ta else (m, k), (n, k) if tb else (k, n)
    return {"A": oplet.TensorSpec(a, dtype), "B": oplet.TensorSpec(b, dtype)}, {"transA": ta, "transB": tb}


def reasons(op, call, caps):
    variant, rejections = op.choose(op.bind(*call), caps)
    return variant.name, {one.variant: f"{one.kind}: {one.reason}" for one in rejections}


@pytest.mark.parametrize(
    ("call", "caps", "chosen"),
    [
        (product(4096, 4096, 4096), GPU, "tiled_vec4"),
        (product(1024, 1024, 1024), GPU, "split_k_vec4"),
        (product(4095, 4097, 4093), GPU, "tiled_scalar"),
        (product(95, 97, 4093), GPU, "split_k_scalar"),
        (product(64, 64, 128), GPU, "tiled_vec4"),
        (product(1, 4096, 4096), GPU, "skinny"),
        (product(16, 4096, 4096, tb=1), GPU, "skinny"),
        (product(4096, 8, 4096), GPU, "skinny"),
        (product(1, 4096, 4096), BARE, "skinny_nosg"),
        (product(4096, 4096, 4096), BARE, "tiled_vec4"),
        (product(4096, 4096, 4096, "float16"), GPU, "tiled_vec4"),
        (product(4096, 4096, 4096, "float16"), MATRIX, "subgroup_matrix"),
        (product(4095, 4097, 4093, "float16"), MATRIX, "subgroup_matrix"),
        (product(64, 4096, 4096, "float16"), MATRIX, "subgroup_matrix_split_k"),
        (product(4096, 4096, 4096), MATRIX, "tiled_vec4"),
        (product(64, 64, 4096), CPU, "tiled_vec4"),
    ],
)
def test_choice(op, call, caps, chosen):
    assert reasons(op, call, caps)[0] == chosen


@pytest.mark.parametrize(
    ("call", "caps", "tile", "slices"),
    [
        (product(4096, 4096, 4096), GPU, (128, 128), 1),
        (product(4096, 4096, 4096), BARE, (64, 128), 1),
        (product(1024, 1024, 1024), GPU, (128, 128), 2),
        (product(1024, 1024, 1024, "float16"), GPU, (128, 128), 2),
        (product(512, 512, 4096), GPU, (128, 128), 8),
        # Y fills half of the large tiles, which are many enough.
        (product(64, 4096, 4096), GPU, (64, 128), 8),
        (product(64, 32768, 4096), GPU, (64, 128), 1),
        (product(64, 4096, 4096, "float16"), GPU, (64, 64), 4),
        # Too few even in slices, or too short for more of them.
        (product(256, 256, 4096), GPU, (64, 64), 16),
        (product(64, 4096, 512), GPU, (64, 64), 2),
        (product(4096, 64, 4096), GPU, (64, 64), 4),
    ],
)
def test_tiles(op, call, caps, tile, slices):
    """The largest tile that fills a device, and that Y fills."""
    request = op.bind(*call)
    variant, _ = op.choose(request, caps)
    first = variant.plan(request, caps)[0]
    assert (first.context["tile_m"], first.context["tile_n"]) == tile
    m, n = request.inputs["A"].shape[0], request.inputs["B"].shape[1]
    assert first.workgroups == -(-m // tile[0]) * -(-n // tile[1]) * slices


@pytest.mark.parametrize(
    ("call", "guards"),
    [
        (product(4096, 4096, 4096), "last"),
        (product(4096, 4096, 4096, tb=1), "all"),
        (product(4095, 4097, 4093), "last"),
        (product(64, 4096, 4096), "none"),
        (product(64, 4096, 4090), "last"),
        (product(4096, 4096, 4096, "float16"), "all"),
    ],
)
def test_guards(op, call, guards):
    request = op.bind(*call)
    variant, _ = op.choose(request, GPU)
    assert variant.plan(request, GPU)[0].context["guards"] == guards


def test_reasons(op):
    assert reasons(op, product(4096, 4096, 4096), GPU)[1] == {
        "skinny": "rejects: M = 4096 and N = 4096 are both over 16",
        "skinny_nosg": "rejects: M = 4096 and N = 4096 are both over 16",
        "subgroup_matrix_split_k": "rejects: needs the device feature subgroup-matrix: "
        "Dawn, and open_device(experimental=True)",
        "subgroup_matrix": "rejects: needs the device feature subgroup-matrix: "
        "Dawn, and open_device(experimental=True)",
        "split_k_vec4": "yields: Y has 1024 tiles of 128 × 128, enough to keep a device busy",
        "split_k_scalar": "yields: Y has 1024 tiles of 128 × 128, enough to keep a device busy",
        "tiled_scalar": "later: tiled_vec4 is preferred",
    }
    found = reasons(op, product(130, 33, 512), BARE)[1]
    assert found["tiled_vec4"] == "rejects: rows of B are N = 33 long, not a multiple of 4"
    found = reasons(op, product(40, 40, 20), GPU)[1]
    assert found["split_k_vec4"] == "yields: K = 20 is too short to pay for a second launch"
    assert reasons(op, product(40, 40, 8), GPU)[1]["split_k_vec4"] == "rejects: K = 8 is no more than one step of 16"
    assert reasons(op, product(40, 40, 8), MATRIX)[1]["subgroup_matrix"] == (
        "rejects: matrix units would round float32 to float16"
    )
    small = attrs.evolve(MATRIX, limits={**MATRIX.limits, "maxComputeWorkgroupStorageSize": 16384})
    assert reasons(op, product(4096, 4096, 4096, "float16"), small)[1]["subgroup_matrix"] == (
        "rejects: 18944 bytes of workgroup memory are needed, and the device allows 16384"
    )


def test_float16_needs_the_feature(op):
    with pytest.raises(oplet.NoVariantError) as caught:
        op.choose(op.bind(*product(8, 8, 8, "float16")), BARE)
    assert all("needs the device feature" in one.reason for one in caught.value.rejections)


def test_two_shapes_one_pipeline(op):
    """Nothing of a shape but its divisibility is in what is compiled."""

    def code(m, n, k, name):
        variant = next(one for one in op.variants if one.name == name)
        request = op.bind(*product(m, n, k))
        assert variant.rejects(request, GPU) is None
        return [
            (launch.template, dict(launch.context), [b.name for b in launch.bindings], list(launch.params))
            for launch in variant.plan(request, GPU)
        ]

    for name in ("tiled_vec4", "tiled_scalar", "split_k_vec4", "split_k_scalar"):
        assert code(1024, 2048, 512, name) == code(2048, 4096, 8192, name)
    for name in ("skinny", "skinny_nosg"):
        assert code(1, 4096, 4096, name) == code(1, 512, 64, name)


@pytest.mark.parametrize(
    ("call", "ahead"),
    [
        (product(8, 4096, 4096, "float16"), 2),
        (product(8, 512, 1024, "float16"), 2),
        (product(8, 4096, 4100, "float16"), 0),
        (product(8, 4100, 4096, "float16"), 0),
        (product(8, 4096, 4096, "float16", ta=1), 0),
        (product(16, 4096, 4096, "float16"), 0),
        (product(8, 4096, 4096), 0),
        (product(8, 4096, 4100, "float16", tb=1), True),
        (product(1, 4096, 4096, "float16", tb=1), False),
    ],
    ids=str,
)
def test_what_a_skinny_kernel_reads_ahead(op, call, ahead):
    """Of W (K, N) only whole rounds, in which X too is read in chunks."""
    (launch,) = op.variants[0].plan(op.bind(*call), GPU)
    assert launch.context["ahead"] == ahead


def refused(op, inputs, attributes=None):
    with pytest.raises(oplet.InputError) as caught:
        op.infer(op.bind({name: oplet.TensorSpec(shape, "float32") for name, shape in inputs.items()}, attributes))
    return str(caught.value).splitlines(), caught.value.argument


def test_inner_sizes_have_to_match(op):
    lines, argument = refused(op, {"A": (7, 13), "B": (12, 11)})
    assert argument == "B"
    assert lines == [
        "com.microsoft.FusedGemm: B: its K is 12, that of A is 13",
        "  A float32 (7, 13), transA 0: M 7, K 13",
        "  B float32 (12, 11), transB 0: N 11, K 12",
        "pass B as (13, N), or set transA or transB",
    ]


@pytest.mark.parametrize("shape", [(7,), (1, 1, 1), (7, 1, 1), (1, 7), (11, 1), (2,), (7, 12), (0,)], ids=str)
def test_c_has_to_broadcast(op, shape):
    lines, argument = refused(op, {"A": (7, 13), "B": (13, 11), "C": shape})
    assert argument == "C"
    assert "does not broadcast to (M, N) = (7, 11)" in lines[0]
    assert "(7, 1)" in lines[1]
    assert lines[-1] == ("for a column pass C.reshape(7, 1)" if shape == (7,) else "reshape C to one of these")


def test_a_bad_c_is_refused_where_beta_ignores_it(op):
    assert refused(op, {"A": (7, 13), "B": (13, 11), "C": (5,)}, {"beta": 0})[1] == "C"


def test_activations_are_case_sensitive(op):
    lines, argument = refused(op, {"A": (2, 3), "B": (3, 4)}, {"activation": "relu"})
    assert argument == "activation"
    assert "Relu" in "\n".join(lines)
    assert "HardSigmoid" in "\n".join(lines)


@pytest.mark.parametrize("name", ["ScaledTanh", "ParametricSoftplus"])
def test_parameters_without_a_default(op, name):
    lines, argument = refused(op, {"A": (2, 3), "B": (3, 4)}, {"activation": name, "activation_alpha": 1.0})
    assert argument == "activation_beta"
    assert f"{name} needs it" in lines[0]


def test_the_largest_slices_of_k_are_refused_by_name(op):
    few = attrs.evolve(GPU, limits={**GPU.limits, "maxStorageBufferBindingSize": 1 << 20})
    split = next(one for one in op.variants if one.name == "split_k_vec4")
    reason = split.rejects(op.bind(*product(512, 512, 4096)), few)
    assert reason == "the partial sums need 8388608 bytes, and a buffer may have 1048576"


def test_alpha_is_what_onnx_stores(op):
    request = op.bind(*product(1, 1, 1)[:1], {"alpha": 0.1})
    got = op.reference(request, {"A": np.ones((1, 1), np.float32), "B": np.ones((1, 1), np.float32)})["Y"]
    assert got[0, 0] == float(np.float32(0.1))
