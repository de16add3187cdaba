"""The op in numpy: float64 throughout, rounded once by oplet."""

from __future__ import annotations

import numpy as np


def swiglu(x: np.ndarray) -> np.ndarray:
    """silu(gate) · value in float64."""
    columns = x.shape[-1] // 2
    gate, value = x[..., :columns].astype(np.float64), x[..., columns:].astype(np.float64)
    with np.errstate(all="ignore"):  # infinities and NaN are values like any other
        decay = np.exp(-np.abs(gate))
        sigmoid = np.where(gate >= 0, 1, decay) / (1 + decay)
        y: np.ndarray = gate * sigmoid * value
    return y
