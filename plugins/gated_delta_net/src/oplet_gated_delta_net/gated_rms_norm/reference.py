"""The op in numpy, in float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from oplet_gated_delta_net.gated_rms_norm.shapes import Groups


def gated_rms_norm(groups: Groups, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Y, float64."""
    x, gate = (arrays[name].astype(np.float64) for name in ("X", "gate"))
    rows = x.reshape(groups.count, groups.width)
    with np.errstate(all="ignore"):  # infinities and NaN are values like any other here
        mean = np.square(rows).mean(axis=1, keepdims=True)
        normed = rows / np.sqrt(mean + float(groups.epsilon)) * arrays["scale"].astype(np.float64)
        opened = (gate if groups.silu else 1) / (1 + np.exp(-gate))
        y: np.ndarray = normed.reshape(x.shape) * opened
    return y
