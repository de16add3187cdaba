"""Products in tiles: a workgroup computes one tile of Y, or of a partial sum over a slice of K."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
import oplet
from oplet.variant import Binding, ContextValue, Launch, Param

from oplet_fused_gemm.shapes import Gemm
from oplet_fused_gemm.variants.epilogue import SCALARS, ceil_div, epilogue, reduce

#: least of K that is worth a workgroup of its own, and the way of its sums through memory
SLICE = 256


@attrs.frozen
class Tile:
    """What a workgroup computes.

    Attributes:
        m, n: its share of Y.
        k: its step along K, which goes through workgroup memory.
        busy: how many of them keep a large GPU busy. WebGPU does not tell how many cores there are; such GPUs have
            100 to 150, and want several small workgroups on each.
    """

    m: int
    n: int
    k: int
    busy: int


def tiles_of(gemm: Gemm, tile: Tile) -> int:
    """How many tiles Y has."""
    return ceil_div(gemm.m, tile.m) * ceil_div(gemm.n, tile.n)


def launch_tiles(
    gemm: Gemm,
    template: str,
    tile: Tile,
    slice_k: int,
    *,
    element: str,
    width: int,
    packed: bool,
    context: Mapping[str, ContextValue],
    params: Mapping[str, Param],
) -> list[Launch]:
    """The launches of a kernel with a tile for each workgroup.

    Args:
        slice_k: length of the slices of K, whose sums a second launch adds; 0 for all of K in one.
        element: what A and B are bound as, and `width` how many of their elements one of those holds.
        packed: whether N is a multiple of 4, and what is written is bound as vectors.
        context, params: the kernel's own.
    """
    tiles_m, tiles_n = ceil_div(gemm.m, tile.m), ceil_div(gemm.n, tile.n)
    partial = oplet.TensorSpec((ceil_div(gemm.k, slice_k), gemm.m, gemm.n), "float32") if slice_k else None
    if partial:
        end: dict[str, ContextValue] = {"scalar": SCALARS[gemm.dtype]}
        sizes: dict[str, Param] = {"M": np.uint32(gemm.m), "N": np.uint32(gemm.n), "slice_k": np.uint32(slice_k)}
        written = [Binding("partial", "partial", "read_write", "vec4<f32>" if packed else "f32")]
    else:
        end, sizes, written = epilogue(gemm, 4 if packed else 1)
    sizes |= {
        "K": np.uint32(gemm.k),
        "tiles_m": np.uint32(tiles_m),
        "tiles_n": np.uint32(tiles_n),
        "a_outer": np.uint32(gemm.a.outer),
        "a_stride": np.uint32(gemm.a.row // width),
        "b_outer": np.uint32(gemm.b.outer),
        "b_stride": np.uint32(gemm.b.row // width),
    }
    shape: dict[str, ContextValue] = {"tile_m": tile.m, "tile_n": tile.n, "tile_k": tile.k, "split": slice_k > 0}
    product = Launch(
        template,
        tiles_m * tiles_n * (partial.shape[0] if partial else 1),
        {**end, **shape, **context},
        {**sizes, **params},
        [Binding("A", "A", "read", element), Binding("B", "B", "read", element), *written],
        {"partial": partial} if partial else {},
        gemm.m * gemm.n * gemm.k,
    )
    return [product, reduce(gemm, partial)] if partial else [product]


def most_slices(gemm: Gemm) -> int:
    """How many slices of K there can be: where K is split, at least two."""
    return max(2, gemm.k // SLICE)


def slice_k(gemm: Gemm, tile: Tile) -> int:
    """Length of the slices of K, a multiple of the tile's step: at least two, and no more than fill a device."""
    slices = max(2, min(tile.busy // tiles_of(gemm, tile), most_slices(gemm)))
    return ceil_div(ceil_div(gemm.k, slices), tile.k) * tile.k


def rejects_slices(gemm: Gemm, caps: oplet.Capabilities, tile: Tile) -> str | None:
    """Why K cannot be split into slices."""
    if not gemm.m * gemm.n:
        return "Y is empty"
    if gemm.k <= tile.k:
        return f"K = {gemm.k} is no more than one step of {tile.k}"
    needed = ceil_div(gemm.k, slice_k(gemm, tile)) * gemm.m * gemm.n * 4
    allowed = min(caps.limits["maxStorageBufferBindingSize"], caps.limits["maxBufferSize"])
    if needed > allowed:
        return f"the partial sums need {needed} bytes, and a buffer may have {allowed}"
    return None


def yields_slices(gemm: Gemm, caps: oplet.Capabilities, tile: Tile) -> str | None:
    """Why slices of K are not expected to pay."""
    if caps.adapter.is_cpu:
        return "a software device has few cores to fill"
    tiles = tiles_of(gemm, tile)
    if 2 * tiles > tile.busy:
        return f"Y has {tiles} tiles of {tile.m} × {tile.n}, enough to keep a device busy"
    if gemm.k < 2 * SLICE:
        return f"K = {gemm.k} is too short to pay for a second launch"
    return None
