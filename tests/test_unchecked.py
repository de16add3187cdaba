"""Shaders compiled without bounds checks: integers on the device, which nobody has checked, lead nowhere even then."""

from __future__ import annotations

import subprocess
import sys

import oplet
import pytest
from oplet.testing.indices import takes_integers

#: in a process of its own, which a wild access may end
CHILD = """
import sys
from oplet.testing.indices import indices
from oplet.testing.kit import Devices, Finding, Kit

kit = Kit(sys.argv[1], devices=Devices(unchecked=True))
ran = 0
for variant in kit.variants:
    print(f"{variant.name}, seed {kit.seed}", file=sys.stderr, flush=True)
    found = list(indices(kit, variant=variant.name, setup="best", calls=1))
    ran += all(isinstance(one, Finding) for one in found)
    for finding in found:
        if isinstance(finding, Finding):
            print(finding, flush=True)
print(ran, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "op", [op for op in oplet.default_registry().ids if takes_integers(oplet.default_registry()[op].manifest)]
)
def test_any_words_in_integer_inputs(op: str) -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, op], capture_output=True, text=True, timeout=300, check=False)
    *variants, ran = done.stderr.splitlines() or [""]
    assert (done.returncode, done.stdout) == (0, ""), f"{op} at {variants[-1:]}, {ran}"
    assert int(ran) > 0, f"no variant ran, of {variants}"
