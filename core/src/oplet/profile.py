"""Device times of single launches, as a table and as a Chrome trace. `Registry.profile` makes one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from oplet import tables
from oplet.errors import InputError
from oplet.webgpu import COPY_SRC, QUERY_RESOLVE

if TYPE_CHECKING:
    from oplet.device import Device, Program

#: launches that a query set has room for
LAUNCHES = 128

#: query sets that may wait to be read; Metal allows 32 in all
MAX_UNREAD = 16


@attrs.frozen
class LaunchTime:
    """One dispatch, as it ran: a launch, or a part of one that is split.

    Attributes:
        op, variant, template: what was launched.
        grid: workgroups in each dimension.
        begin: on the device's own clock, in seconds.
        seconds: how long it took.
    """

    op: str
    variant: str
    template: str
    grid: tuple[int, int, int]
    begin: float
    seconds: float


@attrs.frozen
class TemplateTime:
    """The launches of one template, together.

    Attributes:
        op, variant, template: what was launched.
        launches: how often.
        seconds: how long they took, all together.
    """

    op: str
    variant: str
    template: str
    launches: int
    seconds: float


class Profile:
    """Device times of everything that ran inside a `Registry.profile` block, complete at its end.

    Attributes:
        launches: in the order of their begin.
    """

    def __init__(self, device: Device) -> None:
        device.require_timestamps()
        self.device = device
        self.launches: tuple[LaunchTime, ...] = ()
        self._read: list[LaunchTime] = []
        self._unread: list[_Queries] = []

    @property
    def seconds(self) -> float:
        """Device time of all launches."""
        return sum(launch.seconds for launch in self.launches)

    @property
    def totals(self) -> list[TemplateTime]:
        """Launches and time of each template, the longest first."""
        groups: dict[tuple[str, str, str], list[float]] = {}
        for one in self.launches:
            groups.setdefault((one.op, one.variant, one.template), []).append(one.seconds)
        totals = [TemplateTime(*key, len(times), sum(times)) for key, times in groups.items()]
        return sorted(totals, key=lambda total: -total.seconds)

    def chrome_trace(self) -> dict[str, Any]:
        """The launches in the Trace Event Format, which Perfetto and chrome://tracing open."""
        first = self.launches[0].begin if self.launches else 0.0
        thread = {"pid": 1, "tid": 1}
        name = self.device.capabilities.adapter.name
        return {
            "displayTimeUnit": "ns",
            "traceEvents": [
                {"ph": "M", "name": "process_name", **thread, "args": {"name": "oplet"}},
                {"ph": "M", "name": "thread_name", **thread, "args": {"name": name}},
                *(
                    {
                        "ph": "X",
                        "name": f"{one.op}/{one.variant}",
                        "cat": "launch",
                        **thread,
                        "ts": (one.begin - first) * 1e6,
                        "dur": one.seconds * 1e6,
                        "args": {"template": one.template, "grid": list(one.grid)},
                    }
                    for one in self.launches
                ),
            ],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the Chrome trace to a file, as JSON.

        Raises:
            InputError: the file cannot be written.
        """
        import json

        try:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(self.chrome_trace(), file)
        except OSError as error:
            raise InputError(f"path: {error}\nname a file that can be written", argument="path") from error

    def _rows(self) -> Iterator[list[str]]:
        whole = self.seconds
        for total in self.totals:
            mean = total.seconds / total.launches
            share = f"{total.seconds / whole:.0%}" if whole else ""
            name = f"{total.op}/{total.variant}"
            yield [name, total.template, str(total.launches), _text(total.seconds), _text(mean), share]

    def __str__(self) -> str:
        return f"{self._title()}\n{tables.text([_HEADER, *self._rows()], right=range(2, len(_HEADER)))}"

    def _title(self) -> str:
        what = f"{len(self.launches)} launches, {_text(self.seconds)} of device time"
        return f'{what} on "{self.device.capabilities.adapter.name}"'

    def _repr_html_(self) -> str:
        return tables.html(self._title(), self._rows(), _HEADER)

    # What the device does with it

    def stamps(self) -> Stamps:
        """For the launches of one submit."""
        return Stamps(self)

    def submitted(self, stamps: Stamps) -> None:
        """Takes over the timestamps of what was submitted."""
        self._unread += stamps.queries
        if len(self._unread) > MAX_UNREAD:
            self._read_back()

    def close(self, outer: Profile | None) -> None:
        """Waits for the device and completes `launches`; a profile around this one gets them too."""
        self._read_back()
        self.launches = tuple(sorted(self._read, key=lambda one: one.begin))
        if outer is not None:
            outer._read += self.launches

    def _read_back(self) -> None:
        tick = self.device.tick_ns * 1e-9
        unread, self._unread = self._unread, []
        for queries in unread:
            data = self.device.gpu.queue.read_buffer(queries.resolved, 0, 16 * len(queries.launches))
            ticks = np.frombuffer(data, np.uint64).reshape(-1, 2)
            for (program, number), (begin, end) in zip(queries.launches, ticks, strict=True):
                self._read.append(
                    LaunchTime(
                        op=program.plan.op,
                        variant=program.plan.variant,
                        template=program.steps[number].template,
                        grid=program.steps[number].grid,
                        begin=float(begin) * tick,
                        seconds=float(end - begin) * tick,
                    )
                )
            queries.resolved.destroy()
            queries.gpu.destroy()


_HEADER = ["launched", "template", "launches", "total", "mean", "share"]


def _text(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} µs" if seconds < 0.01 else f"{seconds * 1e3:,.1f} ms"


@attrs.define(eq=False)
class _Queries:
    """A query set, the buffer that it resolves to, and the launches that it is for: program, and number in it."""

    gpu: Any
    resolved: Any
    launches: list[tuple[Program, int]] = attrs.field(factory=list)


class Stamps:
    """Timestamps of the launches of one submit."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.queries: list[_Queries] = []

    def dispatch(self, encoder: Any, program: Program, groups: Sequence[Any]) -> None:
        """Records a program, each launch in a compute pass of its own: timestamps are taken around passes."""
        for number, (step, group) in enumerate(zip(program.steps, groups, strict=True)):
            queries = self._with_room()
            stamp = 2 * len(queries.launches)
            queries.launches.append((program, number))
            compute = encoder.begin_compute_pass(
                timestamp_writes={
                    "query_set": queries.gpu,
                    "beginning_of_pass_write_index": stamp,
                    "end_of_pass_write_index": stamp + 1,
                }
            )
            compute.set_pipeline(step.pipeline.gpu)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(*step.grid)
            compute.end()

    def _with_room(self) -> _Queries:
        if not self.queries or len(self.queries[-1].launches) == LAUNCHES:
            gpu = self.profile.device.gpu
            self.queries.append(
                _Queries(
                    gpu.create_query_set(type="timestamp", count=2 * LAUNCHES),
                    gpu.create_buffer(label="oplet timestamps", size=16 * LAUNCHES, usage=QUERY_RESOLVE | COPY_SRC),
                )
            )
        return self.queries[-1]

    def resolve(self, encoder: Any) -> None:
        """Records that the timestamps be written out: the last commands before the submit."""
        # In the encoder that wrote them, and no more than it wrote: a driver may wait forever for the others.
        for queries in self.queries:
            encoder.resolve_query_set(queries.gpu, 0, 2 * len(queries.launches), queries.resolved, 0)
