"""com.microsoft.GatedDeltaNet: a gated delta network with an explicit recurrent state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable

import numpy as np
import oplet

from oplet_gated_delta_net.reference import gated_delta_net
from oplet_gated_delta_net.shapes import Delta
from oplet_gated_delta_net.variants import VARIANTS


@oplet.hookimpl
def manifest() -> oplet.Manifest:
    """The contract."""
    return oplet.Manifest.read(__package__)


@oplet.hookimpl
def infer(request: oplet.Request) -> Mapping[str, oplet.TensorSpec]:
    """The specs of the requested outputs; refuses inputs that do not fit together."""
    return Delta.of(request).outputs


@oplet.hookimpl
def reference(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The op in float64 numpy."""
    return gated_delta_net(Delta.of(request), arrays)


@oplet.hookimpl
def variants() -> Sequence[oplet.Variant]:
    """The kernels, the preferred one first."""
    return VARIANTS


@oplet.hookimpl
def templates() -> Traversable:
    """Their WGSL."""
    return files(__package__) / "wgsl"
