"""What a request means: sizes and forms, checked."""

from __future__ import annotations

from typing import cast

import attrs
import numpy as np
import oplet


@attrs.frozen
class Attention:
    """One call, in the terms of the kernels.

    Attributes:
        dtype: of every tensor but the schedule.
        tokens: in the stream, T.
        heads: N.
        head_size: of queries and keys, H.
        value_size: of a head of the values.
        batch: number of sequences, B.
        length: of a padded sequence, S.
        packed: whether query, key and value come in one tensor.
        bias: whether there is a projection bias.
        attention_bias: its first two dimensions, each the full size or 1; None without one.
        scale: as float32, in which ONNX stores attributes.
    """

    dtype: str
    tokens: int
    heads: int
    head_size: int
    value_size: int
    batch: int
    length: int
    packed: bool
    bias: bool
    attention_bias: tuple[int, int] | None
    scale: np.float32

    @property
    def output(self) -> oplet.TensorSpec:
        """The spec of the output."""
        return oplet.TensorSpec((self.tokens, self.heads * self.value_size), self.dtype)

    @property
    def operations(self) -> int:
        """Multiply-adds, at most: in a valid schedule no sequence is longer than `length`."""
        return self.tokens * min(self.tokens, self.length) * self.heads * (self.head_size + self.value_size)

    @classmethod
    def of(cls, request: oplet.Request) -> Attention:
        """Reads a request.

        Raises:
            InputError: for shapes that do not fit together, naming the argument.
        """
        query = request.inputs["queryT"].shape
        heads = cast("int", request.attrs["num_heads"])
        if heads < 1:
            raise request.refusal(
                "num_heads", f"{heads} is not a number of heads", do="pass the number of heads, at least 1"
            )
        packed = _is_packed(request)
        if packed:
            head_size = value_size = _packed_head_size(request, query, heads)
        else:
            head_size, value_size = _separate_head_sizes(request, query, heads)
        tokens = query[0]
        batch, length = _schedule(request, tokens)
        hidden, value_hidden = heads * head_size, heads * value_size
        if "biasT" in request.inputs and request.inputs["biasT"].shape != (2 * hidden + value_hidden,):
            raise request.refusal(
                "biasT",
                f"{request.inputs['biasT'].shape} is not ({2 * hidden + value_hidden},)",
                f"blocks: query {hidden}, key {hidden}, value {value_hidden}",
                do="pass the three blocks one after the other",
            )
        return cls(
            dtype=request.inputs["queryT"].dtype,
            tokens=tokens,
            heads=heads,
            head_size=head_size,
            value_size=value_size,
            batch=batch,
            length=length,
            packed=packed,
            bias="biasT" in request.inputs,
            attention_bias=_attention_bias(request, batch, heads, length),
            scale=_scale(request, head_size),
        )


def _is_packed(request: oplet.Request) -> bool:
    given = [name for name in ("keyT", "valueT") if name in request.inputs]
    rank = request.inputs["queryT"].rank
    if len(given) == 1:
        missing = "valueT" if given == ["keyT"] else "keyT"
        raise request.refusal(missing, f"was not given, and {given[0]} was", do=f"pass {missing} too, or neither")
    if rank != (2 if given else 4):
        raise request.refusal(
            "queryT",
            f"has rank {rank}, and keyT and valueT are {'given' if given else 'absent'}",
            "packed: queryT (token_count, num_heads, 3, head_size) alone",
            "separate: queryT (token_count, hidden_size) with keyT and valueT",
            do="pass one of these forms",
        )
    return not given


def _packed_head_size(request: oplet.Request, query: tuple[int, ...], heads: int) -> int:
    if query[1:3] != (heads, 3) or query[3] < 1:
        raise request.refusal(
            "queryT",
            f"{query} is not (token_count, {heads}, 3, head_size)",
            f"num_heads {heads}; query, key and value of a head lie side by side",
            do="reshape it, or set num_heads",
        )
    return query[3]


def _separate_head_sizes(request: oplet.Request, query: tuple[int, ...], heads: int) -> tuple[int, int]:
    key, value = request.inputs["keyT"].shape, request.inputs["valueT"].shape
    if key != query:
        raise request.refusal(
            "keyT", f"{key} differs from queryT {query}", do="self-attention has one key for each query"
        )
    if value[0] != query[0]:
        raise request.refusal(
            "valueT", f"has {value[0]} tokens, and queryT {query[0]}", do="pass one value for each token"
        )
    for name, hidden in (("queryT", query[1]), ("valueT", value[1])):
        if hidden < 1 or hidden % heads:
            raise request.refusal(
                name,
                f"its {hidden} columns cannot be divided among {heads} heads",
                f"num_heads {heads}, {name} {request.inputs[name].shape}",
                do="set num_heads to a divisor of the hidden size",
            )
    return query[1] // heads, value[1] // heads


def _schedule(request: oplet.Request, tokens: int) -> tuple[int, int]:
    batch, length = request.inputs["tokenOffsetT"].shape
    cumulative = request.inputs["cumulativeSequenceLengthT"].shape
    if cumulative != (batch + 1,):
        raise request.refusal(
            "cumulativeSequenceLengthT",
            f"{cumulative} is not ({batch + 1},)",
            f"tokenOffsetT ({batch}, {length}) tells of {batch} sequences",
            do="pass batch_size + 1 prefix sums",
        )
    if tokens > batch * length:
        raise request.refusal(
            "tokenOffsetT",
            f"({batch}, {length}) has no room for {tokens} tokens",
            f"it holds {batch * length} places, and queryT has {tokens} tokens",
            do="pass the offsets as (batch_size, sequence_length)",
        )
    return batch, length


def _attention_bias(request: oplet.Request, batch: int, heads: int, length: int) -> tuple[int, int] | None:
    if "attentionBiasT" not in request.inputs:
        return None
    shape = request.inputs["attentionBiasT"].shape
    if shape[0] not in (1, batch) or shape[1] not in (1, heads) or shape[2:] != (length, length):
        raise request.refusal(
            "attentionBiasT",
            f"{shape} is not ({batch} or 1, {heads} or 1, {length}, {length})",
            f"batch_size {batch} and sequence_length {length} are those of tokenOffsetT, num_heads {heads}",
            do="its last two dimensions are places in the padded sequence, not in the stream",
        )
    return shape[0], shape[1]


def _scale(request: oplet.Request, head_size: int) -> np.float32:
    with np.errstate(over="ignore"):
        stored = np.float32(cast("float | None", request.attrs["scale"]) or 0)
    return stored if stored != 0 else np.float32(1 / np.sqrt(head_size))
