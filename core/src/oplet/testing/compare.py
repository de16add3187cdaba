"""When is a result right? One rule for every dtype.

A result `got` is right where some value v with

    |v − want| ≤ atol + rtol · scale

rounds to it in its dtype. `want` is the float64 result. So a float16 output is allowed the error of the
computation and one rounding, not one unit more; an overflow has to become infinity; and where atol and
rtol are 0, or the dtype is an integer, only the one value is right. NaN has to be where `want` has it and
nowhere else, and infinities have to have its sign.

`scale` is what the rounding error of the computation grows with. Unless the op says otherwise it is, for
each row (along the last axis) of the output, the largest finite |want| in it: an output row is commonly one
sum, norm or softmax, and a large row does not excuse a small one. It is too small where terms cancel, as in a
matrix product; such an op says what its rounding scale is with a function `scale` in its cases.py, for
instance |A|·|B|.
"""

from __future__ import annotations

import attrs
import numpy as np


@attrs.frozen
class Tolerance:
    """How far a result may be off; see the module's docstring for the rule.

    Attributes:
        rtol: relative to the scale.
        atol: absolute.
        why: the arithmetic that it follows from.
    """

    rtol: float
    atol: float
    why: str


EXACT = Tolerance(0.0, 0.0, "integers are exact")


@attrs.frozen
class Mismatch:
    """Where a result is wrong.

    Attributes:
        index: the worst element.
        got, want: its values.
        allowed: how far off it might have been.
        wrong: number of wrong elements.
        unwritten: how many of these nobody wrote.
        size: number of all elements.
    """

    index: tuple[int, ...]
    got: float
    want: float
    allowed: float
    wrong: int
    unwritten: int
    size: int

    def describe(self, name: str, tolerance: Tolerance) -> str:
        """One line on it; `name` is the output's."""
        where = f"{name}[{', '.join(map(str, self.index))}]" if self.index else name
        count = f"{self.wrong} of {self.size} elements wrong"
        if self.unwritten:
            some = "" if self.unwritten == self.wrong else f", {self.unwritten} of them never written"
            if not some:
                return f"{where} was never written; {self.unwritten} of {self.size} elements were not"
            count += some
        off = abs(self.got - self.want)
        reason = (
            f"off by {off:.3g}, allowed {self.allowed:.3g} (rtol {tolerance.rtol:g}, atol {tolerance.atol:g}); "
            if np.isfinite(off)
            else ""
        )
        return f"{where} is {self.got:.9g}, should be {self.want:.9g}; {reason}{count}"


def compare(
    got: np.ndarray,
    want: np.ndarray,
    tolerance: Tolerance = EXACT,
    scale: np.ndarray | None = None,
    unwritten: np.ndarray | None = None,
) -> Mismatch | None:
    """Compares a result with what it should be.

    Args:
        got: as the op returned it, in the output's dtype.
        want: of the same shape, as exact as it is known.
        tolerance: ignored for integers.
        scale: what `tolerance.rtol` is relative to, broadcast against `want`; None for the default.
        unwritten: where nobody wrote; wrong even where NaN is what should be there.

    Returns:
        The worst element, or None where all are right.
    """
    if not got.size:
        return None
    if got.dtype.kind != "f":
        allowed = np.zeros(got.shape)
        right = got == want
    else:
        exact = want.astype(np.float64)
        allowed = tolerance.atol + tolerance.rtol * _finite(row_scale(exact) if scale is None else scale)
        allowed = np.broadcast_to(allowed, got.shape)
        with np.errstate(over="ignore", invalid="ignore"):
            low, high = (exact - allowed).astype(got.dtype), (exact + allowed).astype(got.dtype)
            right = ((low <= got) & (got <= high)) | (np.isnan(got) & np.isnan(exact))
    wrong = ~right if unwritten is None else ~right | unwritten
    if not wrong.any():
        return None
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        off = np.abs(got.astype(np.float64) - want.astype(np.float64))
        badness = np.where(np.isfinite(off), off / allowed, np.inf)
    badness = np.where(wrong, np.nan_to_num(badness, nan=0.0, posinf=np.finfo(np.float64).max), -1.0)
    worst = np.unravel_index(int(np.argmax(badness)), got.shape)
    return Mismatch(
        index=tuple(int(i) for i in worst),
        got=float(got[worst]),
        want=float(want[worst]),
        allowed=float(allowed[worst]),
        wrong=int(wrong.sum()),
        unwritten=0 if unwritten is None else int(unwritten.sum()),
        size=got.size,
    )


def row_scale(want: np.ndarray) -> np.ndarray:
    """The default scale: for each row of the last axis the largest finite magnitude in it."""
    magnitude = _finite(np.abs(want))
    return magnitude.max(axis=-1, keepdims=True) if want.ndim else magnitude


def _finite(values: np.ndarray) -> np.ndarray:
    # An infinite scale would allow anything.
    return np.where(np.isfinite(values), values, 0.0)
