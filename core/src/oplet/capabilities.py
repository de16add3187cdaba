"""What a device was granted, in one spelling for every WebGPU implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs

#: the optional features that oplet knows, by WebGPU's names; `subgroup-matrix` is experimental everywhere
FEATURES = ("subgroups", "shader-f16", "timestamp-query", "subgroup-matrix")

#: limits that every WebGPU device has at least, by WebGPU's names: what `open_device(limits="floor")` asks for
FLOOR: Mapping[str, int] = {
    "maxBufferSize": 256 << 20,
    "maxComputeInvocationsPerWorkgroup": 256,
    "maxComputeWorkgroupSizeX": 256,
    "maxComputeWorkgroupSizeY": 256,
    "maxComputeWorkgroupSizeZ": 64,
    "maxComputeWorkgroupStorageSize": 16384,
    "maxComputeWorkgroupsPerDimension": 65535,
    "maxStorageBufferBindingSize": 128 << 20,
    "maxStorageBuffersPerShaderStage": 8,
    "maxUniformBufferBindingSize": 65536,
    "maxUniformBuffersPerShaderStage": 12,
    "minStorageBufferOffsetAlignment": 256,
    "minUniformBufferOffsetAlignment": 256,
}


@attrs.frozen
class Adapter:
    """The hardware or software driver behind a device.

    Attributes:
        name: as the driver gives it.
        vendor: as the driver gives it; often empty.
        backend: "Vulkan", "Metal" or "D3D12".
        is_cpu: whether it is a software driver.
    """

    name: str
    vendor: str
    backend: str
    is_cpu: bool


@attrs.frozen
class SubgroupMatrixConfig:
    """One shape of subgroup matrix product that the adapter has: (m × k) · (k × n) → (m × n).

    Attributes:
        component: WGSL type of the factors, "f16" or "f32" …
        result: WGSL type of the accumulator.
        m, n, k: elements.
    """

    component: str
    result: str
    m: int
    n: int
    k: int


@attrs.frozen
class Capabilities:
    """What variants may rely on. Everything here was granted to the device, not merely offered.

    Attributes:
        features: those of `FEATURES` that the device has.
        limits: by WebGPU's names (`maxStorageBuffersPerShaderStage`).
        subgroup_size: lanes in a subgroup, measured by running a shader; 0 without `subgroups`.
        subgroup_matrix_configs: empty without `subgroup-matrix`.
        dialect: the WGSL compiler, "naga" or "tint".
        adapter: what the device runs on.
    """

    features: frozenset[str]
    limits: Mapping[str, int] = attrs.field(hash=False)
    subgroup_size: int
    subgroup_matrix_configs: tuple[SubgroupMatrixConfig, ...]
    dialect: Literal["naga", "tint"]
    adapter: Adapter
