"""The scripts behind make, where they must say what they cannot do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[1] / "setup"


def run(script: str, *arguments: str | Path, tools: Path) -> subprocess.CompletedProcess[str]:
    """Runs a script that finds only the tools in a folder."""
    command = [shutil.which("bash") or "bash", SETUP / script, *arguments]
    return subprocess.run(command, env={"PATH": str(tools)}, capture_output=True, text=True, check=False)


def test_without_apt_the_package_to_install_is_named(tmp_path: Path) -> None:
    child = run("apt-install", "mesa-vulkan-drivers", tools=tmp_path)
    assert child.returncode == 1
    assert "mesa-vulkan-drivers" in child.stderr
    assert "no apt-get" in child.stderr


def test_an_old_python_is_refused_and_another_asked_for(tmp_path: Path) -> None:
    for tool in ("dirname", "cat"):
        os.symlink(shutil.which(tool) or tool, tmp_path / tool)
    old = tmp_path / "python3"
    # What the check sees of a Python that is too old.
    old.write_text(
        f"#!{shutil.which('bash')}\n{{ echo 'import sys; sys.version_info = (3, 10)'; cat; }} | {sys.executable} -\n"
    )
    old.chmod(0o755)
    child = run("venv", old, tools=tmp_path)
    assert child.returncode == 1
    assert "needs Python 3.11 or newer" in child.stderr
    assert "make PYTHON=" in child.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(("version", "anew"), [("3.12.1", False), ("3.13.0", True)])
def test_another_python_makes_the_environment_anew(tmp_path: Path, version: str, anew: bool) -> None:
    for path, told in (("asked", version), (".venv/bin/python", "3.12.1")):
        python = tmp_path / path
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(f"#!/bin/sh\necho {told}\n")
        python.chmod(0o755)
    for path in ("core/pyproject.toml", "requirements-dev.txt", "setup/venv", ".venv/.ready"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    shutil.copy(SETUP.parent / "Makefile", tmp_path)
    command = ["make", "--dry-run", "PYTHON=./asked", "demo"]
    child = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ('setup/venv "./asked"' in child.stdout) == anew
