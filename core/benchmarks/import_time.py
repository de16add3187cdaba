"""Measures what `import oplet` costs beyond `import numpy`: the smallest of several processes, in milliseconds.

    python core/benchmarks/import_time.py [--processes 10]

The first processes also warm the disk cache.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

CODE = """
import time
import numpy
start = time.perf_counter()
import oplet
print(time.perf_counter() - start)
"""


def measure(processes: int) -> float:
    """Seconds of the fastest of several fresh processes."""
    command = [sys.executable, "-c", CODE]
    return min(float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(processes))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=10)
    processes = parser.parse_args().processes
    print(f"import oplet: {measure(processes) * 1e3:.0f} ms beyond import numpy")


if __name__ == "__main__":
    main()
