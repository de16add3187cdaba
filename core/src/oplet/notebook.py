"""HTML for notebooks: the plain tables behind every `_repr_html_`."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def table(title: str, rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    """A table whose cells are text, with a title above it. Colours and fonts are left to the notebook's theme."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align: left">{html.escape(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return (
        f'<table><caption style="text-align: left"><b>{html.escape(title)}</b></caption>'
        f"{f'<thead><tr>{head}</tr></thead>' if header else ''}<tbody>{body}</tbody></table>"
    )
