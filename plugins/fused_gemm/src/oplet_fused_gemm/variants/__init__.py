"""The kernels: when each can run, when another is better, and what it launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import oplet
from oplet.variant import Launch

from oplet_fused_gemm.shapes import Gemm
from oplet_fused_gemm.variants import skinny, subgroup_matrix, tiled
from oplet_fused_gemm.variants.epilogue import reduce

Plan = Callable[[Gemm, oplet.Capabilities], list[Launch]]
Predicate = Callable[[Gemm, oplet.Capabilities], str | None]


def _never(gemm: Gemm, caps: oplet.Capabilities) -> None:
    return None


def _variant(name: str, doc: str, plan: Plan, rejects: Predicate = _never, yields: Predicate = _never) -> oplet.Variant:
    """A variant in the terms of a Gemm, and what holds for all of them."""

    def plan_request(request: oplet.Request, caps: oplet.Capabilities) -> Sequence[Launch]:
        gemm = Gemm.of(request)
        if gemm.m == 0 or gemm.n == 0:
            return []
        # With K = 0 there is nothing to multiply, and so nothing of A and B to bind.
        return plan(gemm, caps) if gemm.k else [reduce(gemm, None)]

    def rejects_request(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
        gemm = Gemm.of(request)
        if gemm.dtype == "float16" and "shader-f16" not in caps.features:
            return "float16 needs the device feature shader-f16"
        return rejects(gemm, caps)

    def yields_request(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
        return yields(Gemm.of(request), caps)

    return oplet.Variant(name, plan_request, rejects_request, yields_request, doc)


VARIANTS = (
    _variant(
        "skinny",
        "M or N up to 16: one factor streams past the other, subgroups add up.",
        skinny.plan,
        skinny.rejects,
    ),
    _variant(
        "skinny_nosg",
        "The same without subgroups.",
        skinny.plan_nosg,
        skinny.rejects_nosg,
    ),
    _variant(
        "subgroup_matrix_split_k",
        "float16 on matrix units where Y is small: slices of K, and a second launch that adds them.",
        subgroup_matrix.plan_split_k,
        subgroup_matrix.rejects_split_k,
        subgroup_matrix.yields_split_k,
    ),
    _variant(
        "subgroup_matrix",
        "float16 on matrix units, float32 sums.",
        subgroup_matrix.plan,
        subgroup_matrix.rejects,
    ),
    _variant(
        "split_k_vec4",
        "Y is small: slices of K, and a second launch that adds them.",
        tiled.plan_split_k_vec4,
        tiled.rejects_split_k_vec4,
        tiled.yields_split_k,
    ),
    _variant(
        "tiled_vec4",
        "Tiles through workgroup memory; rows are whole vectors.",
        tiled.plan_vec4,
        tiled.rejects_vec4,
    ),
    _variant(
        "split_k_scalar",
        "As split_k_vec4, for any size.",
        tiled.plan_split_k_scalar,
        tiled.rejects_split_k,
        tiled.yields_split_k,
    ),
    _variant(
        "tiled_scalar",
        "As tiled_vec4, for any size; takes every call.",
        tiled.plan_scalar,
    ),
)
