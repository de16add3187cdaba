"""PyTorch beside the op in `oplet bench`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

from oplet.bench.peers import Build, Peer, PeerCase

from oplet_fused_gemm.shapes import Gemm

#: copies of the inputs take this many bytes together, as the op's own do: no cache holds them from call to call
_ROTATE_BYTES = 512 << 20


def _activation(name: str, values: Mapping[str, float]) -> Callable[[Any], Any] | None:
    from torch.nn import functional

    known: dict[str, Callable[[Any], Any] | None] = {
        "": None,
        "Relu": functional.relu,
        "LeakyRelu": lambda x: functional.leaky_relu(x, values["alpha"]),
        "Sigmoid": lambda x: x.sigmoid(),
        "Tanh": lambda x: x.tanh(),
        "Elu": lambda x: functional.elu(x, values["alpha"]),
        "Softplus": functional.softplus,
        "Softsign": functional.softsign,
    }
    if name not in known:
        raise NotImplementedError(f"no peer for {name}")
    return known[name]


def _torch(device: str) -> Build:
    def build(case: PeerCase) -> Peer:
        import torch

        if device == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no CUDA device")
        torch.backends.cuda.matmul.allow_tf32 = False
        gemm = Gemm.of(case.request)
        activate = _activation(str(case.attrs["activation"] or ""), gemm.values)
        alpha, beta = float(gemm.alpha), float(gemm.beta)

        def upload() -> dict[str, Any]:
            return {name: torch.from_numpy(array).to(device, copy=True) for name, array in case.arrays.items()}

        nbytes = sum(array.nbytes for array in case.arrays.values())
        copies = min(64, -(-_ROTATE_BYTES // nbytes)) if device == "cuda" else 1
        sets = itertools.cycle([upload() for _ in range(copies)])

        def product() -> None:
            tensors = next(sets)
            a = tensors["A"] if gemm.a.along_k else tensors["A"].T
            b = tensors["B"].T if gemm.b.along_k else tensors["B"]
            if gemm.c is not None:
                y = torch.addmm(tensors["C"], a, b, beta=beta, alpha=alpha)
            else:
                y = a @ b if alpha == 1 else alpha * (a @ b)
            if activate:
                activate(y)

        def on_cuda() -> float:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            product()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) * 1e-3

        def on_cpu() -> float:
            start = time.perf_counter()
            product()
            return time.perf_counter() - start

        return on_cuda if device == "cuda" else on_cpu

    return build


PEERS: Mapping[str, Build] = {"torch-cuda": _torch("cuda"), "torch-cpu": _torch("cpu")}
