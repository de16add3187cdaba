"""Very many runs of every installed op, in every way that there is to run one, and what memory they leave behind.

    python tests/soak.py [--runs 50000] [--seed 0] [--cases 12]

Prints memory of the process, and memory, buffers, bind groups and pipelines of the device, eleven times. Until the
middle caches fill and the pool meets the most that is ever in use at once; ends with 1 if anything grew after it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import oplet
from oplet.testing.kit import Call, Kit

#: bytes that the process may grow by from the middle to the end. A run that lost 100 bytes would take 2.4 MiB.
PROCESS_SLACK = 2 << 20

#: what idle memory may grow by meanwhile, as a fraction. What is lost is never idle, so shows at once in what is in
#: use; how much was in use at once is chance, since tensors in cycles go when garbage happens to be collected.
IDLE_SLACK = 0.1


@attrs.frozen
class Memory:
    """What is in use, once everything is done that was begun.

    Attributes:
        process: resident bytes of the process; 0 where the system does not tell.
        live, idle: bytes on the device, of tensors and waiting for the next ones.
        buffers, bind_groups, pipelines: how many.
    """

    process: int
    live: int
    idle: int
    buffers: int
    bind_groups: int
    pipelines: int

    @classmethod
    def of(cls, device: oplet.Device) -> Memory:
        """Looks now."""
        device.wait()
        gc.collect()
        pool = device.pool
        pool.settle()
        statm = Path("/proc/self/statm")
        pages = int(statm.read_text().split()[1]) if statm.exists() else 0
        return cls(
            process=pages * os.sysconf("SC_PAGE_SIZE") if pages else 0,
            live=pool.live_bytes,
            idle=pool.idle_bytes,
            buffers=pool.live_count + pool.idle_count,
            bind_groups=device.bind_group_count,
            pipelines=len(device.pipelines),
        )

    def __str__(self) -> str:
        return (
            f"process {self.process / 2**20:7.1f} MiB   device {self.live:,} bytes in use, {self.idle:,} idle, "
            f"{self.buffers} buffers, {self.bind_groups} bind groups, {self.pipelines} pipelines"
        )


class Soak:
    """The cases of every op, and the ways to run one.

    Attributes:
        registry: what runs them.
        cases: op and case, of those that the device can serve.
    """

    def __init__(self, registry: oplet.Registry, ops: Sequence[str], cases: int, seed: int) -> None:
        """Prepares.

        Args:
            registry: has the ops.
            ops: their ids.
            cases: of each op, at most.
            seed: of the choice.
        """
        self.registry = registry
        self.cases: list[tuple[str, Call]] = []
        rng = np.random.default_rng(seed)
        for op in ops:
            calls = [call for call in Kit(op, seed=seed).calls if self._served(op, call)]
            chosen = rng.permutation(len(calls))[:cases]
            self.cases += [(op, calls[number]) for number in sorted(chosen)]
        self._ways: tuple[Callable[[str, Call], object], ...] = (
            self._run,
            self._on_the_device,
            self._read,
            self._batch,
            self._discarded_batch,
            self._into,
            self._profiled,
            self._in_a_coroutine,
            self._refused,
            self._in_a_cycle,
        )

    def _served(self, op: str, call: Call) -> bool:
        loaded = self.registry[op]
        try:
            loaded.choose(call.request, self.registry.device.capabilities)
        except oplet.NoVariantError:
            return False
        return True

    def every_way_once(self) -> None:
        """Compiles and allocates what is needed at all."""
        for op, call in self.cases:
            for way in self._ways:
                way(op, call)

    def runs(self, count: int, seed: int) -> Iterator[int]:
        """Runs any case in any way, so many times; after each, yields how many there were."""
        rng = np.random.default_rng(seed)
        for number in range(count):
            op, call = self.cases[rng.integers(len(self.cases))]
            self._ways[rng.integers(len(self._ways))](op, call)
            yield number + 1

    # The ways

    def _call(self, op: str, call: Call, **changes: Any) -> tuple[oplet.Tensor, ...]:
        arguments: dict[str, Any] = {**call.arrays, "outputs": call.request.outputs, **changes}
        made = self.registry.run(op, attrs=call.case.attrs, **arguments)
        return (made,) if isinstance(made, oplet.Tensor) else tuple(made)

    def _run(self, op: str, call: Call) -> None:
        self._call(op, call)

    def _on_the_device(self, op: str, call: Call) -> None:
        tensors = {name: self.registry.tensor(array) for name, array in call.arrays.items()}
        self._call(op, call, **tensors)
        self._call(op, call, **tensors)

    def _read(self, op: str, call: Call) -> None:
        for tensor in self._call(op, call):
            assert tensor.numpy().shape == tensor.shape

    def _batch(self, op: str, call: Call) -> None:
        with self.registry.batch():
            for _ in range(3):
                made = self._call(op, call)
        assert made[0].numpy().shape == made[0].shape

    def _discarded_batch(self, op: str, call: Call) -> None:
        with contextlib.suppress(KeyError), self.registry.batch():
            self._call(op, call)
            raise KeyError(op)

    def _into(self, op: str, call: Call) -> None:
        out = {name: self.registry.empty(spec.shape, spec.dtype) for name, spec in call.specs.items()}
        self._call(op, call, out=out)

    def _profiled(self, op: str, call: Call) -> None:
        with self.registry.profile() as profile:
            self._call(op, call)
        assert {one.op for one in profile.dispatches} <= {op}

    def _in_a_coroutine(self, op: str, call: Call) -> None:
        arguments: dict[str, Any] = {**call.arrays, "outputs": call.request.outputs}

        async def read() -> None:
            made = await self.registry.run_async(op, attrs=call.case.attrs, **arguments)
            await (made if isinstance(made, oplet.Tensor) else made[0]).numpy_async()

        asyncio.run(read())

    def _refused(self, op: str, call: Call) -> None:
        with contextlib.suppress(oplet.InputError):
            self._call(op, call, noSuchInput=np.zeros(3, np.float32))

    def _in_a_cycle(self, op: str, call: Call) -> None:
        cycle: list[object] = [*self._call(op, call)]
        cycle.append(cycle)


def grown(middle: Memory, end: Memory) -> list[str]:
    """What there is more of in the end than chance would have it."""
    allowed = attrs.evolve(
        middle,
        process=middle.process + PROCESS_SLACK,
        idle=math.ceil(middle.idle * (1 + IDLE_SLACK)),
        buffers=end.buffers,  # their bytes tell
    )
    return [field.name for field in attrs.fields(Memory) if getattr(end, field.name) > getattr(allowed, field.name)]


def main() -> int:
    """Runs, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=12, help="of each op, at most")
    options = parser.parse_args()
    registry = oplet.Registry()
    soak = Soak(registry, registry.ids, options.cases, options.seed)
    name = registry.device.capabilities.adapter.name
    print(f"{len(soak.cases)} cases of {len(registry.ids)} ops on {name}, seed {options.seed}", flush=True)
    soak.every_way_once()
    soak.every_way_once()
    looks = [Memory.of(registry.device)]
    print(f"{'':>7} start   {looks[0]}", flush=True)
    start = time.monotonic()
    for done in soak.runs(options.runs, options.seed):
        if done % max(options.runs // 10, 1) == 0:
            looks.append(Memory.of(registry.device))
            print(f"{done:>8} runs   {looks[-1]}   {time.monotonic() - start:.0f} s", flush=True)
    more = grown(looks[len(looks) // 2], looks[-1])
    print(f"grew from the middle on: {', '.join(more)}" if more else "nothing grew from the middle on")
    return bool(more)


if __name__ == "__main__":
    sys.exit(main())
