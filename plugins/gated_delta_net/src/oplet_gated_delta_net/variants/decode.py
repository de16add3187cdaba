"""`decode`: few tokens, the state streamed once."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import oplet

from oplet_gated_delta_net.shapes import Delta
from oplet_gated_delta_net.variants import launches
from oplet_gated_delta_net.variants.rows import TENSORS, Rows

#: tokens of a request, on average, up to which staging them does not pay
MOST_TOKENS = 4


#: rounds of a workgroup that takes one token past a state
_ROUNDS = 4

#: workgroups of so many rounds that keep a large GPU busy. WebGPU does not tell how many cores there are; large GPUs
#: have 100 to 150
_BUSY = 1024


def plan(request: oplet.Request, delta: Delta, caps: oplet.Capabilities, *, subgroups: bool) -> Sequence[oplet.Launch]:
    """One launch, or one more before it for the gates."""
    if subgroups and (step := _step(delta, caps)):
        tensors = [name for name in TENSORS if name != "cu_seqlens"]
        params = {"rounds": np.uint32(step.rounds)}
        return step.plan("step.wgsl.jinja", request, delta, caps, tensors=tensors, context={}, params=params)
    # Long rows of lanes read whole cache lines; sums through workgroup memory are dearer than that.
    lanes, rows = (32, 4) if subgroups else (8, 2)
    layout = Rows.of(delta, caps, subgroups=subgroups, lanes=lanes, rows=rows, invocations=64)
    return layout.plan("decode.wgsl.jinja", request, delta, caps, tensors=TENSORS, context={}, params={})


def _step(delta: Delta, caps: oplet.Capabilities) -> Rows | None:
    """The layout for one token for each of many requests, if that is what the call is."""
    if delta.ragged or delta.longest != 1:
        return None
    layout = Rows.of(delta, caps, subgroups=True, lanes=32, rows=2, invocations=128)
    layout = attrs.evolve(layout, rounds=min(_ROUNDS, layout.blocks(delta)))
    return layout if delta.batch * delta.hv * layout.blocks(delta) >= _BUSY else None


def rejects(request: oplet.Request, delta: Delta, caps: oplet.Capabilities, *, subgroups: bool) -> str | None:
    """Why it cannot serve a call."""
    return launches.for_recurrent(request, delta) or launches.large_gates(delta, len(TENSORS), caps)


def yields(delta: Delta, caps: oplet.Capabilities, *, subgroups: bool) -> str | None:
    """Why another one is expected to be faster."""
    if delta.tokens > MOST_TOKENS * delta.batch:
        return f"for at most {MOST_TOKENS} tokens a request; these have {delta.tokens / max(delta.batch, 1):.4g}"
    return None
