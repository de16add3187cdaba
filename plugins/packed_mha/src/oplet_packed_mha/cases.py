"""Random cases for the conformance kit: every form, few head sizes, since each compiles pipelines of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import oplet

from oplet_packed_mha.reference import sequences, softmax
from oplet_packed_mha.shapes import Attention

Inputs = dict[str, np.ndarray]
Attributes = dict[str, float | int | str]

#: first dimensions of an attention bias: those that are broadcast are 1
BROADCASTS = ((False, False), (True, False), (False, True), (True, True))


def cases(rng: np.random.Generator) -> Iterator[tuple[Inputs, Attributes]]:
    """Every form in float32, some in float16, the larger head sizes in one form each."""
    lengths = [5, 0, 33, 1, 20, 0]
    forms = itertools.product((True, False), (False, True), (None, *BROADCASTS))
    for packed, bias, broadcast in forms:
        yield draw(rng, lengths, heads=2, head_size=16, packed=packed, bias=bias, broadcast=broadcast)
    for packed in (True, False):
        yield draw(rng, lengths, dtype="float16", heads=3, head_size=12, packed=packed)
        yield draw(
            rng, lengths, dtype="float16", heads=2, head_size=16, packed=packed, bias=True, broadcast=(True, False)
        )
    for head_size, value_size in ((1, 1), (7, 5), (8, 16), (40, 4), (20, 13)):
        yield draw(rng, [9, 3], heads=2, head_size=head_size, value_size=value_size, scale=0.3)
    yield draw(rng, [70, 17], heads=1, head_size=64)
    yield draw(rng, [18, 3], heads=1, head_size=256)
    yield draw(rng, [], heads=2, head_size=16)
    yield draw(rng, [0, 0, 0], heads=2, head_size=16, packed=False)
    yield draw(rng, [1] * 40, heads=2, head_size=16)
    # Scores far apart, so that the running maximum moves and weights vanish.
    yield draw(rng, [50], heads=2, head_size=16, scale=40.0)
    yield special(rng)
    # What matrices of float16 must get right besides: more than a tile of keys, running maxima, either sign of the
    # scale, heads that do not fill their last matrix.
    yield draw(rng, [70, 33, 17], dtype="float16", heads=2, head_size=16)
    yield draw(rng, [50], dtype="float16", heads=2, head_size=16, scale=40.0)
    yield draw(rng, [50], dtype="float16", heads=2, head_size=16, bias=True, scale=-3.0)
    yield draw(rng, [40, 3], dtype="float16", heads=2, head_size=24, value_size=40)
    yield special(rng, "float16")


def draw(
    rng: np.random.Generator,
    lengths: Sequence[int],
    *,
    heads: int,
    head_size: int,
    value_size: int | None = None,
    packed: bool | None = None,
    bias: bool = False,
    broadcast: tuple[bool, bool] | None = None,
    scale: float | None = None,
    dtype: str = "float32",
    padding: str = "gaps",
) -> tuple[Inputs, Attributes]:
    """A call with normally distributed data.

    Args:
        rng: where the data comes from.
        lengths: of the sequences.
        heads: their number.
        head_size: of queries and keys.
        value_size: of the values; default `head_size`.
        packed: the form; default packed where both sizes agree.
        bias: whether there is a projection bias.
        broadcast: whether an attention bias is broadcast over batch and heads; None for no attention bias.
        scale: the attribute; None leaves it out.
        dtype: of the data.
        padding: where the padded grid is empty: at the "left", the "right", or in "gaps" anywhere.
    """
    packed = value_size in (None, head_size) if packed is None else packed
    value_size = value_size or head_size

    def data(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    tokens, batch = sum(lengths), len(lengths)
    length = max(lengths, default=0) + int(rng.integers(1, 4))
    inputs: Inputs = {}
    if packed:
        inputs["queryT"] = data(tokens, heads, 3, head_size)
    else:
        inputs["queryT"] = data(tokens, heads * head_size)
        inputs["keyT"] = data(tokens, heads * head_size)
        inputs["valueT"] = data(tokens, heads * value_size)
    if bias:
        inputs["biasT"] = data(heads * (2 * head_size + value_size))
    inputs["tokenOffsetT"] = offsets(rng, lengths, length, padding)
    inputs["cumulativeSequenceLengthT"] = np.cumsum([0, *lengths], dtype=np.int32)
    if broadcast is not None:
        shape = (1 if broadcast[0] else batch, 1 if broadcast[1] else heads, length, length)
        inputs["attentionBiasT"] = data(*shape)
    attributes: Attributes = {"num_heads": heads}
    if scale is not None:
        attributes["scale"] = scale
    return inputs, attributes


def offsets(rng: np.random.Generator, lengths: Sequence[int], length: int, padding: str) -> np.ndarray:
    """A token_offset: the places of all tokens, then those of the padding."""
    used = np.zeros((len(lengths), length), bool)
    for row, count in zip(used, lengths, strict=True):
        if padding == "gaps":
            row[rng.permutation(length)[:count]] = True
        else:
            row[slice(length - count, None) if padding == "left" else slice(count)] = True
    places = np.arange(used.size, dtype=np.int32)
    flat = used.reshape(-1)
    return np.concatenate([places[flat], places[~flat]]).reshape(used.shape)


def special(rng: np.random.Generator, dtype: str = "float32") -> tuple[Inputs, Attributes]:
    """Rows that are fully masked, partly masked, masked by the lowest number, or hold NaN or infinities."""
    inputs, attributes = draw(
        rng, [6, 40, 3, 70], heads=2, head_size=16, dtype=dtype, broadcast=(False, False), padding="right"
    )
    table = inputs["attentionBiasT"]
    table[0, 0, 1] = -np.inf
    table[0, 1, 2, :4] = -np.inf
    table[1, 0, 3] = np.finfo(dtype).min
    table[1, 1, 4, ::2] = np.finfo(dtype).min
    table[1, 0, 5, 7] = np.nan
    table[1, 1, 6, 39] = np.inf
    table[1, 0, 8, :36] = -np.inf  # whole tiles of masked keys before the first that counts
    inputs["queryT"][44, 0, 0, 3] = np.nan  # a query: its row only
    inputs["queryT"][46, 1, 2, 5] = np.nan  # a value: one column of its sequence
    inputs["queryT"][46, 1, 2, 7] = np.inf
    inputs["queryT"][47, 1, 2, 7] = np.inf
    inputs["queryT"][60, 0, 0, 4] = np.inf  # scores of either infinity
    inputs["queryT"][70, 1, 1, 4] = -np.inf  # a key: some rows have it as +infinity, for the others it weighs nothing
    return inputs, attributes


def scale(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What rounding errors grow with: the weighted magnitudes of the values, and of the terms of the scores.

    A score is a sum whose error is relative to the magnitudes of its terms; a weight's relative error is
    the score's absolute one. The bias of the values may be added to each or to their mean.
    """
    attention = Attention.of(request)
    bias = np.zeros((attention.heads, 1, 1))
    if attention.bias:
        own = arrays["biasT"][2 * attention.heads * attention.head_size :]
        bias = own.astype(np.float64).reshape(attention.heads, 1, -1)
    result = np.zeros((attention.tokens, attention.heads, attention.value_size))
    with np.errstate(all="ignore"):
        for sequence in sequences(attention, arrays):
            weights = softmax(sequence.scores(float(attention.scale)))
            terms = np.abs(sequence.query) @ np.abs(sequence.key).swapaxes(1, 2) * abs(float(attention.scale))
            # A masked score may be of any size: its weight is 0 all the same.
            terms = np.where(weights > 0, terms + np.abs(sequence.bias), 0.0)
            values = np.abs(sequence.value - bias) + np.abs(bias)
            # Errors of the weights come in twice: in the mixture, and in the total that it is divided by.
            own = (weights * (1 + terms)) @ values
            common = (weights * terms).sum(axis=-1, keepdims=True) * (weights @ values)
            result[sequence.tokens] = (own + common).swapaxes(0, 1)
    return {"outputT": np.nan_to_num(result.reshape(attention.output.shape), nan=0.0)}
