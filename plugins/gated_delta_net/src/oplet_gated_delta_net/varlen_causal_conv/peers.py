"""What the op is timed beside: PyTorch's grouped convolution on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from oplet.bench.peers import Build, Peer, PeerCase, timed_on_cuda

from oplet_gated_delta_net.varlen_causal_conv.shapes import Convolution


def _formula(convolution: Convolution, length: int) -> Callable[..., Any]:
    import torch

    def convolve(tokens: Any, weight: Any, state: Any, bias: Any = None) -> tuple[Any, Any]:
        whole = torch.cat([state, tokens.unflatten(0, (-1, length)).transpose(1, 2)], dim=-1)
        sums = torch.nn.functional.conv1d(
            whole, weight, bias, dilation=convolution.dilation, groups=convolution.channels
        )
        output = torch.nn.functional.silu(sums) if convolution.silu else sums
        # The layouts of the op: tokens outermost, and a state of its own.
        return output.transpose(1, 2).flatten(0, 1).contiguous(), whole[..., length:].clone()

    return convolve


def _torch(case: PeerCase, *, compiled: bool) -> Peer:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device")
    convolution = Convolution.of(case.request)
    lengths = np.unique(np.diff(case.arrays["cumulative_sequence_length"]))
    if len(lengths) != 1 or lengths[0] < 1 or convolution.capacity:
        raise RuntimeError("only cases whose sequences are equally long, without a capture")
    formula = _formula(convolution, int(lengths[0]))
    if compiled:
        # It keeps its code by function, and after eight shapes of one goes on uncompiled.
        torch.compiler.reset()
    run = torch.compile(formula, dynamic=False) if compiled else formula
    names = ["input", "weight", "initial_state", *(["bias"] if convolution.biased else [])]

    def prepare() -> Callable[[], object]:
        tensors = [torch.from_numpy(case.arrays[name]).cuda() for name in names]
        return lambda: run(*tensors)

    return timed_on_cuda(case, prepare)


PEERS: Mapping[str, Build] = {
    "torch": lambda case: _torch(case, compiled=False),
    "torch_compile": lambda case: _torch(case, compiled=True),
}
