"""What the op is timed beside: the same formula in PyTorch on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oplet.bench.peers import Build, Peer, PeerCase, timed_on_cuda

from oplet_gated_delta_net.gated_rms_norm.shapes import Groups


def _formula(groups: Groups) -> Callable[..., Any]:
    import torch

    epsilon = float(groups.epsilon)

    def gated_rms_norm(x: Any, scale: Any, gate: Any) -> Any:
        rows = x.float().unflatten(-1, (-1, groups.width))
        normed = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + epsilon) * scale.float()
        z = gate.float()
        opened = torch.nn.functional.silu(z) if groups.silu else torch.sigmoid(z)
        return (normed.flatten(-2) * opened).to(x.dtype)

    return gated_rms_norm


def _torch(case: PeerCase, *, compiled: bool) -> Peer:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device")
    formula = _formula(Groups.of(case.request))
    if compiled:
        # It keeps its code by function, and after eight shapes of one goes on uncompiled.
        torch.compiler.reset()
    run = torch.compile(formula, dynamic=False) if compiled else formula

    def prepare() -> Callable[[], object]:
        tensors = [torch.from_numpy(case.arrays[name]).cuda() for name in ("X", "scale", "gate")]
        return lambda: run(*tensors)

    return timed_on_cuda(case, prepare)


PEERS: Mapping[str, Build] = {
    "torch": lambda case: _torch(case, compiled=False),
    "torch_compile": lambda case: _torch(case, compiled=True),
}
