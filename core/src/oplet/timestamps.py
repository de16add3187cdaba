"""Device times of compute passes, from the timestamps that WebGPU takes around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oplet.webgpu import COPY_SRC, QUERY_RESOLVE


class Timestamps:
    """Begin and end of compute passes on a device's own clock: a query set, and the buffer that it resolves to."""

    def __init__(self, gpu: Any, room: int) -> None:
        """Has room for so many passes, and none yet."""
        self._gpu = gpu
        self._room = room
        self._count = 0
        self._queries = gpu.create_query_set(type="timestamp", count=2 * room)
        self._resolved = gpu.create_buffer(label="oplet timestamps", size=16 * room, usage=QUERY_RESOLVE | COPY_SRC)

    @property
    def full(self) -> bool:
        """Whether it has no room for another pass."""
        return self._count == self._room

    def of_next_pass(self) -> Mapping[str, Any]:
        """The next pass's `timestamp_writes`."""
        begin = 2 * self._count
        self._count += 1
        return {
            "query_set": self._queries,
            "beginning_of_pass_write_index": begin,
            "end_of_pass_write_index": begin + 1,
        }

    def resolve(self, encoder: Any) -> None:
        """Records that the timestamps be written out: the last commands before the submit."""
        # In the encoder that wrote them, and no more than it wrote: a driver may wait forever for the others.
        encoder.resolve_query_set(self._queries, 0, 2 * self._count, self._resolved, 0)

    def read(self, tick_ns: float) -> list[tuple[float, float]]:
        """Begin and duration of each pass in seconds, once the device is done; what it holds is freed.

        Args:
            tick_ns: nanoseconds of a timestamp's tick.
        """
        data = self._gpu.queue.read_buffer(self._resolved, 0, 16 * self._count)
        self._resolved.destroy()
        self._queries.destroy()
        tick = tick_ns * 1e-9
        # Subtracted as integers: a clock that has run for days leaves float64 fewer digits.
        return [
            (int(begin) * tick, int(end - begin) * tick) for begin, end in np.frombuffer(data, np.uint64).reshape(-1, 2)
        ]
