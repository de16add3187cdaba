"""The kernels: when each can run, when another is better, and what it launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np
import oplet
from oplet.capabilities import SubgroupMatrixConfig
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


def _over_tiles(
    gemm: Gemm, m: int, n: int, slice_k: int, width: int
) -> tuple[int, dict[str, ContextValue], dict[str, Param], list[Binding], dict[str, oplet.TensorSpec]]:
    """What kernels of one m × n tile a workgroup share: workgroups, context, params, bindings and scratch.

    With `slice_k`, K is split into slices that long, and what ends the kernel is a partial sum.
    """
    tiles_m, tiles_n = _ceil(gemm.m, m), _ceil(gemm.n, n)
    slices = _ceil(gemm.k, slice_k) if slice_k else 1
    scratch: dict[str, oplet.TensorSpec] = {}
    if slice_k:
        context: dict[str, ContextValue] = {"scalar": _SCALARS[gemm.dtype]}
        params: dict[str, Param] = {"M": np.uint32(gemm.m), "N": np.uint32(gemm.n), "slice_k": np.uint32(slice_k)}
        bindings = [Binding("partial", "partial", "read_write", "f32" if width == 1 else "vec4<f32>")]
        scratch["partial"] = oplet.TensorSpec((slices, gemm.m, gemm.n), "float32")
    else:
        context, params, bindings = _epilogue(gemm, width)
    context |= {"tile_m": m, "tile_n": n, "split": slice_k > 0}
    params |= {"K": np.uint32(gemm.k), "tiles_m": np.uint32(tiles_m), "tiles_n": np.uint32(tiles_n)}
    return tiles_m * tiles_n * slices, context, params, bindings, scratch


def _factors(gemm: Gemm, width: int) -> dict[str, Param]:
    """Rows of the factors, and their strides in vectors of `width`."""
    return {
        "a_outer": np.uint32(gemm.a.outer),
        "a_stride": np.uint32(gemm.a.row // width),
        "b_outer": np.uint32(gemm.b.outer),
        "b_stride": np.uint32(gemm.b.row // width),
    }


# ---- tiled: any product, on any device ------------------------------------------------------------------------


@attrs.frozen
class Tile:
    """How the tiled kernel divides Y.

    Attributes:
        m, n: for a workgroup.
        k: step along K that goes through workgroup memory.
        thread_m, thread_n: for an invocation.
        busy: workgroups that keep a large GPU busy. WebGPU does not tell how many cores there are; such GPUs have
            100 to 150, and want several small workgroups on each.
    """

    m: int
    n: int
    k: int
    thread_m: int
    thread_n: int
    busy: int

    @property
    def workgroup_bytes(self) -> int:
        """Workgroup memory: both tiles in float32, and a vector of padding in each row."""
        return 4 * self.k * (self.m + 4 + self.n + 4)


#: a software device pays for each read and barrier, and compiles slowly
_CPU_TILE = Tile(32, 32, 8, 4, 4, busy=16)
_LARGE_TILE = Tile(128, 128, 16, 8, 8, busy=128)
#: fits what every device has
_SMALL_TILE = Tile(64, 64, 16, 4, 8, busy=256)


def _tile(gemm: Gemm, caps: oplet.Capabilities, slices: int = 1) -> Tile:
    """The tile for a product in that many slices of K."""
    if caps.adapter.is_cpu:
        return _CPU_TILE
    # Large tiles are the faster ones as soon as they fill most of a device.
    workgroups = slices * _tiles(gemm, _LARGE_TILE)
    fits = _LARGE_TILE.workgroup_bytes <= caps.limits["maxComputeWorkgroupStorageSize"]
    return _LARGE_TILE if fits and 4 * workgroups >= 3 * _LARGE_TILE.busy else _SMALL_TILE


def _split_tile(gemm: Gemm, caps: oplet.Capabilities) -> Tile:
    return _tile(gemm, caps, slices=2)


def tiled(gemm: Gemm, tile: Tile, width: int, slice_k: int = 0) -> list[Launch]:
    """The launches of a tiled product, which reads vectors of `width`."""
    element = _SCALARS[gemm.dtype] if width == 1 else f"vec4<{_SCALARS[gemm.dtype]}>"
    workgroups, context, params, bindings, scratch = _over_tiles(gemm, tile.m, tile.n, slice_k, width)
    context |= {
        "vec": width,
        "tile_k": tile.k,
        "thread_m": tile.thread_m,
        "thread_n": tile.thread_n,
        # Each was measured on an H200: a branch for slices inside K is worth 6 % in float32 and costs 20 % in float16,
        # where nested arrays are worth 3 %.
        "apart": gemm.dtype == "float32",
        "nested": gemm.dtype == "float16",
    }
    params |= _factors(gemm, width)
    params |= {"a_along_k": np.uint32(gemm.a.along_k), "b_along_k": np.uint32(gemm.b.along_k)}
    bindings = [Binding("A", "A", "read", element), Binding("B", "B", "read", element), *bindings]
    launches = [Launch("tiled.wgsl.jinja", workgroups, context, params, bindings, scratch)]
    return launches + _sums(gemm, scratch)


def _sums(gemm: Gemm, scratch: Mapping[str, oplet.TensorSpec]) -> list[Launch]:
    return [_reduce(gemm, scratch["partial"].shape[0], scratch)] if scratch else []


# ---- split K: where Y is too small to fill a device -----------------------------------------------------------

#: least of K that is worth a workgroup of its own, and the way of its sums through memory
_SLICE = 256


def _tiles(gemm: Gemm, tile: Tile | MatrixTile) -> int:
    return _ceil(gemm.m, tile.m) * _ceil(gemm.n, tile.n)


def _slice_k(gemm: Gemm, tile: Tile | MatrixTile) -> int:
    """Length of the slices of K, a multiple of the tile's step: at least two, and no more than fill a device."""
    slices = max(2, min(tile.busy // _tiles(gemm, tile), gemm.k // _SLICE))
    return _ceil(_ceil(gemm.k, slices), tile.k) * tile.k


def _rejects_split(gemm: Gemm, caps: oplet.Capabilities, tile: Tile | MatrixTile) -> str | None:
    if gemm.k <= tile.k:
        return f"K = {gemm.k} is no more than one step of {tile.k}"
    needed = _ceil(gemm.k, _slice_k(gemm, tile)) * gemm.m * gemm.n * 4
    allowed = min(caps.limits["maxStorageBufferBindingSize"], caps.limits["maxBufferSize"])
    if needed > allowed:
        return f"the partial sums need {needed} bytes, and a buffer may have {allowed}"
    return None


def _yields_split(gemm: Gemm, caps: oplet.Capabilities, tile: Tile | MatrixTile) -> str | None:
    if caps.adapter.is_cpu:
        return "a software device has few cores to fill"
    tiles = _tiles(gemm, tile)
    if 2 * tiles > tile.busy:
        return f"Y has {tiles} tiles of {tile.m} × {tile.n}, enough to keep a device busy"
    if gemm.k < 2 * _SLICE:
        return f"K = {gemm.k} is too short to pay for a second launch"
    return None


# ---- subgroup matrices ----------------------------------------------------------------------------------------


@attrs.frozen
class MatrixTile:
    """How the kernel on subgroup matrices divides Y.

    Attributes:
        m, n: for a workgroup.
        k: step along K that goes through workgroup memory.
        part_m, part_n: for a subgroup.
        busy: workgroups that keep a large GPU busy.
    """

    m: int
    n: int
    k: int
    part_m: int
    part_n: int
    busy: int

    def threads(self, lanes: int) -> int:
        """Invocations in a workgroup, with subgroups of `lanes`."""
        return self.m * self.n // (self.part_m * self.part_n) * lanes

    def workgroup_bytes(self, gemm: Gemm, config: SubgroupMatrixConfig) -> int:
        """Workgroup memory: both tiles in float16 or the subgroups' sums, with 16 bytes of padding in each row."""
        a_rows, a_row = (self.m, self.k) if gemm.a.along_k else (self.k, self.m)
        b_rows, b_row = (self.n, self.k) if gemm.b.along_k else (self.k, self.n)
        factors = a_rows * (2 * a_row + 16) + b_rows * (2 * b_row + 16)
        return max(factors, self.threads(1) * config.m * (4 * self.part_n + 16))


_CPU_MATRIX_TILE = MatrixTile(16, 16, 16, 8, 16, busy=16)
_LARGE_MATRIX_TILE = MatrixTile(128, 128, 32, 64, 64, busy=256)
_SMALL_MATRIX_TILE = MatrixTile(64, 64, 64, 32, 32, busy=256)


def _matrix(caps: oplet.Capabilities) -> SubgroupMatrixConfig | None:
    """The largest shape for float16 factors and float32 sums whose sides are multiples of 8, as the template needs."""
    usable = [
        config
        for config in caps.subgroup_matrix_configs
        if (config.component, config.result) == ("f16", "f32") and not (config.m | config.n | config.k) % 8
    ]
    return max(usable, key=lambda config: config.m * config.n * config.k, default=None)


def _matrix_tile(gemm: Gemm, caps: oplet.Capabilities) -> MatrixTile:
    if caps.adapter.is_cpu:
        return _CPU_MATRIX_TILE
    large = 2 * _tiles(gemm, _LARGE_MATRIX_TILE) >= _LARGE_MATRIX_TILE.busy
    return _LARGE_MATRIX_TILE if large else _SMALL_MATRIX_TILE


def _split_matrix_tile(caps: oplet.Capabilities) -> MatrixTile:
    return _CPU_MATRIX_TILE if caps.adapter.is_cpu else _SMALL_MATRIX_TILE


def subgroup_matrix(
    gemm: Gemm, tile: MatrixTile, config: SubgroupMatrixConfig, lanes: int, slice_k: int = 0
) -> list[Launch]:
    """The launches of a product on subgroup matrices."""
    wide = gemm.a.row % 8 == 0 and gemm.b.row % 8 == 0 and gemm.n % 4 == 0
    workgroups, context, params, bindings, scratch = _over_tiles(gemm, tile.m, tile.n, slice_k, 4 if wide else 1)
    context |= {
        "m": config.m,
        "n": config.n,
        "k": config.k,
        "lanes": lanes,
        "tile_k": tile.k,
        "part_m": tile.part_m,
        "part_n": tile.part_n,
        "wide": wide,
        "a_along_k": gemm.a.along_k,
        "b_along_k": gemm.b.along_k,
    }
    params |= _factors(gemm, 8 if wide else 1)
    if not wide:
        # Rows begin anywhere, so pairs of float16 are read as words; the last one that there is.
        params |= {
            "a_last": np.uint32((gemm.a.outer * gemm.k - 1) // 2),
            "b_last": np.uint32((gemm.b.outer * gemm.k - 1) // 2),
        }
    element = "vec4<u32>" if wide else "u32"
    bindings = [Binding("A", "A", "read", element), Binding("B", "B", "read", element), *bindings]
    launches = [Launch("subgroup_matrix.wgsl.jinja", workgroups, context, params, bindings, scratch)]
    return launches + _sums(gemm, scratch)


def _rejects_matrix(gemm: Gemm, caps: oplet.Capabilities, tile: MatrixTile) -> str | None:
    if "subgroup-matrix" not in caps.features:
        return "needs the device feature subgroup-matrix: Dawn, and open_device(experimental=True)"
    if gemm.dtype != "float16":
        return f"matrix units would round {gemm.dtype} to float16"
    config = _matrix(caps)
    if config is None:
        return "the device multiplies no float16 matrices with float32 sums"
    if tile.part_m % config.m or tile.part_n % config.n or tile.k % config.k:
        return f"its matrices of {config.m} × {config.n} × {config.k} do not divide a subgroup's part"
    threads, allowed = tile.threads(caps.subgroup_size), caps.limits["maxComputeInvocationsPerWorkgroup"]
    if threads > allowed:
        return f"{threads} invocations in a workgroup are needed, and the device allows {allowed}"
    needed, allowed = tile.workgroup_bytes(gemm, config), caps.limits["maxComputeWorkgroupStorageSize"]
    if needed > allowed:
        return f"{needed} bytes of workgroup memory are needed, and the device allows {allowed}"
    return None


# ---- skinny: one factor streams past the other ----------------------------------------------------------------

#: most rows of the factor that stays
_FEW = 16


def _skinny_factors(gemm: Gemm) -> tuple[Factor, Factor] | None:
    """The factor that streams and the one that stays, where one has few rows."""
    if gemm.m <= min(gemm.n, _FEW):
        return gemm.b, gemm.a
    if gemm.n <= _FEW:
        return gemm.a, gemm.b
    return None


@attrs.frozen
class Strips:
    """How the skinny kernels divide the factor that streams.

    Attributes:
        threads: in a workgroup.
        rows: for a workgroup, where rows are contiguous along K.
        lanes: strips of 16 bytes for a workgroup, where memory is contiguous from row to row.
        unroll: steps along K whose reads are under way together.
    """

    threads: int
    rows: int
    lanes: int
    unroll: int


def _strips(gemm: Gemm, w: Factor, x: Factor, caps: oplet.Capabilities) -> Strips:
    many = x.outer > 4
    if caps.adapter.is_cpu:
        return Strips(threads=16, rows=2 if many else 4, lanes=4, unroll=1)
    half = gemm.dtype == "float16"
    if w.along_k:
        # With 16 rows of X the sums of 128 invocations would pass 16 KiB of workgroup memory.
        return Strips(threads=64 if x.outer > 8 or (many and half) else 128, rows=2 if many else 4, lanes=0, unroll=2)
    if many:
        # Fewer, longer strips reach a higher rate, but only where other work fills the device meanwhile.
        return Strips(threads=128 if half else 256, rows=0, lanes=4 if half else 8, unroll=1)
    most = caps.limits["maxComputeInvocationsPerWorkgroup"]
    return Strips(threads=min(512, most), rows=0, lanes=8, unroll=1 if half else 2)


def skinny(gemm: Gemm, w: Factor, x: Factor, strips: Strips, *, subgroups: bool) -> list[Launch]:
    """The launch of a skinny product: `w` streams past `x`."""
    scalar = _SCALARS[gemm.dtype]
    chunk = 16 // _BYTES[gemm.dtype]
    wide = w.row % chunk == 0
    x_wide = wide and x.along_k and x.depth % chunk == 0
    element = "vec4<f32>" if scalar == "f32" else "vec4<u32>"
    few = next(n for n in (1, 4, 8, _FEW) if n >= x.outer)
    context, params, bindings = _epilogue(gemm, 1)
    context |= {"few": few, "wide": wide, "x_wide": x_wide, "threads": strips.threads}
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
        context |= {"subgroups": subgroups, "rows": strips.rows, "unroll": strips.unroll}
        return [Launch("skinny_rows.wgsl.jinja", _ceil(w.outer, strips.rows), context, params, bindings)]
    width = chunk if wide else 1
    # Sums of all invocations are exchanged through at most 16 KiB at once, which every device has.
    at_once = min(few, 4096 // (strips.threads * width))
    context |= {"lanes": strips.lanes, "depth": chunk, "unroll": strips.unroll, "few_at_once": at_once}
    return [Launch("skinny_columns.wgsl.jinja", _ceil(w.outer, strips.lanes * width), context, params, bindings)]


# ---- the variants ---------------------------------------------------------------------------------------------

Reason = str | None
Predicate = Callable[[Gemm, oplet.Capabilities], Reason]
Plan = Callable[[Gemm, oplet.Capabilities], list[Launch]]


def _variant(name: str, doc: str, plan: Plan, rejects: Predicate, yields: Predicate | None = None) -> oplet.Variant:
    """A variant in the terms of a Gemm, and what holds for all of them."""

    def plan_request(request: oplet.Request, caps: oplet.Capabilities) -> Sequence[Launch]:
        gemm = Gemm.of(request)
        if gemm.m == 0 or gemm.n == 0:
            return []
        # Nothing to multiply, so nothing of A and B to bind.
        return plan(gemm, caps) if gemm.k else [_reduce(gemm, 0, {})]

    def rejects_request(request: oplet.Request, caps: oplet.Capabilities) -> Reason:
        gemm = Gemm.of(request)
        if gemm.dtype == "float16" and "shader-f16" not in caps.features:
            return "float16 needs the device feature shader-f16"
        return rejects(gemm, caps)

    def yields_request(request: oplet.Request, caps: oplet.Capabilities) -> Reason:
        return yields(Gemm.of(request), caps) if yields else None

    return oplet.Variant(name, plan_request, rejects_request, yields_request, doc)


def _rejects_skinny(gemm: Gemm, caps: oplet.Capabilities) -> Reason:
    if "subgroups" not in caps.features:
        return "needs the device feature subgroups"
    return _rejects_skinny_nosg(gemm, caps)


def _rejects_skinny_nosg(gemm: Gemm, caps: oplet.Capabilities) -> Reason:
    return None if _skinny_factors(gemm) else f"M = {gemm.m} and N = {gemm.n} are both over {_FEW}"


def _plan_skinny(*, subgroups: bool) -> Plan:
    def plan(gemm: Gemm, caps: oplet.Capabilities) -> list[Launch]:
        factors = _skinny_factors(gemm)
        assert factors is not None  # else rejected
        return skinny(gemm, *factors, _strips(gemm, *factors, caps), subgroups=subgroups)

    return plan


def _not_fours(gemm: Gemm) -> Reason:
    for factor in (gemm.a, gemm.b):
        if factor.row % 4:
            return f"rows of {factor.port} are {factor.row_name} = {factor.row} long, not a multiple of 4"
    return f"rows of Y are N = {gemm.n} long, not a multiple of 4" if gemm.n % 4 else None


def _rejects_split_k(gemm: Gemm, caps: oplet.Capabilities) -> Reason:
    return _rejects_split(gemm, caps, _split_tile(gemm, caps))


def _rejects_split_k_vec4(gemm: Gemm, caps: oplet.Capabilities) -> Reason:
    return _not_fours(gemm) or _rejects_split_k(gemm, caps)


def _yields_split_k(gemm: Gemm, caps: oplet.Capabilities) -> Reason:
    return _yields_split(gemm, caps, _split_tile(gemm, caps))


def _plan_split_k(width: int) -> Plan:
    def plan(gemm: Gemm, caps: oplet.Capabilities) -> list[Launch]:
        tile = _split_tile(gemm, caps)
        return tiled(gemm, tile, width, _slice_k(gemm, tile))

    return plan


def _plan_matrix(gemm: Gemm, caps: oplet.Capabilities) -> list[Launch]:
    config = _matrix(caps)
    assert config is not None  # else rejected
    return subgroup_matrix(gemm, _matrix_tile(gemm, caps), config, caps.subgroup_size)


def _plan_matrix_split_k(gemm: Gemm, caps: oplet.Capabilities) -> list[Launch]:
    config = _matrix(caps)
    assert config is not None  # else rejected
    tile = _split_matrix_tile(caps)
    return subgroup_matrix(gemm, tile, config, caps.subgroup_size, _slice_k(gemm, tile))


def _rejects_matrix_split_k(gemm: Gemm, caps: oplet.Capabilities) -> Reason:
    tile = _split_matrix_tile(caps)
    return _rejects_matrix(gemm, caps, tile) or _rejects_split(gemm, caps, tile)


VARIANTS = (
    _variant(
        "skinny",
        "M or N up to 16: one factor streams past the other, subgroups add up.",
        _plan_skinny(subgroups=True),
        _rejects_skinny,
    ),
    _variant(
        "skinny_nosg",
        "The same without subgroups.",
        _plan_skinny(subgroups=False),
        _rejects_skinny_nosg,
    ),
    _variant(
        "subgroup_matrix_split_k",
        "float16 on matrix units where Y is small: slices of K, and a second launch that adds them.",
        _plan_matrix_split_k,
        _rejects_matrix_split_k,
        lambda gemm, caps: _yields_split(gemm, caps, _split_matrix_tile(caps)),
    ),
    _variant(
        "subgroup_matrix",
        "float16 on matrix units, float32 sums.",
        _plan_matrix,
        lambda gemm, caps: _rejects_matrix(gemm, caps, _matrix_tile(gemm, caps)),
    ),
    _variant(
        "split_k_vec4",
        "Y is small: slices of K, and a second launch that adds them.",
        _plan_split_k(4),
        _rejects_split_k_vec4,
        _yields_split_k,
    ),
    _variant(
        "tiled_vec4",
        "Tiles through workgroup memory, rows of whole vectors.",
        lambda gemm, caps: tiled(gemm, _tile(gemm, caps), 4),
        lambda gemm, _: _not_fours(gemm),
    ),
    _variant(
        "split_k_scalar",
        "As split_k_vec4, for any size.",
        _plan_split_k(1),
        _rejects_split_k,
        _yields_split_k,
    ),
    _variant(
        "tiled_scalar",
        "As tiled_vec4, for any size.",
        lambda gemm, caps: tiled(gemm, _tile(gemm, caps), 1),
        lambda _, __: None,
    ),
)
