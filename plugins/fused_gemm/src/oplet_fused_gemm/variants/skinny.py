"""M or N up to 16: one factor, W, streams past the other, X. Bound by memory, so W is read once, 16 bytes at a time."""

from __future__ import annotations

import attrs
import numpy as np
import oplet
from oplet.variant import Binding, Launch

from oplet_fused_gemm.shapes import Factor, Gemm
from oplet_fused_gemm.variants.epilogue import SCALARS, ceil_div, epilogue

#: most rows of X
FEW = 16

#: elements in 16 bytes
_CHUNKS = {"float32": 4, "float16": 8}


def factors_of(gemm: Gemm) -> tuple[Factor, Factor] | None:
    """W and X, where one factor has few rows."""
    if gemm.m <= min(gemm.n, FEW):
        return gemm.b, gemm.a
    if gemm.n <= FEW:
        return gemm.a, gemm.b
    return None


@attrs.frozen
class Rows:
    """How W is divided where its rows are contiguous along K.

    Attributes:
        threads: in a workgroup.
        along: of these, neighbours that take neighbouring chunks of the same rows.
        parts: how many such stretches of K are under way.
        rows: for an invocation.
        unroll: chunks of a row whose reads are under way together.
        ahead: whether the next chunk of a row is read before one is multiplied.
    """

    threads: int
    along: int
    parts: int
    rows: int
    unroll: int = 1
    ahead: bool = False

    @property
    def rows_of_workgroup(self) -> int:
        """Rows of W for a workgroup."""
        return self.rows * self.threads // (self.along * self.parts)


@attrs.frozen
class Columns:
    """How W is divided where memory is contiguous from row to row.

    Attributes:
        threads: in a workgroup.
        lanes: strips of 16 bytes for a workgroup.
        depth: steps of K that an invocation takes together, 4 or 8: what it reads of a row of X at once.
        unroll: how many times that in a row, each read while the one before is multiplied.
        ahead: 0, or how many steps are read ahead of the one that is multiplied, throughout. For whole rounds of K.
    """

    threads: int
    lanes: int
    depth: int
    unroll: int = 1
    ahead: int = 0

    @property
    def round(self) -> int:
        """What a workgroup takes of K while each invocation takes all the steps that it reads ahead, once."""
        return self.ahead * self.depth * self.threads // self.lanes


def fews_for(caps: oplet.Capabilities) -> tuple[int, ...]:
    """What the number of rows of X is rounded up to; each has a shader of its own."""
    return (1, FEW) if caps.adapter.is_cpu else (1, 4, 8, FEW)


def rows_for(gemm: Gemm, few: int, caps: oplet.Capabilities) -> Rows:
    """The division for a device, as measured on an H200."""
    if caps.adapter.is_cpu:
        return Rows(threads=16, along=4, parts=4, rows=2)
    # Without subgroups the number only says who reads what; with them it has to fit one.
    most = caps.subgroup_size or 32
    # With one row, two chunks in a row keep memory as busy; float32 has more reads for as many multiply-adds.
    ahead = gemm.dtype == "float16" and few > 1
    if few <= 4:
        along = min(32, most)
        return Rows(threads=128, along=along, parts=128 // along, rows=4, unroll=1 if ahead else 2, ahead=ahead)
    along = min(16, most)
    if gemm.dtype == "float32" and few == 8:
        return Rows(threads=64, along=along, parts=2, rows=8)
    return Rows(threads=128, along=along, parts=4, rows=4 if few == 8 else 2, ahead=ahead)


def columns_for(gemm: Gemm, few: int, caps: oplet.Capabilities, *, whole: bool) -> Columns:
    """The division for a device, as measured on an H200; `whole` where both factors' rows are read in chunks."""
    half = gemm.dtype == "float16"
    # Of float16 a step of 8 has too many sums and factors for registers.
    depth = 8 if half and few <= 4 else 4
    if caps.adapter.is_cpu:
        return Columns(threads=16, lanes=4, depth=depth)
    if half and few > 4:
        # More lanes reach a higher rate, but only where other work fills the device meanwhile.
        columns = Columns(threads=256, lanes=4, depth=depth)
        ahead = attrs.evolve(columns, ahead=2)
        # With 16 rows the sums leave no registers for it.
        return ahead if few == 8 and whole and gemm.k % ahead.round == 0 else columns
    if few > 4:
        return Columns(threads=256, lanes=8, depth=depth, unroll=4)
    # Of a device's limit the kernel needs a power of two; 256 every device has.
    threads = 512 if caps.limits["maxComputeInvocationsPerWorkgroup"] >= 512 else 256
    return Columns(threads=threads, lanes=8, depth=depth, unroll=1 if half else 2)


def _element(scalar: str, chunk: int) -> str:
    """What holds a chunk of that many elements; float16 comes in pairs."""
    return f"vec{chunk}<f32>" if scalar == "f32" else f"vec{chunk // 2}<u32>"


def launch(gemm: Gemm, w: Factor, x: Factor, caps: oplet.Capabilities, *, subgroups: bool) -> Launch:
    """The launch of a product."""
    scalar = SCALARS[gemm.dtype]
    chunk = _CHUNKS[gemm.dtype]
    few = next(few for few in fews_for(caps) if few >= x.outer)
    wide = w.row % chunk == 0
    whole = wide and x.along_k
    columns = columns_for(gemm, few, caps, whole=whole)
    x_chunk = chunk if w.along_k else columns.depth
    x_wide = whole and x.depth % x_chunk == 0
    context, params, bindings = epilogue(gemm, 1)
    context |= {"few": few, "wide": wide, "x_wide": x_wide}
    params |= {
        "K": np.uint32(gemm.k),
        "w_is_b": np.uint32(w.port == "B"),
        "w_stride": np.uint32(w.row // chunk if wide else w.row),
        "x_outer": np.uint32(x.outer),
        # in chunks where x is read in chunks, else in elements
        "x_stride": np.uint32(x.depth // x_chunk if x_wide else x.depth if x.along_k else 1),
    }
    if not x_wide:
        params["x_k_stride"] = np.uint32(1 if x.along_k else x.outer)
    bindings += [
        Binding("W", w.port, "read", _element(scalar, chunk) if wide else scalar),
        Binding("X", x.port, "read", _element(scalar, x_chunk) if x_wide else scalar),
    ]
    if w.along_k:
        rows = rows_for(gemm, few, caps)
        context |= {**attrs.asdict(rows), "subgroups": subgroups}
        params["w_outer"] = np.uint32(w.outer)
        workgroups = ceil_div(w.outer, rows.rows_of_workgroup)
        return Launch("skinny_rows.wgsl.jinja", workgroups, context, params, bindings)
    width = chunk if wide else 1
    # Sums of all invocations are exchanged through at most 16 KiB at once, which every device has.
    at_once = min(few, 4096 // (columns.threads * width))
    context |= {**attrs.asdict(columns), "at_once": at_once}
    workgroups = ceil_div(w.outer, columns.lanes * width)
    return Launch("skinny_columns.wgsl.jinja", workgroups, context, params, bindings)


def _plan(gemm: Gemm, caps: oplet.Capabilities, *, subgroups: bool) -> list[Launch]:
    factors = factors_of(gemm)
    assert factors is not None  # else rejected
    return [launch(gemm, *factors, caps, subgroups=subgroups)]


def plan(gemm: Gemm, caps: oplet.Capabilities) -> list[Launch]:
    """skinny."""
    return _plan(gemm, caps, subgroups=True)


def plan_nosg(gemm: Gemm, caps: oplet.Capabilities) -> list[Launch]:
    """skinny_nosg."""
    return _plan(gemm, caps, subgroups=False)


def rejects(gemm: Gemm, caps: oplet.Capabilities) -> str | None:
    """Why subgroups cannot serve."""
    if "subgroups" not in caps.features:
        return "needs the device feature subgroups"
    return rejects_nosg(gemm, caps)


def rejects_nosg(gemm: Gemm, caps: oplet.Capabilities) -> str | None:
    """Why neither factor is skinny."""
    return None if factors_of(gemm) else f"M = {gemm.m} and N = {gemm.n} are both over {FEW}"
