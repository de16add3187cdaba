"""The op in numpy: float64 throughout, but for the one rounding that the second output is defined by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import oplet

from oplet_engram_gate.shapes import Rows

#: what |dot| is raised to under the root. Not `epsilon`: fixed by the op
FLOOR = 1e-6


def engram_gate(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The requested outputs, as float64."""
    rows = Rows.of(request)
    epsilon = float(rows.epsilon)
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    with np.errstate(all="ignore"):  # NaN and infinity are values like any other here
        dot, _ = dot_product(wide, epsilon)
        gated = gate(dot)[..., None] * wide["valueT"][:, :, None, :]
        results = {"outputT": gated}
        if "gatedValueNormedT" in request.outputs:
            rounded = gated.astype(rows.dtype).astype(np.float64)
            results["gatedValueNormedT"] = rounded * inverse_rms(rounded, epsilon) * wide["convNormScaleT"]
    return {name: results[name] for name in request.outputs}


def dot_product(wide: Mapping[str, np.ndarray], epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """The dot product of the two norms, over √hidden; and the same of magnitudes, which its rounding grows with."""
    key, query = wide["keyT"], wide["queryT"]
    factor = inverse_rms(key, epsilon) * inverse_rms(query, epsilon) / np.sqrt(np.float64(key.shape[-1]))
    terms = key * wide["keyNormScaleT"] * query * wide["queryNormScaleT"]
    carried = np.maximum(steepness(key, epsilon), steepness(query, epsilon))
    return terms.sum(-1) * factor[..., 0], (np.abs(terms).sum(-1, keepdims=True) * factor * carried)[..., 0]


def inverse_rms(rows: np.ndarray, epsilon: float) -> np.ndarray:
    """What RMSNorm multiplies each row with."""
    mean = np.square(rows).sum(-1, keepdims=True) / np.float64(rows.shape[-1])
    inverse: np.ndarray = 1 / np.sqrt(mean + epsilon)
    return inverse


def steepness(rows: np.ndarray, epsilon: float) -> np.ndarray:
    """How many times over `inverse_rms` carries the rounding of a mean square: more than once if epsilon is below 0."""
    mean = np.square(rows).sum(-1, keepdims=True) / np.float64(rows.shape[-1])
    steep: np.ndarray = np.fmax(mean / np.abs(mean + epsilon), 1)
    return steep


def gate(dot: np.ndarray) -> np.ndarray:
    """Sigmoid of the signed root."""
    root = np.sign(dot) * np.sqrt(np.maximum(np.abs(dot), FLOOR))
    sigmoid: np.ndarray = 1 / (1 + np.exp(-root))
    return sigmoid
