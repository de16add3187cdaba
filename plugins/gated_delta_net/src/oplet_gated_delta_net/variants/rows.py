"""How state rows are laid out over lanes: for `decode` and `recurrent`."""

from __future__ import annotations

import attrs
import oplet
from oplet.variant import ContextValue

from oplet_gated_delta_net.shapes import Delta


@attrs.frozen
class Rows:
    """A workgroup's share of a state.

    Attributes:
        lanes: neighbours that hold a row together.
        parts: vec4s of a row in each of them.
        rows: rows of a group of lanes.
        groups: groups of lanes in a workgroup.
        subgroups: whether lanes add up with subgroup operations.
    """

    lanes: int
    parts: int
    rows: int
    groups: int
    subgroups: bool

    @classmethod
    def of(
        cls, delta: Delta, caps: oplet.Capabilities, *, subgroups: bool, lanes: int, rows: int, invocations: int
    ) -> Rows:
        """The layout for a device, with at most so many lanes to a row."""
        pieces = -(-delta.dk // 4)
        lanes = min(lanes, max(4, 1 << (pieces - 1).bit_length()), caps.subgroup_size if subgroups else lanes)
        parts = -(-pieces // lanes)
        return cls(lanes, parts, rows, invocations // lanes, subgroups)

    @property
    def workgroup(self) -> int:
        """Invocations."""
        return self.lanes * self.groups

    @property
    def height(self) -> int:
        """Rows of a workgroup."""
        return self.rows * self.groups

    def blocks(self, delta: Delta) -> int:
        """Workgroups that share the state of a head."""
        return -(-delta.dv // self.height)

    @property
    def choices(self) -> dict[str, ContextValue]:
        """Its part of a template's context."""
        return {
            "lanes": self.lanes,
            "parts": self.parts,
            "rows": self.rows,
            "groups": self.groups,
            "workgroup": self.workgroup,
            "subgroups": self.subgroups,
        }
