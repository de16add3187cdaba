"""What tests across packages share: wheels of the repository, and environments to install them into."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from environments import PACKAGES, Built, Environment, build, create, link_dependencies


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
