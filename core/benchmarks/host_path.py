"""What a warm call costs on the host, beside the bare WebGPU calls for the same dispatch.

    python core/benchmarks/host_path.py [--runs 10000]

Prints medians in microseconds: `run` on a device tensor without waiting, the bare sequence (encoder, pass, cached
bind group, submit), `run` inside a batch, and its bare sequence (new bind group, set pipeline, set bind group,
dispatch). Then it makes many runs and prints buffer count and bytes before and after.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import oplet
from oplet.webgpu import STORAGE, UNIFORM

TEMPLATE = """
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) workgroup_id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let group = workgroup_index(workgroup_id);
  if (group >= params.workgroups) { return; }
  let i = group * 64u + lane;
  if (i < params.size) { Y[i] = X[i] + 1.0; }
}
"""

MANIFEST = {
    "schema": 1,
    "id": "bench.Increment",
    "since_version": 1,
    "summary": "Adds one.",
    "inputs": [{"name": "X", "type": "T", "shape": "any"}],
    "outputs": [{"name": "Y", "type": "T", "shape": "that of X"}],
    "types": {"T": ["float32"]},
}


def increment(folder: Path) -> SimpleNamespace:
    """A plugin whose kernel does next to nothing."""
    (folder / "increment.wgsl.jinja").write_text(TEMPLATE)

    def plan(request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
        size = request.inputs["X"].size
        bindings = [oplet.Binding("X", "X", "read", "f32"), oplet.Binding("Y", "Y", "read_write", "f32")]
        return [
            oplet.Launch("increment.wgsl.jinja", -(-size // 64), params={"size": np.uint32(size)}, bindings=bindings)
        ]

    @oplet.hookimpl
    def manifest() -> oplet.Manifest:
        return oplet.Manifest.parse(json.dumps(MANIFEST), "increment")

    @oplet.hookimpl
    def infer(request: oplet.Request) -> dict[str, oplet.TensorSpec]:
        return {"Y": request.inputs["X"]}

    @oplet.hookimpl
    def reference(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"Y": arrays["X"] + 1}

    @oplet.hookimpl
    def variants() -> list[oplet.Variant]:
        return [oplet.Variant("scalar", plan)]

    @oplet.hookimpl
    def templates() -> Path:
        return folder

    hooks = (manifest, infer, reference, variants, templates)
    return SimpleNamespace(**{hook.__name__: hook for hook in hooks})


def microseconds(call: Callable[[], object], wait: Callable[[], object], repeat: int) -> float:
    """Median time of a call, in groups that the queue takes without making the caller wait."""
    samples = []
    for _ in range(30):
        wait()
        start = time.perf_counter()
        for _ in range(repeat):
            call()
        samples.append((time.perf_counter() - start) / repeat * 1e6)
    return statistics.median(samples)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="runs for the memory check")
    runs = parser.parse_args().runs
    registry = oplet.Registry(discover=False)
    with tempfile.TemporaryDirectory() as folder:
        registry.register("bench.Increment", increment(Path(folder)))
        x = registry.tensor(np.ones(1024, np.float32))
        registry.run("bench.Increment", X=x).numpy()
    device = registry.device
    gpu, wait = device.gpu, device.wait

    (pipeline,) = device.pipelines
    entries = [
        {"binding": 0, "resource": {"buffer": gpu.create_buffer(size=32, usage=UNIFORM), "offset": 0, "size": 32}},
        {"binding": 1, "resource": {"buffer": gpu.create_buffer(size=4096, usage=STORAGE), "offset": 0, "size": 4096}},
        {"binding": 2, "resource": {"buffer": gpu.create_buffer(size=4096, usage=STORAGE), "offset": 0, "size": 4096}},
    ]

    group = gpu.create_bind_group(layout=pipeline.layout, entries=entries)

    def bare() -> None:
        encoder = gpu.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline.gpu)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(16, 1, 1)
        compute.end()
        gpu.queue.submit([encoder.finish()])

    def call() -> None:
        registry.run("bench.Increment", X=x)

    print(f"{device.capabilities.adapter.name} ({device.implementation})")
    alone, alone_bare = microseconds(call, wait, 20), microseconds(bare, wait, 20)
    print(f"run            {alone:7.1f} µs   bare {alone_bare:7.1f} µs   ratio {alone / alone_bare:.2f}")

    def batch() -> None:
        with registry.batch():
            for _ in range(100):
                registry.run("bench.Increment", X=x)

    def bare_batch() -> None:
        encoder = gpu.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for _ in range(100):
            bound = gpu.create_bind_group(layout=pipeline.layout, entries=entries)
            compute.set_pipeline(pipeline.gpu)
            compute.set_bind_group(0, bound)
            compute.dispatch_workgroups(16, 1, 1)
        compute.end()
        gpu.queue.submit([encoder.finish()])

    batched, batched_bare = microseconds(batch, wait, 1) / 100, microseconds(bare_batch, wait, 1) / 100
    print(f"run in a batch {batched:7.1f} µs   bare {batched_bare:7.1f} µs   ratio {batched / batched_bare:.2f}")

    def memory() -> str:
        pool = device.pool
        return f"{pool.live_count + pool.idle_count} buffers, {pool.live_bytes + pool.idle_bytes} bytes"

    call()
    before = memory()
    for number in range(runs):
        call()
        if number % 1000 == 999:
            wait()
    print(f"{runs} runs: {before} before, {memory()} after")


if __name__ == "__main__":
    main()
