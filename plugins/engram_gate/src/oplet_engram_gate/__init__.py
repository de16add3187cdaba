"""com.microsoft.EngramGate: two RMS norms, their dot product and the value that it gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable

import numpy as np
import oplet

from oplet_engram_gate.reference import engram_gate
from oplet_engram_gate.shapes import Rows
from oplet_engram_gate.variants import VARIANTS


@oplet.hookimpl
def manifest() -> oplet.Manifest:
    """The contract."""
    return oplet.Manifest.read(__package__)


@oplet.hookimpl
def infer(request: oplet.Request) -> dict[str, oplet.TensorSpec]:
    """Key's spec for each output; refuses shapes that do not fit together."""
    Rows.of(request)
    return dict.fromkeys(request.outputs, request.inputs["keyT"])


@oplet.hookimpl
def reference(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The op in float64 numpy."""
    return engram_gate(request, arrays)


@oplet.hookimpl
def variants() -> Sequence[oplet.Variant]:
    """The kernels, the preferred one first."""
    return VARIANTS


@oplet.hookimpl
def templates() -> Traversable:
    """Their WGSL."""
    return files(__package__) / "wgsl"
