"""Random calls of com.acme.Affine."""

from collections.abc import Iterator

import numpy as np


def cases(rng: np.random.Generator) -> Iterator[tuple[dict[str, np.ndarray], dict[str, float | str]]]:
    for rows, columns in ((1, 1), (3, 5), (2, 8), (7, 33), (0, 4)):
        for dtype in ("float32", "float16"):
            x = rng.standard_normal((rows, columns)).astype(dtype)
            yield {"X": x}, {"factor": float(np.float32(rng.uniform(-2, 2)))}
            yield {"X": x, "biasT": rng.standard_normal(columns).astype(dtype)}, {"activation": "Relu"}


def scale(request: object, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The sums are of terms that cancel; each is at most twice |x| plus the bias."""
    terms = 2 * np.abs(arrays["X"].astype(np.float64)) + np.abs(arrays.get("biasT", np.zeros(1)).astype(np.float64))
    return {"Y": terms, "sums": terms.sum(axis=1)}
