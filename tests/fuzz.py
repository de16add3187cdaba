#!/usr/bin/env python
"""The long form of what the tests do briefly: random calls, every shader, files that lie.

    python tests/fuzz.py calls --requests 20000          every installed op; --op for one
    python tests/fuzz.py shaders                         on OPLET_WEBGPU's implementation; --pipelines takes longer
    python tests/fuzz.py files --count 2000

Each portion runs in a child process, and is a line of the file that --log names: run again with the same file, it goes
on where it was. The exit status is 1 where something was found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import click
import oplet
from fuzzing.child import Report, run
from fuzzing.files import kinds, read_files
from fuzzing.shaders import compile_shaders
from fuzzing.verdict import make_calls
from rich.console import Console
from rich.progress import Progress

#: calls of one child process
PORTION = 1000

Portion = dict[str, Any]

_log = click.option("--log", type=click.Path(dir_okay=False, path_type=Path), help="Where to add what came of each.")
_op = click.option("--op", "ops", multiple=True, help="Only this op, repeatable; default all that are installed.")


@click.group()
def main() -> None:
    """Random calls, every shader, files that lie: each in child processes."""


@main.command()
@_op
@click.option("--requests", default=20000, show_default=True, help="Calls of each op.")
@click.option("--seed", default=0, show_default=True, help="The first portion's; each has the next.")
@_log
def calls(ops: tuple[str, ...], requests: int, seed: int, log: Path | None) -> None:
    """Make random calls of every op."""
    portions = [
        {"op": op, "count": min(PORTION, requests - done), "seed": seed + done // PORTION}
        for op in ops or oplet.Registry().ids
        for done in range(0, requests, PORTION)
    ]
    _finish(make_calls, portions, log, timeout=1200)


@main.command()
@_op
@click.option("--pipelines", is_flag=True, help="Let the driver compile those that this device may run, too.")
@_log
def shaders(ops: tuple[str, ...], pipelines: bool, log: Path | None) -> None:
    """Compile every shader of every op."""
    portions = [{"op": op, "pipelines": pipelines} for op in ops or oplet.Registry().ids]
    _finish(compile_shaders, portions, log, timeout=3600)


@main.command()
@click.option("--kind", "names", multiple=True, help="Only files of this kind, repeatable; default all.")
@click.option("--count", default=2000, show_default=True, help="Files of each kind.")
@click.option("--seed", default=0, show_default=True, help="Of what is wrong with them.")
@_log
def files(names: tuple[str, ...], count: int, seed: int, log: Path | None) -> None:
    """Read files of every kind that lie."""
    with kinds() as known:
        portions = [{"kind": kind, "count": count, "seed": seed} for kind in names or known]
    _finish(read_files, portions, log, timeout=600)


def _finish(task: Callable[..., Report], portions: Sequence[Portion], log: Path | None, *, timeout: float) -> None:
    """Runs the portions that the log does not have, and exits with what all of them tell."""
    known = dict(_logged(log)) if log and log.exists() else {}
    reports: dict[str, list[Report]] = {}
    with Progress(console=Console(stderr=True)) as bar:
        progress = bar.add_task("", total=len(portions))
        for portion in portions:
            what = portion.get("op") or portion["kind"]
            bar.update(progress, description=what)
            report = known.get(_key(portion))
            if report is None:
                report = run(task, timeout=timeout, **portion)
                if log:
                    with log.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"portion": portion, "report": attrs.asdict(report)}) + "\n")
            reports.setdefault(what, []).append(report)
            for finding in report.findings:
                bar.console.print(f"{portion}\n{finding}", markup=False, highlight=False)
            bar.advance(progress)
    totals = {what: Report.sum(own) for what, own in reports.items()}
    for what, total in totals.items():
        click.echo(f"{what}: {total}")
    sys.exit(1 if any(total.findings for total in totals.values()) else 0)


def _logged(log: Path) -> Iterator[tuple[str, Report]]:
    for line in log.read_text("utf-8").splitlines():
        one = json.loads(line)
        yield _key(one["portion"]), Report(**one["report"])


def _key(portion: Portion) -> str:
    return json.dumps(portion, sort_keys=True)


if __name__ == "__main__":
    main()
