"""The kernel: which calls of FusedGemm it serves, and what it launches."""

from __future__ import annotations

import numpy as np
import oplet

_THREADS = 64
_SCALARS = {"float32": "f32", "float16": "f16"}


def _sizes(request: oplet.Request) -> tuple[int, int, int]:
    """M, N and K. The op has checked that A and B agree."""
    m, k = request.inputs["A"].shape[:: -1 if request.attrs["transA"] else 1]
    n = request.inputs["B"].shape[0 if request.attrs["transB"] else 1]
    return m, n, k


def _rejects(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
    _, _, k = _sizes(request)
    if k != 1:
        return f"K = {k}, and an outer product has K = 1"
    if "C" in request.inputs and request.attrs["beta"] != 0:
        return "it adds no C"
    if request.attrs["activation"]:
        return f"it has no activation, {request.attrs['activation']} or any other"
    if request.types["T"] == "float16" and "shader-f16" not in caps.features:
        return "float16 needs the device feature shader-f16"
    return None


def _plan(request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
    m, n, _ = _sizes(request)
    if not m * n:
        return []
    # With K = 1, A and B lie in memory as they would transposed.
    scalar = _SCALARS[request.types["T"]]
    return [
        oplet.Launch(
            "outer.wgsl.jinja",
            workgroups=-(-m * n // _THREADS),
            context={"threads": _THREADS, "scalar": scalar},
            params={"count": np.uint32(m * n), "N": np.uint32(n), "alpha": np.float32(request.attrs["alpha"])},
            bindings=[
                oplet.Binding("A", "A", "read", scalar),
                oplet.Binding("B", "B", "read", scalar),
                oplet.Binding("Y", "Y", "read_write", scalar),
            ],
        )
    ]


VARIANTS = (oplet.Variant("acme_outer", _plan, rejects=_rejects, doc="K = 1: one element of Y an invocation."),)
