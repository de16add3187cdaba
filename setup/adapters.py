"""Prints the adapters that oplet can use, one a line; exits 3 where there is none.

usage: adapters.py wgpu|dawn
"""

from __future__ import annotations

import sys

from oplet.errors import DeviceError
from oplet.opening import adapters

try:
    found = adapters(sys.argv[1])  # type: ignore[arg-type]  # it names the two that it takes
except DeviceError as error:
    print(error, file=sys.stderr)
    found = []
for adapter, features in found:
    print(f"{adapter.name}, {adapter.backend}: {', '.join(sorted(features)) or 'no optional features'}")
sys.exit(0 if found else 3)
