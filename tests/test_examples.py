"""The examples of third parties, as their users get them: wheels, in an environment without this repository."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import ROOT, Built, Environment
from pages import follow

EXAMPLES = sorted(path.parent for path in ROOT.glob("examples/*/pyproject.toml"))


@pytest.fixture(scope="module")
def installed(built: Built, environment: Callable[..., Environment]) -> Environment:
    """An environment that has oplet and the op that one of them extends."""
    return environment("examples", built.archive(ROOT / "core"), built.archive(ROOT / "plugins/fused_gemm"))


@pytest.fixture(scope="module", autouse=True)
def folder(installed: Environment, shared: Callable[..., Path]) -> Path:
    """Copies of the examples, with which what their READMEs say has been done."""

    def make(folder: Path) -> None:
        for example in EXAMPLES:
            # Copies, since pip writes beside what it builds.
            shutil.copytree(example, folder / example.name, ignore=shutil.ignore_patterns("__pycache__"))
            assert follow(folder / example.name / "README.md", installed, folder) > 1

    return shared("thirds", make)


def test_there_are_an_op_and_an_extension() -> None:
    groups = {(example / "pyproject.toml").read_text("utf-8").count("oplet.extensions") for example in EXAMPLES}
    assert groups == {0, 1}


def test_they_are_listed_beside_the_op_that_one_extends(installed: Environment) -> None:
    rows = [line.split(None, 2) for line in installed.run("oplet", "list").splitlines()]
    assert rows == [
        ["op", "distribution", "version"],
        ["com.acme.Swiglu", "oplet-acme-swiglu", "1.0.0"],
        ["com.microsoft.FusedGemm", "oplet-fused-gemm-acme", "1.0.0 (adds variants)"],
        ["com.microsoft.FusedGemm", "oplet-fused-gemm", "1.0.0"],
    ]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_they_pass_their_own_tests(installed: Environment, folder: Path, example: Path) -> None:
    report = installed.run("pytest", example.name, cwd=folder).splitlines()[-1]
    assert " passed" in report
    assert "failed" not in report


def test_they_are_installed_as_they_were_made(installed: Environment) -> None:
    assert "differs" not in installed.run("oplet", "verify", "com.acme.Swiglu")
    whole = installed.run("oplet", "verify", status=None)
    assert "as made  com.microsoft.FusedGemm: oplet-fused-gemm-acme 1.0.0" in whole


def test_an_extension_is_tried_first_and_says_why_it_does_not_serve(installed: Environment) -> None:
    outer = ("oplet", "explain", "com.microsoft.FusedGemm", "--A", "6x1:f32", "--B", "1x8:f32")
    assert "acme_outer                runs" in installed.run(*outer)
    assert "acme_outer                rejects: it has no activation, Relu or any other" in installed.run(
        *outer, "--attr", "activation=Relu"
    )


def test_the_page_on_the_kit(installed: Environment, tmp_path: Path) -> None:
    assert follow(ROOT / "docs/conformance.md", installed, tmp_path) > 1
