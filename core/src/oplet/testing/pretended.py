"""Devices that nobody has opened: made-up capabilities, to ask an op what it would do there. Nothing runs on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from oplet.capabilities import FEATURES, FLOOR, Adapter, Capabilities, Dialect, SubgroupMatrixConfig

#: sizes of subgroups that devices have: llvmpipe 8, Intel 16, NVIDIA 32, AMD 64
SUBGROUP_SIZES = (8, 16, 32, 64)

#: what GPUs multiply at once
MATRICES = tuple(
    SubgroupMatrixConfig("f16", result, *shape)
    for result in ("f16", "f32")
    for shape in ((16, 16, 16), (16, 8, 16), (16, 8, 8), (8, 8, 8))
)

#: limits of a GPU
LARGE: Mapping[str, int] = {name: value if name.startswith("min") else value * 4 for name, value in FLOOR.items()}


def pretended(
    features: Collection[str] = FEATURES,
    subgroup_size: int = 32,
    *,
    limits: Mapping[str, int] = LARGE,
    dialect: Dialect = "tint",
    is_cpu: bool = False,
) -> Capabilities:
    """A device with these features, and with nothing of those that it lacks.

    Args:
        features: of `oplet.capabilities.FEATURES`.
        subgroup_size: where it has `subgroups`.
        limits: by WebGPU's names.
        dialect: its WGSL compiler.
        is_cpu: whether it is a software driver.
    """
    return Capabilities(
        features=frozenset(features),
        limits=limits,
        subgroup_size=subgroup_size if "subgroups" in features else 0,
        subgroup_matrix_configs=MATRICES if "subgroup-matrix" in features else (),
        dialect=dialect,
        adapter=Adapter("pretended", "", "Vulkan", is_cpu),
    )
