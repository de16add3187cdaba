"""Wheels of every package: complete, and working in a virtual environment that has nothing else of this tree.

They are built and installed without an index. The environment gets their dependencies from the one that runs
the tests, through a .pth file: that puts its site-packages on the path, but does not follow the .pth files in
there by which the packages of this tree are installed editable.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = [ROOT / "core", *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]

RUN_EVERY_OP = """
import sys
import oplet
from oplet.testing.kit import Kit

registry = oplet.Registry()
for module in (oplet, *(sys.modules[registry[op].module] for op in registry.ids)):
    assert module.__file__.startswith(sys.prefix), module.__file__
for op in registry.ids:
    kit = Kit(op, seed=0)
    call = kit.calls[0]
    results = registry.run(op, attrs=call.case.attrs, outputs=call.request.outputs, **call.arrays)
    for name, tensor in zip(call.request.outputs, results if isinstance(results, tuple) else [results]):
        assert (mismatch := kit.compare(call, name, tensor.numpy())) is None, (op, name, str(mismatch))
    print(op)
"""


def call(*command: str | Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    child = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert child.returncode == 0, f"{child.stdout}\n{child.stderr}"
    return child.stdout


def source_files(package: Path) -> set[str]:
    """What the package's source folder holds, as paths in a wheel."""
    src = package / "src"
    return {
        path.relative_to(src).as_posix()
        for path in src.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution of every package."""
    folder = tmp_path_factory.mktemp("dist")
    for package in PACKAGES:
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-d", str(folder)],
            cwd=package,
            check=True,
            capture_output=True,
        )
    return folder


def archive(built: Path, package: Path, ending: str) -> Path:
    import tomllib

    name = tomllib.loads((package / "pyproject.toml").read_text("utf-8"))["project"]["name"].replace("-", "_")
    (found,) = built.glob(f"{name}-[0-9]*{ending}")
    return found


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
class TestContents:
    def test_the_wheel_has_every_source_file_and_nothing_else(self, built: Path, package: Path) -> None:
        with zipfile.ZipFile(archive(built, package, ".whl")) as wheel:
            names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert names == source_files(package)
        assert any(name.endswith("/py.typed") for name in names)

    def test_the_wheel_has_the_license(self, built: Path, package: Path) -> None:
        with zipfile.ZipFile(archive(built, package, ".whl")) as wheel:
            assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())

    def test_the_source_distribution_can_be_built_again(self, built: Path, package: Path) -> None:
        with tarfile.open(archive(built, package, ".tar.gz")) as sdist:
            names = {name.partition("/")[2] for name in sdist.getnames()}
        assert {f"src/{name}" for name in source_files(package)} <= names
        assert {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"} <= names

    def test_a_plugin_has_its_contract_and_its_templates(self, built: Path, package: Path) -> None:
        if package.name == "core":
            return
        with zipfile.ZipFile(archive(built, package, ".whl")) as wheel:
            names = wheel.namelist()
        for file in ("manifest.json", "metadata.json", "test.json", "bench.json"):
            assert any(name.endswith(f"/{file}") for name in names), file
        assert any(name.endswith(".wgsl.jinja") for name in names)


@pytest.fixture(scope="session")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which the wheels are installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin/python"
    call(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        *sorted(built.glob("*.whl")),
    )
    site = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_every_op_runs_on_the_device(installed: Path) -> None:
    ops = call(installed, "-c", RUN_EVERY_OP).split()
    assert len(ops) >= len(PACKAGES) - 1


def test_the_command_is_there(installed: Path) -> None:
    assert "com.microsoft.FusedGemm" in call(installed.with_name("oplet"), "list")


def test_requirements_are_met(installed: Path) -> None:
    """By pip's own judgement: among others each plugin's bound on oplet."""
    call(sys.executable, "-m", "pip", "--python", installed, "check")
