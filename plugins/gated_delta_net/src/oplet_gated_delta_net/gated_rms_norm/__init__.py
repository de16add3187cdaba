"""com.microsoft.GatedRMSNorm: an RMS norm, its weight and an activated gate in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable

import numpy as np
import oplet

from oplet_gated_delta_net.gated_rms_norm.reference import gated_rms_norm
from oplet_gated_delta_net.gated_rms_norm.shapes import Groups
from oplet_gated_delta_net.gated_rms_norm.variants import VARIANTS


@oplet.hookimpl
def manifest() -> oplet.Manifest:
    """The contract."""
    return oplet.Manifest.read(__package__)


@oplet.hookimpl
def infer(request: oplet.Request) -> dict[str, oplet.TensorSpec]:
    """X's spec; refuses shapes that do not fit together."""
    Groups.of(request)
    return {"Y": request.inputs["X"]}


@oplet.hookimpl
def reference(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The op in float64 numpy."""
    return {"Y": gated_rms_norm(Groups.of(request), arrays)}


@oplet.hookimpl
def variants() -> Sequence[oplet.Variant]:
    """The kernels, the preferred one first."""
    return VARIANTS


@oplet.hookimpl
def templates() -> Traversable:
    """Their WGSL."""
    return files(__package__) / "wgsl"
