"""Two small ops that tests break in many ways, a device for all tests, and a way to run code in a child process."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import oplet
import pytest

ACME = Path(__file__).parent / "acme"

# Its module can be imported, and yet no distribution offers it until `install` makes one.
sys.path.append(str(ACME))


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Puts a distribution of com.acme.Affine on sys.path: real discovery, no pip."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(site)
    installed: list[str] = []

    def make(package: str, version: str = "1.2.0") -> Path:
        """Installs the op folder under an import name. Returns the folder."""
        shutil.copytree(ACME / "acme_affine", site / package, ignore=shutil.ignore_patterns("__pycache__"))
        info = site / f"oplet_{package}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: oplet-{package.replace('_', '-')}\nVersion: {version}\n"
            "License-Expression: Apache-2.0\nRequires-Dist: oplet\n"
        )
        (info / "entry_points.txt").write_text(f"[oplet.ops]\ncom.acme.Affine = {package}\n")
        installed.append(package)
        return site / package

    yield make
    for name in [name for name in sys.modules if name.partition(".")[0] in installed]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def device() -> oplet.Device:
    """The device that tests share: opened as users open one, so on the implementation of OPLET_WEBGPU."""
    return oplet.open_device()


@pytest.fixture
def registry(device: oplet.Device) -> oplet.Registry:
    """A registry of com.acme.Scale."""
    import acme_scale

    registry = oplet.Registry(device=device, discover=False)
    registry.register(acme_scale.ID, acme_scale)
    return registry


@pytest.fixture
def child() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python code in a process of its own: for what ends one, and for drivers that are looked up once in one."""

    def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(ACME), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run
