"""What every kernel ends with: alpha, beta · C, the activation and Y."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import oplet
from oplet.variant import Binding, ContextValue, Launch, Param

from oplet_fused_gemm.shapes import Gemm

#: WGSL's name of a dtype
SCALARS: Mapping[str, str] = {"float32": "f32", "float16": "f16"}

_REDUCE_THREADS = 64


def ceil_div(n: int, d: int) -> int:
    """n / d, rounded up."""
    return -(-n // d)


def epilogue(gemm: Gemm, width: int) -> tuple[dict[str, ContextValue], dict[str, Param], list[Binding]]:
    """Context, params and bindings of wgsl/epilogue.wgsl.jinja; Y is bound in vectors of `width`."""
    scalar = SCALARS[gemm.dtype]
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
    with np.errstate(over="ignore"):  # Celu's 1 / alpha or Selu's alpha · gamma may be infinite in float32
        params |= {name: np.float32(value) for name, value in gemm.activation.params(gemm.values).items()}
    return context, params, bindings


def reduce(gemm: Gemm, partial: oplet.TensorSpec | None) -> Launch:
    """Adds partial sums, (slices, M, N) float32, and finishes. Without any, K is 0 and so is the product."""
    width = 4 if gemm.n % 4 == 0 else 1
    context, params, bindings = epilogue(gemm, width)
    if partial:
        params["slices"] = np.uint32(partial.shape[0])
        bindings.append(Binding("partial", "partial", "read", "f32" if width == 1 else "vec4<f32>"))
    return Launch(
        "reduce.wgsl.jinja",
        ceil_div(gemm.m * gemm.n, width * _REDUCE_THREADS),
        context | {"width": width, "threads": _REDUCE_THREADS, "slices": partial is not None},
        params,
        bindings,
        {"partial": partial} if partial else {},
    )
