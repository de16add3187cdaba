"""Attention in subgroup matrices: for float16, on devices that multiply it with float32 sums."""

from __future__ import annotations

import attrs
import oplet
from oplet.capabilities import SubgroupMatrixConfig

from oplet_packed_mha.shapes import Attention

#: columns of the products are padded to a multiple of it, so that head sizes share pipelines
COLUMNS = 16

#: largest head size whose queries and sums stay in registers
MAX_HEAD_SIZE = 128


@attrs.frozen
class MatrixTile:
    """The shape of flash_matrix.wgsl.jinja's work.

    Attributes:
        subgroups: in a workgroup; each has as many queries as a matrix has rows.
        keys: at a time.
    """

    subgroups: int
    keys: int

    def queries(self, config: SubgroupMatrixConfig) -> int:
        """Rows of the whole tile."""
        return self.subgroups * config.m

    def storage(self, attention: Attention, config: SubgroupMatrixConfig, lanes: int) -> int:
        """Bytes of workgroup memory, with subgroups of so many lanes."""
        head, value = (padded(size) // 8 + 1 for size in (attention.head_size, attention.value_size))
        queries = self.queries(config)
        chunks = max(self.keys * max(head, value) + queries * (self.keys // 4 + 1), queries * head)
        bias = config.m * head if attention.bias else 0
        places = self.keys if attention.attention_bias is not None else 0
        schedule = self.subgroups * lanes + 3
        return 16 * (chunks + bias) + 4 * (places + schedule + 1)


_CPU = MatrixTile(subgroups=2, keys=16)
_GPU = MatrixTile(subgroups=4, keys=32)


def tile_for(caps: oplet.Capabilities) -> MatrixTile:
    """The tile for a device; a software driver takes minutes to compile a large one."""
    return _CPU if caps.adapter.is_cpu else _GPU


def padded(size: int) -> int:
    """Columns that a head of this size has in a product."""
    return -(-size // COLUMNS) * COLUMNS


def config_for(caps: oplet.Capabilities) -> SubgroupMatrixConfig | None:
    """The device's largest matrices of float16 with float32 sums whose sides divide the columns."""
    usable = [
        config
        for config in caps.subgroup_matrix_configs
        if (config.component, config.result) == ("f16", "f32") and {config.n, config.k} <= {8, 16}
    ]
    return max(usable, key=lambda config: config.m * config.n * config.k, default=None)


def rejects(attention: Attention, caps: oplet.Capabilities) -> str | None:
    """Why a call is not computed in matrices."""
    if "subgroup-matrix" not in caps.features:
        return "needs the device feature subgroup-matrix: Dawn, and open_device(experimental=True)"
    if not caps.subgroup_size:
        return "needs the device feature subgroups"
    if attention.dtype != "float16":
        return f"matrix units would round {attention.dtype} to float16"
    for name, size in (("head", attention.head_size), ("value head", attention.value_size)):
        if size % 8 or size > MAX_HEAD_SIZE:
            return f"the {name} size {size} is not a multiple of 8 up to {MAX_HEAD_SIZE}"
    config, tile = config_for(caps), tile_for(caps)
    if config is None:
        return "the device multiplies no float16 matrices with float32 sums"
    lanes = caps.subgroup_size
    if lanes % config.m or tile.keys // config.k % (lanes // config.m):
        return f"subgroups of {lanes} cannot share {config.m} rows of {tile.keys} scores"
    threads, allowed = tile.subgroups * lanes, caps.limits["maxComputeInvocationsPerWorkgroup"]
    if threads > allowed:
        return f"{threads} invocations in a workgroup are needed, and the device allows {allowed}"
    needed, allowed = tile.storage(attention, config, lanes), caps.limits["maxComputeWorkgroupStorageSize"]
    if needed > allowed:
        return f"{needed} bytes of workgroup memory are needed, and the device allows {allowed}"
    return None
