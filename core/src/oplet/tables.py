"""Tables of text cells: lined up for a terminal, and as HTML for notebooks, behind every `_repr_html_`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def text(rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> str:
    """Rows with their columns lined up.

    Args:
        rows: of equal lengths, a header among them where there is one.
        right: numbers of the columns that are lined up at their right, as figures are.
    """
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "   ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def html(title: str, rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    """A table with a title above it. Colours and fonts are left to the notebook's theme."""
    from html import escape

    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align: left">{escape(cell)}</td>' for cell in row) + "</tr>" for row in rows
    )
    return (
        f'<table><caption style="text-align: left"><b>{escape(title)}</b></caption>'
        f"{f'<thead><tr>{head}</tr></thead>' if header else ''}<tbody>{body}</tbody></table>"
    )
