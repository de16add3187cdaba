"""Device memory: `Buffer`, one allocation in use; `Pool`, which recycles them; `Tensor`, what users hold."""

from __future__ import annotations

import bisect
import gc
import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from oplet import tables
from oplet.errors import DeviceError, InputError, OutOfMemoryError
from oplet.request import DTYPES, TensorSpec, shape_text
from oplet.webgpu import COPY_DST, COPY_SRC, STORAGE

if TYPE_CHECKING:
    from oplet.batch import Recording
    from oplet.device import Device

#: usage of every buffer that oplet makes for a tensor
TENSOR_USAGE = STORAGE | COPY_SRC | COPY_DST

_DLPACK_CPU = (1, 0)  # kDLCPU and its only device

#: idle memory that a pool keeps where no `max_bytes` says otherwise
IDLE_BYTES = 2 << 30

_serials = itertools.count(1)


def padded(nbytes: int) -> int:
    """Bytes that hold `nbytes` of data: WebGPU copies and binds multiples of 4, and never nothing."""
    return max(-(-nbytes // 4) * 4, 4)


def bucket(nbytes: int) -> int:
    """The allocation for a request: an eighth or 256 bytes larger at most, so that near sizes share buffers."""
    step = max(256, 1 << max(0, nbytes.bit_length() - 4))
    return max(-(-nbytes // step), 1) * step


class Buffer:
    """One allocation on loan from its pool, which gets it back when nothing refers to it any more.

    Attributes:
        gpu: the WebGPU buffer.
        serial: identity of the WebGPU buffer, never used again. Caches key on it, since an `id()`
            returns as soon as its object is collected.
        capacity: bytes allocated.
        pending: the recording that is to fill it, if one is.
        external: whether it is the user's own, so is neither pooled nor destroyed.
        span: bytes that a binding covers, where not just the tensor's own; the conformance kit sets it to
            have guard words inside what a shader can reach.
    """

    __slots__ = ("__weakref__", "_returns", "capacity", "external", "gpu", "pending", "serial", "span")

    def __init__(self, gpu: Any, serial: int, capacity: int, returns: deque[tuple[int, int]] | None) -> None:
        self.gpu = gpu
        self.serial = serial
        self.capacity = capacity
        self.pending: Recording | None = None
        self.external = returns is None
        self.span: int | None = None
        self._returns = returns

    @classmethod
    def wrap(cls, gpu: Any) -> Buffer:
        """A buffer that the user made."""
        return cls(gpu, next(_serials), gpu.size, None)

    def __del__(self) -> None:
        # May run on any thread and inside any lock, so it only appends, which is atomic. The queue's
        # order makes reuse safe: whatever comes next is submitted later.
        if self._returns is not None:
            self._returns.append((self.serial, self.capacity))


class Pool:
    """Buffers of a device by size, the idle ones kept for reuse.

    Not locked: the device's lock covers it.
    """

    def __init__(self, create: Callable[[int], Any], max_buffer_size: int, max_bytes: int | None = None) -> None:
        """Makes an empty pool.

        Args:
            create: makes a WebGPU buffer of so many bytes; raises OutOfMemoryError where memory is refused.
            max_buffer_size: the device's limit, in bytes.
            max_bytes: most that live and idle buffers may hold together, in bytes.
        """
        self.create = create
        self.max_buffer_size = max_buffer_size
        self.max_bytes = max_bytes
        self._returned: deque[tuple[int, int]] = deque()
        # By serial. Held here, so that a Buffer in a cycle, such as a traceback's, does not become garbage
        # together with its WebGPU buffer: the collector would release that one before it came back.
        self._live: dict[int, Any] = {}
        # By capacity, the oldest last, with its serial negated: that one is taken first. So which buffers a call gets
        # depends on which are free and not on the order in which they came back: what is repeated, such as a model's
        # layers that hand on states, soon meets the same buffers again, and with them its cached bind groups. (Taking
        # the last returned, eight layers in a batch never did, and spent half of their host time on bind groups.)
        # The capacity longest unused is evicted from first.
        self._idle: OrderedDict[int, list[tuple[int, Any]]] = OrderedDict()
        self.live_bytes = 0
        self.idle_bytes = 0

    @property
    def live_count(self) -> int:
        """Buffers on loan."""
        return len(self._live)

    @property
    def idle_count(self) -> int:
        """Buffers waiting for reuse."""
        return sum(map(len, self._idle.values()))

    def take(self, nbytes: int) -> Buffer:
        """A buffer of at least `nbytes`, with undefined contents.

        Raises:
            OutOfMemoryError: past `max_bytes`, or refused by the device.
            DeviceError: past the device's buffer size.
        """
        if self._returned:
            self.settle()
        capacity = bucket(nbytes)
        if capacity > self.max_buffer_size:
            capacity = padded(nbytes)
            if capacity > self.max_buffer_size:
                raise DeviceError(
                    f"a buffer of {nbytes} bytes is needed, and this device allows {self.max_buffer_size} "
                    "(maxBufferSize)\nsplit the work into smaller tensors"
                )
        idle = self._idle.get(capacity)
        if idle:
            negated, gpu = idle.pop()
            serial = -negated
            self._idle.move_to_end(capacity)
            self.idle_bytes -= capacity
        else:
            gpu, serial = self.making_room(lambda: self._create(capacity)), next(_serials)
        self.live_bytes += capacity
        self._live[serial] = gpu
        return Buffer(gpu, serial, capacity, self._returned)

    def making_room(self, make: Callable[[], Any]) -> Any:
        """What `make` gives; if memory is refused to it, then once all is free that nobody holds.

        Raises:
            OutOfMemoryError: memory is refused to it even so.
        """
        try:
            return make()
        except OutOfMemoryError:
            # The collector knows nothing of device memory, so it has seen no reason yet to look for tensors that only
            # a reference cycle keeps.
            gc.collect()
            self.settle()
            self.trim(0)
        return make()

    def _create(self, capacity: int) -> Any:
        if self.max_bytes is not None:
            self.trim(max(0, self.max_bytes - self.live_bytes - capacity))
            if self.live_bytes + capacity > self.max_bytes:
                raise OutOfMemoryError(
                    f"{capacity} bytes more are needed, {self.live_bytes} are in use, and max_bytes allows "
                    f"{self.max_bytes}\nlet go of tensors, or raise max_bytes"
                )
        return self.create(capacity)

    def settle(self) -> None:
        """Takes back the buffers that were let go of since the last time."""
        while self._returned:
            serial, capacity = self._returned.popleft()
            gpu = self._live.pop(serial)
            self.live_bytes -= capacity
            self.idle_bytes += capacity
            bisect.insort(self._idle.setdefault(capacity, []), (-serial, gpu))
        self.trim(IDLE_BYTES if self.max_bytes is None else self.max_bytes - self.live_bytes)

    def trim(self, idle_bytes: int) -> None:
        """Gives idle memory back to the device until at most `idle_bytes` are left."""
        while self.idle_bytes > max(idle_bytes, 0):
            capacity, idle = next(iter(self._idle.items()))
            if not idle:
                del self._idle[capacity]
                continue
            _, gpu = idle.pop(0)
            self.idle_bytes -= capacity
            # Explicitly: cached bind groups keep the WebGPU object alive, not the memory.
            gpu.destroy()


def host_array(array: np.ndarray) -> np.ndarray:
    """The array in the form that an upload takes: C-contiguous and of native byte order."""
    # Both implementations raise on strided arrays, and upload big-endian ones wrong without a word.
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))


@attrs.define(eq=False, repr=False)
class Tensor:
    """An array on a device, or on the host where `variant="reference"` made it.

    Work that fills it may still be running: `numpy()` waits for it, nothing else does. Two tensors are equal only if
    they are one: values are compared on the host.

    Attributes:
        spec: shape and dtype.
        device: where it lives; None on the host.
        buffer: its memory there, `buffer.gpu` as WebGPU knows it; None on the host, and without elements.
        host: its data, where that is in host memory only.
    """

    spec: TensorSpec
    device: Device | None
    buffer: Buffer | None
    host: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions, outermost first."""
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """numpy's dtype."""
        return np.dtype(self.spec.dtype)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.spec.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.spec.size

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.spec.nbytes

    @property
    def on_host(self) -> bool:
        """Whether the data is in host memory only."""
        return self.host is not None

    def numpy(self) -> np.ndarray:
        """A copy of the data on the host, once the work that fills the tensor is done.

        Raises:
            DeviceError: the batch that was to fill it was discarded or belongs to another thread, or
                the device is lost.
        """
        if self.host is not None:
            return self.host.copy()
        if self.buffer is None or self.device is None:
            return np.empty(self.shape, self.dtype)
        data = self.device.read(self.buffer, padded(self.nbytes))
        return np.frombuffer(data, self.dtype, count=self.size).reshape(self.shape)

    async def numpy_async(self) -> np.ndarray:
        """As `numpy`, for a coroutine: asyncio's event loop goes on meanwhile.

        Raises:
            DeviceError: as `numpy`.
        """
        import asyncio

        # In a thread, though map_async could be awaited: the submit before it may itself wait for earlier work
        # (wgpu on llvmpipe: 0.3 s), and Dawn would be polled on the loop's thread, outside the device's lock.
        return await asyncio.to_thread(self.numpy)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an oplet tensor cannot become a numpy array without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Host memory: what `__dlpack__` gives is a copy there."""
        return _DLPACK_CPU

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A copy on the host, for torch.from_dlpack and its like.

        Raises:
            BufferError: it was asked for without a copy, or on another device.
            DeviceError: as `numpy`.
        """
        if stream is not None or dl_device not in (None, _DLPACK_CPU):
            raise BufferError("an oplet tensor is exported to host memory only: leave stream and dl_device out")
        if copy is False:
            raise BufferError("an oplet tensor cannot be exported without a copy")
        if max_version is None:
            return self.numpy().__dlpack__()
        return self.numpy().__dlpack__(max_version=max_version)

    def reshape(self, *shape: int | tuple[int, ...]) -> Tensor:
        """A view of the same data in another shape, as numpy's: one dimension may be −1.

        Raises:
            InputError: the number of elements would change.
        """
        dims = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        new = tuple(int(n) for n in dims if isinstance(n, int | np.integer) and not isinstance(n, bool))
        if new.count(-1) == 1:
            known = math.prod(n for n in new if n != -1)
            if known and self.size % known == 0:
                new = tuple(self.size // known if n == -1 else n for n in new)
        if len(new) != len(dims) or any(n < 0 for n in new) or math.prod(new) != self.size:
            raise InputError(
                f"shape: {self.size} elements of shape {self.shape} do not fit {tuple(dims)}\n"
                "give dimensions whose product is the number of elements",
                argument="shape",
            )
        host = None if self.host is None else self.host.reshape(new)
        return Tensor(TensorSpec(new, self.spec.dtype), self.device, self.buffer, host)

    def __bool__(self) -> bool:
        raise TypeError("a tensor has no truth value: ask tensor.numpy(), which waits for the device")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    @property
    def _place(self) -> str:
        return "host" if self.on_host or self.device is None else self.device.capabilities.adapter.name

    def __repr__(self) -> str:
        return f"Tensor({self.spec}, on {self._place})"

    def _repr_html_(self) -> str:
        # No values: looking at a tensor should neither wait for the device nor submit a batch.
        pending = None if self.buffer is None else self.buffer.pending
        state = {"open": "in a batch that is open", "discarded": "in a batch that was discarded"}
        rows = [
            ("shape", shape_text(self.shape)),
            ("dtype", self.spec.dtype),
            ("size", f"{self.nbytes:,} bytes"),
            ("on", self._place),
        ]
        if pending is not None and pending.state in state:
            rows.append(("state", state[pending.state]))
        return tables.html("Tensor", rows)


def spec_of(shape: object, dtype: object) -> TensorSpec:
    """Shape and dtype as users write them, checked.

    Raises:
        InputError: naming `shape` or `dtype`.
    """
    try:
        name = np.dtype(dtype).name  # type: ignore[call-overload]  # that it may raise is the point
    except Exception:  # numpy raises more than TypeError
        name = repr(dtype)
    if name not in DTYPES:
        raise InputError(f"dtype: {name} is not one of {', '.join(DTYPES)}\npass one of these", argument="dtype")
    return TensorSpec((shape,) if isinstance(shape, int | np.integer) else shape, name)  # type: ignore[arg-type]
