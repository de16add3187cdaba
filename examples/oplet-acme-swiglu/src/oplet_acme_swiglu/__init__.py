"""com.acme.Swiglu: the gate of many language models, Y = silu(gate) · value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable

import numpy as np
import oplet

from oplet_acme_swiglu.reference import swiglu
from oplet_acme_swiglu.shapes import output
from oplet_acme_swiglu.variants import VARIANTS


@oplet.hookimpl
def manifest() -> oplet.Manifest:
    """The contract."""
    return oplet.Manifest.read(__package__)


@oplet.hookimpl
def infer(request: oplet.Request) -> dict[str, oplet.TensorSpec]:
    """The spec of Y."""
    return {"Y": output(request)}


@oplet.hookimpl
def reference(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The op in float64 numpy."""
    return {"Y": swiglu(arrays["X"])}


@oplet.hookimpl
def variants() -> Sequence[oplet.Variant]:
    """The kernels, the preferred one first."""
    return VARIANTS


@oplet.hookimpl
def templates() -> Traversable:
    """Their WGSL."""
    return files(__package__) / "wgsl"
