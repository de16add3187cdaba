"""Any product on any device, through workgroup memory: tiled_vec4, tiled_scalar, and both in slices of K."""

from __future__ import annotations

import attrs
import numpy as np
import oplet
from oplet.variant import Launch

from oplet_fused_gemm.shapes import Gemm
from oplet_fused_gemm.variants.epilogue import SCALARS
from oplet_fused_gemm.variants.tiles import (
    Tile,
    launch_tiles,
    most_slices,
    rejects_slices,
    slice_k,
    tiles_of,
    yields_slices,
)


@attrs.frozen
class RegisterTile(Tile):
    """A tile whose sums are in registers.

    Attributes:
        thread_m, thread_n: share of an invocation.
    """

    thread_m: int
    thread_n: int

    @property
    def workgroup_bytes(self) -> int:
        """Workgroup memory: both tiles in float32, and a vector of padding in each row."""
        return 4 * self.k * (self.m + 4 + self.n + 4)


#: a software device pays for each read and barrier, and compiles slowly
_CPU = RegisterTile(32, 32, 8, busy=16, thread_m=4, thread_n=4)
_LARGE = RegisterTile(128, 128, 16, busy=128, thread_m=8, thread_n=8)
#: where Y has few rows
_FLAT = RegisterTile(64, 128, 16, busy=256, thread_m=8, thread_n=8)
#: fits what every device has
_SMALL = RegisterTile(64, 64, 16, busy=256, thread_m=4, thread_n=8)


def tile_for(gemm: Gemm, caps: oplet.Capabilities, slices: int = 1) -> RegisterTile:
    """The tile for a product in up to that many slices of K."""
    if caps.adapter.is_cpu:
        return _CPU
    # Measured on an H200, in float32: the larger a tile, the faster, as soon as tiles fill most of a device and Y fills
    # more than half of each.
    for tile in (_LARGE, _FLAT) if gemm.dtype == "float32" else (_LARGE,):
        fits = tile.workgroup_bytes <= caps.limits["maxComputeWorkgroupStorageSize"]
        used = 2 * gemm.m > tile.m and 2 * gemm.n > tile.n
        if fits and used and 4 * slices * tiles_of(gemm, tile) >= 3 * tile.busy:
            return tile
    return _SMALL


def split_tile_for(gemm: Gemm, caps: oplet.Capabilities) -> RegisterTile:
    """The tile for a product in slices of K."""
    return tile_for(gemm, caps, most_slices(gemm))


def _guards(gemm: Gemm, tile: RegisterTile) -> str:
    """Which reads the template keeps inside K, as measured on an H200.

    A branch that has the last slice's guards apart is worth 7 % with the large tile in float32. It costs 3 % where
    B is read along K, too, and 9 % in float16. Smaller tiles gain 8 % where K needs no guards at all.
    """
    if gemm.dtype == "float16":
        return "all"
    if tile is not _LARGE and gemm.k % tile.k == 0:
        return "none"
    return "all" if gemm.b.along_k else "last"


def launch(gemm: Gemm, tile: RegisterTile, width: int, slice_k: int = 0) -> list[Launch]:
    """The launches of a product that reads and writes vectors of `width`, 1 or 4."""
    scalar = SCALARS[gemm.dtype]
    return launch_tiles(
        gemm,
        "tiled.wgsl.jinja",
        tile,
        slice_k,
        element=scalar if width == 1 else f"vec4<{scalar}>",
        width=width,
        packed=width == 4,
        context={
            "vec": width,
            "thread_m": tile.thread_m,
            "thread_n": tile.thread_n,
            "guards": _guards(gemm, tile),
        },
        params={"a_along_k": np.uint32(gemm.a.along_k), "b_along_k": np.uint32(gemm.b.along_k)},
    )


def plan_vec4(gemm: Gemm, caps: oplet.Capabilities) -> list[Launch]:
    """tiled_vec4."""
    return launch(gemm, tile_for(gemm, caps), 4)


def plan_scalar(gemm: Gemm, caps: oplet.Capabilities) -> list[Launch]:
    """tiled_scalar."""
    return launch(gemm, tile_for(gemm, caps), 1)


def plan_split_k_vec4(gemm: Gemm, caps: oplet.Capabilities) -> list[Launch]:
    """split_k_vec4."""
    tile = split_tile_for(gemm, caps)
    return launch(gemm, tile, 4, slice_k(gemm, tile))


def plan_split_k_scalar(gemm: Gemm, caps: oplet.Capabilities) -> list[Launch]:
    """split_k_scalar."""
    tile = split_tile_for(gemm, caps)
    return launch(gemm, tile, 1, slice_k(gemm, tile))


def rejects_vec4(gemm: Gemm, caps: oplet.Capabilities) -> str | None:
    """Why rows are not whole vectors."""
    for factor in (gemm.a, gemm.b):
        if factor.row % 4:
            return f"rows of {factor.port} are {factor.row_name} = {factor.row} long, not a multiple of 4"
    return f"rows of Y are N = {gemm.n} long, not a multiple of 4" if gemm.n % 4 else None


def rejects_split_k(gemm: Gemm, caps: oplet.Capabilities) -> str | None:
    """Why K cannot be split."""
    return rejects_slices(gemm, caps, split_tile_for(gemm, caps))


def rejects_split_k_vec4(gemm: Gemm, caps: oplet.Capabilities) -> str | None:
    """Why rows are not whole vectors, or K cannot be split."""
    return rejects_vec4(gemm, caps) or rejects_split_k(gemm, caps)


def yields_split_k(gemm: Gemm, caps: oplet.Capabilities) -> str | None:
    """Why splitting K is not expected to pay."""
    return yields_slices(gemm, caps, split_tile_for(gemm, caps))
