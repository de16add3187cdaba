"""Random calls for the conformance kit, beside the ones of test.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import oplet

Case = tuple[dict[str, np.ndarray], dict[str, float]]


def cases(rng: np.random.Generator) -> Iterator[Case]:
    """Rows around the vector's length, every rank, nothing at all, and every dtype."""
    for shape in ((0,), (2,), (8,), (3, 10), (5, 64), (2, 0), (0, 8), (65, 6), (2, 3, 24)):
        for dtype in ("float32", "float16"):
            yield {"X": (3 * rng.standard_normal(shape)).astype(dtype)}, {}


def scale(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The error of the sigmoid is small beside 1, not beside a sigmoid that is nearly 0."""
    gate, value = np.split(arrays["X"].astype(np.float64), 2, axis=-1)
    return {"Y": np.abs(gate * value)}
