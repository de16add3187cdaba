"""What a request means: its groups, and the shapes that go with them, checked."""

from __future__ import annotations

import attrs
import numpy as np
import oplet
from oplet.request import shape_text


@attrs.frozen
class Groups:
    """One call, in the terms of the kernels: `count` groups of `width` elements, one after the other.

    Attributes:
        dtype: of every tensor.
        count: groups in X.
        width: C, at least 1.
        silu: whether the gate goes through SiLU; else through the sigmoid alone.
        epsilon: as float32, in which ONNX stores attributes.
    """

    dtype: str
    count: int
    width: int
    silu: bool
    epsilon: np.float32

    @classmethod
    def of(cls, request: oplet.Request) -> Groups:
        """Reads a request.

        Raises:
            InputError: for shapes and an epsilon that do not fit, naming the argument.
        """
        x, scale, gate = (request.inputs[name] for name in ("X", "scale", "gate"))
        (width,) = scale.shape
        if not width:
            raise request.refusal("scale", "has no element", do="pass a weight for each element of a group")
        if not x.rank:
            raise request.refusal("X", "is a scalar", do="pass a tensor of rank 1 or more")
        if x.shape[-1] % width:
            raise request.refusal(
                "X",
                f"its last dimension, {x.shape[-1]}, is not a multiple of {width}, the length of scale",
                f"X {x}",
                f"scale {scale}",
                do="pass whole groups of as many elements as scale has",
            )
        if gate.shape != x.shape:
            raise request.refusal(
                "gate",
                f"{shape_text(gate.shape)} is not X's shape, {shape_text(x.shape)}",
                do="pass a gate for each element of X; nothing is broadcast",
            )
        with np.errstate(over="ignore"):
            epsilon = np.float32(request.attrs["epsilon"])
        if not epsilon >= 0:
            raise request.refusal(
                "epsilon", f"{request.attrs['epsilon']} is not a number of at least 0", do="pass 0 or more"
            )
        return cls(
            dtype=x.dtype,
            count=x.size // width,
            width=width,
            silu=request.attrs["activation"] != "sigmoid",
            epsilon=epsilon,
        )
