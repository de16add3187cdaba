"""examples/digits.py, which `make demo` runs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

DIGITS = Path(__file__).parents[1] / "examples/digits.py"


@pytest.fixture
def digits() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits", DIGITS)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_runs_says_which_variants_ran_and_recognises_digits() -> None:
    child = subprocess.run([sys.executable, DIGITS], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    lines = child.stdout.splitlines()
    assert sum(line.endswith(" runs") for line in lines) == 2
    assert sum("agrees with numpy" in line for line in lines) == 2
    right, _, total = lines[-1].split()[:3]
    assert int(right) > 0.9 * int(total)


@pytest.mark.parametrize("wrong", [1e-4, np.nan])
def test_its_check_notices_a_wrong_result(digits: ModuleType, wrong: float) -> None:
    a, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    digits.check("right", a @ b, a, b, 0.0, relu=False)
    result = a @ b
    result[1, 2] += np.float32(wrong)
    with pytest.raises(SystemExit, match="differs from numpy"):
        digits.check("wrong", result, a, b, 0.0, relu=False)
