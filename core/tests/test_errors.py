"""An error that is told in other words."""

import pickle

import pytest
from oplet import InputError

NAMES = {"X": "data", "biasT": "bias"}


@pytest.mark.parametrize(
    ("told", "renamed"),
    [
        ("X: (2,) is not biasT's (3,)", "data: (2,) is not bias's (3,)"),
        ("X: bad\n  biasT (3,)\npass f(X.numpy())", "data: bad\n  bias (3,)\npass f(data.numpy())"),
        ("com.acme.X: biasT: XX, X_1, aX and biasTs", "com.acme.X: bias: XX, X_1, aX and biasTs"),
        ("data: as bias", "data: as bias"),
    ],
)
def test_names_are_replaced_as_whole_words(told: str, renamed: str) -> None:
    error = InputError(told, op="com.acme.X", argument="biasT")
    error.rename(NAMES)
    assert (str(error), error.op, error.argument) == (renamed, "com.acme.X", "bias")
    error.rename({})
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.op, again.argument) == (renamed, "com.acme.X", "bias")


def test_names_may_change_places() -> None:
    error = InputError("A: is like B\npass A", argument="A")
    error.rename({"A": "B", "B": "A"})
    assert (str(error), error.argument) == ("B: is like A\npass B", "B")
