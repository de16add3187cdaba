"""The documentation is true: the guide does what it says, and the page of checks lists those that there are."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import oplet
import pluggy
import pytest
from environments import ROOT, Built, Environment
from oplet import hookspecs
from oplet.testing import checks
from pages import follow

HOOKS = [name for name, value in vars(hookspecs).items() if hasattr(value, "oplet_spec")]


def test_the_authors_guide(built: Built, environment: Callable[..., Environment], tmp_path: Path) -> None:
    """By someone who has nothing but the wheel of oplet."""
    guide = environment("guide", built.archive(ROOT / "core"))
    assert follow(ROOT / "docs/authors-guide.md", guide, tmp_path) > 25


class TestHooks:
    """`oplet.hookspecs` is the source; the guide shows each hook once more."""

    def test_there_are_six(self) -> None:
        assert len(HOOKS) == 6

    @pytest.mark.parametrize("hook", HOOKS)
    def test_the_guide_has_it_with_its_arguments(self, hook: str) -> None:
        arguments = ", ".join(inspect.signature(getattr(hookspecs, hook)).parameters)
        text = (ROOT / "docs/authors-guide.md").read_text(encoding="utf-8")
        (shown,) = set(re.findall(rf"^@oplet\.hookimpl\ndef {hook}\((.*)\)", text, re.MULTILINE))
        assert re.sub(r": [\w.]+(\[.*?\])?", "", shown) == arguments

    @pytest.mark.parametrize("hook", HOOKS)
    def test_the_example_in_its_docstring_is_an_implementation_that_fits(self, hook: str) -> None:
        example = textwrap.dedent(getattr(hookspecs, hook).__doc__.partition("Example:\n")[2])
        module = ModuleType("example")
        exec(example, vars(module) | vars(hookspecs) | {"oplet": oplet}, vars(module))
        manager = pluggy.PluginManager("oplet")
        manager.add_hookspecs(hookspecs)
        manager.register(module)
        assert [one.name for one in manager.get_hookcallers(module) or ()] == [hook]


class TestChecks:
    PAGE = (ROOT / "docs/conformance.md").read_text(encoding="utf-8")

    def rows(self) -> list[tuple[str, str]]:
        """Name and text of each row of the page's table."""
        return re.findall(r"^\| (?:· )?`([a-z]+)` \| (.+) \|$", self.PAGE.partition("## The checks")[2], re.MULTILINE)

    def told(self) -> Iterator[tuple[str, str]]:
        """The same from the docstring of the checks."""
        assert checks.__doc__
        entries = re.split(r"\n {4,6}(?=[a-z]+ {2,})", checks.__doc__.partition("protects from:")[2])
        for entry in entries[1:]:
            name, text = entry.split(maxsplit=1)
            yield name, " ".join(text.split())

    def test_the_page_says_what_the_docstring_says(self) -> None:
        assert self.rows() == list(self.told())

    def test_every_name_that_a_finding_can_have_is_there(self) -> None:
        source = Path(checks.__file__).read_text(encoding="utf-8")
        used = set(re.findall(r'(?:[Ff]inding|partial\(Finding,|Check)[( ]+f?"([a-z]+)["-]', source))
        assert used >= {"metadata", "errors", "guards", "unwritten", "accepts", "runs"}, "the search finds them"
        assert used <= {name for name, _ in self.rows()}

    def test_the_options_are_those_of_pytest(self) -> None:
        from oplet.testing import pytest_plugin

        source = Path(pytest_plugin.__file__).read_text(encoding="utf-8")
        assert set(re.findall(r'"(--oplet-[a-z]+)"', source)) == set(re.findall(r"`(--oplet-[a-z]+)", self.PAGE))
