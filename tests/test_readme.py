"""Every README and page of the documentation does what it says: its code runs, and prints what the page shows.

In a page's order, in one namespace: a `python` block is run, and where a `text` block follows, that is what it has
to print. In a `console` block each line after `$ oplet` is run, and has to print the lines below it.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from oplet.cli import main
from pages import blocks, commands, shows

ROOT = Path(__file__).parents[1]
READMES = [
    *(ROOT / "README.md", ROOT / "core/README.md"),
    *sorted(ROOT.glob("plugins/*/README.md")),
    *sorted(ROOT.glob("plugins/*/src/**/README.md")),
]
#: what test_docs and test_examples follow, in environments of their own
FOLLOWED = {"authors-guide.md", "conformance.md"}
DOCS = [page for page in sorted(ROOT.glob("docs/*.md")) if page.name not in FOLLOWED]
PAGES = [*READMES, *(page for page in DOCS if any(block.language in ("python", "console") for block in blocks(page)))]


def run_page(page: Path) -> int:
    """Runs a page; returns how many blocks it has that were run."""
    namespace: dict[str, Any] = {"__name__": "__readme__"}
    printed: str | None = None
    count = 0
    for block in blocks(page):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.language == "text":
            assert printed is not None, f"{where}: no python block before it"
            assert shows(block.text, printed), f"{where}: printed instead\n{printed}"
        printed = None
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile("\n" * block.line + block.text, str(page), "exec"), namespace)  # the line as in the page
            printed = out.getvalue()
        elif block.language == "console":
            for call, shown in commands(block):
                name, *arguments = shlex.split(call)
                assert name == "oplet", where
                result = CliRunner().invoke(main, arguments)
                assert shows(shown, result.output), f"{where}: $ {call} printed instead\n{result.output}"
        count += block.language in ("python", "console")
    return count


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(page) > 0


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_no_block_of_the_documentation_goes_unrun(page: Path) -> None:
    for block in blocks(page):
        if block.language == "sh":
            # What these do is tested in environments of their own: test_demo, test_wheels.
            assert all(re.match(r"make demo$|pip install \./core", line) for line in block.text.splitlines())
        else:
            assert block.language in ("python", "console", "text")


def test_links_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in [*PAGES, *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("examples/*/README.md"))]
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []


class TestShows:
    """The comparison itself."""

    @pytest.mark.parametrize(
        ("shown", "printed"),
        [
            ("a b", "a b\n"),
            ("a … c", "a b c"),
            ("a\n…\nd", "a\nb\nc\nd"),
            ("a\n…", "a"),
            ("…\nb", "b"),
            ("a.c", "a.c"),
            ("a   b", "a b"),
        ],
    )
    def test_same(self, shown: str, printed: str) -> None:
        assert shows(shown, printed)

    @pytest.mark.parametrize(
        ("shown", "printed"), [("a", "b"), ("a", "a\nb"), ("a … c", "a\nc"), ("a.c", "abc"), ("a\n…\nd", "a\nb\nc")]
    )
    def test_different(self, shown: str, printed: str) -> None:
        assert not shows(shown, printed)
