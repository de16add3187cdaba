"""The tiles that GPUs get, on whatever device there is: software drivers choose smaller ones."""

from __future__ import annotations

import importlib

import attrs
import numpy as np
import oplet
import pytest
from oplet.testing.compare import compare
from oplet.testing.suite import Suite
from oplet_packed_mha.cases import Attributes, Inputs, draw, scale
from oplet_packed_mha.tiles import choose_tile, gpu_tiles, software_tile

OP = "com.microsoft.PackedMultiHeadAttention"
#: the folder's attribute of this name is the hook
VARIANTS = importlib.import_module("oplet_packed_mha.variants")
SUITE = Suite.read("oplet_packed_mha")

TILES = {
    "narrow": (64, gpu_tiles(64)[0]),
    "wide, 8 × 8": (100, gpu_tiles(100)[0]),
    "wide, panels in two passes": (256, gpu_tiles(256)[0]),
}


@pytest.fixture(scope="module")
def registry() -> oplet.Registry:
    return oplet.Registry()


@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize("method", ["flash", "flash_nosg"])
def test_a_tile_of_gpus_is_right(
    registry: oplet.Registry, monkeypatch: pytest.MonkeyPatch, name: str, method: str
) -> None:
    value_size, tile = TILES[name]
    subgroup_size = registry.device.capabilities.subgroup_size
    if method == "flash" and tile.lanes > subgroup_size:
        pytest.skip(f"the tile shares rows among {tile.lanes} lanes, and subgroups have {subgroup_size}")
    if method == "flash":
        # Neighbours of two groups want subgroups of twice as many lanes, which software drivers lack.
        tile = attrs.evolve(tile, paired=False)
    monkeypatch.setattr(VARIANTS, "choose_tile", lambda *args, **kwargs: tile)
    inputs, attributes = draw(
        np.random.default_rng(3),
        [70, 5, 0, 130, 64],
        heads=2,
        head_size=20,
        value_size=value_size,
        bias=True,
        broadcast=(True, False),
    )
    want, allowed = results(registry, inputs, attributes)
    variant = f"separate_bias_attn_bias_{method}"
    got = registry.run(OP, attrs=attributes, variant=variant, **inputs).numpy()
    wrong = compare(got, want, SUITE.tolerance["float32"], allowed)
    assert wrong is None, wrong.describe("outputT", SUITE.tolerance["float32"])


def results(registry: oplet.Registry, inputs: Inputs, attributes: Attributes) -> tuple[np.ndarray, np.ndarray]:
    op = registry[OP]
    request = op.bind({name: oplet.TensorSpec.of(array) for name, array in inputs.items()}, attributes)
    return op.reference(request, inputs)["outputT"], scale(request, inputs)["outputT"]


@pytest.mark.parametrize("value_size", [4, 64, 68, 128, 132, 256])
def test_every_tile_is_one_that_the_template_takes(value_size: int) -> None:
    for tile in (*gpu_tiles(value_size), software_tile(value_size)):
        keys = 4 * tile.lanes * tile.key_panels
        assert tile.lanes * 4 * tile.value_panels >= value_size
        assert tile.rows % 4 == 0
        assert tile.depth % 4 == 0
        assert keys % tile.depth == 0
        assert tile.staged >= tile.key_panels
        # An invocation's items differ in their rows alone.
        invocations = tile.groups * tile.lanes
        assert invocations % (tile.depth // 4) == 0
        assert invocations % (tile.staged * tile.lanes) == 0
        assert tile.groups % 2 == 0 or not tile.paired


@pytest.mark.parametrize("value_size", [64, 128, 256])
@pytest.mark.parametrize("subgroups", [True, False])
def test_the_floor_of_limits_has_a_tile_of_gpus(registry: oplet.Registry, value_size: int, subgroups: bool) -> None:
    caps = registry.device.capabilities
    gpu = attrs.evolve(
        caps,
        limits=oplet.open_device(limits="floor").capabilities.limits,
        subgroup_size=32,
        adapter=attrs.evolve(caps.adapter, is_cpu=False),
    )
    assert choose_tile(value_size, gpu, subgroups=subgroups) in gpu_tiles(value_size)
    tight = attrs.evolve(gpu, limits={**gpu.limits, "maxComputeWorkgroupStorageSize": 4096})
    assert choose_tile(value_size, tight, subgroups=subgroups) is None


def test_padding_costs_nothing(registry: oplet.Registry) -> None:
    """Twice the padding is the same launch, to the last number."""

    def launches(length: int) -> str:
        inputs = {
            "queryT": oplet.TensorSpec((1000, 4, 3, 64), "float32"),
            "tokenOffsetT": oplet.TensorSpec((8, length), "int32"),
            "cumulativeSequenceLengthT": oplet.TensorSpec((9,), "int32"),
        }
        op = registry[OP]
        plan = op.plan(op.bind(inputs, {"num_heads": 4}), registry.device.capabilities, None)
        # The bound of its work grows: a valid schedule could have sequences as long.
        plain = [attrs.evolve(launch, operations=0) for launch in plan.launches]
        return repr(plain)  # a NaN among the params is unequal to itself

    assert launches(512) == launches(1024)
