"""What a request means: sizes, layouts, C's strides and the activation, checked."""

from __future__ import annotations

import attrs
import numpy as np
import oplet
from oplet.request import shape_text

from oplet_fused_gemm.activations import ACTIVATIONS, Activation


@attrs.frozen
class Factor:
    """A' or B', seen along the dimension that the two do not share.

    Attributes:
        port: "A" or "B".
        outer: rows of A', columns of B'.
        depth: K.
        along_k: whether neighbours in memory are neighbours along K; else they are along `outer`.
    """

    port: str
    outer: int
    depth: int
    along_k: bool

    @property
    def row(self) -> int:
        """Elements that are contiguous, and the stride between such rows."""
        return self.depth if self.along_k else self.outer

    @property
    def row_name(self) -> str:
        """What the size of a row is called in the contract."""
        return "K" if self.along_k else {"A": "M", "B": "N"}[self.port]


@attrs.frozen
class Gemm:
    """One call, in the terms of the kernels.

    Attributes:
        dtype: of every tensor.
        m, n, k: the sizes.
        a, b: the factors.
        c: strides of C along M and N, 0 where it is broadcast; None without C, or where beta = 0 says
            to ignore it.
        alpha, beta: as float32, in which ONNX stores attributes.
        activation: the function, and `values` its parameters.
    """

    dtype: str
    m: int
    n: int
    k: int
    a: Factor
    b: Factor
    c: tuple[int, int] | None
    alpha: np.float32
    beta: np.float32
    activation: Activation
    values: dict[str, float]

    @property
    def output(self) -> oplet.TensorSpec:
        """The spec of Y."""
        return oplet.TensorSpec((self.m, self.n), self.dtype)

    @classmethod
    def of(cls, request: oplet.Request) -> Gemm:
        """Reads a request.

        Raises:
            InputError: when K differs, C does not broadcast, or the activation misses a parameter.
        """
        a, b = request.inputs["A"], request.inputs["B"]
        # ONNX: any value but 0 is true.
        trans_a, trans_b = bool(request.attrs["transA"]), bool(request.attrs["transB"])
        m, k = reversed(a.shape) if trans_a else a.shape
        depth, n = reversed(b.shape) if trans_b else b.shape
        if depth != k:
            wanted = f"(N, {k})" if trans_b else f"({k}, N)"
            raise request.refusal(
                "B",
                f"its K is {depth}, that of A is {k}",
                f"A {a}, transA {int(trans_a)}: M {m}, K {k}",
                f"B {b}, transB {int(trans_b)}: N {n}, K {depth}",
                do=f"pass B as {wanted}, or set transA or transB",
            )
        beta = np.float32(request.attrs["beta"])
        c = None
        if "C" in request.inputs:
            c = _broadcast(request, m, n)
        activation = ACTIVATIONS[str(request.attrs["activation"] or "")]
        return cls(
            dtype=a.dtype,
            m=m,
            n=n,
            k=k,
            a=Factor("A", m, k, along_k=not trans_a),
            b=Factor("B", n, k, along_k=trans_b),
            c=c if beta != 0 else None,
            alpha=np.float32(request.attrs["alpha"]),
            beta=beta,
            activation=activation,
            values=activation.values(request),
        )


def _broadcast(request: oplet.Request, m: int, n: int) -> tuple[int, int]:
    c = request.inputs["C"]
    rows, columns = (1,) * (2 - c.rank) + c.shape if c.rank <= 2 else (-1, -1)
    if rows not in (1, m) or columns not in (1, n):
        do = f"for a column pass C.reshape({m}, 1)" if c.shape == (m,) else "reshape C to one of these"
        raise request.refusal(
            "C",
            f"{shape_text(c.shape)} does not broadcast to (M, N) = ({m}, {n})",
            f"allowed: (), (1,), ({n},), (1, 1), (1, {n}), ({m}, 1), ({m}, {n})",
            do=do,
        )
    return (0 if rows == 1 else columns), (0 if columns == 1 else 1)
