"""What tests across packages share: wheels of the repository, environments to install them into, made-up plugins."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import oplet
import pytest
from environments import PACKAGES, Built, Environment, build, link_dependencies, once
from fakes import Site


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Makes a folder, by name, once for all processes of the test run."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # each process has a folder of its own in that of the run
    return lambda name, make: once(root / f"shared-{name}", make)


@pytest.fixture(scope="session")
def built(shared: Callable[..., Path]) -> Built:
    """Wheels and source distributions of the repository."""

    def make(folder: Path) -> None:
        for package in PACKAGES:
            build(package, folder)

    return Built(shared("dist", make))


@pytest.fixture(scope="session")
def environment(shared: Callable[..., Path]) -> Callable[..., Environment]:
    """An environment, by name, with the wheels that it is given."""

    def get(name: str, *wheels: Path) -> Environment:
        dependencies = shared("dependencies", link_dependencies)
        return Environment(
            shared(name, lambda folder: Environment(folder, dependencies, wheels).make()), dependencies, wheels
        )

    return get


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A folder on sys.path for made-up distributions."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    for variable in ("OPLET_PREFER", "OPLET_BLOCK"):
        monkeypatch.delenv(variable, raising=False)
    made = Site(folder)
    yield made
    for name in [name for name in sys.modules if name.partition(".")[0] in made.packages]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def device() -> oplet.Device:
    """The device that tests share."""
    return oplet.open_device()
