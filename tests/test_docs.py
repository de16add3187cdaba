"""The guide does what it says, to someone who has nothing but the wheel of oplet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from environments import ROOT, Built, Environment
from pages import follow


def test_the_authors_guide(built: Built, environment: Callable[..., Environment], tmp_path: Path) -> None:
    assert follow(ROOT / "docs/authors-guide.md", environment(built.archive(ROOT / "core")), tmp_path) > 30
