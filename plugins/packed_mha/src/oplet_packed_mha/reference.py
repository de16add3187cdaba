"""The op in numpy: float64 throughout, one sequence after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
import numpy as np

from oplet_packed_mha.shapes import Attention


@attrs.frozen(eq=False)
class Sequence:
    """The tokens of one sequence, as float64; heads first.

    Attributes:
        tokens: where they are in the stream.
        query, key, value: (heads, tokens, size), the projection bias added.
        bias: (heads or 1, tokens, tokens), the attention bias of these tokens; 0 without one.
    """

    tokens: slice
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    bias: np.ndarray

    def scores(self, scale: float) -> np.ndarray:
        """(heads, tokens, tokens), before the softmax."""
        scores: np.ndarray = scale * (self.query @ self.key.swapaxes(1, 2)) + self.bias
        return scores


def packed_attention(attention: Attention, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The output as float64."""
    output = np.zeros((attention.tokens, attention.heads, attention.value_size))
    with np.errstate(all="ignore"):  # infinities and NaN are values like any other here
        for sequence in sequences(attention, arrays):
            mixed = softmax(sequence.scores(float(attention.scale))) @ sequence.value
            output[sequence.tokens] = mixed.swapaxes(0, 1)
    return output.reshape(attention.output.shape)


def softmax(scores: np.ndarray) -> np.ndarray:
    """Along the last axis; a row of -inf becomes NaN."""
    weights: np.ndarray = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def sequences(attention: Attention, arrays: Mapping[str, np.ndarray]) -> Iterator[Sequence]:
    """Every sequence that has tokens."""
    query, key, value = _projections(attention, arrays)
    starts = arrays["cumulativeSequenceLengthT"].tolist()
    places = arrays["tokenOffsetT"].reshape(-1)
    for number in range(attention.batch):
        tokens = slice(starts[number], starts[number + 1])
        if tokens.start == tokens.stop:
            continue
        bias = np.zeros((1, 1, 1))
        if attention.attention_bias is not None:
            table = arrays["attentionBiasT"].astype(np.float64)
            place = places[tokens] % attention.length
            bias = table[number if len(table) > 1 else 0][:, place[:, None], place]
        yield Sequence(tokens, query[:, tokens], key[:, tokens], value[:, tokens], bias)


def _projections(attention: Attention, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if attention.packed:
        packed = arrays["queryT"].astype(np.float64)
        parts = [packed[:, :, part] for part in range(3)]
    else:
        parts = [
            arrays[name].astype(np.float64).reshape(attention.tokens, attention.heads, size)
            for name, size in (
                ("queryT", attention.head_size),
                ("keyT", attention.head_size),
                ("valueT", attention.value_size),
            )
        ]
    if attention.bias:
        hidden = attention.heads * attention.head_size
        blocks = np.split(arrays["biasT"].astype(np.float64), [hidden, 2 * hidden])
        parts = [part + block.reshape(attention.heads, -1) for part, block in zip(parts, blocks, strict=True)]
    query, key, value = (part.swapaxes(0, 1) for part in parts)
    return query, key, value
