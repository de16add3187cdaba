"""com.acme.Affine, a small op that tests break in many ways."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

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
