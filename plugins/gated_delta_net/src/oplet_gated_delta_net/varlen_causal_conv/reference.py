"""The op in numpy: float64 throughout, one sequence after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from oplet_gated_delta_net.varlen_causal_conv.shapes import Convolution


def convolve(convolution: Convolution, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Output, final state and, where it is asked for, state update."""
    tokens = arrays["input"].astype(np.float64)
    results = {name: np.zeros(spec.shape) for name, spec in convolution.outputs.items()}
    with np.errstate(all="ignore"):  # infinities and NaN are values like any other here
        for sequence, (first, last) in enumerate(bounds(convolution, arrays)):
            # What the sequence is made of: the state, then its tokens; (history + tokens, channels).
            past = arrays["initial_state"][sequence].astype(np.float64).T
            whole = np.concatenate([past, tokens[first:last]])
            if "output" in results:
                sums = weighted(convolution, whole, arrays["weight"].astype(np.float64))
                if convolution.biased:
                    sums += arrays["bias"].astype(np.float64)
                results["output"][first:last] = sums / (1 + np.exp(-sums)) if convolution.silu else sums
            if "final_state" in results:
                results["final_state"][sequence] = whole[last - first :].T
            if "state_update" in results:
                most = min(convolution.capacity, last - first)
                count = min(max(int(arrays["capture_count"][sequence]), 0), most)
                results["state_update"][sequence, :count] = tokens[first : first + count]
    return results


def bounds(convolution: Convolution, arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[int, int]]:
    """Where each sequence begins and ends, clamped to the tokens as the kernels do."""
    for low, high in pairwise(arrays["cumulative_sequence_length"].tolist()):
        first = min(max(low, 0), convolution.tokens)
        yield first, min(max(high, first), convolution.tokens)


def weighted(convolution: Convolution, whole: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The sum over the taps for every token of a sequence.

    Args:
        convolution: the call.
        whole: (history + tokens, channels), the state before the tokens.
        weight: (channels, 1, taps).

    Returns:
        (tokens, channels), float64.
    """
    count = len(whole) - convolution.history
    sums = np.zeros((count, convolution.channels))
    for tap in range(convolution.taps):
        begin = tap * convolution.dilation
        sums += weight[:, 0, tap] * whole[begin : begin + count]
    return sums
