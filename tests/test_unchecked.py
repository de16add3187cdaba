"""Shaders compiled without bounds checks: integers on the device, which nobody has checked, lead nowhere even then."""

from __future__ import annotations

import subprocess
import sys

import oplet
import pytest

#: in a process of its own, which a wild access may end
CHILD = """
import sys
from oplet.testing.indices import indices
from oplet.testing.kit import Devices, Kit

kit = Kit(sys.argv[1], devices=Devices(unchecked=True))
for variant in kit.variants:
    print(f"{variant.name}, seed {kit.seed}", file=sys.stderr, flush=True)
    for finding in indices(kit, variant=variant.name, setup="best", calls=1):
        print(finding, flush=True)
"""


def takes_integers(op: str) -> bool:
    manifest = oplet.default_registry()[op].manifest
    return any("int" in dtype for port in manifest.inputs for dtype in manifest.dtypes(port))


@pytest.mark.parametrize("op", [op for op in oplet.default_registry().ids if takes_integers(op)])
def test_any_words_in_integer_inputs(op: str) -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, op], capture_output=True, text=True, timeout=300, check=False)
    variants = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (0, ""), f"{op} at {variants[-1:]}"
