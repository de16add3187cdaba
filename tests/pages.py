"""Pages of documentation as tests read them: their code blocks, and what is shown beside what was printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> Iterator[tuple[int, str, str]]:
    """Line, language and text of each block of a page."""
    text = page.read_text(encoding="utf-8")
    for block in _BLOCK.finditer(text):
        yield text.count("\n", 0, block.start()) + 1, block[1], block[2]


def shows(shown: str, printed: str) -> bool:
    """Whether what a page shows is what was printed; columns may be wider."""
    shown, printed = (re.sub(" +", " ", text.strip()) for text in (shown, printed))
    lines = (
        "(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n" for line in shown.split("\n")
    )
    return re.fullmatch("".join(lines), printed + "\n") is not None
