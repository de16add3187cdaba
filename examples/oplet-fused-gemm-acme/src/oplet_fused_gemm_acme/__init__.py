"""A kernel for outer products, added to com.microsoft.FusedGemm."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable

import oplet

from oplet_fused_gemm_acme.variants import VARIANTS


@oplet.hookimpl
def variants() -> Sequence[oplet.Variant]:
    """What is tried before the op's own."""
    return VARIANTS


@oplet.hookimpl
def templates() -> Traversable:
    """Their WGSL."""
    return files(__package__) / "wgsl"
