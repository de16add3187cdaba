"""What child processes do: the tasks of `fuzzing.child.run`."""

from __future__ import annotations

import random
import traceback
from collections import Counter

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from oplet import OpletError, Registry, open_device
from oplet.testing.kit import Devices, Kit

from fuzzing.calls import Call, calls
from fuzzing.child import Now, Report, limit_memory
from fuzzing.files import kinds
from fuzzing.shaders import shaders
from fuzzing.verdict import judge

#: memory that calls may take, on the device and beside it, in bytes
MEMORY = 1 << 30

#: memory that reading a file may take, of a few kilobytes as each of them is, in bytes
MOST_FOR_A_FILE = 64 << 20


def make_calls(op: str, count: int, seed: int, now: Now, pipelines: int | None = None) -> Report:
    """Makes random calls of an op, on memory that is poisoned.

    Args:
        op: the op id.
        count: how many, before any that make a finding smaller.
        seed: of the calls, and of the cases that they begin with.
        pipelines: compiled at most, or a few more; from then on calls are explained instead of run. None for any
            number.
        now: is told each call.
    """
    kit = Kit(op, devices=Devices(), seed=seed)
    registry = kit.registry("best")
    registry.device.pool.max_bytes = MEMORY
    counts = Counter[str]()

    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(calls(kit))
    def check(call: Call) -> None:
        if pipelines is not None and registry.device.pipelines.compiled >= pipelines:
            call.door = "specs"
        now(call)
        try:
            counts[judge(kit, registry, call)] += 1
        except Exception as error:
            error.add_note(str(call))  # hypothesis adds its own, with every number in it
            raise

    limit_memory(MEMORY)
    try:
        check()
    except BaseExceptionGroup as group:
        faults: list[BaseException] = [*group.exceptions]
    except Exception as error:
        faults = [error]
    else:
        faults = []
    return Report(dict(counts), list(map(_told, faults)))


def compile_shaders(op: str, now: Now, pipelines: bool = False, few: bool = False) -> Report:
    """Compiles every shader of an op that this device's features allow.

    Args:
        op: the op id.
        now: is told each shader.
        pipelines: whether to make pipelines too, of those that its limits allow, which is what its driver compiles.
        few: see `fuzzing.shaders.shaders`.
    """
    device = open_device(experimental=True)
    counts, findings = Counter[str](), []
    for choice in shaders(Registry()[op], device.capabilities, few=few):
        now(choice)
        try:
            module = device.gpu.create_shader_module(code=choice.shader.wgsl)
            if pipelines and choice.caps is device.capabilities:
                compute = {"module": module, "entry_point": "main"}
                device.gpu.create_compute_pipeline(layout="auto", compute=compute)
                counts["pipelines"] += 1
        except Exception as error:  # each implementation has its own
            findings.append(f"{choice}\n  {error}")
        counts["shaders"] += 1
    return Report(dict(counts), findings)


def read_files(kind: str, count: int, seed: int, now: Now) -> Report:
    """Reads files that lie.

    Args:
        kind: of `fuzzing.files.kinds`.
        count: how many.
        seed: of the lies.
        now: is told each file.
    """
    rng, counts, findings = random.Random(seed), Counter[str](), dict[str, str]()
    with kinds() as known:
        for valid in known[kind].valid:
            known[kind].read(valid)
        limit_memory(MOST_FOR_A_FILE)
        for number in range(count):
            data = known[kind].lie(rng)
            now(f"{kind} {number} of seed {seed}: {data[:200]!r}")
            try:
                known[kind].read(data)
                counts["read"] += 1
            except OpletError as error:
                if "\n" not in str(error):
                    findings.setdefault("no advice", str(error))
                counts["refused"] += 1
            except Exception as error:
                error.add_note(f"{kind} {number} of seed {seed}, {len(data)} bytes: {data[:200]!r}")
                # One fault has many files.
                findings.setdefault(f"{type(error).__name__} at {_place(error)}", _told(error))
                counts["worse"] += 1
    return Report(dict(counts), list(findings.values()))


def _told(fault: BaseException) -> str:
    notes = getattr(fault, "__notes__", [""])
    return f"{type(fault).__name__}: {fault}\n  at {_place(fault)}\n  {notes[0]}"


def _place(fault: BaseException) -> str:
    """Where it came from: the last line that is of this repository."""
    frames = traceback.extract_tb(fault.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename and frame.filename.startswith("/")]
    return f"{own[-1].filename}:{own[-1].lineno}"
