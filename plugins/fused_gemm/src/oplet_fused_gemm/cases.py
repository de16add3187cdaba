"""Cases for the conformance kit, and what their rounding errors are relative to. Imported by tests only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import oplet
from oplet.request import AttributeValue

from oplet_fused_gemm.activations import ACTIVATIONS
from oplet_fused_gemm.shapes import Gemm

Inputs = dict[str, np.ndarray]
Attributes = dict[str, AttributeValue]

#: those of Hugging Face's kernel webgpu-kernels/com.microsoft.FusedGemm
_CONTRACT = ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid")

#: `rtol` of test.json, for `scale` to carry an error through the activation
_RTOL = 1e-6

_DTYPES = (np.dtype(np.float32), np.dtype(np.float16))


def scale(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What `rtol` is relative to: the products' magnitudes, not their sum's, seen through the activation.

    An error of rtol · (|alpha| |A'| |B'| + |beta| |C|) before the activation is what sums in float32 may have; the
    activation stretches it by its slope there, and rounds its own result.
    """
    gemm = Gemm.of(request)
    a, b = arrays["A"].astype(np.float64), arrays["B"].astype(np.float64)
    a, b = (a if gemm.a.along_k else a.T), (b.T if gemm.b.along_k else b)
    with np.errstate(all="ignore"):
        x = float(gemm.alpha) * (a @ b)
        size = abs(float(gemm.alpha)) * (np.abs(a) @ np.abs(b))
        if gemm.c is not None:
            added = float(gemm.beta) * arrays["C"].astype(np.float64)
            x, size = x + added, size + np.abs(added)
        low, y, high = (gemm.activation.numpy(x + d * _RTOL * size, gemm.values) for d in (-1, 0, 1))
        return {"Y": np.maximum(np.abs(high - y), np.abs(y - low)) / _RTOL + np.abs(y)}


def cases(rng: np.random.Generator) -> Iterator[tuple[Inputs, Attributes]]:
    """Every layout, C, activation and dtype, sizes around every edge, and values that break kernels."""
    yield from _layouts(rng)
    yield from _activations(rng)
    yield from _random(rng)
    yield from _empty(rng)
    yield from _values(rng)


def _product(
    rng: np.random.Generator, m: int, n: int, k: int, dtype: np.dtype, ta: int = 0, tb: int = 0
) -> tuple[Inputs, Attributes]:
    a = rng.standard_normal((k, m) if ta else (m, k)).astype(dtype)
    b = rng.standard_normal((n, k) if tb else (k, n)).astype(dtype)
    return {"A": a, "B": b}, {"transA": ta, "transB": tb}


def _c_shapes(m: int, n: int) -> list[tuple[int, ...]]:
    return [(), (1,), (n,), (1, 1), (1, n), (m, 1), (m, n)]


def _layouts(rng: np.random.Generator) -> Iterator[tuple[Inputs, Attributes]]:
    # Whole tiles, parts of tiles, one more and one less; square, so that a wrong transpose still has the right shape.
    sizes = [(16, 16, 16), (32, 32, 40), (33, 33, 33), (64, 100, 72), (31, 65, 7), (130, 20, 52), (17, 36, 100)]
    skinny = [(1, 40, 64), (3, 33, 40), (8, 64, 24), (16, 20, 36), (72, 1, 48), (50, 5, 17), (40, 12, 8), (1, 1, 1)]
    layouts = ((0, 0), (0, 1), (1, 0), (1, 1))
    for dtype in _DTYPES:
        for m, n, k in sizes + skinny:
            # float16 doubles the number of shaders; the layouts of the skinny ones differ in the large factor only.
            for ta, tb in layouts[:2] if (m, n, k) in skinny and dtype == np.float16 else layouts:
                inputs, attributes = _product(rng, m, n, k, dtype, ta, tb)
                shape = _c_shapes(m, n)[rng.integers(7)]
                inputs["C"] = rng.standard_normal(shape).astype(dtype)
                yield inputs, {**attributes, "alpha": 0.5, "beta": -2.0}
        m, n, k = 24, 24, 24
        for shape in _c_shapes(m, n):
            inputs, attributes = _product(rng, m, n, k, dtype)
            # ONNX: any value but 0 is true.
            yield {**inputs, "C": rng.standard_normal(shape).astype(dtype)}, {**attributes, "transA": -3, "transB": 7}


def _activations(rng: np.random.Generator) -> Iterator[tuple[Inputs, Attributes]]:
    for dtype in _DTYPES:
        for name in ACTIVATIONS if dtype == np.float32 else _CONTRACT:
            attributes: Attributes = {"activation": name}
            if name in ("ScaledTanh", "ParametricSoftplus"):
                attributes |= {"activation_alpha": 1.7, "activation_beta": 0.6}
            for m, n, k in ((20, 24, 36), (5, 24, 36)) if dtype == np.float32 else ((20, 24, 36),):
                inputs, layout = _product(rng, m, n, k, dtype, tb=1)
                # Rows from tiny to huge: the middle, both tails, and where the sums are small enough for a series.
                inputs["A"] *= np.geomspace(1e-3, 50, m).astype(dtype)[:, None]
                # A row of NaN, and one of infinities of both signs.
                inputs["A"][1, 0], inputs["A"][2, 0] = np.nan, np.inf
                yield inputs, {**layout, **attributes}
            if name in ("LeakyRelu", "HardSigmoid", "Elu", "Celu", "Selu", "ThresholdedRelu"):
                inputs, layout = _product(rng, 20, 24, 36, dtype, tb=1)
                yield inputs, {**layout, **attributes, "activation_alpha": 0.3}
    # 1 / alpha and alpha · gamma are more than float32 holds.
    for m in (5, 20):
        inputs, layout = _product(rng, m, 24, 36, _DTYPES[0])
        yield inputs, {**layout, "activation": "Celu", "activation_alpha": 1e-39}
        yield inputs, {**layout, "activation": "Selu", "activation_alpha": 1e30, "activation_gamma": 1e30}


def _random(rng: np.random.Generator) -> Iterator[tuple[Inputs, Attributes]]:
    for _ in range(30):
        dtype = _DTYPES[rng.integers(2)]
        m, n, k = (int(size) for size in rng.integers(1, 131, 3))
        inputs, attributes = _product(rng, m, n, k, dtype, *(int(flag) for flag in rng.integers(0, 2, 2)))
        if rng.integers(2):
            inputs["C"] = rng.standard_normal(_c_shapes(m, n)[rng.integers(7)]).astype(dtype)
        yield inputs, {**attributes, "activation": "Relu"}


def _empty(rng: np.random.Generator) -> Iterator[tuple[Inputs, Attributes]]:
    sizes = [(0, 4, 3), (3, 0, 4), (0, 0, 0), (0, 5, 0), (3, 4, 0), (5, 3, 0), (40, 36, 0)]
    long = [(0, 20, 257), (18, 0, 1024)]
    for dtype in _DTYPES:
        for ta, tb in ((0, 0), (1, 1)):
            for m, n, k in sizes + long:
                inputs, attributes = _product(rng, m, n, k, dtype, ta, tb)
                yield inputs, {**attributes, "activation": "Sigmoid"}
                for shape in ((n,), (m, n), (m, 1)):
                    c = rng.standard_normal(shape).astype(dtype)
                    yield {**inputs, "C": c}, {**attributes, "beta": 0.5, "activation": "Relu"}


def _values(rng: np.random.Generator) -> Iterator[tuple[Inputs, Attributes]]:
    for dtype in _DTYPES:
        for m, n, k in ((2, 12, 8), (20, 24, 16), (21, 23, 17)):
            plain, attributes = _product(rng, m, n, k, dtype)
            poison = np.full((m, n), np.nan, dtype)
            # beta = 0 ignores C, whatever is in it; alpha = 0 hides nothing.
            yield {**plain, "C": poison}, {**attributes, "beta": 0.0}
            broken = {name: array.copy() for name, array in plain.items()}
            broken["A"][0, 0], broken["A"][1, 1], broken["B"][2, 3] = np.nan, np.inf, -np.inf
            for name in ("", *_CONTRACT) if m > 2 else ("", "Relu"):
                yield broken, {**attributes, "activation": name}
            yield broken, {**attributes, "alpha": 0.0}
            c = np.zeros((m, n), dtype)
            c[0, :3] = np.nan, np.inf, -np.inf
            yield {**plain, "C": c}, {**attributes, "activation": "Relu"}
            # Far tails, from a product that is exact.
            ones = {"A": np.ones((m, k), dtype), "B": np.full((k, n), 1 / k, dtype)}
            tails = np.resize(np.array([-1000, -100, -20, -5, 5, 20, 100, 1000], dtype), (m, n))
            for name in ("Sigmoid", "Tanh", "HardSigmoid") if m > 2 else ("Sigmoid",):
                yield {**ones, "C": tails}, {**attributes, "activation": name}
    # float16 sums that pass 65504 on the way, and sums that float16 could not hold a step of.
    half = np.dtype(np.float16)
    for m, n in ((2, 12), (20, 24), (21, 23)):
        a = np.tile(np.array([60000, 60000, -60000, -59968], half), (m, 4))
        yield {"A": a, "B": np.ones((16, n), half)}, {}
        a = np.ones((m, 104), half)
        a[:, 0] = 2048
        yield {"A": a, "B": np.ones((104, n), half)}, {}
        yield {"A": np.full((m, 8), 30000, half), "B": np.ones((8, n), half)}, {}
