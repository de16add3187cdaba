"""The kernels: when each can run, when another is better, and what it launches.

Every tile size and threshold that a card decided was decided on one; CHANGELOG.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import oplet
from oplet.variant import Binding, ContextValue, Launch, Param

from oplet_fused_gemm.shapes import Factor, Gemm

_SCALARS = {"float32": "f32", "float16": "f16"}
_BYTES = {"float32": 4, "float16": 2}


def _ceil(n: int, d: int) -> int:
    return -(-n // d)


# ---- what every kernel ends with ------------------------------------------------------------------------------


def _epilogue(gemm: Gemm, width: int) -> tuple[dict[str, ContextValue], dict[str, Param], list[Binding]]:
    """Context, params and bindings of wgsl/epilogue.wgsl.jinja; Y is bound in vectors of `width`."""
    scalar = _SCALARS[gemm.dtype]
    context: dict[str, ContextValue] = {
        "scalar": scalar,
        "activation": gemm.activation.formula,
        "with_c": gemm.c is not None,
    }
    params: dict[str, Param] = {"M": np.uint32(gemm.m), "N": np.uint32(gemm.n), "alpha": gemm.alpha}
    bindings = [Binding("Y", "Y", "read_write", scalar if width == 1 else f"vec4<{scalar}>")]
    if gemm.c is not None:
        params |= {"beta": gemm.beta, "c_m": np.uint32(gemm.c[0]), "c_n": np.uint32(gemm.c[1])}
        bindings.append(Binding("C", "C", "read", scalar))
    params |= {name: np.float32(value) for name, value in gemm.activation.params(gemm.values).items()}
    return context, params, bindings


def _reduce(gemm: Gemm, slices: int, scratch: Mapping[str, oplet.TensorSpec]) -> Launch:
    """Adds the partial sums of `slices` parts of K and finishes; with no slices, K = 0."""
    width = 4 if gemm.n % 4 == 0 else 1
    threads = 64
    context, params, bindings = _epilogue(gemm, width)
    if slices:
        params["slices"] = np.uint32(slices)
        bindings.append(Binding("partial", "partial", "read", "f32" if width == 1 else "vec4<f32>"))
    return Launch(
        "reduce.wgsl.jinja",
        _ceil(gemm.m * gemm.n, width * threads),
        context | {"width": width, "threads": threads, "slices": slices > 0},
        params,
        bindings,
        scratch,
    )


def _trivial(gemm: Gemm) -> list[Launch] | None:
    """What to launch where there is nothing to multiply, and so nothing of A and B to bind."""
    if gemm.m == 0 or gemm.n == 0:
        return []
    if gemm.k == 0:
        return [_reduce(gemm, 0, {})]
    return None


# ---- what devices and shapes allow ----------------------------------------------------------------------------


def _no_f16(gemm: Gemm, caps: oplet.Capabilities) -> str | None:
    if gemm.dtype == "float16" and "shader-f16" not in caps.features:
        return "float16 needs the device feature shader-f16"
    return None


def _not_fours(gemm: Gemm) -> str | None:
    for factor in (gemm.a, gemm.b):
        if factor.row % 4:
            return f"rows of {factor.port} are {factor.row_name} = {factor.row} long, not a multiple of 4"
    return f"rows of Y are N = {gemm.n} long, not a multiple of 4" if gemm.n % 4 else None


# ---- tiled: any product ---------------------------------------------------------------------------------------


@attrs.frozen
class Tile:
    """How a workgroup divides its part of Y.

    Attributes:
        m, n: of Y, for a workgroup.
        k: step along K that goes through workgroup memory.
        thread_m, thread_n: of Y, for an invocation.
        buffers: copies of the workgroup memory; 2 halve the barriers.
    """

    m: int
    n: int
    k: int
    thread_m: int
    thread_n: int
    buffers: int

    @property
    def threads(self) -> int:
        """Invocations in a workgroup."""
        return self.m * self.n // (self.thread_m * self.thread_n)

    @property
    def workgroup_bytes(self) -> int:
        """Workgroup memory: the two tiles as float32, one vector of padding a row."""
        return (self.m + self.n + 8) * self.k * self.buffers * 4


#: a software device pays for each read and barrier, and compiles slowly
_CPU_TILE = Tile(32, 32, 8, 4, 4, 1)
_LARGE_TILE = Tile(64, 128, 8, 8, 8, 2)
_SMALL_TILE = Tile(64, 64, 8, 4, 8, 2)


def _tile(gemm: Gemm, caps: oplet.Capabilities) -> Tile:
    if caps.adapter.is_cpu:
        return _CPU_TILE
    if _ceil(gemm.m, _LARGE_TILE.m) * _ceil(gemm.n, _LARGE_TILE.n) >= 256:
        return _LARGE_TILE
    return _SMALL_TILE


def _factor_params(gemm: Gemm, vec: int) -> dict[str, Param]:
    params: dict[str, Param] = {}
    for name, factor in (("a", gemm.a), ("b", gemm.b)):
        params |= {
            f"{name}_outer": np.uint32(factor.outer),
            f"{name}_stride": np.uint32(factor.row // vec),
            f"{name}_along_k": np.uint32(factor.along_k),
        }
    return params


def tiled(gemm: Gemm, tile: Tile, vec: int, slice_k: int = 0) -> list[Launch]:
    """The launches of a tiled product; `slice_k`: split K into slices that long."""
    scalar = _SCALARS[gemm.dtype]
    slices = _ceil(gemm.k, slice_k) if slice_k else 1
    tiles_m, tiles_n = _ceil(gemm.m, tile.m), _ceil(gemm.n, tile.n)
    context, params, bindings = _epilogue(gemm, vec)
    scratch = {}
    if slice_k:
        context = {"scalar": scalar}
        params = {"M": np.uint32(gemm.m), "N": np.uint32(gemm.n), "slice_k": np.uint32(slice_k)}
        bindings = [Binding("partial", "partial", "read_write", "f32" if vec == 1 else "vec4<f32>")]
        scratch = {"partial": oplet.TensorSpec((slices, gemm.m, gemm.n), "float32")}
    params |= {"K": np.uint32(gemm.k), "tiles_m": np.uint32(tiles_m), "tiles_n": np.uint32(tiles_n)}
    element = scalar if vec == 1 else f"vec4<{scalar}>"
    launch = Launch(
        "tiled.wgsl.jinja",
        tiles_m * tiles_n * slices,
        context
        | {
            "vec": vec,
            "split": slice_k > 0,
            "tile_m": tile.m,
            "tile_n": tile.n,
            "tile_k": tile.k,
            "thread_m": tile.thread_m,
            "thread_n": tile.thread_n,
            "buffers": tile.buffers,
        },
        params | _factor_params(gemm, vec),
        [Binding("A", "A", "read", element), Binding("B", "B", "read", element), *bindings],
        scratch,
    )
    return [launch, _reduce(gemm, slices, scratch)] if slice_k else [launch]


def _rejects_tiled_vec4(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
    gemm = Gemm.of(request)
    return _no_f16(gemm, caps) or _not_fours(gemm)


def _rejects_tiled_scalar(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
    return _no_f16(Gemm.of(request), caps)


def _plan_tiled_vec4(request: oplet.Request, caps: oplet.Capabilities) -> Sequence[Launch]:
    gemm = Gemm.of(request)
    trivial = _trivial(gemm)
    return tiled(gemm, _tile(gemm, caps), 4) if trivial is None else trivial


def _plan_tiled_scalar(request: oplet.Request, caps: oplet.Capabilities) -> Sequence[Launch]:
    gemm = Gemm.of(request)
    trivial = _trivial(gemm)
    return tiled(gemm, _tile(gemm, caps), 1) if trivial is None else trivial


# ---- skinny: a stream of one factor ---------------------------------------------------------------------------

#: most rows that a factor may have for the other one to be streamed past it
_FEW = 16


def _few(gemm: Gemm) -> tuple[Factor, Factor] | None:
    """The factor of many rows and that of few, where one has few."""
    if gemm.m <= min(gemm.n, _FEW):
        return gemm.b, gemm.a
    if gemm.n <= _FEW:
        return gemm.a, gemm.b
    return (gemm.b, gemm.a) if gemm.m <= _FEW else None


@attrs.frozen
class Skinny:
    """How a skinny product is divided.

    Attributes:
        threads: in a workgroup.
        rows: rows of the large factor for a workgroup, where they are contiguous along K.
        unroll: steps along K under way together, there.
        lanes: strips of neighbouring rows for a workgroup, where they are contiguous along those.
    """

    threads: int
    rows: int
    unroll: int
    lanes: int


def skinny(gemm: Gemm, shape: Skinny, *, subgroups: bool) -> list[Launch]:
    """The launch of a skinny product."""
    pair = _few(gemm)
    assert pair is not None
    w, x = pair
    scalar = _SCALARS[gemm.dtype]
    chunk = 16 // _BYTES[gemm.dtype]
    wide = w.row % chunk == 0
    x_wide = wide and x.along_k and x.depth % chunk == 0
    element = "vec4<f32>" if scalar == "f32" else "vec4<u32>"
    few = next(n for n in (1, 4, 8, _FEW) if n >= x.outer)
    context, params, bindings = _epilogue(gemm, 1)
    context |= {"few": few, "wide": wide, "x_wide": x_wide, "threads": shape.threads}
    params |= {
        "K": np.uint32(gemm.k),
        "w_is_b": np.uint32(w.port == "B"),
        "w_stride": np.uint32(w.row // chunk if wide else w.row),
        "x_outer": np.uint32(x.outer),
        # in chunks where x is read in chunks, else in elements
        "x_stride": np.uint32(x.depth // chunk if x_wide else x.depth if x.along_k else 1),
    }
    if not x_wide:
        params["x_k_stride"] = np.uint32(1 if x.along_k else x.outer)
    bindings += [
        Binding("W", w.port, "read", element if wide else scalar),
        Binding("X", x.port, "read", element if x_wide else scalar),
    ]
    if w.along_k:
        params["w_outer"] = np.uint32(w.outer)
        context |= {"subgroups": subgroups, "rows": shape.rows, "unroll": shape.unroll}
        return [Launch("skinny_rows.wgsl.jinja", _ceil(w.outer, shape.rows), context, params, bindings)]
    context |= {"lanes": shape.lanes, "depth": chunk, "few_at_once": min(few, 16 // chunk)}
    return [
        Launch(
            "skinny_columns.wgsl.jinja",
            _ceil(w.outer, shape.lanes * (chunk if wide else 1)),
            context,
            params,
            bindings,
        )
    ]


def _rejects_skinny_nosg(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
    gemm = Gemm.of(request)
    if _few(gemm) is None:
        return f"M = {gemm.m} and N = {gemm.n} are both over {_FEW}"
    return _no_f16(gemm, caps)


def _rejects_skinny(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
    if "subgroups" not in caps.features:
        return "needs the device feature subgroups"
    return _rejects_skinny_nosg(request, caps)


def _skinny_shape(gemm: Gemm, caps: oplet.Capabilities) -> Skinny:
    pair = _few(gemm)
    assert pair is not None
    rows = 4 if pair[1].outer <= 8 else 2
    if caps.adapter.is_cpu:
        return Skinny(threads=16, rows=rows, unroll=1, lanes=4)
    return Skinny(threads=128, rows=rows, unroll=2, lanes=8)


def _plan_skinny(request: oplet.Request, caps: oplet.Capabilities) -> Sequence[Launch]:
    gemm = Gemm.of(request)
    trivial = _trivial(gemm)
    return skinny(gemm, _skinny_shape(gemm, caps), subgroups=True) if trivial is None else trivial


def _plan_skinny_nosg(request: oplet.Request, caps: oplet.Capabilities) -> Sequence[Launch]:
    gemm = Gemm.of(request)
    trivial = _trivial(gemm)
    return skinny(gemm, _skinny_shape(gemm, caps), subgroups=False) if trivial is None else trivial


VARIANTS = (
    oplet.Variant("skinny", _plan_skinny, _rejects_skinny),
    oplet.Variant("skinny_nosg", _plan_skinny_nosg, _rejects_skinny_nosg),
    oplet.Variant("tiled_vec4", _plan_tiled_vec4, _rejects_tiled_vec4),
    oplet.Variant("tiled_scalar", _plan_tiled_scalar, _rejects_tiled_scalar),
)
