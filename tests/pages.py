"""Pages of documentation as tests read them: their code blocks, and what is shown beside what was printed.

In what is shown, `…` stands for anything, and a line of only `…` for any lines.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import attrs
from environments import Environment

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PATH_BEFORE = re.compile(r"`([\w./-]+)`:\n+\Z")


@attrs.frozen
class Block:
    """A code block.

    Attributes:
        line: of the page, where it begins.
        language: what it says behind its fence.
        text: what is in it.
        path: of the file that it is, where the text before it ends with "`path`:".
    """

    line: int
    language: str
    text: str
    path: str


def blocks(page: Path) -> Iterator[Block]:
    """The code blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for block in _BLOCK.finditer(text):
        before = _PATH_BEFORE.search(text, 0, block.start())
        yield Block(text.count("\n", 0, block.start()) + 1, block[1], block[2], before[1] if before else "")


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a `console` block, and what is shown below each."""
    for command in re.split(r"(?m)^\$ ", block.text)[1:]:
        call, _, shown = command.partition("\n")
        yield call, shown


def shows(shown: str, printed: str) -> bool:
    """Whether what a page shows is what was printed; columns may be wider."""
    shown, printed = (re.sub(" +", " ", text.strip()) for text in (shown, printed))
    lines = (
        "(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n" for line in shown.split("\n")
    )
    return re.fullmatch("".join(lines), printed + "\n") is not None


def follow(page: Path, environment: Environment, folder: Path) -> int:
    """Does what a page says, as its reader would: in a shell, in an environment, in a folder.

    A block with a path becomes that file. A `python` block is a program of its own, and where a `text` block follows,
    that is what it has to print. In a `console` block each line after `$` is run, and has to print the lines below it,
    or else to succeed. `cd` changes the folder from there on. There are no other blocks.

    Returns:
        How many blocks there were.
    """
    printed: str | None = None
    count = 0
    for count, block in enumerate(blocks(page), 1):  # noqa: B007  # the last one is returned
        where = f"{page.name}:{block.line}"
        before, printed = printed, None
        if block.path:
            path = folder / block.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            printed = environment.run("python", "-c", block.text, cwd=folder)
        elif block.language == "console":
            for call, shown in commands(block):
                if call.startswith("cd "):
                    folder = folder / call.removeprefix("cd ")
                    continue
                output = environment.run(*shlex.split(call), cwd=folder, status=None if shown.strip() else 0)
                assert not shown.strip() or shows(shown, output), f"{where}: $ {call} printed instead\n{output}"
        elif block.language == "text" and before is not None:
            assert shows(block.text, before), f"{where}: printed instead\n{before}"
        else:
            raise AssertionError(f"{where}: nothing tells what to do with this {block.language} block")
    return count
