"""Random calls for the conformance kit and the comparison with onnxruntime, and what rounding may do to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import oplet

from oplet_gated_delta_net.varlen_causal_conv.reference import bounds, weighted
from oplet_gated_delta_net.varlen_causal_conv.shapes import Convolution

Call = tuple[dict[str, np.ndarray], dict[str, Any]]

#: taps, with or without a bias, and the activation: few, since each compiles pipelines of its own
_KERNELS = (
    (1, True, "none"),
    (2, False, "silu"),
    (3, True, "silu"),
    (4, False, "silu"),
    (4, True, "none"),
    (8, True, "swish"),
)


def cases(rng: np.random.Generator) -> Iterator[Call]:
    """Lengths of all kinds, few and many taps, every dtype; channels that are a multiple of 4 and others."""
    for dtype in (np.float32, np.float16):
        for channels in (12, 5):
            for taps, biased, activation in _KERNELS:
                for dilation in (1, 3):
                    yield call(rng, dtype, channels, taps, dilation, lengths(rng, 20), biased, activation)
            # Several runs: 8 tokens each, of 3 strands.
            yield call(rng, dtype, channels, 4, 1, [0, 40, 1, 0, 27, 8, 0], False, "silu", capacity=3)
            yield call(rng, dtype, channels, 4, 3, [100, 23, 25], False, "silu", capacity=8)
            yield call(rng, dtype, channels, 4, 50, [100, 3], False, "silu")
            # No tokens at all: the state is passed on.
            yield call(rng, dtype, channels, 4, 1, [0, 0], False, "silu", capacity=1)
            yield call(rng, dtype, channels, 4, 1, [], False, "silu", capacity=1)
        yield call(rng, dtype, 6, 11, 2, lengths(rng, 40), True, "silu")
        yield call(rng, dtype, 256, 4, 1, [1, 1, 1], False, "silu")
        inputs, attributes = call(rng, dtype, 8, 4, 1, [6, 5], False, "silu")
        inputs["input"][2, 1], inputs["input"][7, 2], inputs["initial_state"][1, 5, 0] = np.nan, np.inf, -np.inf
        inputs["input"][:, 7] *= dtype(60)  # far into both tails of the sigmoid
        yield inputs, attributes


def lengths(rng: np.random.Generator, longest: int) -> list[int]:
    """Those of one to four sequences; often 0."""
    return [0 if rng.random() < 0.3 else int(rng.integers(1, longest + 1)) for _ in range(rng.integers(1, 5))]


def call(
    rng: np.random.Generator,
    dtype: type,
    channels: int,
    taps: int,
    dilation: int,
    lengths: list[int],
    biased: bool,
    activation: str,
    *,
    capacity: int = 0,
) -> Call:
    """Normally distributed data for sequences of these lengths."""
    cumulative = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    shapes: dict[str, tuple[int, ...]] = {
        "input": (int(cumulative[-1]), channels),
        "weight": (channels, 1, taps),
        "initial_state": (len(lengths), channels, (taps - 1) * dilation),
    }
    if biased:
        shapes["bias"] = (channels,)
    inputs: dict[str, np.ndarray] = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    inputs["cumulative_sequence_length"] = cumulative
    attributes: dict[str, Any] = {"activation": activation, "dilation": dilation}
    if capacity:
        inputs["capture_count"] = rng.integers(-1, capacity + 2, len(lengths)).astype(np.int32)
        attributes["state_update_capacity"] = capacity
    return inputs, attributes


def scale(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The sum of the magnitudes that an output is the sum of; states and captures are copies and have no error."""
    convolution = Convolution.of(request)
    weight = np.abs(arrays["weight"].astype(np.float64))
    scales = {name: np.zeros(spec.shape) for name, spec in convolution.outputs.items()}
    if "output" in scales:
        for sequence, (first, last) in enumerate(bounds(convolution, arrays)):
            whole = np.concatenate([arrays["initial_state"][sequence].T, arrays["input"][first:last]])
            magnitudes = np.nan_to_num(np.abs(whole.astype(np.float64)), posinf=0.0)
            scales["output"][first:last] = weighted(convolution, magnitudes, weight)
        if convolution.biased:
            scales["output"] += np.abs(arrays["bias"].astype(np.float64))
    return scales
