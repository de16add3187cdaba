"""Timing ops: device time against the device's own ceilings and against peers, in one run.

How a figure is made: everything is compiled first. Each round then keeps the device busy for a while, since an
idle GPU sits at a fraction of its clock, times a few runs of a case by timestamps in the same submit (short ones
back to back), and does the same for each peer, so that case and peer meet the same clock. Inputs and outputs
rotate through enough copies that a cache never holds them. The figure is the median over all rounds, its spread
the quartiles.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, repeat
from typing import Any

import attrs as records
import numpy as np

from oplet.bench.cases import Case, read_cases
from oplet.bench.meter import LONG_SAMPLES, LONG_SECONDS, SAMPLES, Meter, copies_past_caches, runs_to_time
from oplet.bench.peers import Build, Field, PeerCase, builders_of
from oplet.buffers import Buffer, Tensor
from oplet.errors import DeviceError, NoVariantError
from oplet.op import Op
from oplet.registry import Registry


@records.frozen
class Timing:
    """Seconds of one thing: median, and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Timing:
        """The summary of some samples."""
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0])
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high)


@records.frozen
class Result:
    """One case on one variant.

    Attributes:
        case: its name.
        variant: what ran, "" where nothing could.
        device: device time, or wall time where the device has no timestamps.
        host: time of a warm `Registry.run` call on device tensors, not waiting for the device.
        bytes, flops: of the case.
        peers: time of each, or in words why there is none.
        fault: why the case did not run, "" if it did.
        runs: how many went back to back in each timed pass; more than 1 for short ones, since a pass costs time
            of its own.
    """

    case: str
    variant: str
    device: Timing | None
    host: Timing | None
    bytes: int
    flops: int
    peers: Mapping[str, Timing | str] = records.field(factory=dict)
    fault: str = ""
    runs: int = 1

    @property
    def bytes_per_second(self) -> float:
        """Least traffic over device time."""
        return self.bytes / self.device.median if self.device else 0.0

    @property
    def flops_per_second(self) -> float:
        """Useful operations over device time."""
        return self.flops / self.device.median if self.device else 0.0


@records.frozen
class Report:
    """All results of a run, and what they were measured on.

    Attributes:
        op: the op id.
        op_version: of its distribution.
        adapter, implementation: of the device.
        unchecked: whether shaders were compiled without bounds checks.
        clock: "timestamps", or "wall" where the device has none.
        copy: bytes a second, read and written, of a copy of a large buffer.
        fma: float32 operations a second of dependent-free multiply-adds.
        versions: of Python, the machine and the packages involved.
        date: when it was measured.
    """

    op: str
    op_version: str
    adapter: str
    implementation: str
    unchecked: bool
    clock: str
    copy: float
    fma: float
    versions: Mapping[str, str]
    results: tuple[Result, ...]
    date: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain data, seconds and rates per second throughout."""
        return records.asdict(self)


def bench(
    registry: Registry,
    op: str,
    *,
    cases: Sequence[Case] | None = None,
    variants: Sequence[str] = (),
    peers: Sequence[str] = (),
    rounds: int = 5,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    note: Callable[[str], None] = lambda line: None,
) -> Report:
    """Times an op.

    Args:
        registry: on the device to measure.
        op: the op id.
        cases: default those of the op's bench.json.
        variants: time each of these on every case that it accepts; default the one that `run` would take.
        peers: "numpy" (the op's reference), "onnxruntime" (a one-node model on its CPU provider), or
            names from the op folder's peers.py.
        rounds: groups of samples for each case.
        progress: told what is about to be done.
        note: told of a peer that is out, and why, before the case is timed without it; once for each reason.

    Raises:
        InputError: a variant or peer that does not exist, or a case that the op refuses.
        OpletError: as `Registry.run`, but for a case that no variant can serve, or that is too large for the
            device: that is in the report.
    """
    loaded = registry[op]
    device = registry.device
    found = tuple(cases) if cases is not None else read_cases(loaded)
    builders = builders_of(loaded, peers)
    for name in variants:
        loaded.require_variant(name)
    for case in found:  # one that is refused is now, not after the others are timed
        loaded.infer(case.request(loaded))
    meter = Meter(device)
    total = 1 + len(found) * max(1, len(variants))
    progress("ceilings", 0, total)
    copy, fma = meter.ceilings(rounds)
    results: list[Result] = []
    noted: set[str] = set()

    def note_once(line: str) -> None:
        if line not in noted:
            noted.add(line)
            note(line)

    for case in found:
        for variant in variants or (None,):
            progress(f"{case.name}{f' · {variant}' if variant else ''}", 1 + len(results), total)
            try:
                results.append(_measure(registry, loaded, case, variant, builders, meter, rounds, note_once))
            except NoVariantError as error:
                faults = "; ".join(f"{one.variant}: {one.reason}" for one in error.rejections)
                results.append(Result(case.name, variant or "", None, None, 0, 0, fault=faults))
            except DeviceError as error:
                if device.lost:
                    raise
                fault = str(error).splitlines()[0].removeprefix(f"{op}: ")
                results.append(Result(case.name, variant or "", None, None, 0, 0, fault=fault))
    progress("done", total, total)
    caps = device.capabilities
    return Report(
        op=op,
        op_version=loaded.version,
        adapter=caps.adapter.name,
        implementation=device.implementation,
        unchecked=device.unchecked,
        clock="timestamps" if meter.has_timestamps else "wall",
        copy=copy,
        fma=fma,
        versions=_versions(),
        results=tuple(results),
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )


def _measure(
    registry: Registry,
    op: Op,
    case: Case,
    variant: str | None,
    builders: Mapping[str, Build],
    meter: Meter,
    rounds: int,
    note: Callable[[str], None],
) -> Result:
    device = registry.device
    arrays = case.arrays(np.random.default_rng(0))
    request = case.request(op)
    plan = op.plan(request, device.capabilities, variant)
    program = device.prepare(plan, op.templates)
    arrays = {name: arrays[word] for name in plan.inputs for word in arrays if _is_port(op, name, word)}
    nbytes = sum(spec.nbytes for spec in (*plan.inputs.values(), *plan.outputs.values()))
    sets: list[list[Buffer | None]] = []
    for _ in range(copies_past_caches(nbytes, is_cpu=device.capabilities.adapter.is_cpu)):
        buffers = [device.upload(arrays[name]) for name in plan.inputs]
        buffers += [device.take(spec.nbytes) if spec.nbytes else None for spec in plan.outputs.values()]
        sets.append(buffers)
    order = chain.from_iterable(repeat(sets))
    seconds = meter.seconds(program, order)
    runs = runs_to_time(seconds)
    passes = SAMPLES if seconds < LONG_SECONDS else LONG_SAMPLES
    field = Field(builders, PeerCase(op, request, arrays, dict(request.attrs)))
    for name, fault in field.faults.items():
        note(f"{name}: {fault}")
    samples: list[float] = []
    for _ in range(rounds):
        samples += meter.sample(program, order, runs, passes)
        field.sample(passes)
    peers: dict[str, Timing | str] = {**field.faults}
    for name, found in field.samples.items():
        timing = Timing.of(found)
        # A time that is a difference may be none.
        peers[name] = timing if timing.median > 0 else "its time is lost in the noise"
    groups, calls = (9, 5) if seconds < LONG_SECONDS else (LONG_SAMPLES, 1)
    host = _host_time(registry, op, case, variant, arrays, groups, calls)
    return Result(
        case=case.name,
        variant=plan.variant,
        device=Timing.of(samples),
        host=host,
        bytes=nbytes if case.bytes is None else case.bytes,
        flops=case.flops,
        peers={name: peers[name] for name in builders},
        runs=runs,
    )


def _is_port(op: Op, name: str, word: str) -> bool:
    port = op.manifest.input(word)
    return port is not None and port.name == name


def _host_time(
    registry: Registry,
    op: Op,
    case: Case,
    variant: str | None,
    arrays: Mapping[str, np.ndarray],
    groups: int,
    calls: int,
) -> Timing:
    """Wall time of a warm call that does not wait, in groups of calls small enough for the queue to take."""
    tensors: dict[str, Any] = {name: registry.tensor(array) for name, array in arrays.items()}

    def call() -> Tensor:
        made = registry.run(op.id, attrs=case.attrs, outputs=case.outputs, variant=variant, **tensors)
        first: Tensor = made[0] if isinstance(made, tuple) else made
        return first

    samples = []
    call().numpy()
    for _ in range(groups):
        start = time.perf_counter()
        for _ in range(calls):
            last = call()
        samples.append((time.perf_counter() - start) / calls)
        registry.device.wait()
        del last
    return Timing.of(samples)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    for name in ("oplet", "wgpu", "wgpudawn", "numpy", "onnxruntime", "torch", "flash-linear-attention"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


__all__ = ["Case", "Report", "Result", "Timing", "bench", "read_cases"]
