"""core/benchmarks: each program runs and prints what it measured. No test here judges a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from environments import ROOT

PROGRAMS = sorted((ROOT / "core/benchmarks").glob("*.py"))

#: arguments with which a program takes the least time, and what its last line begins with
SHORT = {
    "host_path": (["--runs", "1"], "1 runs: "),
    "import_time": (["--processes", "1"], "import oplet: "),
    "start_up": (["--processes", "1"], "in all "),
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_it_runs(program: Path) -> None:
    arguments, last = SHORT[program.stem]
    child = subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines()[-1].startswith(last)
