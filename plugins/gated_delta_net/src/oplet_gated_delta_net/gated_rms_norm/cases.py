"""Random calls for the conformance kit, and what rounding may do to their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import oplet

from oplet_gated_delta_net.gated_rms_norm.reference import gated_rms_norm
from oplet_gated_delta_net.gated_rms_norm.shapes import Groups

Call = tuple[dict[str, np.ndarray], dict[str, Any]]

#: (shape of X, C): with and without a factor 4, groups of few and of many lanes with and without idle ones, and
#: groups that registers do not hold on any kind of device
_SHAPES = (
    ((1,), 1),
    ((5, 3), 1),
    ((7, 9), 3),
    ((2, 3, 24), 8),
    ((1, 2, 512), 128),
    ((33, 36), 36),
    ((3, 4, 30), 30),
    ((2, 254), 127),
    ((2, 1, 520), 260),
    ((3, 1030), 1030),
    ((2, 16388), 16388),
    ((1, 8195), 8195),
    ((0, 8), 4),
    ((3, 0), 4),
)


def cases(rng: np.random.Generator) -> Iterator[Call]:
    """Shapes of every kind, epsilons, groups of zeros, gates far into both tails, NaN and infinity in each input."""
    for dtype in (np.float32, np.float16):
        for number, (shape, width) in enumerate(_SHAPES):
            yield inputs(rng, shape, width, dtype), {"activation": ("silu", "sigmoid", "swish")[number % 3]}
        for epsilon in (0.0, 0.5, 100.0):
            call = inputs(rng, (6, 24), 12, dtype)
            call["X"][2] = 0
            yield call, {"epsilon": epsilon}
        # The squares add up to more than float16 holds, and the gates close and open all the way.
        call = inputs(rng, (4, 24), 12, dtype)
        call["X"] *= dtype(200)
        call["gate"] *= dtype(60)
        yield call, {"activation": "silu"}
        yield call, {"activation": "sigmoid"}
        for width in (8, 11):
            yield _special(rng, width, dtype), {}


def inputs(rng: np.random.Generator, shape: tuple[int, ...], width: int, dtype: type) -> dict[str, np.ndarray]:
    """Normally distributed data for every input."""
    shapes = {"X": shape, "scale": (width,), "gate": shape}
    return {name: rng.standard_normal(each).astype(dtype) for name, each in shapes.items()}


def _special(rng: np.random.Generator, width: int, dtype: type) -> dict[str, np.ndarray]:
    """A group for each of NaN and the infinities in X and gate, and an element of scale that is infinite."""
    values = (np.nan, np.inf, -np.inf)
    call = inputs(rng, (2 * len(values) + 1, width), width, dtype)
    for i, name in enumerate(("X", "gate")):
        for j, value in enumerate(values):
            call[name][i * len(values) + j, width // 2] = value
    call["scale"][width - 1] = np.inf
    return call


def scale(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The result, and more of it the farther the gate is from 0: an absolute error of z is a relative one of e^z."""
    with np.errstate(all="ignore"):
        y = np.abs(gated_rms_norm(Groups.of(request), arrays))
        return {"Y": y * (1 + np.abs(arrays["gate"].astype(np.float64)))}
