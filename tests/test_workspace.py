"""What several packages must agree on, and where their files may reach."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from environments import entries
from oplet import discovery
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core/src/oplet"
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))

#: the one module that may import a WebGPU implementation
WEBGPU_MODULE = CORE / "webgpu.py"

#: folders that tools make
MADE = re.compile(r"\.(?!github$)|__pycache__$|dist$|.*\.egg-info$")


def pyproject(package: Path) -> dict[str, Any]:
    return tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))


def own_files() -> Iterator[Path]:
    """The project's files: not what tools made beside them, nor a contributor."""
    if (ROOT / ".git").exists():
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        yield from (path for name in tracked.split("\0") if (path := ROOT / name).is_file())
        return
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if not MADE.match(name)]
        yield from (Path(folder, name) for name in files)


def name_of(package: Path) -> str:
    return package.name


def run_python(code: str) -> str:
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    return child.stdout


class TestPackages:
    def test_there_are_plugins(self) -> None:
        assert PLUGINS

    @pytest.mark.parametrize("package", PLUGINS, ids=name_of)
    def test_the_bound_on_oplet_admits_the_core_in_the_tree(self, package: Path) -> None:
        core = Version(pyproject(ROOT / "core")["project"]["version"])
        bounds = [Requirement(text) for text in pyproject(package)["project"]["dependencies"]]
        (bound,) = [one for one in bounds if one.name == "oplet"]
        assert core in bound.specifier
        # Before 1.0 a minor version may change the contract.
        assert Version(f"{core.major}.{core.minor + 1}.0") not in bound.specifier

    @pytest.mark.parametrize("package", PLUGINS, ids=name_of)
    def test_an_op_distribution_starts_at_the_contract_version(self, package: Path) -> None:
        assert Version(pyproject(package)["project"]["version"]).major >= 1

    @pytest.mark.parametrize("package", [ROOT / "core", *PLUGINS], ids=name_of)
    def test_the_changelog_has_the_version(self, package: Path) -> None:
        version = pyproject(package)["project"]["version"]
        assert re.search(rf"^## {re.escape(version)}\b", (package / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)

    @pytest.mark.parametrize("package", PLUGINS, ids=name_of)
    def test_a_plugin_is_installed_and_type_checked_by_the_commands(self, package: Path) -> None:
        lines = (ROOT / "requirements-dev.txt").read_text("utf-8").splitlines()
        assert f"-e ./plugins/{package.name}" in [line.partition("[")[0] for line in lines]
        assert f"plugins/{package.name}/src" in pyproject(ROOT)["tool"]["mypy"]["mypy_path"]


class TestImports:
    def test_importing_oplet_loads_nothing_that_only_some_calls_need(self) -> None:
        # Measured by core/benchmarks/import_time.py; a list of names cannot flicker.
        heavy = {"wgpu", "wgpudawn", "jinja2", "cattrs", "rich", "click", "packaging", "importlib.metadata"}
        heavy |= {"asyncio", "html", "onnx"}
        loaded = run_python(
            "import sys; import numpy; before = set(sys.modules); import oplet\nprint(*(set(sys.modules) - before))"
        )
        assert heavy & set(loaded.split()) == set()

    def test_listing_ops_loads_no_plugin_and_no_implementation(self) -> None:
        loaded = run_python(
            "import sys, oplet\n"
            "from click.testing import CliRunner\n"
            "from oplet.cli import main\n"
            "assert oplet.Registry().offers\n"
            "assert CliRunner().invoke(main, ['list']).exit_code == 0\n"
            "print(*sys.modules)"
        ).split()
        folders = [entry.split(".")[0] for package in PLUGINS for entry in entries(package).values()]
        assert folders
        assert {"wgpu", "wgpudawn", *folders} & set(loaded) == set()

    def test_only_one_module_imports_an_implementation(self) -> None:
        sources = [path for src in (CORE, *(one / "src" for one in PLUGINS)) for path in src.rglob("*.py")]
        found = {
            str(path.relative_to(ROOT)): names
            for path in sources
            if path != WEBGPU_MODULE
            and (names := [name for name in imported(path) if name.split(".")[0] in ("wgpu", "wgpudawn")])
        }
        assert found == {}

    def test_that_module_does_import_both(self) -> None:
        # Otherwise the test above could not find anything at all.
        found = {name.split(".")[0] for name in imported(WEBGPU_MODULE)}
        assert {"wgpu", "wgpudawn"} <= found

    @pytest.mark.parametrize("package", PLUGINS, ids=name_of)
    def test_no_plugin_imports_another(self, package: Path) -> None:
        others = {entry.split(".")[0] for other in PLUGINS if other != package for entry in entries(other).values()}
        names = [name.split(".")[0] for path in sorted((package / "src").rglob("*.py")) for name in imported(path)]
        assert others & set(names) == set()


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, also by a function call with its name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module
            case ast.Call(
                func=ast.Attribute(attr=function) | ast.Name(id=function), args=[ast.Constant(str(name)), *_]
            ):
                if function in ("import_module", "__import__"):
                    yield name


class TestFiles:
    #: hosts that the project's files may name
    HOSTS = frozenset({"www.apache.org", "github.com", "onnx.ai", "www.w3.org"})

    #: folders of the machine at hand: of the user, and what the checkout lies in; the root folder is everybody's
    PLACES = tuple(f"{one}/" for one in {ROOT.parent, Path.home()} if one.name)

    def test_no_file_names_a_place_that_a_user_does_not_have(self) -> None:
        found = []
        for path in own_files():
            text = path.read_text(encoding="utf-8", errors="replace")
            hosts = set(re.findall(r"https?://([\w.-]+)", text)) - self.HOSTS
            places = [place for place in self.PLACES if re.search(rf"(?<![\w.]){re.escape(place)}", text)]
            found += [f"{path.relative_to(ROOT)}: {word}" for word in [*hosts, *places]]
        assert found == []


def test_who_lacks_an_op_of_this_repository_is_told_its_package() -> None:
    for package in PLUGINS:
        project = pyproject(package)["project"]
        for op in project["entry-points"]["oplet.ops"]:
            assert discovery.advice_to_install(op) == f"pip install {project['name']}"
