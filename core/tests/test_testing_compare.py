"""The one rule that says when a result is right."""

import numpy as np
import pytest
from oplet.testing.compare import EXACT, Tolerance, compare, row_scale

NONE = Tolerance(0, 0, "exact")
LOOSE = Tolerance(1e-6, 0, "a few roundings")


def right(got: object, want: object, tolerance: Tolerance = NONE, dtype: str = "float32") -> bool:
    return compare(np.array(got, dtype), np.array(want), tolerance) is None


def test_without_tolerance_the_result_is_the_rounding_of_the_exact_one() -> None:
    third = np.float32(1 / 3)
    assert right(third, 1 / 3)
    assert not right(np.nextafter(third, 1, dtype=np.float32), 1 / 3)
    assert not right(np.nextafter(third, 0, dtype=np.float32), 1 / 3)


def test_tolerance_is_relative_to_the_scale_and_absolute() -> None:
    assert right([1.0, 1 + 0.9e-6], [1.0, 1.0], LOOSE)
    assert not right([1.0, 1 + 1.3e-6], [1.0, 1.0], LOOSE)
    assert right([0.0009], [0.0], Tolerance(0, 1e-3, ""))
    assert not right([0.0011], [0.0], Tolerance(0, 1e-3, ""))


def test_float16_is_allowed_the_computation_and_one_rounding() -> None:
    # 2049 lies halfway between two float16; a float32 result a little off may round to either.
    assert right(2048, 2049, LOOSE, "float16")
    assert right(2050, 2049, LOOSE, "float16")
    assert not right(2052, 2049, LOOSE, "float16")
    # 2048.5 does not: only its own rounding is right.
    assert right(2048, 2048.5, LOOSE, "float16")
    assert not right(2050, 2048.5, LOOSE, "float16")


def test_overflow_has_to_become_infinity() -> None:
    assert right(np.inf, 70000.0, NONE, "float16")
    assert not right(65504, 70000.0, NONE, "float16")
    assert not right(np.inf, 65504.0, LOOSE, "float16")
    assert right(np.inf, 1e39, NONE)


@pytest.mark.parametrize(
    ("got", "want", "verdict"),
    [
        (np.nan, np.nan, True),
        (np.nan, 0.0, False),
        (0.0, np.nan, False),
        (np.inf, np.inf, True),
        (-np.inf, np.inf, False),
        (np.inf, np.nan, False),
        (3e38, np.inf, False),
        (np.inf, 1.0, False),
        (0.0, -0.0, True),
    ],
)
def test_special_values(got: float, want: float, verdict: bool) -> None:
    assert right(got, want, Tolerance(1, 1, "far too wide")) is verdict


def test_a_large_row_does_not_excuse_a_small_one() -> None:
    want = np.array([[1e6, 1.0], [1.0, 1.0]])
    got = (want + np.array([[0, 0.5], [0, 0]])).astype(np.float32)
    assert compare(got, want, LOOSE) is None
    got = (want + np.array([[0, 0], [0, 0.5]])).astype(np.float32)
    mismatch = compare(got, want, LOOSE)
    assert mismatch is not None
    assert mismatch.index == (1, 1)


def test_the_default_scale_ignores_what_is_not_finite() -> None:
    assert row_scale(np.array([[np.inf, -2.0], [np.nan, np.nan]])).tolist() == [[2.0], [0.0]]
    assert row_scale(np.float64(-3)).tolist() == 3.0


def test_an_op_may_give_the_scale() -> None:
    got, want = np.array([1e-7], np.float32), np.array([0.0])
    assert compare(got, want, LOOSE) is not None
    assert compare(got, want, LOOSE, np.array([1.0])) is None
    assert compare(got, want, LOOSE, np.array([np.inf])) is not None, "an infinite scale allows nothing"


def test_integers_are_exact() -> None:
    assert right([1, 2], [1, 2], EXACT, "int32")
    assert not right([1, 2], [1, 3], Tolerance(1, 1, ""), "uint32")
    big = 2**31 - 1
    assert not right(big, big - 1, EXACT, "int32")


def test_unwritten_elements_are_wrong_even_where_nan_is_right() -> None:
    got = np.array([np.nan, 1.0], np.float32)
    mismatch = compare(got, np.array([np.nan, 1.0]), NONE, None, np.array([True, False]))
    assert mismatch is not None
    assert (mismatch.index, mismatch.unwritten, mismatch.wrong) == ((0,), 1, 1)
    assert mismatch.describe("Y", NONE) == "Y[0] was never written; 1 of 2 elements were not"


def test_the_worst_element_is_told() -> None:
    want = np.zeros((2, 3))
    got = np.array([[0, 1e-3, 0], [0, 0, -0.5]], np.float32)
    mismatch = compare(got, want, Tolerance(0, 1e-4, ""))
    assert mismatch is not None
    assert mismatch.describe("Y", Tolerance(0, 1e-4, "")) == (
        "Y[1, 2] is -0.5, should be 0; off by 0.5, allowed 0.0001 (rtol 0, atol 0.0001); 2 of 6 elements wrong"
    )


def test_nan_is_worse_than_any_number() -> None:
    mismatch = compare(np.array([5.0, np.nan], np.float32), np.zeros(2), Tolerance(0, 1e-3, ""))
    assert mismatch is not None
    assert mismatch.index == (1,)
    assert mismatch.describe("Y", NONE) == "Y[1] is nan, should be 0; 2 of 2 elements wrong"


def test_scalars_and_empty_arrays() -> None:
    mismatch = compare(np.array(1.0, np.float32), np.array(2.0), NONE)
    assert mismatch is not None
    assert mismatch.describe("Y", NONE).startswith("Y is 1, should be 2;")
    assert compare(np.empty((0, 3), np.float32), np.empty((0, 3)), NONE) is None
