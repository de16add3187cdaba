"""Which tile the flash kernels work on."""

from __future__ import annotations

import attrs
import oplet

#: what the kernels are written and tested for
MAX_HEAD_SIZE = 256

#: lanes of a subgroup that the smallest tile needs
MIN_LANES = 4

#: vec4 of the output that a lane holds, at most: beside as many scores they fill the registers
_ACCUMULATORS = 16


@attrs.frozen
class Tile:
    """The shape of flash.wgsl.jinja's work; its head says what each means."""

    lanes: int
    groups: int
    rows: int
    depth: int
    value_panels: int
    staged: int
    interleaved: bool
    key_panels: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "key_panels", self.depth // (4 * self.lanes))

    @property
    def queries(self) -> int:
        """Rows of the tile."""
        return self.groups * self.rows

    @property
    def invocations(self) -> int:
        """Of a workgroup."""
        return self.groups * self.lanes

    def storage(self, *, subgroups: bool) -> int:
        """Bytes of workgroup memory."""
        left = self.queries * self.depth * 4
        panels = self.staged * self.depth * self.lanes * 16
        exchange = 0 if subgroups else self.queries * self.lanes * 4
        return left + panels + exchange

    def fits(self, caps: oplet.Capabilities, *, subgroups: bool) -> bool:
        """Whether a device can run it."""
        # Interleaved, a group's lanes lie among twice as many.
        span = self.lanes * (2 if self.interleaved else 1)
        return (
            self.invocations <= caps.limits["maxComputeInvocationsPerWorkgroup"]
            and self.storage(subgroups=subgroups) <= caps.limits["maxComputeWorkgroupStorageSize"]
            and (not subgroups or span <= caps.subgroup_size)
        )


def choose_tile(value_size: int, caps: oplet.Capabilities, *, subgroups: bool) -> Tile | None:
    """The first tile that the device can run, the fastest being tried first; None if there is none."""
    if caps.adapter.is_cpu:
        # Small: a software driver takes long to compile what is unrolled, and gains nothing from memory tiles.
        tiles = [_tile(value_size, lanes=4, groups=4, depth=16, most_rows=2, interleaved=False)]
    else:
        wide = _tile(value_size, lanes=16, groups=8, depth=64)
        narrow = _tile(value_size, lanes=8, groups=8, depth=64)
        small = _tile(value_size, lanes=8, groups=8, depth=32, most_rows=4)
        tiles = [narrow, wide, small] if value_size <= 64 else [wide, narrow, small]
        tiles.append(_tile(value_size, lanes=4, groups=8, depth=16, most_rows=4, interleaved=False))
    return next((tile for tile in tiles if tile.fits(caps, subgroups=subgroups)), None)


def _tile(
    value_size: int, *, lanes: int, groups: int, depth: int, most_rows: int = 8, interleaved: bool = True
) -> Tile:
    value_panels = -(-value_size // (4 * lanes))
    rows = most_rows
    while rows > 1 and rows * value_panels > _ACCUMULATORS:
        rows //= 2
    key_panels = depth // (4 * lanes)
    return Tile(lanes, groups, rows, depth, value_panels, max(key_panels, min(value_panels, 2)), interleaved)
