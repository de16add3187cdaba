"""What tests across packages share: wheels of the repository, environments to install them into, made-up plugins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import oplet
import pytest
from environments import PACKAGES, Built, Environment, build, create, link_dependencies
from fakes import Site


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Wheels and source distributions of the repository."""
    folder = tmp_path_factory.mktemp("dist")
    for package in PACKAGES:
        build(package, folder)
    return Built(folder)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Environment]:
    """Makes an environment with the wheels that it is given."""
    dependencies = tmp_path_factory.mktemp("dependencies")
    link_dependencies(dependencies)

    def make(*wheels: Path) -> Environment:
        return create(tmp_path_factory.mktemp("environment"), dependencies, wheels)

    return make


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
