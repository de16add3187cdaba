"""What `oplet new` makes, where it can be installed. That its tests pass is what the author's guide begins with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import ROOT, Built, Environment
from pages import blocks

OP, DIST = "com.acme.RMSNorm", "oplet-acme-rms-norm"


@pytest.fixture(scope="module")
def installed(
    built: Built, environment: Callable[..., Environment], shared: Callable[..., Path]
) -> tuple[Environment, Path]:
    """An environment in which a scaffold is installed, and its folder."""
    made = environment("scaffold", built.archive(ROOT / "core"))

    def install(folder: Path) -> None:
        made.run("oplet", "new", OP, cwd=folder)
        made.run("pip", "install", "--editable", f"./{DIST}", cwd=folder)

    return made, shared("new", install) / DIST


def test_it_runs_as_its_readme_says(installed: tuple[Environment, Path]) -> None:
    made, folder = installed
    (code,) = [block.text for block in blocks(folder / "README.md") if block.language == "python"]
    assert made.run("python", "-c", code) == "[[ 0.   0.5  2. ]\n [ 4.5  8.  12.5]]\n"


def test_its_metadata_is_what_the_command_would_write(installed: tuple[Environment, Path]) -> None:
    made, folder = installed
    written = json.loads((folder / "src/oplet_acme_rms_norm/metadata.json").read_text())
    assert json.loads(made.run("oplet", "metadata", OP)) == written


@pytest.mark.parametrize("options", [("check",), ("format", "--check")], ids=" ".join)
def test_it_keeps_this_repositorys_style(installed: tuple[Environment, Path], options: tuple[str, ...]) -> None:
    _, folder = installed
    command = [sys.executable, "-m", "ruff", *options, "--no-cache", "--config", str(ROOT / "pyproject.toml"), folder]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stdout
