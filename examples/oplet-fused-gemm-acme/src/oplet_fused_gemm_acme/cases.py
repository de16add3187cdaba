"""Outer products: calls that the op's own cases have few of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

Case = tuple[dict[str, np.ndarray], dict[str, float]]


def cases(rng: np.random.Generator) -> Iterator[Case]:
    """Sizes around the workgroup's, both layouts of each factor, every dtype."""
    for m, n in ((1, 1), (3, 5), (64, 2), (0, 4), (17, 33)):
        for dtype in ("float32", "float16"):
            a, b = (rng.standard_normal(length).astype(dtype) for length in (m, n))
            yield {"A": a[:, np.newaxis], "B": b[np.newaxis]}, {"alpha": float(rng.uniform(-2, 2))}
            yield {"A": a[np.newaxis], "B": b[:, np.newaxis]}, {"transA": 1, "transB": 1}
