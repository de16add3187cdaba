"""PyTorch beside the op in `oplet bench`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oplet.bench.peers import Build, Peer, PeerCase, timed_on_cuda

from oplet_fused_gemm.shapes import Gemm


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

        def prepare() -> Callable[[], object]:
            tensors = {name: torch.from_numpy(array).to(device, copy=True) for name, array in case.arrays.items()}
            a = tensors["A"] if gemm.a.along_k else tensors["A"].T
            b = tensors["B"].T if gemm.b.along_k else tensors["B"]

            def run() -> object:
                if gemm.c is not None:
                    y = torch.addmm(tensors["C"], a, b, beta=beta, alpha=alpha)
                else:
                    y = a @ b if alpha == 1 else alpha * (a @ b)
                return activate(y) if activate else y

            return run

        if device == "cuda":
            return timed_on_cuda(case, prepare)
        run = prepare()

        def on_cpu() -> None:
            run()

        return on_cpu

    return build


PEERS: Mapping[str, Build] = {"torch_cuda": _torch("cuda"), "torch_cpu": _torch("cpu")}
