"""What the op is timed beside: flash-linear-attention on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oplet.bench.peers import Build, Peer, PeerCase, timed_on_cuda

from oplet_gated_delta_net.shapes import Delta

#: tokens of a request up to which fla_recurrent is timed
_FEW_TOKENS = 16


def _fla(case: PeerCase, *, chunked: bool) -> Peer:
    import torch
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device")
    delta = Delta.of(case.request)
    plain = delta.decays and delta.retrieves and delta.gate == "none" and not (delta.per_key or delta.beta_sigmoid)
    if not plain or not (len(delta.lead) == 2 or delta.ragged) or delta.capacity:
        raise RuntimeError("only cases of rank 4 or with cu_seqlens, the rule gated_delta and plain gates")
    if chunked and delta.longest == 1:
        raise RuntimeError("only for more than one token")
    if not chunked and delta.longest > _FEW_TOKENS:
        raise RuntimeError(f"only for up to {_FEW_TOKENS} tokens")
    function = chunk_gated_delta_rule if chunked else fused_recurrent_gated_delta_rule
    known = {
        "scale": float(delta.scale),
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": delta.norm_epsilon is not None,
        "state_v_first": True,
    }

    def tensor(name: str, dtype: Any) -> Any:
        # Its sequences of unequal length are a batch of one.
        array = case.arrays[name][None] if delta.ragged and name != "initialStateT" else case.arrays[name]
        return torch.from_numpy(array).cuda().to(dtype)

    def prepare() -> Callable[[], object]:
        # Its kernels are for 16 bits: cases of both dtypes are timed against its float16. So it compiles and tunes once
        # for all cases of one number of heads, whatever their dtype and number of tokens.
        tokens = [tensor(name, torch.float16) for name in ("queryT", "keyT", "valueT")]
        gates = {"g": tensor("decayT", torch.float32), "beta": tensor("betaT", torch.float16)}
        state = tensor("initialStateT", torch.float32) if delta.initial else None
        offsets = torch.from_numpy(case.arrays["cuSeqlensT"]).cuda() if delta.ragged else None
        return lambda: function(*tokens, **gates, initial_state=state, cu_seqlens=offsets, **known)

    return timed_on_cuda(case, prepare)


PEERS: Mapping[str, Build] = {
    "fla": lambda case: _fla(case, chunked=True),
    "fla_recurrent": lambda case: _fla(case, chunked=False),
}
