"""float16 products on matrix units, summed in float32: subgroup_matrix, and the same in slices of K."""

from __future__ import annotations

import attrs
import numpy as np
import oplet
from oplet.capabilities import SubgroupMatrixConfig
from oplet.variant import Launch, Param

from oplet_fused_gemm.shapes import Factor, Gemm
from oplet_fused_gemm.variants.tiles import Tile, launch_tiles, rejects_slices, slice_k, tiles_of, yields_slices


@attrs.frozen
class MatrixTile(Tile):
    """A tile whose sums are in matrices.

    Attributes:
        part_m, part_n: share of a subgroup.
    """

    part_m: int
    part_n: int

    @property
    def subgroups(self) -> int:
        """Subgroups in a workgroup."""
        return self.m * self.n // (self.part_m * self.part_n)

    def workgroup_bytes(self, gemm: Gemm, config: SubgroupMatrixConfig) -> int:
        """Workgroup memory: both tiles in float16 or the subgroups' sums, with 16 bytes of padding in each row."""

        def factor(along_k: bool, outer: int) -> int:
            rows, row = (outer, self.k) if along_k else (self.k, outer)
            return rows * (2 * row + 16)

        factors = factor(gemm.a.along_k, self.m) + factor(gemm.b.along_k, self.n)
        return max(factors, self.subgroups * config.m * (4 * self.part_n + 16))


_CPU = MatrixTile(16, 16, 16, busy=16, part_m=8, part_n=16)
_LARGE = MatrixTile(128, 128, 32, busy=256, part_m=64, part_n=64)
_SMALL = MatrixTile(64, 64, 64, busy=256, part_m=32, part_n=32)


def tile_for(gemm: Gemm, caps: oplet.Capabilities) -> MatrixTile:
    """The tile for a product in one launch."""
    if caps.adapter.is_cpu:
        return _CPU
    # Large tiles are the faster ones as soon as they fill a device.
    return _LARGE if 2 * tiles_of(gemm, _LARGE) >= _LARGE.busy else _SMALL


def split_tile_for(caps: oplet.Capabilities) -> MatrixTile:
    """The tile for a product in slices of K."""
    return _CPU if caps.adapter.is_cpu else _SMALL


def config_for(caps: oplet.Capabilities) -> SubgroupMatrixConfig | None:
    """The device's largest matrices of float16 with float32 sums, their sides multiples of 8 as the template needs."""
    usable = [
        config
        for config in caps.subgroup_matrix_configs
        if (config.component, config.result) == ("f16", "f32") and not (config.m | config.n | config.k) % 8
    ]
    return max(usable, key=lambda config: config.m * config.n * config.k, default=None)


def launch(gemm: Gemm, caps: oplet.Capabilities, tile: MatrixTile, slice_k: int = 0) -> list[Launch]:
    """The launches of a product."""
    config = config_for(caps)
    assert config is not None  # else rejected
    wide = gemm.a.row % 8 == 0 and gemm.b.row % 8 == 0 and gemm.n % 4 == 0
    params: dict[str, Param] = {}
    if not wide:
        params = {"a_last": _last_word(gemm.a), "b_last": _last_word(gemm.b)}
    return launch_tiles(
        gemm,
        "subgroup_matrix.wgsl.jinja",
        tile,
        slice_k,
        element="vec4<u32>" if wide else "u32",
        width=8 if wide else 1,
        packed=wide,
        context={
            "m": config.m,
            "n": config.n,
            "k": config.k,
            "lanes": caps.subgroup_size,
            "part_m": tile.part_m,
            "part_n": tile.part_n,
            "wide": wide,
            "whole": wide and gemm.k % tile.k == 0,
            "a_along_k": gemm.a.along_k,
            "b_along_k": gemm.b.along_k,
        },
        params=params,
    )


def _last_word(factor: Factor) -> np.uint32:
    """Where rows begin anywhere, pairs of float16 are read as words: the index of the last one."""
    return np.uint32((factor.outer * factor.depth - 1) // 2)


def plan(gemm: Gemm, caps: oplet.Capabilities) -> list[Launch]:
    """subgroup_matrix."""
    return launch(gemm, caps, tile_for(gemm, caps))


def plan_split_k(gemm: Gemm, caps: oplet.Capabilities) -> list[Launch]:
    """subgroup_matrix_split_k."""
    tile = split_tile_for(caps)
    return launch(gemm, caps, tile, slice_k(gemm, tile))


def rejects(gemm: Gemm, caps: oplet.Capabilities) -> str | None:
    """Why matrix units cannot serve."""
    return _rejects(gemm, caps, tile_for(gemm, caps))


def rejects_split_k(gemm: Gemm, caps: oplet.Capabilities) -> str | None:
    """Why matrix units cannot serve, or K cannot be split."""
    tile = split_tile_for(caps)
    return _rejects(gemm, caps, tile) or rejects_slices(gemm, caps, tile)


def yields_split_k(gemm: Gemm, caps: oplet.Capabilities) -> str | None:
    """Why splitting K is not expected to pay."""
    return yields_slices(gemm, caps, split_tile_for(caps))


def _rejects(gemm: Gemm, caps: oplet.Capabilities, tile: MatrixTile) -> str | None:
    if "subgroup-matrix" not in caps.features:
        return "needs the device feature subgroup-matrix: Dawn, and open_device(experimental=True)"
    if gemm.dtype != "float16":
        return f"matrix units would round {gemm.dtype} to float16"
    config = config_for(caps)
    if config is None:
        return "the device multiplies no float16 matrices with float32 sums"
    if tile.part_m % config.m or tile.part_n % config.n or tile.k % config.k:
        return f"its matrices of {config.m} × {config.n} × {config.k} do not divide a subgroup's part"
    threads, allowed = tile.subgroups * caps.subgroup_size, caps.limits["maxComputeInvocationsPerWorkgroup"]
    if threads > allowed:
        return f"{threads} invocations in a workgroup are needed, and the device allows {allowed}"
    needed, allowed = tile.workgroup_bytes(gemm, config), caps.limits["maxComputeWorkgroupStorageSize"]
    if needed > allowed:
        return f"{needed} bytes of workgroup memory are needed, and the device allows {allowed}"
    return None
