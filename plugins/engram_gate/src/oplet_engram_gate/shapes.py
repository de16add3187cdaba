"""What a request means: its rows, and the shapes that go with them, checked."""

from __future__ import annotations

import attrs
import numpy as np
import oplet
from oplet.request import shape_text

_SCALES = ("keyNormScaleT", "queryNormScaleT", "convNormScaleT")


@attrs.frozen
class Rows:
    """One call, in the terms of the kernels: `tokens` · `streams` rows of `hidden` elements.

    Attributes:
        dtype: of every tensor.
        tokens: batch_size · sequence_length; each has one row of value.
        streams: hc_mult, the rows of a token.
        hidden: hidden_size.
        normed: whether the second output is wanted.
        epsilon: as float32, in which ONNX stores attributes.
    """

    dtype: str
    tokens: int
    streams: int
    hidden: int
    normed: bool
    epsilon: np.float32

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.tokens * self.streams

    @property
    def size(self) -> int:
        """Elements of an output."""
        return self.count * self.hidden

    @classmethod
    def of(cls, request: oplet.Request) -> Rows:
        """Reads a request.

        Raises:
            InputError: when a shape differs from what key asks for, or the second output's scale is missing.
        """
        key = request.inputs["keyT"]
        batch, sequence, streams, hidden = key.shape
        expected = {
            "queryT": ("key's shape", key.shape),
            "valueT": ("(batch_size, sequence_length, hidden_size)", (batch, sequence, hidden)),
            **dict.fromkeys(_SCALES, ("(hc_mult, hidden_size)", (streams, hidden))),
        }
        for name, (words, shape) in expected.items():
            spec = request.inputs.get(name)
            if spec is not None and spec.shape != shape:
                raise request.refusal(
                    name,
                    f"{shape_text(spec.shape)} is not {words}, {shape_text(shape)}",
                    f"keyT {key}: (batch_size, sequence_length, hc_mult, hidden_size)",
                    f"{name} {spec}",
                    do=f"pass {name} as {shape_text(shape)}; nothing is broadcast",
                )
        normed = "gatedValueNormedT" in request.outputs
        if normed and "convNormScaleT" not in request.inputs:
            raise request.refusal(
                "convNormScaleT",
                "is needed for the output gatedValueNormedT and was not given",
                do=f"pass convNormScaleT as {shape_text((streams, hidden))}, or ask for outputT alone",
            )
        return cls(
            dtype=key.dtype,
            tokens=batch * sequence,
            streams=streams,
            hidden=hidden,
            normed=normed,
            epsilon=np.float32(request.attrs["epsilon"]),
        )
