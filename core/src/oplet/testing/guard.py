"""Memory that shows what a shader does to it: poisoned, and with guard words behind every tensor."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import attrs
import numpy as np

from oplet.buffers import Buffer, Pool, padded
from oplet.device import Device
from oplet.request import DTYPES, TensorSpec

#: bytes of guard words behind every tensor
GUARD = 256


def poison(number: int) -> int:
    """A 32-bit word that is a quiet NaN as float32 and as two float16, and no plausible integer.

    There are 64, so that a word which a shader only copied, from behind an input or out of memory that
    nobody wrote, is not taken for one that was there before.
    """
    half = 0xFFC0 | number % 64
    return half << 16 | half


@attrs.frozen(eq=False)
class Taken:
    """A buffer that the pool handed out.

    Attributes:
        size: bytes before its guard words.
        contents: the word that fills these.
        beyond: the word that fills the guard words.
    """

    buffer: Buffer
    size: int
    contents: int
    beyond: int

    def look(self, device: Device, spec: TensorSpec) -> Seen:
        """Reads it back, once the device is done with it."""
        words = np.frombuffer(device.read(self.buffer, self.size + GUARD), np.uint32)
        own, behind = words[: self.size // 4], words[self.size // 4 :]
        bits = f"uint{8 * DTYPES[spec.dtype]}"
        poisoned = own.view(bits) == np.uint32(self.contents).reshape(1).view(bits)[0]
        overwritten = np.flatnonzero(behind != self.beyond)
        return Seen(
            array=own.view(spec.dtype)[: spec.size].reshape(spec.shape),
            unwritten=poisoned[: spec.size].reshape(spec.shape),
            overwritten=int(overwritten[0]) * 4 if overwritten.size else None,
        )


@attrs.frozen(eq=False)
class Seen:
    """What was found in a buffer after a run.

    Attributes:
        unwritten: where `array` still holds the poison.
        overwritten: bytes from its end to the first guard word that was overwritten; None where none was.
    """

    array: np.ndarray
    unwritten: np.ndarray
    overwritten: int | None

    @classmethod
    def of(cls, array: np.ndarray) -> Seen:
        """An array that was in no guarded buffer."""
        return cls(array, np.zeros(array.shape, bool), None)


class GuardPool(Pool):
    """A pool that poisons what it hands out and binds guard words behind it.

    WebGPU clamps or drops every access outside a binding, so guard words outside one would see nothing.
    Here the binding covers them: what a shader writes past its tensor lands in them, also when the
    implementation clamps it to the end of the binding. The padding of an odd number of float16 belongs to
    the tensor: nothing smaller than 4 bytes can be copied or bound.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device.pool.create, device.pool.max_buffer_size, device.pool.max_bytes)
        self._device = device
        self._watched: list[Taken] | None = None
        self._contents: int | None = None
        self._beyond: int | None = None
        self._number = 0

    def take(self, nbytes: int) -> Buffer:
        """As `Pool.take`; see the class."""
        size = padded(nbytes)
        buffer = super().take(size + GUARD)
        buffer.span = size + GUARD
        self._number += 2
        contents = poison(self._number) if self._contents is None else self._contents
        beyond = poison(self._number + 1) if self._beyond is None else self._beyond
        words = np.full(buffer.capacity // 4, beyond, np.uint32)
        words[: size // 4] = contents
        self._device.write(buffer, words)
        if self._watched is not None:
            self._watched.append(Taken(buffer, size, contents, beyond))
        return buffer

    @contextlib.contextmanager
    def watch(self) -> Iterator[list[Taken]]:
        """Collects what is taken, and so keeps it from being recycled."""
        taken: list[Taken] = []
        self._watched = taken
        try:
            yield taken
        finally:
            self._watched = None

    @contextlib.contextmanager
    def zeroed(self, *, contents: bool = False, beyond: bool = False) -> Iterator[None]:
        """Fills with zeros for a while, which hides what poison shows."""
        self._contents = 0 if contents else None
        self._beyond = 0 if beyond else None
        try:
            yield
        finally:
            self._contents = self._beyond = None
