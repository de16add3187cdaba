"""com.microsoft.VarlenCausalConvWithState: a short causal convolution over packed sequences, with its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable

import numpy as np
import oplet

from oplet_gated_delta_net.varlen_causal_conv.reference import convolve
from oplet_gated_delta_net.varlen_causal_conv.shapes import Convolution
from oplet_gated_delta_net.varlen_causal_conv.variants import VARIANTS


@oplet.hookimpl
def manifest() -> oplet.Manifest:
    """The contract."""
    return oplet.Manifest.read(__package__)


@oplet.hookimpl
def infer(request: oplet.Request) -> Mapping[str, oplet.TensorSpec]:
    """The specs of the requested outputs; refuses inputs that do not fit together."""
    return Convolution.of(request).outputs


@oplet.hookimpl
def check(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> None:
    """Refuses sequences that do not divide the tokens, naming the entry."""
    if "cumulative_sequence_length" in arrays:
        Convolution.of(request).check_bounds(request, arrays["cumulative_sequence_length"])


@oplet.hookimpl
def reference(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The op in float64 numpy."""
    return convolve(Convolution.of(request), arrays)


@oplet.hookimpl
def variants() -> Sequence[oplet.Variant]:
    """The kernels, the preferred one first."""
    return VARIANTS


@oplet.hookimpl
def templates() -> Traversable:
    """Their WGSL."""
    return files(__package__) / "wgsl"
