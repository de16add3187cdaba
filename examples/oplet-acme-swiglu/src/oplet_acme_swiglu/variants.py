"""The kernels: which calls each can serve, and what it launches."""

from __future__ import annotations

from functools import partial

import numpy as np
import oplet

from oplet_acme_swiglu.shapes import output

_THREADS = 64
_SCALARS = {"float32": "f32", "float16": "f16"}


def _rejects_scalar(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
    if request.types["T"] == "float16" and "shader-f16" not in caps.features:
        return "float16 needs the device feature shader-f16"
    return None


def _rejects_vec4(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
    columns = output(request).shape[-1]
    if columns % 4:
        return f"rows of Y are {columns} long, not a multiple of 4"
    return _rejects_scalar(request, caps)


def _plan(request: oplet.Request, caps: oplet.Capabilities, *, width: int) -> list[oplet.Launch]:
    """One launch, in which each invocation computes `width` elements of Y."""
    y = output(request)
    if not y.size:
        return []
    count = y.size // width
    scalar = _SCALARS[y.dtype]
    element = scalar if width == 1 else f"vec{width}<{scalar}>"
    return [
        oplet.Launch(
            "swiglu.wgsl.jinja",
            workgroups=-(-count // _THREADS),
            context={"threads": _THREADS, "element": element, "wide": "f32" if width == 1 else f"vec{width}<f32>"},
            params={"count": np.uint32(count), "columns": np.uint32(y.shape[-1] // width)},
            bindings=[oplet.Binding("X", "X", "read", element), oplet.Binding("Y", "Y", "read_write", element)],
        )
    ]


VARIANTS = (
    oplet.Variant("vec4", partial(_plan, width=4), rejects=_rejects_vec4, doc="Four elements an invocation."),
    oplet.Variant("scalar", partial(_plan, width=1), rejects=_rejects_scalar, doc="One element an invocation."),
)
