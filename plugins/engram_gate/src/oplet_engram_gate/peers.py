"""What the op is timed beside: the same formula in PyTorch on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oplet.bench.peers import Build, Peer, PeerCase, timed_on_cuda

from oplet_engram_gate.reference import FLOOR


def _formula(epsilon: float) -> Callable[..., Any]:
    import torch

    def norm(rows: Any, scale: Any) -> Any:
        wide = rows.float()
        return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon) * scale.float()

    def engram_gate(key: Any, query: Any, value: Any, key_scale: Any, query_scale: Any, conv_scale: Any = None) -> Any:
        dot = (norm(key, key_scale) * norm(query, query_scale)).sum(-1, keepdim=True) / key.shape[-1] ** 0.5
        gate = torch.sigmoid(dot.sign() * dot.abs().clamp_min(FLOOR).sqrt())
        gated = (gate * value.float().unsqueeze(2)).to(key.dtype)
        return gated if conv_scale is None else (gated, norm(gated, conv_scale).to(key.dtype))

    return engram_gate


def _torch(case: PeerCase, *, compiled: bool) -> Peer:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device")
    if "outputT" not in case.request.outputs:
        raise RuntimeError("only cases that ask for outputT")
    names = ["keyT", "queryT", "valueT", "keyNormScaleT", "queryNormScaleT"]
    if "gatedValueNormedT" in case.request.outputs:
        names.append("convNormScaleT")
    formula = _formula(float(case.attrs["epsilon"]))
    if compiled:
        # It keeps its code by function, and after eight shapes of one goes on uncompiled.
        torch.compiler.reset()
    run = torch.compile(formula, dynamic=False) if compiled else formula

    def prepare() -> Callable[[], object]:
        tensors = [torch.from_numpy(case.arrays[name]).cuda() for name in names]
        return lambda: run(*tensors)

    return timed_on_cuda(case, prepare)


PEERS: Mapping[str, Build] = {
    "torch": lambda case: _torch(case, compiled=False),
    "torch_compile": lambda case: _torch(case, compiled=True),
}
