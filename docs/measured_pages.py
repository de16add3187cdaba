"""A Sphinx extension that writes a page for each file of measured/, which `oplet bench --json` has written.

The page has the tables; beside it lies the report with its plots, as `oplet bench --html` makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oplet.bench import Report, page, table
from oplet.bench.compare import read_reports

FOLDER = Path(__file__).parent / "measured"


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("builder-inited", lambda _: write(FOLDER))
    app.connect("build-finished", lambda app, error: write_reports(FOLDER, Path(app.outdir) / FOLDER.name))
    return {"parallel_read_safe": True}


def write(folder: Path) -> None:
    """Writes a page beside each measurement, and one that lists them."""
    for old in folder.glob("*.md"):
        old.unlink()
    files = sorted(folder.glob("*.json"))
    for file in files:
        file.with_suffix(".md").write_text(text(file.stem, read_reports(file)), encoding="utf-8")
    (folder / "index.md").write_text(index([file.stem for file in files]), encoding="utf-8")


def index(names: Sequence[str]) -> str:
    """The page that lists the measurements."""
    found = "\n\n```{toctree}\n\n" + "\n".join(names) + "\n```\n" if names else " There is none yet.\n"
    intro = "Each is of one machine, by `oplet bench`, with the peers that ran beside it, if any did."
    return f"# Measurements\n\n{intro}{found}"


def write_reports(folder: Path, into: Path) -> None:
    """Writes the report of each measurement into a folder of the built pages."""
    into.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.json"):
        (into / f"{file.stem}-report.html").write_text(page.render(read_reports(file)), encoding="utf-8")


def text(name: str, reports: Sequence[Report]) -> str:
    """The page of a measurement."""
    parts = [
        f"# {reports[0].adapter}, {reports[0].implementation}, {reports[0].date.partition(' ')[0]}\n",
        f'<a href="{name}-report.html">The same with rooflines and bars</a>, as `oplet bench --html` makes it.\n',
    ]
    for report in reports:
        header = table.columns(report)
        lines = [header, ["---"] * len(header)]
        lines += [[*row, *[""] * (len(header) - len(row))] for row in table.rows(report)]
        parts += [
            f"## {report.op}\n",
            "\n".join(f"- {line}" for line in table.heading(report)),
            "\n".join("| " + " | ".join(line) + " |" for line in lines),
            "\n".join(f"- {note}" for note in table.notes(report)),
        ]
    versions = ", ".join(f"{one} {version}" for one, version in reports[0].versions.items())
    return "\n\n".join([*parts, f"Measured {reports[0].date} with {versions}.\n"])
