"""Kernels that hold state rows in registers, `decode` and `recurrent`: how rows are laid out over lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import oplet
from oplet.variant import ContextValue, Param

from oplet_gated_delta_net.shapes import Delta
from oplet_gated_delta_net.variants import launches

#: storage buffers of both kernels, beside those for gates
TENSORS = ("query", "key", "value", "cu_seqlens", "initial_state", "output=", "final_state=")


@attrs.frozen
class Rows:
    """A workgroup's share of a state.

    Attributes:
        lanes: neighbours that hold a row together.
        parts: vec4s of a row in each of them.
        rows: rows of a group of lanes.
        groups: groups of lanes in a workgroup.
        subgroups: whether lanes add up with subgroup operations.
        rounds: how often it takes as many rows, one after the other.
    """

    lanes: int
    parts: int
    rows: int
    groups: int
    subgroups: bool
    rounds: int = 1

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
        """Rows of a workgroup at a time."""
        return self.rows * self.groups

    def blocks(self, delta: Delta) -> int:
        """Workgroups that share the state of a head."""
        return -(-delta.dv // (self.height * self.rounds))

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

    def plan(
        self,
        template: str,
        request: oplet.Request,
        delta: Delta,
        caps: oplet.Capabilities,
        *,
        tensors: Sequence[str],
        context: Mapping[str, ContextValue],
        params: Mapping[str, Param],
    ) -> list[oplet.Launch]:
        """The launches of a call: the kernel, and before it the gates where it lacks the buffers to compute them.

        Args:
            template: the kernel.
            request, delta, caps: the call and the device.
            tensors: the kernel's storage buffers, as `launches.buffers` takes them.
            context, params: what the kernel takes beyond what all of them do.
        """
        recurrences = delta.batch * delta.hv * self.blocks(delta)
        workgroups = recurrences + launches.clear_workgroups(delta, self.workgroup)
        if not workgroups:
            return []
        before, gates = launches.gates(request, delta)
        fused = not launches.lack_of_buffers(len(tensors) + len(launches.GATE_INPUTS), caps)
        bound = launches.buffers(request, delta, (*tensors, *(launches.GATE_INPUTS if fused else gates)), gates)
        kernel = oplet.Launch(
            template,
            workgroups,
            {**launches.choices(delta), **self.choices, "fused": fused, **context},
            {
                **launches.params(delta),
                "blocks": np.uint32(self.blocks(delta)),
                "recurrences": np.uint32(recurrences),
                **params,
            },
            bound.bindings,
            bound.scratch,
        )
        walk = launches.walk(delta, kernel, recurrences)
        return walk if fused or before is None else [before, *walk]
