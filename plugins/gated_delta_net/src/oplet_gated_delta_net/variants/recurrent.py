"""`recurrent`: the state in registers, tokens staged in workgroup memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import oplet

from oplet_gated_delta_net.shapes import Delta
from oplet_gated_delta_net.variants import decode, launches
from oplet_gated_delta_net.variants.rows import TENSORS, Rows

#: tokens that are staged at a time, where they fit
_STAGES = (16, 8, 4)

#: the same for drivers that run on a CPU, where staging gains nothing and long shaders take seconds to compile
_CPU_STAGES = (4,)

#: vec4s of keys that an invocation fetches ahead at most; more of them spill
_MOST_FETCHED = 8


def plan(
    request: oplet.Request,
    delta: Delta,
    caps: oplet.Capabilities,
    *,
    subgroups: bool,
    only_disorder: bool = False,
) -> Sequence[oplet.Launch]:
    """One launch, or one more before it for the gates.

    Args:
        request: the call.
        delta: the same, read.
        caps: the device.
        subgroups: whether lanes add up with subgroup operations.
        only_disorder: do nothing unless a request begins before an earlier one ends.
    """
    layout = _layout(delta, caps, subgroups=subgroups)
    stage = _stage(delta, layout, caps)
    assert stage is not None, "rejects() has looked"
    tensors = _tensors(request, delta)
    return layout.plan(
        "recurrent.wgsl.jinja",
        request,
        delta,
        caps,
        tensors=tensors,
        context={
            "stage": stage,
            "per_key": delta.per_key,
            "capture": "state_update=" in tensors,
            "switch": delta.switch,
        },
        params={
            "dk": np.uint32(delta.dk),
            "only_disorder": np.uint32(only_disorder),
            "capacity": np.uint32(delta.capacity),
            "capture_factors": np.uint32(delta.decay_width),
            "capture_keys_end": np.uint32(delta.decay_width + delta.hq * delta.dk),
        },
    )


def rejects(request: oplet.Request, delta: Delta, caps: oplet.Capabilities, *, subgroups: bool) -> str | None:
    """Why it cannot serve a call."""
    tensors = len(_tensors(request, delta))
    if reason := launches.lack_of_buffers(tensors + 1, caps) or launches.large_gates(delta, tensors, caps):
        return reason
    if _stage(delta, _layout(delta, caps, subgroups=subgroups), caps) is None:
        allowed = caps.limits["maxComputeWorkgroupStorageSize"]
        return f"Dk {delta.dk} needs more than the {allowed} bytes of maxComputeWorkgroupStorageSize"
    return None


def yields(delta: Delta, caps: oplet.Capabilities, *, subgroups: bool) -> str | None:
    """Why another one is expected to be faster."""
    if delta.tokens <= decode.MOST_TOKENS * delta.batch:
        return f"staging does not pay for {delta.tokens / max(delta.batch, 1):.4g} tokens a request"
    return None


def _layout(delta: Delta, caps: oplet.Capabilities, *, subgroups: bool) -> Rows:
    # Drivers that run on a CPU pay for barriers by the invocation.
    return Rows.of(delta, caps, subgroups=subgroups, lanes=8, rows=2, invocations=64 if caps.adapter.is_cpu else 128)


def _tensors(request: oplet.Request, delta: Delta) -> tuple[str, ...]:
    capture = ("capture_count", "state_update=") if "stateUpdateT" in request.outputs else ()
    return (*TENSORS, *capture, *(("state_update_active",) if delta.switch else ()))


def _stage(delta: Delta, layout: Rows, caps: oplet.Capabilities) -> int | None:
    """Tokens to stage, or None where not even the fewest fit."""
    width = layout.lanes * layout.parts
    token = 16 * width * (3 if delta.per_key else 2) + 8 * layout.height + 20
    fixed = 4 * layout.workgroup + launches.ORDER_STORAGE
    if not layout.subgroups:
        fixed += 2 * 2 * layout.rows * layout.workgroup * 4
    for stage in _CPU_STAGES if caps.adapter.is_cpu else _STAGES:
        fits = fixed + stage * token <= caps.limits["maxComputeWorkgroupStorageSize"]
        if fits and stage * width <= _MOST_FETCHED * layout.workgroup:
            return stage
    return None
