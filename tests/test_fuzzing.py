"""Random calls and files that lie, a short form of tests/fuzz.py: nothing but right results and errors of oplet's."""

from __future__ import annotations

import oplet
import pytest
from fuzzing.child import run
from fuzzing.files import kinds, read_files
from fuzzing.verdict import make_calls

with kinds() as known:
    KINDS = tuple(known)


@pytest.mark.parametrize("op", oplet.Registry().ids)
def test_random_calls(op: str) -> None:
    report = run(make_calls, timeout=300, op=op, count=150, seed=5, pipelines=10)
    assert report.findings == [], "\n\n".join(report.findings)
    # One whose calls are all refused, or all served, would find nothing.
    assert report.counts["right"] >= 5, report
    assert report.counts["refused"] >= 30, report


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_lie(kind: str) -> None:
    report = run(read_files, timeout=120, kind=kind, count=150, seed=5)
    assert report.findings == [], "\n\n".join(report.findings)
    assert report.counts["read"] >= 5, report
