"""Cases for the conformance kit, and what rounding may do to their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import oplet

from oplet_engram_gate.reference import dot_product, engram_gate, gate, inverse_rms, steepness
from oplet_engram_gate.shapes import Rows

#: error of a float32 sum relative to the sum of magnitudes; rtol of test.json
_ROUNDING = 1e-6

#: (batch_size, sequence_length, hc_mult, hidden_size). Hidden sizes: with and without a factor 4 and 8, rows of
#: few and of many lanes with and without idle ones, and rows that registers do not hold on any kind of device
_SHAPES = (
    (1, 1, 1, 1),
    (2, 3, 4, 2),
    (1, 7, 1, 3),
    (3, 1, 2, 4),
    (1, 9, 5, 5),
    (2, 2, 4, 8),
    (1, 5, 3, 12),
    (1, 33, 2, 20),
    (2, 4, 4, 30),
    (1, 3, 4, 60),
    (1, 6, 2, 64),
    (1, 2, 3, 127),
    (2, 2, 2, 136),
    (1, 3, 5, 256),
    (1, 2, 4, 260),
    (1, 2, 1, 1030),
    (1, 1, 3, 2052),
    (1, 1, 2, 7168),
    (1, 1, 1, 16384),
    (1, 1, 1, 20488),
    (1, 1, 1, 20483),
    (0, 3, 4, 8),
    (2, 0, 4, 8),
    (2, 3, 0, 8),
    (2, 3, 4, 0),
)


def cases(rng: np.random.Generator) -> Iterator[tuple[dict[str, np.ndarray], dict[str, float]]]:
    """Shapes of every kind, epsilons, rows of zeros, large magnitudes, NaN and infinity in each input."""
    for dtype in (np.float32, np.float16):
        for shape in _SHAPES:
            yield inputs(rng, shape, dtype), {}
        for epsilon in (0.0, 0.5, 100.0):
            yield inputs(rng, (1, 3, 2, 24), dtype), {"epsilon": epsilon}
        for hidden in (24, 23):
            call = inputs(rng, (1, 6, 2, hidden), dtype)
            call["keyT"][0, 0] = 0
            call["queryT"][0, 1] = 0
            call["valueT"][0, 2] = 0
            # One stream is orthogonal: its products are zeros, so is their sum, and the gate is a half.
            call["keyT"][0, 3, 0, ::2] = 0
            call["queryT"][0, 3, 0, 1::2] = 0
            yield call, {}
            yield call, {"epsilon": 0.0}
        # The squares of a row add up to more than float16 holds.
        call = inputs(rng, (1, 2, 2, 72), dtype)
        call["keyT"] *= dtype(200)
        call["queryT"] *= dtype(200)
        yield call, {}
        for hidden in (8, 11):
            yield _special(rng, hidden, dtype), {}


def inputs(rng: np.random.Generator, shape: tuple[int, int, int, int], dtype: type) -> dict[str, np.ndarray]:
    """Normally distributed data for every input, convNormScaleT included."""
    batch, sequence, streams, hidden = shape
    shapes = {
        "keyT": shape,
        "queryT": shape,
        "valueT": (batch, sequence, hidden),
        "keyNormScaleT": (streams, hidden),
        "queryNormScaleT": (streams, hidden),
        "convNormScaleT": (streams, hidden),
    }
    return {name: rng.standard_normal(each).astype(dtype) for name, each in shapes.items()}


def _special(rng: np.random.Generator, hidden: int, dtype: type) -> dict[str, np.ndarray]:
    """A token for each of NaN and the infinities in each of key, query and value; streams for those in the scales."""
    values = (np.nan, np.inf, -np.inf)
    call = inputs(rng, (1, 3 * len(values), 1 + 3 * len(values), hidden), dtype)
    for i, name in enumerate(("keyT", "queryT", "valueT")):
        for j, value in enumerate(values):
            place = (0, 3 * i + j, 0, hidden // 2) if name != "valueT" else (0, 3 * i + j, hidden // 2)
            call[name][place] = value
    for i, name in enumerate(("keyNormScaleT", "queryNormScaleT", "convNormScaleT")):
        for j, value in enumerate(values):
            call[name][1 + 3 * i + j, hidden - 1] = value
    return call


def scale(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """How far rounding carries, over `_ROUNDING`: the root is steep near 0, and the gate jumps there.

    The gate of a row is known no better than the dot product, whose error grows with the magnitudes of its
    terms. gatedValueNormedT is made of rounded values: one on the edge may have been rounded up or down.
    """
    rows = Rows.of(request)
    epsilon = float(rows.epsilon)
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    with np.errstate(all="ignore"):
        dot, magnitude = dot_product(wide, epsilon)
        off = np.where(np.isfinite(magnitude), _ROUNDING * magnitude, 0)  # an infinite one has no error
        middle = gate(dot)
        spread = np.maximum(gate(dot + off) - middle, middle - gate(dot - off))
        value = wide["valueT"][:, :, None, :]
        scales = {"outputT": (middle + spread / _ROUNDING)[..., None] * np.abs(value)}
        if "gatedValueNormedT" in request.outputs:
            gated = middle[..., None] * value
            slack = _ROUNDING * scales["outputT"]
            low, high = ((gated + side).astype(rows.dtype).astype(np.float64) for side in (-slack, slack))
            edge = high - low
            rounded = gated.astype(rows.dtype).astype(np.float64)
            inverse = inverse_rms(rounded, epsilon)
            of_row = (np.abs(rounded) * edge).sum(-1, keepdims=True) / np.float64(rows.hidden) * inverse**2
            normed = np.abs(engram_gate(request, arrays)["gatedValueNormedT"]) * steepness(rounded, epsilon)
            own = edge * inverse * np.abs(wide["convNormScaleT"])
            scales["gatedValueNormedT"] = normed + (own + normed * of_row) / _ROUNDING
    return scales
