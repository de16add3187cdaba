"""Peers of com.acme.Affine: one that measures itself, one whose package nobody has."""

from collections.abc import Callable

from oplet.bench.peers import PeerCase


def _second(case: PeerCase) -> Callable[[], float]:
    return lambda: 1.0


def _absent(case: PeerCase) -> Callable[[], None]:
    import a_package_that_nobody_has  # noqa: F401

    return lambda: None


PEERS = {"second": _second, "absent": _absent}
