"""`recurrent`: the state in registers, tokens staged in workgroup memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import oplet

from oplet_gated_delta_net.shapes import Delta
from oplet_gated_delta_net.variants import decode, launches
from oplet_gated_delta_net.variants.rows import Rows

_TENSORS = ("query", "key", "value", "cu_seqlens", "initial_state", "output=", "final_state=")

#: tokens that are staged at a time, where they fit
_STAGES = (32, 16, 8, 4)

#: the same for drivers that run on a CPU, where staging gains nothing and long shaders take seconds to compile
_CPU_STAGES = (4,)

#: vec4s of keys that an invocation fetches ahead at most; more of them spill
_MOST_FETCHED = 8


def plan(
    request: oplet.Request, caps: oplet.Capabilities, *, subgroups: bool, only_disorder: bool = False
) -> Sequence[oplet.Launch]:
    """One launch, or one more before it for the gates.

    Args:
        request: the call.
        caps: the device.
        subgroups: whether lanes add up with subgroup operations.
        only_disorder: do nothing unless a request begins before an earlier one ends.
    """
    delta = Delta.of(request)
    layout = _layout(delta, caps, subgroups=subgroups)
    stage = _stage(delta, layout, caps)
    assert stage is not None, "rejects() has looked"
    recurrences = delta.batch * delta.hv * layout.blocks(delta)
    workgroups = recurrences + launches.clear_workgroups(delta, layout.workgroup)
    if not workgroups:
        return []
    before, gates = launches.gates(request, delta)
    tensors = _tensors(request, delta)
    fused = not launches.lack_of_buffers(len(tensors) + len(launches.GATE_INPUTS), caps)
    bound = launches.buffers(request, delta, (*tensors, *(launches.GATE_INPUTS if fused else gates)), gates)
    width = delta.decay_width
    main = oplet.Launch(
        "recurrent.wgsl.jinja",
        workgroups,
        {
            **launches.choices(delta),
            **layout.choices,
            "stage": stage,
            "fused": fused,
            "per_key": delta.per_key,
            "capture": "state_update=" in tensors,
            "switch": delta.switch,
        },
        {
            **launches.params(delta),
            "dk": np.uint32(delta.dk),
            "blocks": np.uint32(layout.blocks(delta)),
            "recurrences": np.uint32(recurrences),
            "only_disorder": np.uint32(only_disorder),
            "capacity": np.uint32(delta.capacity),
            "capture_factors": np.uint32(width),
            "capture_keys_end": np.uint32(width + delta.hq * delta.dk),
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
    if reason := launches.lack_of_buffers(len(_tensors(request, delta)) + 1, caps):
        return reason
    layout = _layout(delta, caps, subgroups=subgroups)
    if _stage(delta, layout, caps) is None:
        allowed = caps.limits["maxComputeWorkgroupStorageSize"]
        return f"Dk {delta.dk} needs more than the {allowed} bytes of maxComputeWorkgroupStorageSize"
    return None


def yields(request: oplet.Request, caps: oplet.Capabilities, *, subgroups: bool) -> str | None:
    """Why another one is expected to be faster."""
    if not subgroups and "subgroups" in caps.features:
        return "the device has subgroups"
    delta = Delta.of(request)
    if delta.tokens <= decode.MOST_TOKENS * delta.batch:
        return f"staging does not pay for {delta.tokens / max(delta.batch, 1):.4g} tokens a request"
    return None


def _layout(delta: Delta, caps: oplet.Capabilities, *, subgroups: bool) -> Rows:
    # Drivers that run on a CPU pay for barriers by the invocation.
    return Rows.of(delta, caps, subgroups=subgroups, lanes=8, rows=2, invocations=64 if caps.adapter.is_cpu else 128)


def _tensors(request: oplet.Request, delta: Delta) -> tuple[str, ...]:
    capture = ("capture_count", "state_update=") if "stateUpdateT" in request.outputs else ()
    return (*_TENSORS, *capture, *(("state_update_active",) if delta.switch else ()))


def _stage(delta: Delta, layout: Rows, caps: oplet.Capabilities) -> int | None:
    """Tokens to stage, or None where not even the fewest fit."""
    width = layout.lanes * layout.parts
    token = 16 * width * (3 if delta.per_key else 2) + 8 * layout.height + 20
    fixed = 4 * layout.workgroup
    if not layout.subgroups:
        fixed += 2 * 2 * layout.rows * layout.workgroup * 4
    for stage in _CPU_STAGES if caps.adapter.is_cpu else _STAGES:
        fits = fixed + stage * token <= caps.limits["maxComputeWorkgroupStorageSize"]
        if fits and stage * width <= _MOST_FETCHED * layout.workgroup:
            return stage
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
        (
            "recurrent",
            True,
            "Token by token: state rows in registers of a subgroup, tokens staged in workgroup memory.",
        ),
        ("recurrent_nosg", False, "As recurrent, lanes add up through workgroup memory."),
    )
)
