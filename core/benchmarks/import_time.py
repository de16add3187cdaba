"""Measures what `import oplet` costs beyond `import numpy`: the smallest of several processes, in milliseconds."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import time
import numpy
start = time.perf_counter()
import oplet
print(time.perf_counter() - start)
"""


def measure(processes: int = 10) -> float:
    """Seconds of the fastest of several fresh processes; the first ones also warm the disk cache."""
    command = [sys.executable, "-c", CODE]
    return min(float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(processes))


if __name__ == "__main__":
    print(f"import oplet: {measure() * 1e3:.0f} ms beyond import numpy")
