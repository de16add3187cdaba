"""Virtual environments that have wheels of this tree and nothing else of it: packages as their users get them.

Wheels are built and installed without an index. An environment gets their dependencies, the build backend and
pytest from the one that runs the tests, by a folder of links to all that is installed there but this tree's packages.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[1]

#: every package of the repository, the core first
PACKAGES = [ROOT / "core", *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]


def entries(package: Path) -> dict[str, str]:
    """The ops that a package offers or extends, by id: the import name of each folder."""
    groups = tomllib.loads((package / "pyproject.toml").read_text("utf-8"))["project"].get("entry-points", {})
    return {**groups.get("oplet.ops", {}), **groups.get("oplet.extensions", {})}


@attrs.frozen
class Built:
    """A folder with the wheel and the source distribution of every package of the repository."""

    folder: Path

    def archive(self, package: Path, ending: str = ".whl") -> Path:
        """The wheel of a package, or its source distribution."""
        name = tomllib.loads((package / "pyproject.toml").read_text("utf-8"))["project"]["name"].replace("-", "_")
        (found,) = self.folder.glob(f"{name}-[0-9]*{ending}")
        return found


@attrs.frozen
class Environment:
    """A virtual environment.

    Attributes:
        folder: where it is.
        dependencies: a folder that `link_dependencies` has filled.
        wheels: what was installed at its beginning.
    """

    folder: Path
    dependencies: Path
    wheels: tuple[Path, ...]

    def make(self) -> None:
        """Makes it, and installs the wheels."""
        venv.create(self.folder, with_pip=False, symlinks=True)
        site = Path(self.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        (site / "dependencies.pth").write_text(f"{self.dependencies}\n")
        self.run("pip", "install", "--quiet", *self.wheels)

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin/python"

    def run(self, *command: str | Path, cwd: Path | None = None, status: int | None = 0) -> str:
        """Runs a program in it, `python`, `pip` and `pytest` among them, and returns what it prints.

        An environment that `python -m venv` makes begins as this one did: nothing can be downloaded into it.

        Args:
            command: the program and its arguments.
            cwd: where to.
            status: the exit status to expect; None for any.
        """
        if command[:3] == ("python", "-m", "venv"):
            Environment(((cwd or self.folder) / command[3]).resolve(), self.dependencies, self.wheels).make()
            return ""
        program, *arguments = command
        path = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])
        interpreter: Sequence[str | Path] = {
            "python": [self.python],
            "pip": [sys.executable, "-m", "pip", "--python", self.python],
            "pytest": [self.python, "-m", "pytest", "-p", "no:cacheprovider"],
        }.get(str(program), [shutil.which(program, path=path) or program])
        child = subprocess.run(
            [*interpreter, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            cwd=cwd or self.folder,
            env={
                **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
                "PIP_NO_INDEX": "1",
                "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as the value of build_isolation
                "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                "COLUMNS": "120",
                "PATH": path,
            },
        )
        assert status in (None, child.returncode), f"{' '.join(map(str, command))}: {child.returncode}\n{child.stdout}"
        return child.stdout


def build(package: Path, folder: Path) -> None:
    """Builds the wheel and the source distribution of a package."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=package, check=True, capture_output=True
    )


def link_dependencies(folder: Path) -> None:
    """Links all that is installed where the tests run, but for the packages of this tree."""
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("oplet", "__pycache__")) and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)


def once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Makes a folder and fills it, unless another process has; waits where another one is at it."""
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = Path(f"{folder}.done")
        if not done.exists():
            # What one that failed has left would be in the way.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
