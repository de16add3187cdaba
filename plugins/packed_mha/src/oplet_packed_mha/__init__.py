"""com.microsoft.PackedMultiHeadAttention: attention over sequences without their padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable

import numpy as np
import oplet

from oplet_packed_mha.reference import packed_attention
from oplet_packed_mha.schedule import check_schedule
from oplet_packed_mha.shapes import Attention
from oplet_packed_mha.variants import VARIANTS


@oplet.hookimpl
def manifest() -> oplet.Manifest:
    """The contract."""
    return oplet.Manifest.read(__package__)


@oplet.hookimpl
def infer(request: oplet.Request) -> dict[str, oplet.TensorSpec]:
    """The spec of the output; refuses shapes that do not fit together."""
    return {"outputT": Attention.of(request).output}


@oplet.hookimpl
def check(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> None:
    """Refuses a malformed schedule, naming the entry."""
    check_schedule(request, arrays)


@oplet.hookimpl
def reference(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The op in float64 numpy."""
    return {"outputT": packed_attention(Attention.of(request), arrays)}


@oplet.hookimpl
def variants() -> Sequence[oplet.Variant]:
    """The kernels, the preferred one first."""
    return VARIANTS


@oplet.hookimpl
def templates() -> Traversable:
    """Their WGSL."""
    return files(__package__) / "wgsl"
