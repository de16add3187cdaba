"""Device times of single dispatches, as a table and as a Chrome trace. `Registry.profile` makes one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from oplet import tables
from oplet.errors import InputError
from oplet.timestamps import Timestamps

if TYPE_CHECKING:
    from oplet.device import Device, Program

#: dispatches that a submit's first query set has room for: most submits are one run, and room takes time to make.
#: Each further one has room for twice as many as the one before.
DISPATCHES = 128

#: dispatches that a query set has room for at most: WebGPU allows 4096 queries, and each takes two
MAX_DISPATCHES = 2048

#: query sets that may wait to be read; Metal allows 32 in all
MAX_UNREAD = 16


@attrs.frozen
class DispatchTime:
    """One dispatch, as it ran: a plan's launch, or a part of one that is split.

    Attributes:
        op, variant, template: what was dispatched.
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
    """The dispatches of one template, together.

    Attributes:
        op, variant, template: what was dispatched.
        dispatches: how often.
        seconds: how long they took, all together.
    """

    op: str
    variant: str
    template: str
    dispatches: int
    seconds: float


class Profile:
    """Device times of everything that ran inside a `Registry.profile` block, complete at its end.

    Attributes:
        dispatches: in the order of their begin.
    """

    def __init__(self, device: Device) -> None:
        device.require_timestamps()
        self.device = device
        self.dispatches: tuple[DispatchTime, ...] = ()
        self._read: list[DispatchTime] = []
        self._unread: list[_Unread] = []

    @property
    def seconds(self) -> float:
        """Device time of all dispatches."""
        return sum(one.seconds for one in self.dispatches)

    @property
    def totals(self) -> list[TemplateTime]:
        """Dispatches and time of each template, the longest first."""
        groups: dict[tuple[str, str, str], list[float]] = {}
        for one in self.dispatches:
            groups.setdefault((one.op, one.variant, one.template), []).append(one.seconds)
        totals = [TemplateTime(*key, len(times), sum(times)) for key, times in groups.items()]
        return sorted(totals, key=lambda total: -total.seconds)

    def chrome_trace(self) -> dict[str, Any]:
        """The dispatches in the Trace Event Format, which Perfetto and chrome://tracing open."""
        first = self.dispatches[0].begin if self.dispatches else 0.0
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
                        "cat": "dispatch",
                        **thread,
                        "ts": (one.begin - first) * 1e6,
                        "dur": one.seconds * 1e6,
                        "args": {"template": one.template, "grid": list(one.grid)},
                    }
                    for one in self.dispatches
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
            mean = total.seconds / total.dispatches
            share = f"{total.seconds / whole:.0%}" if whole else ""
            name = f"{total.op}/{total.variant}"
            yield [name, total.template, str(total.dispatches), _text(total.seconds), _text(mean), share]

    def __str__(self) -> str:
        return f"{self._title()}\n{tables.text([_HEADER, *self._rows()], right=range(2, len(_HEADER)))}"

    def _title(self) -> str:
        what = f"{len(self.dispatches)} dispatches, {_text(self.seconds)} of device time"
        return f'{what} on "{self.device.capabilities.adapter.name}"'

    def _repr_html_(self) -> str:
        return tables.html(self._title(), self._rows(), _HEADER)

    # What the device does with it

    def stamps(self) -> Stamps:
        """For the dispatches of one submit."""
        return Stamps(self)

    def submitted(self, stamps: Stamps) -> None:
        """Takes over the timestamps of what was submitted."""
        self._unread += stamps.unread
        if len(self._unread) > MAX_UNREAD:
            self._read_back()

    def close(self, outer: Profile | None) -> None:
        """Waits for the device and completes `dispatches`; a profile around this one gets them too."""
        self._read_back()
        self.dispatches = tuple(sorted(self._read, key=lambda one: one.begin))
        if outer is not None:
            outer._read += self.dispatches

    def _read_back(self) -> None:
        unread, self._unread = self._unread, []
        for one in unread:
            for (program, number), (begin, seconds) in zip(
                one.dispatches, one.timestamps.read(self.device.tick_ns), strict=True
            ):
                self._read.append(
                    DispatchTime(
                        op=program.plan.op,
                        variant=program.plan.variant,
                        template=program.steps[number].template,
                        grid=program.steps[number].grid,
                        begin=begin,
                        seconds=seconds,
                    )
                )


_HEADER = ["op/variant", "template", "dispatches", "total", "mean", "share"]


def _text(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} µs" if seconds < 0.01 else f"{seconds * 1e3:,.1f} ms"


@attrs.define(eq=False)
class _Unread:
    """Timestamps, and the dispatches that they are of: program, and number in it."""

    timestamps: Timestamps
    dispatches: list[tuple[Program, int]] = attrs.field(factory=list)


class Stamps:
    """Timestamps of the dispatches of one submit."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.unread: list[_Unread] = []

    def dispatch(self, encoder: Any, program: Program, groups: Sequence[Any]) -> None:
        """Records a program, each dispatch in a compute pass of its own: timestamps are taken around passes."""
        for number, (step, group) in enumerate(zip(program.steps, groups, strict=True)):
            unread = self._with_room()
            unread.dispatches.append((program, number))
            compute = encoder.begin_compute_pass(timestamp_writes=unread.timestamps.of_next_pass())
            compute.set_pipeline(step.pipeline.gpu)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(*step.grid)
            compute.end()

    def _with_room(self) -> _Unread:
        if not self.unread or self.unread[-1].timestamps.full:
            room = min(DISPATCHES << len(self.unread), MAX_DISPATCHES)
            self.unread.append(_Unread(Timestamps(self.profile.device.gpu, room)))
        return self.unread[-1]

    def resolve(self, encoder: Any) -> None:
        """See `Timestamps.resolve`."""
        for one in self.unread:
            one.timestamps.resolve(encoder)
