"""Wheels of every package: complete, and working in a virtual environment that has nothing else of this tree."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import PACKAGES, Built, Environment, entries

RUN_EVERY_OP = """
import sys
import oplet
from oplet.testing.guard import Seen
from oplet.testing.kit import Kit

registry = oplet.Registry()
for module in (oplet, *(sys.modules[registry[op].module] for op in registry.ids)):
    assert module.__file__.startswith(sys.prefix), module.__file__
for op in registry.ids:
    kit = Kit(op, seed=0)
    call = kit.calls[0]
    results = registry.run(op, attrs=call.case.attrs, outputs=call.request.outputs, **call.arrays)
    for name, tensor in zip(call.request.outputs, results if isinstance(results, tuple) else [results]):
        assert (mismatch := kit.compare(call, name, Seen.of(tensor.numpy()))) is None, (op, name, str(mismatch))
    print(op)
"""


def source_files(package: Path) -> set[str]:
    """What the package's source folder holds, as paths in a wheel."""
    src = package / "src"
    return {
        path.relative_to(src).as_posix()
        for path in src.rglob("*")
        if path.is_file() and not {"__pycache__", ".mypy_cache", ".ruff_cache"} & set(path.parts)
    }


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
class TestContents:
    def test_the_wheel_has_every_source_file_and_nothing_else(self, built: Built, package: Path) -> None:
        with zipfile.ZipFile(built.archive(package)) as wheel:
            names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert names == source_files(package)
        assert any(name.endswith("/py.typed") for name in names)

    def test_the_wheel_has_the_license(self, built: Built, package: Path) -> None:
        with zipfile.ZipFile(built.archive(package)) as wheel:
            assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())

    def test_the_source_distribution_can_be_built_again(self, built: Built, package: Path) -> None:
        with tarfile.open(built.archive(package, ".tar.gz")) as sdist:
            names = {name.partition("/")[2] for name in sdist.getnames()}
        assert {f"src/{name}" for name in source_files(package)} <= names
        assert {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"} <= names


@pytest.mark.parametrize("package", PACKAGES[1:], ids=lambda package: package.name)
def test_a_plugin_has_its_contract_and_its_templates(built: Built, package: Path) -> None:
    with zipfile.ZipFile(built.archive(package)) as wheel:
        names = wheel.namelist()
    folders = [entry.replace(".", "/") for entry in entries(package).values()]
    assert folders
    for folder in folders:
        for file in ("manifest.json", "metadata.json", "test.json", "bench.json"):
            assert f"{folder}/{file}" in names
        assert any(name.startswith(f"{folder}/wgsl/") and name.endswith(".wgsl.jinja") for name in names)


@pytest.fixture(scope="session")
def installed(built: Built, environment: Callable[..., Environment]) -> Environment:
    """An environment with every wheel."""
    return environment("wheels", *map(built.archive, PACKAGES))


def test_every_op_runs_on_the_device(installed: Environment) -> None:
    ops = installed.run("python", "-c", RUN_EVERY_OP).split()
    assert set(ops) >= {op for package in PACKAGES for op in entries(package)}


def test_the_command_is_there(installed: Environment) -> None:
    assert "com.microsoft.FusedGemm" in installed.run("oplet", "list")


def test_requirements_are_met(installed: Environment) -> None:
    """By pip's own judgement: among others each plugin's bound on oplet."""
    installed.run("pip", "check")
