"""Samples of device time at full clock, and the ceilings of a device: its copy rate and its FMA rate."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Any

import numpy as np

from oplet.buffers import Buffer
from oplet.device import Device, Program
from oplet.request import TensorSpec
from oplet.templates import Templates
from oplet.variant import Binding, Launch, Plan

#: copies of a case take at least this many bytes together: several times the largest cache of a GPU, or of a CPU
ROTATE_BYTES, CPU_ROTATE_BYTES = 512 << 20, 64 << 20

#: most copies of a case
MAX_COPIES = 64

#: seconds that the device is kept busy before each group of samples
BUSY_SECONDS = 0.25

#: passes timed in a round
SAMPLES = 8

#: a run of more seconds is on a device so slow, a software driver's, that few samples of it have to do
LONG_SECONDS, LONG_SAMPLES = 0.25, 2

#: a timed pass takes at least this long, in seconds, if need be with several runs: a pass costs time of its own,
#: 6 µs on an H200, which would double a run of 8 µs
PASS_SECONDS = 200e-6

#: most runs in a pass
MAX_RUNS = 64

_FMA_UNROLL = 16
_FMA_FLOPS = 2 * 16 * _FMA_UNROLL  # of one invocation in one round of the loop


#: a program and the buffers to run it on
_Run = tuple[Program, Sequence[Buffer | None]]


class Meter:
    """Samples of programs on a device at full clock, and the device's ceilings."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.has_timestamps = "timestamp-query" in device.capabilities.features
        caps = device.capabilities
        self._templates = Templates({})
        most = min(caps.limits["maxStorageBufferBindingSize"], caps.limits["maxBufferSize"])
        # No power of two: source and target would share memory banks (an H200 copies 3.94 TB/s at 1 GiB and
        # 4.11 TB/s at 700 MiB).
        self._copy_bytes = min(25 << 20 if caps.adapter.is_cpu else 700 << 20, most) // 4096 * 4096
        size = self._copy_bytes // 16
        spec = TensorSpec((size * 4,), "float32")
        self._copy = self._program("copy", -(-size // 256), {"size": np.uint32(size)}, spec, spec)
        self._copy_buffers = [device.upload(np.resize(_noise(), spec.shape)), device.take(spec.nbytes)]
        groups = 64 if caps.adapter.is_cpu else 8192
        block = TensorSpec((groups * 1024,), "float32")
        self._fma_buffers = [device.upload(np.resize(_noise(), (1024,))), device.take(block.nbytes)]
        self._fma_groups = groups

        def fma(rounds: int) -> Program:
            params = {"rounds": np.uint32(rounds), "factor": np.float32(0.999)}
            return self._program("fma", groups, params, TensorSpec((1024,), "float32"), block)

        self._fma_rounds = 64
        self._fma = fma(self._fma_rounds)
        seconds = min(self._times([[(self._fma, self._fma_buffers)]] * 3))
        # As long as a busy period: that is what ceilings are for between measurements.
        self._busy_runs = max(1, min(2000, round(BUSY_SECONDS / max(seconds, 1e-6))))
        if caps.adapter.is_cpu:
            self._busy_runs = 1

    def _program(
        self, name: str, groups: int, params: Mapping[str, Any], source: TensorSpec, target: TensorSpec
    ) -> Program:
        launch = Launch(
            f"{name}.wgsl.jinja",
            groups,
            context={"unroll": _FMA_UNROLL} if name == "fma" else {},
            params=params,
            bindings=[Binding("X", "X", "read", "vec4<f32>"), Binding("Y", "Y", "read_write", "vec4<f32>")],
        )
        plan = Plan(f"oplet.{name}", name, "oplet", {"X": source}, {"Y": target}, (launch,), ())
        return self._device.prepare(plan, self._templates)

    def _times(self, passes: Sequence[Sequence[_Run]]) -> list[float]:
        if self.has_timestamps:
            return self._device.time(passes)
        seconds = []
        for runs in passes:
            self._device.wait()
            start = time.perf_counter()
            for program, buffers in runs:
                self._device.run(program, buffers)
            self._device.wait()
            seconds.append(time.perf_counter() - start)
        return seconds

    def seconds(self, program: Program, sets: Iterator[Sequence[Buffer | None]]) -> float:
        """About how long a run takes; the code and the pages of the program are in place afterwards."""
        (first,) = self._times([[(program, next(sets))]])
        if first > LONG_SECONDS:
            return first
        return min(self._times([[(program, next(sets))] for _ in range(3)]))

    def sample(
        self,
        program: Program,
        sets: Iterator[Sequence[Buffer | None]],
        runs: int = 1,
        samples: int = SAMPLES,
    ) -> list[float]:
        """Seconds of a run, several times, right after a busy period.

        Args:
            program: what to time.
            sets: endless; each run takes the next.
            runs: how many go back to back in each timed pass.
            samples: how many passes to time.
        """
        # One pass more, not counted: the code and the pages of the program are then in place.
        passes = [[(program, buffers) for buffers in islice(sets, runs)] for _ in range(samples + 1)]
        return [seconds / runs for seconds in self.at_full_clock(passes)[1:]]

    def at_full_clock(self, passes: Sequence[Sequence[_Run]]) -> list[float]:
        """Seconds of each pass, right after a busy period in the same submit.

        A GPU that waits for the host between runs may not reach its clock: 8 short layers in a pass, submitted with
        nothing before them, read 37 µs each on one H200, and 110 on another, whose host was half as fast.
        """
        busy: list[list[_Run]] = [[(self._fma, self._fma_buffers)]] * self._busy_runs
        return self._times([*busy, *passes])[len(busy) :]

    def ceilings(self, rounds: int) -> tuple[float, float]:
        """Bytes a second of a copy, and float32 operations a second of multiply-adds."""
        copies, fmas = [], []
        for _ in range(rounds):
            copies += self.sample(self._copy, repeat(self._copy_buffers))
            fmas += self.sample(self._fma, repeat(self._fma_buffers))
        flops = self._fma_groups * 256 * self._fma_rounds * _FMA_FLOPS
        return 2 * self._copy_bytes / statistics.median(copies), flops / statistics.median(fmas)


def runs_to_time(seconds: float) -> int:
    """How many runs of so many seconds go back to back for their time to be read well."""
    return max(1, min(MAX_RUNS, math.ceil(PASS_SECONDS / max(seconds, 1e-6))))


def copies_past_caches(nbytes: int, *, is_cpu: bool = False) -> int:
    """How many sets of a case's tensors, of `nbytes` each, no cache holds together."""
    rotate = CPU_ROTATE_BYTES if is_cpu else ROTATE_BYTES
    return max(1, min(MAX_COPIES, math.ceil(rotate / max(nbytes, 1))))


def _noise() -> np.ndarray:
    return np.random.default_rng(1).standard_normal(1 << 16).astype(np.float32)
