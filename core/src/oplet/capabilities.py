"""What a device was granted, in one spelling for every WebGPU implementation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import attrs
import numpy as np

from oplet.webgpu import COPY_SRC, STORAGE

#: the WGSL compilers: wgpu's and Dawn's
Dialect = Literal["naga", "tint"]

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
        driver: the driver's name or version, as it gives them; for people, not for decisions.
        is_discrete: whether it is a graphics card with memory of its own; False where the driver does not tell.
    """

    name: str
    vendor: str
    backend: str
    is_cpu: bool
    driver: str = ""
    is_discrete: bool = False


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
    dialect: Dialect
    adapter: Adapter


def webgpu_limits(limits: Mapping[str, int]) -> dict[str, int]:
    """The implementation's limits (`max-buffer-size`) by WebGPU's names (`maxBufferSize`), those of `FLOOR`."""
    return {name: limits[kebab(name)] for name in FLOOR}


def kebab(limit: str) -> str:
    """`maxBufferSize` as both implementations spell it: `max-buffer-size`."""
    return re.sub(r"[A-Z]", lambda match: "-" + match[0].lower(), limit)


def measure_subgroup_size(gpu: Any, dialect: Dialect) -> int:
    """Runs one workgroup and reads the size of its subgroups.

    Adapters do not tell: the wrapper reads a misspelt field and says 4 to 128 for every one of them.

    Returns:
        The size, or 0 where lanes are not consecutive invocations, which subgroup variants rely on.
    """
    invocations = 128
    wgsl = ("enable subgroups;\n" if dialect == "tint" else "") + (
        "@group(0) @binding(0) var<storage, read_write> seen: array<vec2<u32>>;\n"
        f"@compute @workgroup_size({invocations})\n"
        "fn main(@builtin(local_invocation_index) i: u32, @builtin(subgroup_size) size: u32,\n"
        "        @builtin(subgroup_invocation_id) lane: u32) { seen[i] = vec2<u32>(size, lane); }\n"
    )
    buffer = gpu.create_buffer(label="oplet subgroup probe", size=8 * invocations, usage=STORAGE | COPY_SRC)
    pipeline = gpu.create_compute_pipeline(
        layout="auto", compute={"module": gpu.create_shader_module(code=wgsl), "entry_point": "main"}
    )
    group = gpu.create_bind_group(
        layout=pipeline.get_bind_group_layout(0), entries=[{"binding": 0, "resource": {"buffer": buffer}}]
    )
    encoder = gpu.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, group)
    compute.dispatch_workgroups(1)
    compute.end()
    gpu.queue.submit([encoder.finish()])
    seen = np.frombuffer(gpu.queue.read_buffer(buffer), np.uint32).reshape(invocations, 2)
    buffer.destroy()
    size = int(seen[0, 0])
    consecutive = np.array_equal(seen[:, 1], np.arange(invocations) % size) and (seen[:, 0] == size).all()
    return size if consecutive else 0
