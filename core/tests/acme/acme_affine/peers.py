"""Peers of com.acme.Affine: one that takes its own time, one whose package nobody has, and some that fail."""

from collections.abc import Callable

from oplet.bench.peers import PeerCase, Timed


def _second(case: PeerCase) -> Timed:
    return Timed(lambda: 1.0)


def _result(case: PeerCase) -> Callable[[], float]:
    return lambda: 1e6  # the sum of something, say


def _absent(case: PeerCase) -> Callable[[], None]:
    import a_package_that_nobody_has  # noqa: F401

    return lambda: None


def _tires(case: PeerCase) -> Callable[[], None]:
    runs = iter(range(3))

    def run() -> None:
        if next(runs, None) is None:
            raise MemoryError("no memory is left\nfor a fourth run")

    return run


PEERS = {
    "second": _second,
    "result": _result,
    "absent": _absent,
    "tires": _tires,
    "none": lambda case: None,
    "untimed": lambda case: Timed(lambda: True),
}
