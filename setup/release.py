"""Builds one package and checks it alone, for the release that a tag names. Uploads nothing.

usage: release.py oplet-fused-gemm-v1.1.0

The tag is the distribution's name and its version. They have to be those of a package's pyproject.toml; its
CHANGELOG.md has to have that version, and no longer as unreleased; what is built has to be committed. Then the wheel
and the source distribution are built into dist/, the wheel is installed into an empty environment, with oplet built
from this tree and all else from the package index, its files are compared with their digests, and every conformance
check of its ops is run.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def packages(root: Path) -> dict[str, Path]:
    """The folder of every package of the repository, by its distribution's name."""
    folders = [root / "core", *sorted(path.parent for path in root.glob("plugins/*/pyproject.toml"))]
    return {project(folder)["name"]: folder for folder in folders}


def project(folder: Path) -> dict[str, Any]:
    """The table [project] of a package."""
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def problems(root: Path, tag: str) -> Iterator[str]:
    """What keeps the commit that is checked out from being the release of that tag; every problem, not the first."""
    known = packages(root)
    name, _, version = tag.rpartition("-v")
    if name not in known or not version:
        yield f"{tag!r} is not NAME-vVERSION; the names are {', '.join(known)}"
        return
    folder = known[name]
    own = project(folder)["version"]
    if own != version:
        yield f"{folder.relative_to(root)}/pyproject.toml has version {own}, the tag {version}"
    changelog = (folder / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(rf"^## {re.escape(version)}(?!\S)(.*)$", changelog, re.MULTILINE)
    if heading is None:
        yield f"{folder.relative_to(root)}/CHANGELOG.md says nothing of {version}"
    elif heading[1].strip():
        yield f"{folder.relative_to(root)}/CHANGELOG.md has {version} as {heading[1].strip()}"
    if changed := git(root, "status", "--porcelain", "--", str(folder)):
        yield f"{folder.relative_to(root)} has changes that are not committed:\n{changed}"
    commits = [git(root, "rev-parse", f"{one}^0") for one in (*git(root, "tag", "--list", tag).split(), "HEAD")]
    if len(set(commits)) > 1:
        yield f"the tag {tag} is on another commit than the one that is checked out"


def git(root: Path, *arguments: str) -> str:
    """What a git command prints."""
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def step(*command: str | Path, cwd: Path = ROOT) -> None:
    """Runs a command and shows it; ends this program where it fails."""
    print("==", *command, file=sys.stderr, flush=True)
    if status := subprocess.run(command, check=False, cwd=cwd).returncode:
        sys.exit(f"release: {Path(command[0]).name} ended with status {status}; nothing has been published")


def build(folder: Path, into: Path, *targets: str) -> Path:
    """Builds a package; returns its wheel."""
    step(sys.executable, "-m", "hatchling", "build", "--directory", into, *targets, cwd=folder)
    about = project(folder)
    (wheel,) = into.glob(f"{about['name'].replace('-', '_')}-{about['version']}-*.whl")
    return wheel


def main(tag: str) -> None:
    """Checks, builds, installs, checks again."""
    if found := list(problems(ROOT, tag)):
        sys.exit("\n".join(["release: this is not that release", *found, "mend this, commit, and run it again"]))
    name = tag.rpartition("-v")[0]
    folder = packages(ROOT)[name]
    wheel = build(folder, ROOT / "dist")
    with tempfile.TemporaryDirectory() as scratch:
        wheels = [wheel] if name == "oplet" else [wheel, build(ROOT / "core", Path(scratch), "--target", "wheel")]
        venv.create(Path(scratch, "venv"), symlinks=True)
        bin_ = Path(scratch, "venv", "bin")
        step(sys.executable, "-m", "pip", "--python", bin_ / "python", "install", "--quiet", *wheels)
        step(bin_ / "oplet", "device")
        for op in project(folder).get("entry-points", {}).get("oplet.ops", {}):
            step(bin_ / "oplet", "verify", op)
            step(bin_ / "oplet", "check", op)
    print(f"dist/ has what {tag} is; next: git tag {tag} && git push origin {tag}, then upload dist/{wheel.name}")
    print("and the .tar.gz beside it")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(sys.argv[1])
