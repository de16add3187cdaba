"""com.microsoft.FusedGemm: a matrix product with its bias and activation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable

import numpy as np
import oplet

from oplet_fused_gemm.reference import fused_gemm
from oplet_fused_gemm.shapes import Gemm
from oplet_fused_gemm.variants import VARIANTS


@oplet.hookimpl
def manifest() -> oplet.Manifest:
    """The contract."""
    return oplet.Manifest.read(__package__)


@oplet.hookimpl
def infer(request: oplet.Request) -> dict[str, oplet.TensorSpec]:
    """The spec of Y; refuses shapes that do not fit together."""
    return {"Y": Gemm.of(request).output}


@oplet.hookimpl
def reference(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The op in float64 numpy."""
    return {"Y": fused_gemm(request, arrays)}


@oplet.hookimpl
def variants() -> Sequence[oplet.Variant]:
    """The kernels, the preferred one first."""
    return VARIANTS


@oplet.hookimpl
def templates() -> Traversable:
    """Their WGSL."""
    return files(__package__) / "wgsl"
