"""Which shapes X may have, and what comes out."""

from __future__ import annotations

import oplet


def output(request: oplet.Request) -> oplet.TensorSpec:
    """The spec of Y: X with its last dimension halved.

    Raises:
        InputError: there is no last dimension, or it is odd.
    """
    x = request.inputs["X"]
    if not x.rank or x.shape[-1] % 2:
        raise request.refusal(
            "X",
            f"its shape {x.shape} has no last dimension of even length",
            do="pass gate and value side by side: np.concatenate([gate, value], axis=-1)",
        )
    return oplet.TensorSpec((*x.shape[:-1], x.shape[-1] // 2), x.dtype)
