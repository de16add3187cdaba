"""What a request means: its sizes, and the shapes that go with them, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import attrs
import numpy as np
import oplet
from oplet.request import shape_text

#: most places that state_update may have for a sequence
_MOST_CAPTURED = 8


@attrs.frozen
class Convolution:
    """One call, in the terms of the kernels.

    Attributes:
        dtype: of every tensor but the lengths.
        tokens: of all sequences together.
        channels: each is convolved for itself.
        taps: kernel_size, at least 1.
        dilation: tokens from one tap to the next; 1 where there is one tap.
        batch: number of sequences.
        biased: whether there is a bias.
        silu: whether the sums go through SiLU.
        capacity: places in state_update for each sequence; 0 without a capture.
        outputs: specs of the requested outputs.
    """

    dtype: str
    tokens: int
    channels: int
    taps: int
    dilation: int
    batch: int
    biased: bool
    silu: bool
    capacity: int
    outputs: Mapping[str, oplet.TensorSpec] = attrs.field(hash=False)

    @property
    def history(self) -> int:
        """Tokens that the state of a sequence holds."""
        return (self.taps - 1) * self.dilation

    @classmethod
    def of(cls, request: oplet.Request) -> Convolution:
        """Reads a request.

        Raises:
            InputError: for shapes and attributes that do not fit together, naming the argument.
        """
        _refuse_changing_taps(request)
        tokens, channels = request.inputs["input"].shape
        taps = _taps(request, channels)
        dilation = cast("int", request.attrs["dilation"])
        if dilation < 1:
            raise request.refusal(
                "dilation", f"{dilation} is less than 1", do="pass the tokens from one tap to the next"
            )
        batch = request.inputs["cumulative_sequence_length"].shape[0] - 1
        if batch < 0 or (batch == 0 and tokens > 0):
            raise request.refusal(
                "cumulative_sequence_length",
                f"{batch + 1} entries tell of no sequence, and input has {tokens} tokens",
                do="pass batch_size + 1 prefix sums, from 0 to the number of tokens",
            )
        history = (taps - 1) * dilation
        expected = {
            "bias": ("(channels,)", (channels,)),
            "initial_state": ("(batch_size, channels, (kernel_size - 1) * dilation)", (batch, channels, history)),
            "capture_count": ("(batch_size,)", (batch,)),
        }
        for name, (words, shape) in expected.items():
            spec = request.inputs.get(name)
            if spec is not None and spec.shape != shape:
                raise request.refusal(
                    name,
                    f"{shape_text(spec.shape)} is not {words}, {shape_text(shape)}",
                    f"batch_size {batch}, channels {channels}, kernel_size {taps}, dilation {dilation}",
                    do=f"pass {name} as {shape_text(shape)}",
                )
        capacity = _capacity(request)
        dtype = request.inputs["input"].dtype
        specs = {
            "output": oplet.TensorSpec((tokens, channels), dtype),
            "final_state": oplet.TensorSpec((batch, channels, history), dtype),
            "state_update": oplet.TensorSpec((batch, capacity, channels), dtype),
        }
        return cls(
            dtype=dtype,
            tokens=tokens,
            channels=channels,
            taps=taps,
            dilation=dilation if taps > 1 else 1,
            batch=batch,
            biased="bias" in request.inputs,
            silu=request.attrs["activation"] != "none",
            capacity=capacity,
            outputs={name: specs[name] for name in request.outputs},
        )

    def check_bounds(self, request: oplet.Request, cumulative: np.ndarray) -> None:
        """Looks at the values of cumulative_sequence_length.

        Raises:
            InputError: they are not prefix sums of lengths that add up to the tokens, naming the entry.
        """
        name = "cumulative_sequence_length"
        if cumulative[0] != 0:
            raise request.refusal(name, f"entry 0 is {cumulative[0]}, not 0", do="begin the prefix sums with 0")
        falling = np.flatnonzero(cumulative[1:] < cumulative[:-1])
        if falling.size:
            entry = int(falling[0]) + 1
            raise request.refusal(
                name,
                f"entry {entry} is {cumulative[entry]}, less than entry {entry - 1}, {cumulative[entry - 1]}",
                do="prefix sums of lengths never decrease",
            )
        if cumulative[-1] != self.tokens:
            raise request.refusal(
                name,
                f"entry {self.batch}, the last, is {cumulative[-1]}",
                f"input has {self.tokens} tokens",
                do="end the prefix sums with the number of tokens",
            )


def _refuse_changing_taps(request: oplet.Request) -> None:
    for name in ("kernel_delta", "previous_mask"):
        if name in request.inputs:
            raise request.refusal(
                name,
                "taps that change from token to token are not supported",
                "onnxruntime has this mode on CUDA only; it rounds between its steps, which these kernels do not",
                do="leave out kernel_delta and previous_mask",
            )


def _taps(request: oplet.Request, channels: int) -> int:
    weight = request.inputs["weight"].shape
    if weight[:2] != (channels, 1) or weight[2] < 1:
        raise request.refusal(
            "weight",
            f"{shape_text(weight)} is not (channels, 1, kernel_size), ({channels}, 1, 1 or more)",
            f"input {request.inputs['input']}: (total_tokens, channels)",
            do="pass one row of taps for each channel",
        )
    return weight[2]


def _capacity(request: oplet.Request) -> int:
    capacity = cast("int", request.attrs["state_update_capacity"])
    if not 0 <= capacity <= _MOST_CAPTURED:
        raise request.refusal(
            "state_update_capacity",
            f"{capacity} is not from 0 to {_MOST_CAPTURED}",
            do="pass how many tokens of each sequence state_update has room for",
        )
    if capacity and "capture_count" not in request.inputs:
        raise request.refusal(
            "capture_count",
            f"was not given, and state_update_capacity is {capacity}",
            do="pass how many tokens of each sequence to capture",
        )
    if not capacity and "capture_count" in request.inputs:
        raise request.refusal(
            "capture_count",
            "was given, and state_update_capacity is 0",
            do="set state_update_capacity, or leave it out",
        )
    if not capacity and "state_update" in request.outputs:
        raise request.refusal(
            "state_update",
            "was asked for, and state_update_capacity is 0",
            do="set state_update_capacity and pass capture_count",
        )
    return capacity
