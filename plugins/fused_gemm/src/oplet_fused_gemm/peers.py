"""PyTorch, and onnxruntime's WebGPU provider, beside the op in `oplet bench`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from oplet.bench.peers import Build, Peer, PeerCase, timed_on_cuda, timed_on_onnxruntime_webgpu

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


def _onnxruntime_webgpu(case: PeerCase) -> Peer:
    """Gemm and the activation as two nodes: its WebGPU provider has no FusedGemm."""
    from onnx import helper

    gemm = Gemm.of(case.request)
    activation = str(case.attrs["activation"] or "")
    if activation not in ("", "Relu", "Sigmoid", "Tanh", "Softsign"):
        raise NotImplementedError(f"no peer for {activation}")
    if gemm.n != gemm.k or not gemm.a.along_k:
        raise RuntimeError("only cases whose Y could be the next one's A")
    arrays = dict(case.arrays)
    # Sums of K products would grow from each call to the next until they are infinite.
    arrays["B"] = (arrays["B"] / np.sqrt(gemm.k)).astype(gemm.dtype)
    attributes = {name: case.attrs[name] for name in ("alpha", "beta", "transB")}

    def nodes(a: str, y: str) -> list[Any]:
        product = f"{y}_product" if activation else y
        call = [helper.make_node("Gemm", [a, *list(arrays)[1:]], [product], **attributes)]
        return [*call, helper.make_node(activation, [product], [y])] if activation else call

    return timed_on_onnxruntime_webgpu(arrays, nodes)


PEERS: Mapping[str, Build] = {
    "torch_cuda": _torch("cuda"),
    "torch_cpu": _torch("cpu"),
    "onnxruntime_webgpu": _onnxruntime_webgpu,
}
