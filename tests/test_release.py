"""What setup/release.py refuses to call a release. What it builds and installs is what the tests of wheels do."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from environments import ROOT

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git, which a release is made with")

TAG = "oplet-foo-v1.1.0"


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "setup/release.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def git(tree: Path, *arguments: str) -> None:
    author = {f"GIT_{who}_{what}": "test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", *arguments], cwd=tree, check=True, capture_output=True, env={**os.environ, **author})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository of two packages whose commit is the release 1.1.0 of one of them."""
    for folder, name in (("core", "oplet"), ("plugins/foo", "oplet-foo")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "pyproject.toml").write_text(f'[project]\nname = "{name}"\nversion = "1.1.0"\n')
        (tmp_path / folder / "CHANGELOG.md").write_text("# Changelog\n\n## 1.1.0\n\n- more\n\n## 1.0.0\n\n- all\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    return tmp_path


def commit(tree: Path, file: str, text: str) -> None:
    (tree / "plugins/foo" / file).write_text(text)
    git(tree, "commit", "--all", "--quiet", "--message", file)


def test_a_release(release: ModuleType, tree: Path) -> None:
    assert list(release.problems(tree, TAG)) == []
    git(tree, "tag", TAG)
    assert list(release.problems(tree, TAG)) == [], "with the tag there or not"


@pytest.mark.parametrize("tag", ["oplet-foo", "1.1.0", "v1.1.0", "oplet-foo-v", "oplet-bar-v1.1.0", ""])
def test_a_tag_that_is_none(release: ModuleType, tree: Path, tag: str) -> None:
    assert list(release.problems(tree, tag)) == [f"{tag!r} is not NAME-vVERSION; the names are oplet, oplet-foo"]


def test_every_problem_is_told(release: ModuleType, tree: Path) -> None:
    git(tree, "tag", TAG)
    commit(tree, "pyproject.toml", '[project]\nname = "oplet-foo"\nversion = "1.2.0"\n')
    (tree / "plugins/foo/CHANGELOG.md").write_text("## 1.1.0 (unreleased)\n")
    assert list(release.problems(tree, TAG)) == [
        "plugins/foo/pyproject.toml has version 1.2.0, the tag 1.1.0",
        "plugins/foo/CHANGELOG.md has 1.1.0 as (unreleased)",
        "plugins/foo has changes that are not committed:\nM plugins/foo/CHANGELOG.md",
        f"the tag {TAG} is on another commit than the one that is checked out",
    ]


def test_a_version_that_the_changelog_does_not_have(release: ModuleType, tree: Path) -> None:
    commit(tree, "CHANGELOG.md", "## 1.1.0.dev1\n\n## 1.0.0\n")
    (problem,) = release.problems(tree, TAG)
    assert problem == "plugins/foo/CHANGELOG.md says nothing of 1.1.0"


def test_another_packages_changes_do_not_matter(release: ModuleType, tree: Path) -> None:
    (tree / "core/CHANGELOG.md").write_text("")
    assert list(release.problems(tree, TAG)) == []
    assert any("core has changes" in problem for problem in release.problems(tree, "oplet-v1.1.0"))


def test_the_packages_of_this_repository(release: ModuleType) -> None:
    found = release.packages(ROOT)
    assert found["oplet"] == ROOT / "core"
    assert found["oplet-fused-gemm"] == ROOT / "plugins/fused_gemm"
