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
class Strips:
    """How the kernels divide W.

    Attributes:
        threads: in a workgroup.
        rows: for a workgroup, where rows are contiguous along K.
        lanes: strips of 16 bytes for a workgroup, where memory is contiguous from row to row.
        unroll: steps along K whose reads are under way together.
        fews: what the number of rows of X is rounded up to; each has a shader of its own.
    """

    threads: int
    rows: int
    lanes: int
    unroll: int
    fews: tuple[int, ...] = (1, 4, 8, FEW)


def strips_for(gemm: Gemm, w: Factor, x: Factor, caps: oplet.Capabilities) -> Strips:
    """The division for a device, as measured on an H200."""
    if caps.adapter.is_cpu:
        return Strips(threads=16, rows=2, lanes=4, unroll=1, fews=(1, FEW))
    many, half = x.outer > 4, gemm.dtype == "float16"
    if w.along_k:
        # With 16 rows of X the sums of 128 invocations would pass 16 KiB of workgroup memory.
        threads = 64 if x.outer > 8 or (many and half) else 128
        return Strips(threads, rows=2 if many else 4, lanes=0, unroll=2)
    if many:
        # Longer strips reach a higher rate, but only where other work fills the device meanwhile.
        return Strips(threads=128 if half else 256, rows=0, lanes=4 if half else 8, unroll=1)
    most = caps.limits["maxComputeInvocationsPerWorkgroup"]
    return Strips(threads=min(512, most), rows=0, lanes=8, unroll=1 if half else 2)


def launch(gemm: Gemm, w: Factor, x: Factor, strips: Strips, *, subgroups: bool) -> Launch:
    """The launch of a product."""
    scalar = SCALARS[gemm.dtype]
    chunk = _CHUNKS[gemm.dtype]
    wide = w.row % chunk == 0
    x_wide = wide and x.along_k and x.depth % chunk == 0
    element = "vec4<f32>" if scalar == "f32" else "vec4<u32>"
    few = next(few for few in strips.fews if few >= x.outer)
    context, params, bindings = epilogue(gemm, 1)
    context |= {"few": few, "wide": wide, "x_wide": x_wide, "threads": strips.threads, "unroll": strips.unroll}
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
        context |= {"subgroups": subgroups, "rows": strips.rows}
        params["w_outer"] = np.uint32(w.outer)
        return Launch("skinny_rows.wgsl.jinja", ceil_div(w.outer, strips.rows), context, params, bindings)
    width = chunk if wide else 1
    # Sums of all invocations are exchanged through at most 16 KiB at once, which every device has.
    at_once = min(few, 4096 // (strips.threads * width))
    context |= {"lanes": strips.lanes, "depth": chunk, "few_at_once": at_once}
    return Launch("skinny_columns.wgsl.jinja", ceil_div(w.outer, strips.lanes * width), context, params, bindings)


def _plan(gemm: Gemm, caps: oplet.Capabilities, *, subgroups: bool) -> list[Launch]:
    factors = factors_of(gemm)
    assert factors is not None  # else rejected
    return [launch(gemm, *factors, strips_for(gemm, *factors, caps), subgroups=subgroups)]


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
