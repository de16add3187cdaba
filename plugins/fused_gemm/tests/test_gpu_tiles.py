"""The tiles for GPUs on whatever device there is: a software device plans small ones, and so would never run these."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import attrs
import numpy as np
import oplet
import oplet_fused_gemm as plugin
import pytest
from oplet.testing.compare import Tolerance, compare
from oplet_fused_gemm.cases import scale
from oplet_fused_gemm.shapes import Gemm
from oplet_fused_gemm.variants import tiled

OP = "com.microsoft.FusedGemm"
TOLERANCE = Tolerance(rtol=1e-6, atol=0, why="test.json's")

#: past one tile of 128 × 128 either way; whole vectors and steps of K, and neither
SIZES = ((132, 136, 48), (129, 131, 45), (65, 70, 19), (8, 140, 64), (140, 16, 72), (3, 37, 45), (1, 520, 40))


def as_gpu(caps: oplet.Capabilities) -> oplet.Capabilities:
    return attrs.evolve(caps, adapter=attrs.evolve(caps.adapter, is_cpu=False))


def gpu_variant(variant: oplet.Variant) -> oplet.Variant:
    """The variant as it plans for a device that is no software driver, with the device's own limits."""
    return attrs.evolve(
        variant,
        plan=lambda request, caps: variant.plan(request, as_gpu(caps)),
        rejects=lambda request, caps: variant.rejects(request, as_gpu(caps)),
        yields=lambda request, caps: variant.yields(request, as_gpu(caps)),
    )


def registry_of(device: oplet.Device, planned: list[oplet.Variant]) -> oplet.Registry:
    @oplet.hookimpl
    def variants() -> list[oplet.Variant]:
        return planned

    registry = oplet.Registry(device=device, discover=False)
    hooks = {name: getattr(plugin, name) for name in ("manifest", "infer", "reference", "templates")}
    registry.register(OP, SimpleNamespace(**hooks, variants=variants))
    return registry


@pytest.fixture(scope="module", params=[None, "floor"], ids=["most", "floor"])
def registry(request: pytest.FixtureRequest) -> oplet.Registry:
    """At the floor a tile that needs more invocations than every device has does not compile; nor, on Dawn, one that
    needs more workgroup memory, which wgpu leaves unchecked.

    Without subgroup matrices: a software driver takes minutes to compile the tiles that a card has for them, and their
    template is the same one that the conformance cases run.
    """
    device = oplet.open_device(limits=request.param)
    return registry_of(device, [gpu_variant(variant) for variant in plugin.variants()])


def arrays_of(size: tuple[int, int, int], dtype: str, ta: int, tb: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    m, n, k = size
    return {
        "A": rng.standard_normal((k, m) if ta else (m, k)).astype(dtype),
        "B": rng.standard_normal((n, k) if tb else (k, n)).astype(dtype),
        "C": rng.standard_normal(n).astype(dtype),
    }


def run(registry: oplet.Registry, arrays: Mapping[str, np.ndarray], attributes: dict[str, int]) -> list[str]:
    """Runs every variant that accepts the call; what each got wrong."""
    op = registry[OP]
    request = op.bind({name: oplet.TensorSpec.of(array) for name, array in arrays.items()}, attributes)
    want, allowed = op.reference(request, arrays)["Y"], scale(request, arrays)["Y"]
    found, ran = [], 0
    for variant in op.variants:
        if variant.rejects(request, registry.device.capabilities) is None:
            ran += 1
            got = registry.run(OP, attrs=attributes, variant=variant.name, **arrays).numpy()
            if worst := compare(got, want, TOLERANCE, allowed):
                found.append(f"{variant.name}: {worst.describe('Y', TOLERANCE)}")
    assert ran >= 2
    return found


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_float32(registry: oplet.Registry, size: tuple[int, int, int]) -> None:
    for ta, tb in ((0, 0), (1, 1)):
        assert run(registry, arrays_of(size, "float32", ta, tb), {"transA": ta, "transB": tb}) == []


@pytest.mark.parametrize("size", SIZES[:4], ids=str)
def test_float16(registry: oplet.Registry, size: tuple[int, int, int]) -> None:
    if "shader-f16" not in registry.device.capabilities.features:
        pytest.skip("float16 needs the device feature shader-f16")
    for ta, tb in ((0, 1), (1, 0)):
        assert run(registry, arrays_of(size, "float16", ta, tb), {"transA": ta, "transB": tb}) == []


@pytest.mark.parametrize(("k", "tb"), [(1024, 0), (1096, 0), (1096, 1)])
def test_float16_read_ahead(registry: oplet.Registry, k: int, tb: int) -> None:
    """K for several rounds of the loops in which skinny kernels read ahead; whole rounds of W (K, N), and not."""
    if "shader-f16" not in registry.device.capabilities.features:
        pytest.skip("float16 needs the device feature shader-f16")
    assert run(registry, arrays_of((8, 72, k), "float16", 0, tb), {"transB": tb}) == []


@pytest.mark.parametrize(
    ("large", "size", "slice_k"),
    [((4096, 4096, 4096), (132, 136, 52), 0), ((64, 4096, 4096), (68, 132, 48), 32)],
    ids=["all of K", "slices"],
)
def test_tiles_of_large_products(large: tuple[int, int, int], size: tuple[int, int, int], slice_k: int) -> None:
    """Those that a small product is not given: on one all the same, which a software device can compute."""
    registry = oplet.Registry()
    caps = as_gpu(registry.device.capabilities)
    m, n, k = large
    specs = {"A": oplet.TensorSpec((m, k), "float32"), "B": oplet.TensorSpec((k, n), "float32")}
    gemm = Gemm.of(registry[OP].bind(specs))
    tile = tiled.split_tile_for(gemm, caps) if slice_k else tiled.tile_for(gemm, caps)
    assert tile != tiled.tile_for(attrs.evolve(gemm, m=size[0], n=size[1], k=size[2]), caps)

    def variant(width: int) -> oplet.Variant:
        def plan(request: oplet.Request, _: oplet.Capabilities) -> list[oplet.Launch]:
            return tiled.launch(Gemm.of(request), tile, width, slice_k)

        return oplet.Variant(f"width_{width}", plan)

    registry = registry_of(registry.device, [variant(4), variant(1)])
    assert run(registry, arrays_of(size, "float32", 0, 0), {}) == []
