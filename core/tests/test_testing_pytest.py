"""The layer between pytest and the kit: the four lines of a plugin's test file."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import oplet
import pytest
from oplet.testing.metadata import write

OP = "com.acme.Affine"
FOUR_LINES = f'''"""Conformance of {OP}."""

from oplet.testing import conformance

test_conformance = conformance("{OP}"{{}})
'''


def run(file: Path, *options: str) -> str:
    """pytest's output for a test file, in a process of its own."""
    # Where oplet is on the path and not installed, nothing has loaded the plugin.
    installed = any(entry.name == "oplet" for entry in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "oplet.testing.pytest_plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugin, "--strict-markers", "-v", *options, file],
        capture_output=True,
        text=True,
        cwd=file.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    return done.stdout + done.stderr


def test_four_lines_are_a_test_for_each_check_variant_and_device(install: Callable[..., Path], tmp_path: Path) -> None:
    install("acme_good")
    (offer,) = (one for one in oplet.Registry().offers if one.op == OP)
    write(oplet.Registry()[OP], offer)
    file = tmp_path / "test_conformance.py"
    file.write_text(FOUR_LINES.format(""))
    output = run(file)
    for check in ("infer", "errors", "metadata", "plans-floor", "runs-vec4-bare", "runs-scalar-best"):
        assert f"test_conformance[{check}] PASSED" in output
    assert "test_conformance[runs-matrix-bare] SKIPPED" in output
    assert "failed" not in output
    summary = output.partition("oplet: not run, and why")[2]
    assert f"{OP}: variant matrix: needs the device feature subgroup-matrix (43 cases) [" in summary


def test_a_fault_fails_where_it_is_with_the_seed_to_repeat_it(install: Callable[..., Path], tmp_path: Path) -> None:
    template = install("acme_bad") / "wgsl" / "affine.wgsl.jinja"
    text = template.read_text()
    assert text.count("* params.factor;") == 1
    template.write_text(text.replace("* params.factor;", "* params.factor + 0.25;"))
    file = tmp_path / "test_conformance.py"
    file.write_text(FOUR_LINES.format(', expected={"runs-scalar-bare": "off by a quarter", "infer": "it is right"}'))
    output = run(file, "--oplet-seed=7", "-k", "infer or cases or scalar-bare or vec4-bare", "-rx")
    assert "test_conformance[cases] PASSED" in output
    assert "test_conformance[runs-vec4-bare] FAILED" in output
    assert "test_conformance[runs-scalar-bare] XFAIL" in output
    assert "test_conformance[infer] FAILED" in output, "an expected failure that passes fails"
    assert f"{OP}: runs-vec4-bare on " in output
    assert "results: variant vec4, case 'cases.py 8': Y[" in output
    assert "the random cases again: --seed=7, with pytest --oplet-seed=7" in output


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (', expected={"runs-scaler-best": "typo"}', "expected names 'runs-scaler-best', which is no check"),
        ("", "no plugin offers 'com.acme.Affine'"),
    ],
)
def test_a_file_that_cannot_be_collected(install: Callable[..., Path], tmp_path: Path, line: str, message: str) -> None:
    if line:
        install("acme_typo")
    file = tmp_path / "test_conformance.py"
    file.write_text(FOUR_LINES.format(line))
    output = run(file)
    assert message in output
    assert "site-packages" not in output, "the message, and no frame of pytest's or pluggy's"
