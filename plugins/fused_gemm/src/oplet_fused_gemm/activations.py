"""The activations: what each is in numpy, and which WGSL formula computes it with which parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import attrs
import numpy as np
import oplet

#: resolved `activation_alpha`, `activation_beta` and `activation_gamma`, by their last word
Values = Mapping[str, float]


@attrs.frozen
class Activation:
    """One activation.

    Attributes:
        formula: the branch of `wgsl/activation.wgsl.jinja` that computes it. Several activations share
            one, so that fewer pipelines are compiled.
        numpy: the definition, elementwise on float64.
        defaults: the parameters that it takes, and ONNX's default; None where ONNX has none.
        params: from the parameters to the formula's own.
    """

    formula: str
    numpy: Callable[[np.ndarray, Values], np.ndarray]
    defaults: Mapping[str, float | None] = {}
    params: Callable[[Values], Mapping[str, float]] = dict

    def values(self, request: oplet.Request) -> dict[str, float]:
        """Its parameters in a request that names it; those that it does not take are ignored, as ONNX does.

        Raises:
            InputError: when a parameter that has no default is not given.
        """
        values = {}
        for parameter, default in self.defaults.items():
            argument = f"activation_{parameter}"
            value = request.attrs[argument]
            if value is None and default is None:
                name = request.attrs["activation"]
                needed = ", ".join(f"activation_{p}" for p, d in self.defaults.items() if d is None)
                raise request.refusal(
                    argument,
                    f"{name} needs it, and ONNX has no default",
                    f"activation {name} takes {needed}",
                    do=f"give {argument} a value",
                )
            # ONNX stores attributes as float32; kernels and reference have to see the same number.
            values[parameter] = float(np.float32(default if value is None else value))
        return values


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    y: np.ndarray = np.where(x >= 0, 1, e) / (1 + e)
    return y


def _softplus(x: np.ndarray) -> np.ndarray:
    y: np.ndarray = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    return y


def _elu(x: np.ndarray, alpha: float) -> np.ndarray:
    return np.where(x < 0, alpha * np.expm1(x), x)


#: by ONNX's name; "" is a plain Gemm
ACTIVATIONS: Mapping[str, Activation] = {
    "": Activation("none", lambda x, _: x),
    "Relu": Activation("relu", lambda x, _: np.maximum(x, 0)),
    "LeakyRelu": Activation(
        "leaky_relu", lambda x, v: np.where(x < 0, v["alpha"] * x, x), {"alpha": 0.01}, lambda v: {"slope": v["alpha"]}
    ),
    "Sigmoid": Activation("sigmoid", lambda x, _: _sigmoid(x)),
    "Tanh": Activation("tanh", lambda x, _: np.tanh(x), params=lambda _: {"scale": 1, "factor": 1}),
    "HardSigmoid": Activation(
        "hard_sigmoid",
        lambda x, v: np.clip(v["alpha"] * x + v["beta"], 0, 1),
        {"alpha": 0.2, "beta": 0.5},
        lambda v: {"slope": v["alpha"], "offset": v["beta"]},
    ),
    "Elu": Activation(
        "elu",
        lambda x, v: _elu(x, v["alpha"]),
        {"alpha": 1.0},
        lambda v: {"negative": v["alpha"], "factor": 1, "positive": 1},
    ),
    "Selu": Activation(
        "elu",
        lambda x, v: v["gamma"] * _elu(x, v["alpha"]),
        {"alpha": 1.6732631921768188, "gamma": 1.0507010221481323},
        lambda v: {"negative": v["alpha"] * v["gamma"], "factor": 1, "positive": v["gamma"]},
    ),
    "Celu": Activation(
        "elu",
        lambda x, v: np.where(x < 0, v["alpha"] * np.expm1(x / v["alpha"]), x),
        {"alpha": 1.0},
        lambda v: {"negative": v["alpha"], "factor": 1 / v["alpha"] if v["alpha"] else math.inf, "positive": 1},
    ),
    "Softplus": Activation("softplus", lambda x, _: _softplus(x), params=lambda _: {"scale": 1, "factor": 1}),
    "Softsign": Activation("softsign", lambda x, _: x / (1 + np.abs(x))),
    "ThresholdedRelu": Activation(
        "thresholded_relu",
        lambda x, v: np.where(x <= v["alpha"], 0, x),  # not x > alpha: a NaN has to pass
        {"alpha": 1.0},
        lambda v: {"threshold": v["alpha"]},
    ),
    "ScaledTanh": Activation(
        "tanh",
        lambda x, v: v["alpha"] * np.tanh(v["beta"] * x),
        {"alpha": None, "beta": None},
        lambda v: {"scale": v["alpha"], "factor": v["beta"]},
    ),
    "ParametricSoftplus": Activation(
        "softplus",
        lambda x, v: v["alpha"] * _softplus(v["beta"] * x),
        {"alpha": None, "beta": None},
        lambda v: {"scale": v["alpha"], "factor": v["beta"]},
    ),
}
