"""Recognises handwritten digits with two calls of com.microsoft.FusedGemm, and checks both against numpy.

The network is a hidden layer of random weights with a Relu, and an output layer fitted to it by least
squares: no training library is needed, and all that is left to do per image is two matrix products.

    python examples/digits.py

Data: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
Repository, 1998, licence CC BY 4.0; its test set of 1797 images, 8×8 pixels of 0 to 16, the digit last.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import oplet

OP = "com.microsoft.FusedGemm"
HIDDEN = 512
TRAINED = 1200  # images that the output layer is fitted to; the others are recognised


def network(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights and bias of the hidden layer, and weights of the output layer, all float32."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(images.shape[1], HIDDEN)).astype(np.float32)
    bias = rng.normal(size=HIDDEN).astype(np.float32)
    hidden = np.maximum(images @ weights + bias, 0).astype(np.float64)
    wanted = np.eye(10)[labels]
    # The ridge keeps the output weights small, so that they suit images that were not fitted.
    output = np.linalg.solve(hidden.T @ hidden + 100.0 * np.eye(HIDDEN), hidden.T @ wanted)
    return weights, bias, output.astype(np.float32)


def check(name: str, got: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray | float, relu: bool) -> None:
    """Compares a product with numpy's in float64, against what float32 may lose in any order of summation."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    exact = a @ b + c
    if relu:
        exact = np.maximum(exact, 0)  # changes no difference for the worse
    roundings = (a.shape[1] + 2) * 2.0**-24
    allowed = roundings / (1 - roundings) * (np.abs(a) @ np.abs(b) + np.abs(c))
    difference = np.abs(got - exact)
    if not (difference <= allowed).all():  # written so that a NaN fails
        worst = np.argmax(difference - allowed)  # a NaN, where there is one
        off, may = difference.flat[worst], allowed.flat[worst]
        raise SystemExit(f"{name}: differs from numpy by {off:.2e}, where float32 may by {may:.2e}")
    share = (difference / allowed).max()
    print(f"{name}: agrees with numpy, within {share:.1%} of the rounding that float32 allows")


def main() -> None:
    """Fits the network in numpy, runs it on the device, and says which variants ran and why the others did not."""
    data = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",", dtype=np.float32)
    images, labels = data[:, :-1] / 16, data[:, -1].astype(int)
    weights, bias, output = network(images[:TRAINED], labels[:TRAINED])
    images, labels = images[TRAINED:], labels[TRAINED:]

    registry = oplet.Registry()
    relu = {"activation": "Relu"}
    x, w1, b1, w2 = (registry.tensor(array) for array in (images, weights, bias, output))
    with registry.batch():  # both layers in one submit
        hidden = registry.run(OP, A=x, B=w1, C=b1, attrs=relu)
        scores = registry.run(OP, A=hidden, B=w2)

    print(registry.explain(OP, A=x, B=w1, C=b1, attrs=relu))
    print(registry.explain(OP, A=hidden, B=w2))
    check("hidden layer", hidden.numpy(), images, weights, bias, relu=True)
    check("output layer", scores.numpy(), hidden.numpy(), output, 0.0, relu=False)
    right = int((scores.numpy().argmax(axis=1) == labels).sum())
    print(f"{right} of {len(labels)} handwritten digits recognised")


if __name__ == "__main__":
    main()
