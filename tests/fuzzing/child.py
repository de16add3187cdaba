"""A task in a process of its own, which may hang, run out of memory or abort, and still be told by name."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

#: lines of a dead child's stderr that its finding shows
SHOWN = 12

#: tells what the task is about to do, so that it has a name if the process does not survive it
Now = Callable[[object], None]


@attrs.frozen
class Report:
    """What came of a task.

    Attributes:
        counts: how often each outcome was seen.
        findings: what is wrong.
        seconds: it took.
        peak: bytes of resident memory at most.
    """

    counts: dict[str, int]
    findings: list[str]
    seconds: float = 0.0
    peak: int = 0

    @classmethod
    def sum(cls, reports: Sequence[Report]) -> Report:
        """Of several tasks."""
        return cls(
            dict(sum((Counter(one.counts) for one in reports), Counter())),
            [finding for one in reports for finding in one.findings],
            sum(one.seconds for one in reports),
            max((one.peak for one in reports), default=0),
        )

    def __str__(self) -> str:
        counts = ", ".join(f"{self.counts[name]} {name}" for name in sorted(self.counts)) or "nothing"
        return f"{counts}; {len(self.findings)} findings; {self.seconds:.0f} s, {self.peak >> 20} MiB"


def run(task: Callable[..., Report], *, timeout: float, **arguments: Any) -> Report:
    """Runs a function of a module in a child process.

    Args:
        task: takes the arguments and `now`, a `Now`.
        timeout: seconds until it counts as hanging.
        arguments: as JSON has them.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        now, report = Path(folder, "now"), Path(folder, "report")
        command = [sys.executable, "-m", __name__, f"{task.__module__}:{task.__name__}", json.dumps(arguments), folder]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTHONFAULTHANDLER": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": folder,  # else it makes one in the tree
        }
        try:
            child = subprocess.run(
                command, env=environment, capture_output=True, text=True, errors="replace", timeout=timeout, check=False
            )
            end, told = _how_it_ended(child.returncode), child.stderr
        except subprocess.TimeoutExpired:
            end, told = f"did not end within {timeout:.0f} s", ""
        if report.exists():
            return Report(**json.loads(report.read_text("utf-8")))
        during = now.read_text("utf-8") if now.exists() else "its start"
        lines = "".join(f"\n  {line}" for line in told.splitlines()[-SHOWN:])
        return Report({}, [f"the process {end} during {during}{lines}"], time.monotonic() - began)


def _how_it_ended(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"exited with status {status}"


def limit_memory(more: int) -> None:
    """Lets this process allocate so many more bytes from now on, and not what a file or a shape may claim.

    On Linux only, which alone tells what there is already.
    """
    import resource

    if sys.platform != "linux":
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def told(fault: BaseException) -> str:
    """An exception in three lines: what, where, and with what."""
    notes = getattr(fault, "__notes__", [""])
    return f"{type(fault).__name__}: {fault}\n  at {place(fault)}\n  {notes[0]}"


def place(fault: BaseException) -> str:
    """Where it came from: the last line that is of this repository."""
    frames = traceback.extract_tb(fault.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename and frame.filename.startswith("/")]
    return f"{own[-1].filename}:{own[-1].lineno}"


def _main(task: str, arguments: str, folder: str) -> None:
    import resource

    module, _, name = task.partition(":")
    began = time.monotonic()
    with Path(folder, "now").open("w", encoding="utf-8", errors="backslashreplace") as file:

        def now(what: object) -> None:
            file.seek(0)
            file.truncate()
            file.write(str(what))
            file.flush()

        report: Report = getattr(importlib.import_module(module), name)(**json.loads(arguments), now=now)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    report = attrs.evolve(report, seconds=time.monotonic() - began, peak=peak)
    # Written whole or not at all: a process that dies while it cleans up has done its task.
    Path(folder, "report").write_text(json.dumps(attrs.asdict(report)), "utf-8", errors="backslashreplace")


if __name__ == "__main__":
    _main(*sys.argv[1:])
