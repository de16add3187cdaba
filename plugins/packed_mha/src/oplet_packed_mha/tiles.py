"""Which tile the flash kernels work on."""

from __future__ import annotations

import attrs
import oplet

#: what the kernels are written and tested for
MAX_HEAD_SIZE = 256

#: vec4 of the output that a lane holds, at most: beside its scores and what it loads they fill the registers
_ACCUMULATORS = 16


@attrs.frozen
class Tile:
    """The shape of flash.wgsl.jinja's work.

    Attributes:
        lanes: invocations that share rows.
        groups: of so many lanes, in a workgroup.
        rows: queries of a group, a multiple of 4.
        depth: columns of a product's factors in memory at a time, and in the unrolled product.
        key_panels: scores of a lane and row, in vec4.
        value_panels: of the output of a lane and row, in vec4.
        staged: panels in memory at a time.
        paired: whether neighbours in a subgroup are of two groups.
    """

    lanes: int
    groups: int
    rows: int
    depth: int
    key_panels: int
    value_panels: int
    staged: int
    paired: bool

    @property
    def queries(self) -> int:
        """Rows of the whole tile."""
        return self.groups * self.rows

    def storage(self, *, subgroups: bool) -> int:
        """Bytes of workgroup memory."""
        columns = self.depth // 4
        # Blocks of four columns or rows, each padded by up to 8 vec4.
        blocks = columns * sum(4 * width + 8 for width in (self.queries // 4, self.staged * self.lanes))
        exchange = 0 if subgroups else self.groups * self.lanes
        schedule = 4 * self.groups * self.lanes + 12
        return 16 * (blocks + exchange) + schedule

    def fits(self, caps: oplet.Capabilities, *, subgroups: bool) -> bool:
        """Whether a device can run it."""
        together = 2 * self.lanes if self.paired else self.lanes
        return (
            self.groups * self.lanes <= caps.limits["maxComputeInvocationsPerWorkgroup"]
            and self.storage(subgroups=subgroups) <= caps.limits["maxComputeWorkgroupStorageSize"]
            and (not subgroups or together <= caps.subgroup_size)
        )


def choose_tile(value_size: int, caps: oplet.Capabilities, *, subgroups: bool) -> Tile | None:
    """The first tile that the device can run, the fastest being tried first; None if there is none."""
    # A software driver takes seconds to compile what is unrolled.
    tiles = [software_tile(value_size)] if caps.adapter.is_cpu else gpu_tiles(value_size)
    return next((tile for tile in tiles if tile.fits(caps, subgroups=subgroups)), None)


def gpu_tiles(value_size: int) -> tuple[Tile, Tile]:
    """The tiles for GPUs, the faster one first.

    What limits them is workgroup memory, its size and its bandwidth, and registers: few of each let a core hold
    many workgroups, many registers let a lane use more often what it reads from memory. Of both the scores and the
    output a lane of the narrow tile holds 4 × 8, one of the wide tile 8 × 8.
    """
    narrow = _tile(value_size, lanes=8, groups=16, most_rows=4, depth=16, key_panels=2, paired=True)
    wide = _tile(value_size, lanes=16, groups=8, most_rows=8, depth=16, key_panels=2)
    return (narrow, wide) if value_size <= 64 else (wide, narrow)


def software_tile(value_size: int) -> Tile:
    """The tile for software drivers."""
    return _tile(value_size, lanes=4, groups=4, most_rows=4, depth=4, key_panels=1)


def _tile(
    value_size: int, *, lanes: int, groups: int, most_rows: int, depth: int, key_panels: int, paired: bool = False
) -> Tile:
    value_panels = -(-value_size // (4 * lanes))
    return Tile(
        lanes=lanes,
        groups=groups,
        rows=most_rows if most_rows * value_panels <= _ACCUMULATORS else 4,
        depth=depth,
        key_panels=key_panels,
        value_panels=value_panels,
        staged=max(key_panels, min(value_panels, 2)),
        paired=paired,
    )
