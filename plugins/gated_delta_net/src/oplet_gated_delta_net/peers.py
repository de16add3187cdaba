"""What the op is timed beside: flash-linear-attention on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from oplet.bench.peers import Build, Peer, PeerCase, timed_on_cuda

from oplet_gated_delta_net.shapes import Delta


def _fla(case: PeerCase, *, chunked: bool) -> Peer:
    import torch
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device")
    delta = Delta.of(case.request)
    plain = delta.decays and delta.retrieves and delta.gate == "none" and not (delta.per_key or delta.beta_sigmoid)
    if not plain or len(delta.lead) != 2 or delta.capacity:
        raise RuntimeError("only cases of rank 4 with the rule gated_delta and plain gates")

    def tensor(name: str, heads: int, dtype: Any) -> Any:
        array = case.arrays[name]
        if heads != delta.hv:
            # It has as many query heads as value heads.
            array = np.repeat(array, delta.hv // heads, axis=2)
        return torch.from_numpy(np.ascontiguousarray(array)).cuda().to(dtype)

    function = chunk_gated_delta_rule if chunked else fused_recurrent_gated_delta_rule
    norm = {"use_qk_l2norm_in_kernel": delta.norm_epsilon is not None}

    def prepare() -> Callable[[], object]:
        # It has no float32 kernels worth the name: both dtypes are timed against its float16.
        inputs = [
            tensor("queryT", delta.hq, torch.float16),
            tensor("keyT", delta.hq, torch.float16),
            tensor("valueT", delta.hv, torch.float16),
        ]
        gates = {"g": tensor("decayT", delta.hv, torch.float32), "beta": tensor("betaT", delta.hv, torch.float16)}
        state = None
        if delta.initial:
            # Its state is key-major.
            state = torch.from_numpy(case.arrays["initialStateT"]).cuda().transpose(-1, -2).contiguous()
        known = {"scale": float(delta.scale), "initial_state": state, "output_final_state": True}
        return lambda: function(*inputs, **gates, **norm, **known)

    return timed_on_cuda(case, prepare)


PEERS: Mapping[str, Build] = {
    "fla": lambda case: _fla(case, chunked=True),
    "fla_recurrent": lambda case: _fla(case, chunked=False),
}
