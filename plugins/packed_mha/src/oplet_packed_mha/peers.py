"""What the op is timed beside: PyTorch's attention on a CUDA device, and onnxruntime's over padded sequences."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from oplet.bench.peers import Build, Peer, PeerCase, timed_on_cuda, timed_on_onnxruntime_webgpu

from oplet_packed_mha.shapes import Attention


def _sequences(case: PeerCase) -> tuple[list[tuple[Any, Any, Any]], dict[str, float]]:
    """Query, key and value of every sequence, (1, heads, tokens, size), on the CUDA device; and the scale."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device")
    attention = Attention.of(case.request)
    if attention.bias or attention.attention_bias is not None:
        raise RuntimeError("only cases without biases")
    if attention.packed:
        packed = torch.from_numpy(case.arrays["queryT"]).cuda()
        streams = [packed[:, :, part] for part in range(3)]
    else:
        streams = [
            torch.from_numpy(case.arrays[name]).cuda().reshape(attention.tokens, attention.heads, -1)
            for name in ("queryT", "keyT", "valueT")
        ]
    starts = case.arrays["cumulativeSequenceLengthT"].tolist()
    split = []
    for begin, end in itertools.pairwise(starts):
        query, key, value = (stream[begin:end].transpose(0, 1)[None].contiguous() for stream in streams)
        split.append((query, key, value))
    return split, {"scale": float(attention.scale)}


def _loop(case: PeerCase) -> Peer:
    """One call of scaled_dot_product_attention for each sequence."""
    from torch.nn.functional import scaled_dot_product_attention as attend

    def prepare() -> Callable[[], object]:
        split, scale = _sequences(case)
        return lambda: [attend(query, key, value, **scale) for query, key, value in split]

    return timed_on_cuda(case, prepare)


def _nested(case: PeerCase) -> Peer:
    """One call on jagged tensors."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attend

    def jagged(tensors: list[Any]) -> Any:
        return torch.nested.nested_tensor(tensors, layout=torch.jagged).transpose(1, 2)

    def prepare() -> Callable[[], object]:
        split, scale = _sequences(case)
        query, key, value = (jagged([one[part][0].transpose(0, 1) for one in split]) for part in range(3))
        return lambda: attend(query, key, value, **scale)

    return timed_on_cuda(case, prepare)


def _padded(case: PeerCase) -> Peer:
    """onnxruntime's MultiHeadAttention on sequences as long as the longest.

    Without a mask of their lengths: its WebGPU provider has none for self-attention, and its work is the same.
    """
    from onnx import helper

    attention = Attention.of(case.request)
    if attention.bias or attention.attention_bias is not None:
        raise RuntimeError("only cases without biases")
    if attention.head_size != attention.value_size:
        raise RuntimeError("only heads of values that are as large as those of keys")
    longest = int(np.diff(case.arrays["cumulativeSequenceLengthT"]).max())
    rng = np.random.default_rng(0)
    shape = (attention.batch, longest, attention.heads * attention.head_size)
    constants = {name: rng.standard_normal(shape, np.float32).astype(attention.dtype) for name in ("q", "k", "v")}
    attrs = {"num_heads": attention.heads, "scale": float(attention.scale)}

    def nodes(query: str, output: str) -> list[Any]:
        return [helper.make_node("MultiHeadAttention", [query, "k", "v"], [output], domain="com.microsoft", **attrs)]

    return timed_on_onnxruntime_webgpu(constants, nodes)


PEERS: Mapping[str, Build] = {
    "torch_loop": _loop,
    "torch_nested": _nested,
    "onnxruntime_webgpu_padded": _padded,
}
