"""Every shader of every op compiles, on OPLET_WEBGPU's implementation; tests/fuzz.py takes more kinds of devices."""

from __future__ import annotations

import oplet
import pytest
from fuzzing.child import run
from fuzzing.shaders import compile_shaders


@pytest.mark.parametrize("op", oplet.Registry().ids)
def test_every_shader_compiles(op: str) -> None:
    # In a child process, which a compiler may end.
    report = run(compile_shaders, timeout=600, op=op, few=True)
    assert report.findings == [], "\n\n".join(report.findings)
    assert report.counts["shaders"] >= 5, report
