"""What a program waits for until its first result: `import oplet`, a device, and one FusedGemm of 64³.

    python core/benchmarks/start_up.py [--processes 5]

Every process is a fresh one. Milliseconds of each step: in a process whose driver has an empty shader cache (Mesa's and
NVIDIA's can be told where it is), and in the fastest of several that find there what that one left.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

CODE = """
import json, time

begin = time.perf_counter()
steps = {}

def step(name):
    global begin
    now = time.perf_counter()
    steps[name] = now - begin
    begin = now

import numpy as np
step("import numpy")
import oplet
step("import oplet")
registry = oplet.Registry()
registry["com.microsoft.FusedGemm"]
step("import the plugin")
import oplet.webgpu
oplet.webgpu.api(oplet.opening.chosen_implementation())
step("import wgpu or wgpudawn")
oplet.opening.adapters()
step("find adapters")
device = registry.device
step("open the device")
x = registry.tensor(np.ones((64, 64), np.float32))
step("upload")
registry.prewarm("com.microsoft.FusedGemm", A=x, B=x)
step("plan and compile")
y = registry.run("com.microsoft.FusedGemm", A=x, B=x)
step("run")
assert (y.numpy() == 64).all()
step("read")
print(json.dumps({"steps": steps, "device": repr(device)}))
"""


def start(cache: str) -> dict[str, Any]:
    """Steps, in seconds, and device of one process, with the drivers' shader caches in a folder."""
    environment = {**os.environ, "MESA_SHADER_CACHE_DIR": cache, "__GL_SHADER_DISK_CACHE_PATH": cache}
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=5, help="with a full cache")
    processes = parser.parse_args().processes
    with tempfile.TemporaryDirectory() as cache:
        first = start(cache)
        others = [start(cache)["steps"] for _ in range(processes)]
    fastest = min(others, key=lambda steps: sum(steps.values()))
    print(f"{first['device']}\n{'':26} empty cache   full cache")
    for name, seconds in first["steps"].items():
        print(f"{name:26} {seconds * 1e3:8.1f} ms {fastest[name] * 1e3:9.1f} ms")
    print(f"{'in all':26} {sum(first['steps'].values()) * 1e3:8.1f} ms {sum(fastest.values()) * 1e3:9.1f} ms")


if __name__ == "__main__":
    main()
