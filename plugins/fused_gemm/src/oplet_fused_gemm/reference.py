"""The op in numpy: float64 throughout, rounded once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import oplet

from oplet_fused_gemm.shapes import Gemm


def fused_gemm(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Y as float64."""
    gemm = Gemm.of(request)
    a, b = arrays["A"].astype(np.float64), arrays["B"].astype(np.float64)
    with np.errstate(all="ignore"):  # infinities and NaN are values like any other here
        y = float(gemm.alpha) * ((a if gemm.a.along_k else a.T) @ (b.T if gemm.b.along_k else b))
        if gemm.c is not None:
            y = y + float(gemm.beta) * arrays["C"].astype(np.float64)
        return gemm.activation.numpy(y, gemm.values)
