"""Arrays of every layout arrive whole, memory is recycled within its limits, and nothing is read while written."""

import contextlib
import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import acme_scale
import numpy as np
import oplet
import pytest
from oplet import DeviceError, InputError, OutOfMemoryError
from oplet.buffers import IDLE_BYTES, Pool, bucket, padded
from oplet.request import DTYPES
from oplet.webgpu import COPY_DST, COPY_SRC, STORAGE, api

SCALE = acme_scale.ID
USAGE = STORAGE | COPY_SRC | COPY_DST

GRID = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
LAYOUTS = {
    "contiguous": GRID,
    "Fortran": np.asfortranarray(GRID),
    "transposed": GRID.transpose(2, 0, 1),
    "strided": GRID[:, ::2, 1::2],
    "reversed": GRID[::-1, :, ::-1],
    "broadcast": np.broadcast_to(GRID[0, 0], (3, 4)),
    "read-only": np.frombuffer(GRID.tobytes(), np.float32),
    "unaligned": np.frombuffer(b"x" + GRID.tobytes(), np.float32, offset=1),
    "0-d": np.array(7, np.float32),
    "one": GRID[:1, :1, :1],
    "empty": GRID[:0],
    "empty inside": GRID[:, :0],
}


# Layouts, dtypes and sizes ----------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_array_comes_back_as_it_was(registry: oplet.Registry, layout: str, dtype: str, order: str) -> None:
    array = LAYOUTS[layout].astype(np.dtype(dtype).newbyteorder(order), order="K")
    if layout == "Fortran":
        assert array.flags.f_contiguous, "astype keeps the layout that is to be tested"
    tensor = registry.tensor(array)
    result = tensor.numpy()
    assert (tensor.shape, tensor.dtype, tensor.nbytes) == (array.shape, np.dtype(dtype), array.nbytes)
    assert (result.shape, result.dtype) == (array.shape, np.dtype(dtype))
    np.testing.assert_array_equal(result, array)
    np.testing.assert_array_equal(np.asarray(tensor), array)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_array_is_computed_with_as_it_is(registry: oplet.Registry, layout: str) -> None:
    array = LAYOUTS[layout]
    y = registry.run(SCALE, X=array, bias=array.astype(">f4"))
    assert y.shape == array.shape
    np.testing.assert_array_equal(y.numpy(), 3 * array)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 63, 64, 65, 129])
def test_sizes_that_are_no_multiple_of_4_bytes(registry: oplet.Registry, dtype: str, size: int) -> None:
    array = np.arange(size).astype(dtype)
    np.testing.assert_array_equal(registry.tensor(array).numpy(), array)
    if dtype == "float16" and "shader-f16" not in registry.device.capabilities.features:
        with pytest.raises(oplet.NoVariantError, match="float16 needs the device feature shader-f16"):
            registry.run(SCALE, X=array)
    else:
        np.testing.assert_array_equal(registry.run(SCALE, X=array, attrs={"shift": 1}).numpy(), 2 * array + 1)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2)])
def test_an_empty_call_makes_an_empty_tensor(registry: oplet.Registry, shape: tuple[int, ...]) -> None:
    empty = np.zeros(shape, np.float32)
    for x in (empty, registry.tensor(empty), registry.empty(shape)):
        y = registry.run(SCALE, X=x)
        assert (y.shape, y.numpy().shape, y.size) == (shape, shape, 0)
    out = registry.empty(shape)
    assert registry.run(SCALE, X=empty, out={"Y": out}) is out


def test_an_empty_input_and_empty_scratch_can_be_bound(device: oplet.Device) -> None:
    """A launch that reads an empty tensor: a product of an (M, 0) and a (0, N) matrix binds both."""

    def plan(request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
        bindings = [
            oplet.Binding("x", "X", "read", "f32"),
            oplet.Binding("s", "s", "read_write", "f32"),
            oplet.Binding("y", "Y", "read_write", "f32"),
        ]
        params = {"size": np.uint32(3), "factor": np.float32(0), "shift": np.int32(5)}
        context = {"scalar": "f32", "names": ("y",), "absolute": False}
        scratch = {"s": oplet.TensorSpec((0, 2), "float32")}
        return [oplet.Launch("scale.wgsl.jinja", 1, context, params, bindings, scratch)]

    registry = oplet.Registry(device=device, discover=False)
    plugin = acme_scale.with_variants(
        oplet.Variant("fill", plan), infer=lambda request: {"Y": oplet.TensorSpec((3,), "float32")}
    )
    registry.register(SCALE, plugin)
    for _ in range(2):
        np.testing.assert_array_equal(registry.run(SCALE, X=np.zeros(0, np.float32)).numpy(), [5, 5, 5])


def test_what_comes_back_is_yours(registry: oplet.Registry) -> None:
    tensor = registry.tensor(GRID)
    copy = tensor.numpy()
    copy[:] = -1
    np.testing.assert_array_equal(tensor.numpy(), GRID)


def test_a_tensor_as_an_array(registry: oplet.Registry) -> None:
    tensor = registry.tensor(GRID)
    assert np.asarray(tensor, np.float64).dtype == np.float64
    assert (len(tensor), tensor.ndim, tensor.size) == (2, 3, 24)
    with pytest.raises(TypeError, match=r"no truth value: ask tensor\.numpy\(\)"):
        bool(tensor)
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(tensor, copy=False)
    with pytest.raises(TypeError, match="without dimensions"):
        len(registry.tensor(np.float32(1)))
    assert repr(tensor) == f"Tensor(float32 (2, 3, 4), on {registry.device.capabilities.adapter.name})"


# Shapes and views -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(24,), (-1,), (4, -1), (4, 6), (1, 24, 1), (2, 3, 4), ((6, 4),), ([6, -1],), (np.int64(24),)]
)
def test_a_view_is_the_same_memory_in_another_shape(registry: oplet.Registry, shape: Any) -> None:
    tensor = registry.tensor(GRID)
    view = tensor.reshape(*shape)
    np.testing.assert_array_equal(view.numpy(), GRID.reshape(*shape))
    assert view.buffer is tensor.buffer
    np.testing.assert_array_equal(registry.run(SCALE, X=view).numpy(), 2 * GRID.reshape(*shape))


def test_a_view_keeps_the_memory(registry: oplet.Registry) -> None:
    view = registry.tensor(GRID).reshape(-1)
    for _ in range(4):
        registry.tensor(-GRID)
    np.testing.assert_array_equal(view.numpy(), GRID.ravel())


@pytest.mark.parametrize(
    "shape",
    [(23,), (-1, -1), (5, -1), (0, -1), (-2, -12), (24.0,), (True, 24), ("24",), ((4,), 6), (None,), (), ([2], 12)],
)
def test_shapes_that_do_not_fit(registry: oplet.Registry, shape: Any) -> None:
    with pytest.raises(InputError, match=r"shape: 24 elements of shape \(2, 3, 4\) do not fit"):
        registry.tensor(GRID).reshape(*shape)


def test_reshaping_nothing_and_one(registry: oplet.Registry) -> None:
    assert registry.empty((0, 3)).reshape(-1).shape == (0,)
    assert registry.empty((0, 3)).reshape(5, 0).shape == (5, 0)
    assert registry.tensor(np.float32(1)).reshape(1, 1).shape == (1, 1)
    assert registry.tensor(np.ones((1, 1), np.float32)).reshape().shape == ()
    with pytest.raises(InputError):
        registry.empty((0, 3)).reshape(0, -1)


@pytest.mark.parametrize("shape", [-1, (2, -1), (1.0,), "3", (True,), None, {2}, (np.float32(2),), ((2,),)])
def test_empty_takes_dimensions(registry: oplet.Registry, shape: Any) -> None:
    with pytest.raises(InputError, match=r"shape: .* is not a tuple of dimensions"):
        registry.empty(shape)


@pytest.mark.parametrize("shape", [3, np.int64(3), (3,), [3], (np.uint8(3),)])
def test_empty_takes_any_integers(registry: oplet.Registry, shape: Any) -> None:
    assert registry.empty(shape).spec == oplet.TensorSpec((3,), "float32")


@pytest.mark.parametrize(
    "dtype", ["float64", bool, np.int64, "f4,f4", "__class__", "(", ",", None, 7, {"a": 1}, object]
)
def test_empty_takes_dtypes_of_devices(registry: oplet.Registry, dtype: Any) -> None:
    with pytest.raises(InputError, match=r"dtype: .* is not one of float32, float16, int32, uint32"):
        registry.empty(3, dtype)


@pytest.mark.parametrize("dtype", ["f4", np.float32, np.dtype(">f4"), "float32"])
def test_empty_takes_numpys_spellings(registry: oplet.Registry, dtype: Any) -> None:
    assert registry.empty(3, dtype).spec.dtype == "float32"


# Buffers of the user's --------------------------------------------------------------------------------


def gpu_buffer(registry: oplet.Registry, nbytes: int = 96, usage: int = USAGE) -> Any:
    return registry.device.gpu.create_buffer(label="mine", size=nbytes, usage=usage)


def test_a_buffer_of_yours_is_read_and_written_in_place(registry: oplet.Registry) -> None:
    mine = gpu_buffer(registry)
    registry.device.pool.settle()
    live = registry.device.pool.live_count
    tensor = registry.from_buffer(mine, (2, 3, 4))
    registry.run(SCALE, X=GRID, out={"Y": tensor})
    np.testing.assert_array_equal(
        np.frombuffer(registry.device.gpu.queue.read_buffer(mine), np.float32), 2 * GRID.ravel()
    )
    np.testing.assert_array_equal(registry.run(SCALE, X=tensor).numpy(), 4 * GRID)
    del tensor
    gc.collect()
    registry.device.pool.settle()
    assert registry.device.pool.live_count == live, "it never was the pool's"
    np.testing.assert_array_equal(registry.from_buffer(mine, 24).numpy(), 2 * GRID.ravel())
    mine.destroy()


@pytest.mark.parametrize(
    ("buffer", "shape", "message"),
    [
        (lambda r: gpu_buffer(r, 92), 24, "buffer: it has 92 bytes, and float32 .* needs 96"),
        (
            lambda r: gpu_buffer(r, usage=STORAGE | COPY_DST),
            24,
            "buffer: its usage 0x88 lacks one of STORAGE, COPY_SRC",
        ),
        (lambda r: b"bytes", 1, "buffer: it is not a GPUBuffer of this registry's device"),
        (lambda r: None, 1, "buffer: it is not a GPUBuffer of this registry's device"),
        (lambda r: r.empty(24), 24, "buffer: it is not a GPUBuffer of this registry's device"),
        (lambda r: gpu_buffer(r), -1, "shape: .-1,. is not a tuple of dimensions"),
    ],
)
def test_a_buffer_that_will_not_do(registry: oplet.Registry, buffer: Any, shape: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        registry.from_buffer(buffer(registry), shape)


def test_a_buffer_that_does_not_tell_its_device_is_refused(registry: oplet.Registry) -> None:
    class GPUBuffer:
        map_state = "unmapped"

    with pytest.raises(DeviceError, match=r"buffer: this version of \w+ does not tell which device a GPUBuffer is of"):
        registry.from_buffer(GPUBuffer(), 24)


def test_a_buffer_of_another_device_is_refused(registry: oplet.Registry) -> None:
    other = oplet.Registry(device=oplet.open_device(), discover=False)
    with pytest.raises(InputError, match="buffer: it is not a GPUBuffer of this registry's device"):
        registry.from_buffer(gpu_buffer(other), 24)
    other.device.gpu.destroy()


@pytest.mark.parametrize("use", ["input", "out", "read", "batch", "batch input"])
def test_a_destroyed_buffer_is_refused_and_the_process_lives(registry: oplet.Registry, use: str) -> None:
    """wgpu ends the process where a destroyed buffer gets as far as submit."""
    mine = gpu_buffer(registry)
    tensor = registry.from_buffer(mine, (2, 3, 4))
    registry.run(SCALE, X=tensor)

    def in_batch() -> None:
        with registry.batch():
            registry.run(SCALE, X=GRID, out={"Y": tensor})
            mine.destroy()

    def as_batch_input() -> None:
        with registry.batch():
            registry.run(SCALE, X=tensor)

    uses: dict[str, Callable[[], Any]] = {
        "input": lambda: registry.run(SCALE, X=tensor),
        "out": lambda: registry.run(SCALE, X=GRID, out={"Y": tensor}),
        "read": tensor.numpy,
        "batch": in_batch,
        "batch input": as_batch_input,
    }
    if use != "batch":
        mine.destroy()
    with pytest.raises(DeviceError, match="the GPUBuffer has been destroyed") as caught:
        uses[use]()
    first, *_, last = str(caught.value).splitlines()
    if use in ("input", "out"):
        assert first == f"com.acme.Scale: {'X' if use == 'input' else 'Y'}: the GPUBuffer has been destroyed"
    assert '"mine"' in str(caught.value) or "'mine'" in str(caught.value)
    assert last == "pass a tensor that is alive"
    np.testing.assert_array_equal(registry.run(SCALE, X=GRID).numpy(), 2 * GRID)


@pytest.mark.parametrize("use", ["input", "out", "read", "batch"])
def test_a_mapped_buffer_is_refused_and_the_process_lives(registry: oplet.Registry, use: str) -> None:
    mine = registry.device.gpu.create_buffer(label="mine", size=96, usage=USAGE, mapped_at_creation=True)
    tensor = registry.from_buffer(mine, (2, 3, 4))

    def in_batch() -> None:
        with registry.batch():
            registry.run(SCALE, X=tensor)

    uses: dict[str, Callable[[], Any]] = {
        "input": lambda: registry.run(SCALE, X=tensor),
        "out": lambda: registry.run(SCALE, X=GRID, out={"Y": tensor}),
        "read": tensor.numpy,
        "batch": in_batch,
    }
    with pytest.raises(DeviceError, match="the GPUBuffer is mapped\nunmap it before it is used"):
        uses[use]()
    mine.unmap()
    registry.run(SCALE, X=GRID, out={"Y": tensor})
    np.testing.assert_array_equal(tensor.numpy(), 2 * GRID)
    mine.destroy()


# Aliasing ---------------------------------------------------------------------------------------------


def test_one_buffer_read_and_written_is_refused_by_name(registry: oplet.Registry) -> None:
    x = registry.tensor(GRID)
    mine = gpu_buffer(registry)
    pairs: list[tuple[Any, Any]] = [
        (x, x),
        (x, x.reshape(-1).reshape(2, 3, 4)),
        (registry.from_buffer(mine, (2, 3, 4)), registry.from_buffer(mine, (2, 3, 4))),
    ]
    for read, written in pairs:
        for name in ("X", "bias"):
            inputs = {"X": GRID, name: read}
            with pytest.raises(
                InputError, match=f"Y: it is on the same buffer as {name}\npass a tensor of its own"
            ) as e:
                registry.run(SCALE, **inputs, out={"Y": written})
            assert e.value.argument == "Y"
    np.testing.assert_array_equal(x.numpy(), GRID)


def test_one_buffer_written_twice_is_refused_by_name(registry: oplet.Registry) -> None:
    y = registry.empty(24)
    with pytest.raises(InputError, match="negatedY: it is on the same buffer as Y"):
        registry.run(SCALE, X=GRID.ravel(), out={"Y": y, "negatedY": y.reshape(-1)})


def test_one_buffer_may_be_read_twice(registry: oplet.Registry) -> None:
    x = registry.tensor(GRID)
    np.testing.assert_array_equal(registry.run(SCALE, X=x, bias=x).numpy(), 3 * GRID)


# The pool ---------------------------------------------------------------------------------------------


class Gpu:
    """Stands for a WebGPU buffer."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.destroyed = False

    def destroy(self) -> None:
        assert not self.destroyed
        self.destroyed = True


@pytest.fixture
def made() -> list[Gpu]:
    return []


def pool_of(made: list[Gpu], max_bytes: int | None = None, max_buffer_size: int = 1 << 30) -> Pool:
    def create(nbytes: int) -> Gpu:
        made.append(Gpu(nbytes))
        return made[-1]

    return Pool(create, max_buffer_size, max_bytes)


@pytest.mark.parametrize("nbytes", [0, 1, 4, 255, 256, 257, 4095, 4096, 5000, 100_000, (1 << 30) + 1, 1 << 40])
def test_an_allocation_is_large_enough_and_hardly_larger(nbytes: int) -> None:
    capacity = bucket(nbytes)
    assert capacity % 4 == 0
    assert max(nbytes, 1) <= capacity <= max(nbytes * 9 / 8, nbytes + 256)
    assert padded(nbytes) <= capacity


def test_a_buffer_let_go_of_is_used_again(made: list[Gpu]) -> None:
    pool = pool_of(made)
    first = pool.take(1000)
    assert (pool.live_count, pool.live_bytes, pool.idle_count) == (1, bucket(1000), 0)
    serial = first.serial
    del first
    again = pool.take(1001)
    assert (again.serial, len(made)) == (serial, 1)
    assert (pool.live_count, pool.idle_count, pool.idle_bytes) == (1, 0, 0)
    other = pool.take(1000)
    assert other.serial != serial


def test_which_one_is_taken_depends_on_no_order(made: list[Gpu]) -> None:
    pool = pool_of(made)
    for order in itertools.permutations(range(3)):
        held = {number: pool.take(8) for number in range(3)}
        assert [one.serial for one in held.values()] == sorted(one.serial for one in held.values())
        for number in order:
            del held[number]
    assert len(made) == 3


def test_idle_buffers_go_before_the_limit_is_reached(made: list[Gpu]) -> None:
    pool = pool_of(made, max_bytes=4096)
    oldest, newer = pool.take(1024), pool.take(2048)
    del oldest
    pool.settle()
    del newer
    pool.settle()
    assert (pool.idle_count, pool.live_bytes) == (2, 0)
    kept = pool.take(1536)
    assert [gpu.destroyed for gpu in made] == [True, False, False], "the longest idle went, and no more than needed"
    assert pool.live_bytes + pool.idle_bytes == 1536 + 2048
    assert kept.capacity == 1536


def test_past_the_limit_the_message_says_what_is_needed_and_allowed(made: list[Gpu]) -> None:
    pool = pool_of(made, max_bytes=4096)
    held = pool.take(3072)
    for _ in range(2):
        with pytest.raises(
            OutOfMemoryError, match="2048 bytes more are needed, 3072 are in use, and max_bytes allows 4096\n"
        ):
            pool.take(2048)
    del held
    assert pool.take(2048).capacity == 2048


def test_a_limit_of_nothing_allows_nothing(made: list[Gpu]) -> None:
    with pytest.raises(OutOfMemoryError, match="max_bytes allows 0"):
        pool_of(made, max_bytes=0).take(4)
    assert not made


def test_past_the_devices_buffer_size(made: list[Gpu]) -> None:
    pool = pool_of(made, max_buffer_size=1000)
    assert pool.take(998).capacity == 1000, "rather than one that is an eighth larger"
    with pytest.raises(DeviceError, match=r"a buffer of 1001 bytes is needed, and this device allows 1000 \(maxBuffer"):
        pool.take(1001)


def test_idle_memory_is_bounded_without_a_limit_too(made: list[Gpu]) -> None:
    pool = pool_of(made, max_buffer_size=IDLE_BYTES)
    buffers = [pool.take(IDLE_BYTES // 2) for _ in range(3)]
    del buffers
    pool.settle()
    assert pool.idle_bytes <= IDLE_BYTES
    assert sum(gpu.destroyed for gpu in made) == 1


def test_refused_memory_is_asked_for_again_without_idle_buffers(made: list[Gpu]) -> None:
    def create(nbytes: int) -> Gpu:
        if sum(gpu.nbytes for gpu in made if not gpu.destroyed) + nbytes > 2048:
            raise OutOfMemoryError("out of memory")
        made.append(Gpu(nbytes))
        return made[-1]

    pool = Pool(create, 1 << 30)
    idle = pool.take(1024)
    del idle
    assert pool.take(2048).capacity == 2048
    assert [gpu.destroyed for gpu in made] == [True, False]
    with pytest.raises(OutOfMemoryError, match="out of memory"):
        pool.take(4096)


def in_a_cycle(*things: object) -> None:
    """Leaves things that only the garbage collector can free."""
    cycle = [*things]
    cycle.append(cycle)


@pytest.fixture
def collected_by_hand() -> Iterator[None]:
    """No garbage collection but where it is asked for."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collected_by_hand")
def test_memory_in_reference_cycles_is_found_before_a_call_is_refused(made: list[Gpu]) -> None:
    pool = pool_of(made, max_bytes=4096)
    in_a_cycle(pool.take(3072))
    assert pool.live_bytes == 3072
    assert pool.take(4096).capacity == 4096
    assert [gpu.destroyed for gpu in made] == [True, False]


def test_a_tensor_that_the_garbage_collector_finds_gives_its_buffer_back_whole(registry: oplet.Registry) -> None:
    gc.collect()
    tensor = registry.tensor(GRID)
    serial = tensor.buffer.serial
    cycle = [tensor]
    cycle.append(cycle)
    del tensor, cycle
    gc.collect()
    again = registry.tensor(GRID + 1)
    assert again.buffer.serial == serial
    assert (again.numpy() == GRID + 1).all()


def test_counts_stay_flat(registry: oplet.Registry) -> None:
    device = registry.device
    x = registry.tensor(GRID)

    def counts() -> tuple[int, ...]:
        device.pool.settle()
        return device.pool.live_count, device.pool.idle_count, device.bind_group_count, len(device.pipelines)

    def work() -> None:
        y = registry.run(SCALE, X=x, bias=GRID)
        with registry.batch():
            registry.run(SCALE, X=registry.run(SCALE, X=y), outputs=("Y", "negated"))

    gc.collect()  # tensors that earlier tests left in cycles, lest they go half-way through
    for _ in range(5):
        work()
    before = counts()
    for _ in range(300):
        work()
    assert counts() == before


def test_the_registrys_limit_counts_what_lives_and_what_idles() -> None:
    registry = oplet.Registry(discover=False, max_bytes=64 << 10)
    registry.register(SCALE, acme_scale)
    array = np.ones(4096, np.float32)
    tensors = [registry.tensor(array) for _ in range(2)]
    with pytest.raises(OutOfMemoryError, match="32768 are in use, and max_bytes allows 65536"):
        registry.tensor(np.ones(16384, np.float32))
    for step in range(20):  # each takes another size, which only evicting idle buffers makes room for
        tensors.append(registry.run(SCALE, X=tensors.pop(0)))
        registry.empty(1000 + 200 * step)
    assert registry.device.pool.live_bytes + registry.device.pool.idle_bytes <= 64 << 10
    assert (tensors[0].numpy() == 2.0**10).all()
    registry.device.gpu.destroy()


@pytest.mark.parametrize(("call", "use"), [("create_buffer", "empty"), ("read_buffer", "read")])
def test_what_the_implementation_raises_is_a_device_error(
    registry: oplet.Registry, monkeypatch: pytest.MonkeyPatch, call: str, use: str
) -> None:
    device, x = registry.device, registry.tensor(GRID)
    for kind in (device._gpu_error, RuntimeError):

        def refuse(*arguments: Any, kind: type[Exception] = kind, **named: Any) -> Any:
            raise kind("Something went wrong.")

        with monkeypatch.context() as patch:
            patch.setattr(device.gpu if call == "create_buffer" else device.gpu.queue, call, refuse)
            with pytest.raises(DeviceError) as caught:
                registry.empty(12_345_678) if use == "empty" else x.numpy()
        assert str(caught.value).splitlines() == [
            f"{device.capabilities.adapter.name}: Something went wrong.",
            "if memory ran out, let go of tensors; otherwise report it, with the output of `oplet doctor`",
        ]
    np.testing.assert_array_equal(registry.run(SCALE, X=x).numpy(), 2 * GRID)


@pytest.mark.parametrize("kind", ["GPUOutOfMemoryError", "GPUValidationError"])
def test_memory_that_the_implementation_refuses(
    registry: oplet.Registry, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    device, x = registry.device, registry.tensor(GRID)
    create, asked = device.gpu.create_buffer, []

    def refuse(*arguments: Any, **named: Any) -> Any:
        asked.append(named["size"])
        raise getattr(api(device.implementation), kind)("Not enough memory left.")

    def refuse_once(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(device.gpu, "create_buffer", create)
        refuse(**named)

    large = np.zeros(3_000_001, np.float32)
    device.pool.settle()
    device.pool.trim(0)
    monkeypatch.setattr(device.gpu, "create_buffer", refuse)
    for call in (lambda: registry.empty(12_345_678), lambda: registry.run(SCALE, X=large)):
        asked.clear()
        with pytest.raises(OutOfMemoryError) as caught:
            call()
        assert isinstance(caught.value, MemoryError)
        first, *evidence, last = str(caught.value).splitlines()
        assert first == (
            f"{device.capabilities.adapter.name}: the device refuses memory, with {device.pool.live_bytes} bytes in use"
        )
        assert (evidence, last) == (["Not enough memory left."], "let go of tensors, or work on smaller ones")
        assert len(asked) == 2, "again once garbage and idle buffers are gone"
        np.testing.assert_array_equal(x.numpy(), GRID)
    monkeypatch.setattr(device.gpu, "create_buffer", refuse_once)
    assert registry.empty(12_345_678).size == 12_345_678
    np.testing.assert_array_equal(registry.run(SCALE, X=x).numpy(), 2 * GRID)


@pytest.mark.usefixtures("collected_by_hand")
def test_no_cycle_of_oplets_own_holds_a_tensor(registry: oplet.Registry) -> None:
    """Whatever a tensor went through, it is free as soon as nobody has it: the collector has nothing to find."""
    device, x = registry.device, registry.tensor(GRID)

    def work() -> None:
        y, negated = registry.run(SCALE, X=x, bias=GRID, outputs=("Y", "negated"))
        registry.run(SCALE, X=y, out={"Y": negated}).reshape(-1).numpy()
        with registry.batch():
            registry.run(SCALE, X=registry.run(SCALE, X=y)).numpy()
        with contextlib.suppress(ZeroDivisionError), registry.batch():
            registry.run(SCALE, X=y)
            raise ZeroDivisionError
        with pytest.raises(InputError):
            registry.run(SCALE, X=y, out={"Y": y})
        with registry.profile():
            registry.run(SCALE, X=y)

    work()
    device.pool.settle()
    before = device.pool.live_count
    for _ in range(3):
        work()
    device.pool.settle()
    assert device.pool.live_count == before


def test_a_run_after_refused_memory_works(registry: oplet.Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    x = registry.tensor(GRID)
    registry.run(SCALE, X=x)
    gc.collect()  # what tests before this one left in cycles, lest the refusal find it
    pool = registry.device.pool
    pool.settle()
    pool.trim(0)
    live = pool.live_count

    def refuse(nbytes: int) -> Any:
        raise OutOfMemoryError("llvmpipe: no memory left")

    for fails_at in range(3):  # at the upload, then at the first output, then at the second
        for _ in range(2):
            spare = [pool.take(96) for _ in range(fails_at)]
            del spare
            pool.settle()
            with monkeypatch.context() as patch:
                patch.setattr(pool, "create", refuse)
                patch.setattr(pool, "trim", lambda idle_bytes: None)
                with pytest.raises(OutOfMemoryError, match="no memory left"):
                    registry.run(SCALE, X=GRID, outputs=("Y", "negated"))
                pool.settle()
                assert pool.live_count == live
        y, negated = registry.run(SCALE, X=x, outputs=("Y", "negated"))
        np.testing.assert_array_equal(y.numpy(), 2 * GRID)
        np.testing.assert_array_equal(negated.numpy(), -2 * GRID)
        del y, negated
        pool.settle()
        pool.trim(0)
