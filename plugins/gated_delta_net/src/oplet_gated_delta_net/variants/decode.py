"""`decode`: few tokens, the state streamed once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import oplet

from oplet_gated_delta_net.shapes import Delta
from oplet_gated_delta_net.variants import launches
from oplet_gated_delta_net.variants.rows import Rows

#: tokens of a request, on average, up to which staging them does not pay
MOST_TOKENS = 4

_TENSORS = ("query", "key", "value", "cu_seqlens", "initial_state", "output=", "final_state=")


def plan(request: oplet.Request, caps: oplet.Capabilities, *, subgroups: bool) -> Sequence[oplet.Launch]:
    """One launch, or one more before it for the gates."""
    delta = Delta.of(request)
    # Long rows of lanes read whole cache lines; sums through workgroup memory are dearer than that.
    lanes, rows = (16, 4) if subgroups else (8, 2)
    layout = Rows.of(delta, caps, subgroups=subgroups, lanes=lanes, rows=rows, invocations=64)
    recurrences = delta.batch * delta.hv * layout.blocks(delta)
    workgroups = recurrences + launches.clear_workgroups(delta, layout.workgroup)
    if not workgroups:
        return []
    before, gates = launches.gates(request, delta)
    fused = not launches.lack_of_buffers(len(_TENSORS) + len(launches.GATE_INPUTS), caps)
    bound = launches.buffers(request, delta, (*_TENSORS, *(launches.GATE_INPUTS if fused else gates)), gates)
    main = oplet.Launch(
        "decode.wgsl.jinja",
        workgroups,
        {**launches.choices(delta), **layout.choices, "fused": fused},
        {
            **launches.params(delta),
            "blocks": np.uint32(layout.blocks(delta)),
            "recurrences": np.uint32(recurrences),
        },
        bound.bindings,
        bound.scratch,
    )
    walk = launches.walk(delta, main, recurrences)
    return walk if fused or before is None else [before, *walk]


def rejects(request: oplet.Request, caps: oplet.Capabilities, *, subgroups: bool) -> str | None:
    """Why it cannot serve a call."""
    delta = Delta.of(request)
    if reason := launches.unfit(delta, caps, subgroups=subgroups):
        return reason
    if delta.per_key:
        return "a decay of each key dimension is for recurrent"
    if "stateUpdateT" in request.outputs:
        return "the capture of state updates is for recurrent"
    return None


def yields(request: oplet.Request, caps: oplet.Capabilities, *, subgroups: bool) -> str | None:
    """Why another one is expected to be faster."""
    if not subgroups and "subgroups" in caps.features:
        return "the device has subgroups"
    delta = Delta.of(request)
    if delta.tokens > MOST_TOKENS * delta.batch:
        return f"for at most {MOST_TOKENS} tokens a request; these have {delta.tokens / max(delta.batch, 1):.4g}"
    return None


VARIANTS = tuple(
    oplet.Variant(
        name,
        partial(plan, subgroups=subgroups),
        partial(rejects, subgroups=subgroups),
        partial(yields, subgroups=subgroups),
        doc,
    )
    for name, subgroups, doc in (
        ("decode", True, "For few tokens: reads and writes each state once, lanes of a subgroup share a state row."),
        ("decode_nosg", False, "As decode, lanes add up through workgroup memory."),
    )
)
