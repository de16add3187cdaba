"""`decode`: few tokens, the state streamed once."""

from __future__ import annotations

from collections.abc import Sequence

import oplet

from oplet_gated_delta_net.shapes import Delta
from oplet_gated_delta_net.variants import launches
from oplet_gated_delta_net.variants.rows import TENSORS, Rows

#: tokens of a request, on average, up to which staging them does not pay
MOST_TOKENS = 4


def plan(request: oplet.Request, delta: Delta, caps: oplet.Capabilities, *, subgroups: bool) -> Sequence[oplet.Launch]:
    """One launch, or one more before it for the gates."""
    # Long rows of lanes read whole cache lines; sums through workgroup memory are dearer than that.
    lanes, rows = (32, 4) if subgroups else (8, 2)
    layout = Rows.of(delta, caps, subgroups=subgroups, lanes=lanes, rows=rows, invocations=64)
    return layout.plan("decode.wgsl.jinja", request, delta, caps, tensors=TENSORS, context={}, params={})


def rejects(request: oplet.Request, delta: Delta, caps: oplet.Capabilities, *, subgroups: bool) -> str | None:
    """Why it cannot serve a call."""
    return launches.for_recurrent(request, delta)


def yields(delta: Delta) -> str | None:
    """Why another one is expected to be faster."""
    if delta.tokens > MOST_TOKENS * delta.batch:
        return f"for at most {MOST_TOKENS} tokens a request; these have {delta.tokens / max(delta.batch, 1):.4g}"
    return None
