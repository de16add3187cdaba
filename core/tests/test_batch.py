"""A batch is one submit; what it holds is safe until then, and gone where an exception discards it."""

import asyncio
import contextlib
import contextvars
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import acme_scale
import attrs
import numpy as np
import oplet
import pytest
from oplet import DeviceError, InputError

SCALE = acme_scale.ID
ONES = np.ones((4, 3), np.float32)


@pytest.fixture
def submits(registry: oplet.Registry, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the submits that the device's runs make; reading a buffer makes one of its own, not counted."""
    queue = registry.device.gpu.queue
    made: list[int] = []
    reading = threading.local()
    submit, read = queue.submit, queue.read_buffer

    def counted(commands: list[Any]) -> Any:
        if not getattr(reading, "now", False):
            made.append(len(commands))
        return submit(commands)

    def quiet(*arguments: Any) -> Any:
        reading.now = True
        try:
            return read(*arguments)
        finally:
            reading.now = False

    monkeypatch.setattr(queue, "submit", counted)
    monkeypatch.setattr(queue, "read_buffer", quiet)
    return made


def double(registry: oplet.Registry, x: Any, times: int = 1, **arguments: Any) -> Any:
    for _ in range(times):
        x = registry.run(SCALE, X=x, **arguments)
    return x


# What a batch does ------------------------------------------------------------------------------------


def test_a_batch_is_one_submit_at_its_end(registry: oplet.Registry, submits: list[int]) -> None:
    x = registry.tensor(ONES)
    with registry.batch():
        y = double(registry, x, 10)
        assert submits == []
    assert submits == [1]
    np.testing.assert_array_equal(y.numpy(), 1024 * ONES)
    double(registry, x, 3)
    assert submits == [1, 1, 1, 1], "without one each run is a submit"


def test_an_empty_batch_submits_nothing(registry: oplet.Registry, submits: list[int]) -> None:
    with registry.batch():
        registry.tensor(ONES)
        double(registry, np.zeros((0, 3), np.float32))
    assert submits == []


def test_a_read_inside_submits_what_is_recorded_so_far(registry: oplet.Registry, submits: list[int]) -> None:
    with registry.batch():
        first = double(registry, ONES)
        np.testing.assert_array_equal(first.numpy(), 2 * ONES)
        assert submits == [1]
        np.testing.assert_array_equal(first.numpy(), 2 * ONES)
        second = double(registry, first, 2)
        np.testing.assert_array_equal(second.reshape(-1).numpy(), 8 * ONES.ravel())
        assert submits == [1, 1], "what was read already needs no further submit"
        third = double(registry, second)
    assert submits == [1, 1, 1]
    np.testing.assert_array_equal(third.numpy(), 16 * ONES)


def test_reading_what_the_batch_does_not_fill_submits_nothing(registry: oplet.Registry, submits: list[int]) -> None:
    x = registry.tensor(ONES)
    with registry.batch():
        double(registry, x)
        np.testing.assert_array_equal(x.numpy(), ONES)
        assert submits == []


def test_uploads_inside_are_those_of_their_time(registry: oplet.Registry) -> None:
    """An upload happens at once, a run at the end: no run may see another run's array."""
    array = np.empty((4, 3), np.float32)
    with registry.batch():
        results = []
        for value in range(40):
            array[:] = value
            results.append(registry.run(SCALE, X=array, bias=registry.tensor(array)))
    for value, result in enumerate(results):
        np.testing.assert_array_equal(result.numpy(), 3 * value * ONES)


def test_no_memory_is_used_again_inside(registry: oplet.Registry) -> None:
    x = registry.tensor(ONES)
    kept = []
    with registry.batch():
        for value in range(20):
            y = registry.run(SCALE, X=x, attrs={"shift": value})
            kept.append(registry.run(SCALE, X=y))
            del y
            fresh = registry.tensor(np.full((4, 3), -1, np.float32))  # would land in memory that a run is to fill
            del fresh
    for value, tensor in enumerate(kept):
        np.testing.assert_array_equal(tensor.numpy(), 2 * (2 + value) * ONES)


def test_memory_comes_back_after_the_batch(registry: oplet.Registry) -> None:
    pool = registry.device.pool
    pool.settle()
    live = pool.live_count
    for _ in range(3):
        with registry.batch():
            double(registry, ONES, 5)
        pool.settle()
        assert pool.live_count == live


def test_reads_and_writes_of_one_tensor_keep_their_order(registry: oplet.Registry) -> None:
    a, b = registry.tensor(ONES), registry.empty(ONES.shape)
    with registry.batch():
        for _ in range(3):
            registry.run(SCALE, X=a, out={"Y": b})
            registry.run(SCALE, X=b, out={"Y": a})
    np.testing.assert_array_equal(a.numpy(), 64 * ONES)


def test_nested_batches_join_the_outer_one(registry: oplet.Registry, submits: list[int]) -> None:
    with registry.batch():
        y = double(registry, ONES)
        with registry.batch(), registry.batch():
            y = double(registry, y)
        assert submits == []
        y = double(registry, y)
    assert submits == [1]
    np.testing.assert_array_equal(y.numpy(), 8 * ONES)


def test_batches_of_one_registry_after_another(registry: oplet.Registry, submits: list[int]) -> None:
    x = double(registry, ONES)
    for count in (1, 2, 3):
        with registry.batch():
            x = double(registry, x)
        assert submits == [1] * (count + 1)
    np.testing.assert_array_equal(x.numpy(), 16 * ONES)


def test_the_reference_inside_reads_what_it_needs(registry: oplet.Registry) -> None:
    with registry.batch():
        y = double(registry, ONES)
        z = registry.run(SCALE, X=y, variant="reference")
        w = double(registry, z)
    np.testing.assert_array_equal(w.numpy(), 8 * ONES)


# Exceptions -------------------------------------------------------------------------------------------


class Stop(Exception):  # noqa: N818  # not an error
    """Ends a batch early."""


def discarded(registry: oplet.Registry, out: oplet.Tensor | None = None) -> Any:
    """A tensor that a batch was to fill."""
    y = None
    with contextlib.suppress(Stop), registry.batch():
        y = registry.run(SCALE, X=ONES, out=None if out is None else {"Y": out})
        raise Stop
    return y


def test_an_exception_discards_what_is_recorded(registry: oplet.Registry, submits: list[int]) -> None:
    y = discarded(registry)
    assert submits == []
    for use in (y.numpy, y.reshape(-1).numpy, lambda: np.asarray(y), lambda: double(registry, y)):
        with pytest.raises(
            DeviceError, match="was to be filled by a batch that an exception discarded\nrun the batch again"
        ):
            use()
    np.testing.assert_array_equal(double(registry, ONES).numpy(), 2 * ONES)


def test_what_was_submitted_before_the_exception_stays(registry: oplet.Registry) -> None:
    with contextlib.suppress(Stop), registry.batch():
        first = double(registry, ONES)
        first.numpy()
        second = double(registry, first)
        raise Stop
    np.testing.assert_array_equal(first.numpy(), 2 * ONES)
    with pytest.raises(DeviceError, match="discarded"):
        second.numpy()


def test_an_error_of_oplets_own_discards_too(registry: oplet.Registry) -> None:
    with contextlib.suppress(InputError), registry.batch():
        y = double(registry, ONES)
        double(registry, ONES.astype(np.float64))
    with pytest.raises(DeviceError, match="discarded"):
        y.numpy()


def test_an_error_that_is_caught_inside_discards_nothing(registry: oplet.Registry) -> None:
    with registry.batch():
        y = double(registry, ONES)
        with pytest.raises(InputError):
            double(registry, ONES.astype(np.float64))
        z = double(registry, y)
    np.testing.assert_array_equal(z.numpy(), 4 * ONES)


@pytest.mark.parametrize("again", ["run", "batch"])
def test_a_tensor_that_was_not_filled_can_be_filled_yet(registry: oplet.Registry, again: str) -> None:
    out = registry.empty(ONES.shape)
    discarded(registry, out)
    with pytest.raises(DeviceError, match="discarded"):
        out.numpy()
    if again == "run":
        registry.run(SCALE, X=3 * ONES, out={"Y": out})
    else:
        with registry.batch():
            registry.run(SCALE, X=3 * ONES, out={"Y": out})
    np.testing.assert_array_equal(out.numpy(), 6 * ONES)


@pytest.mark.parametrize("again", ["run", "batch"])
@pytest.mark.parametrize("refused", ["scratch", "commands"])
def test_a_refused_run_leaves_a_tensor_that_was_not_filled_as_it_was(
    device: oplet.Device, monkeypatch: pytest.MonkeyPatch, again: str, refused: str
) -> None:
    def plan(request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
        return [attrs.evolve(one, scratch={"spare": request.inputs["X"]}) for one in acme_scale.plan(request, caps)]

    def refuse(*_: Any, **__: Any) -> Any:
        raise (
            oplet.OutOfMemoryError("no memory left") if refused == "scratch" else device._gpu_error("no more commands")
        )

    registry = oplet.Registry(device=device, discover=False)
    registry.register(SCALE, acme_scale.with_variants(oplet.Variant("spare", plan)))
    x, out = registry.tensor(3 * ONES), registry.empty(ONES.shape)
    discarded(registry, out)
    with registry.batch() if again == "batch" else contextlib.nullcontext():
        with monkeypatch.context() as patch:
            place, name = (device.pool, "take") if refused == "scratch" else (device.gpu, "create_command_encoder")
            patch.setattr(place, name, refuse)
            with pytest.raises(DeviceError, match="no m"):
                registry.run(SCALE, X=x, out={"Y": out})
        with pytest.raises(DeviceError, match="discarded"):
            out.numpy()
        registry.run(SCALE, X=x, out={"Y": out})
    np.testing.assert_array_equal(out.numpy(), 6 * ONES)


def test_memory_of_a_discarded_batch_comes_back(registry: oplet.Registry) -> None:
    pool = registry.device.pool
    discarded(registry)
    pool.settle()
    live = pool.live_count
    for _ in range(3):
        discarded(registry)
        pool.settle()
        assert pool.live_count == live


def test_a_batch_whose_submit_fails_discards(registry: oplet.Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(commands: Any) -> None:
        raise registry.device._gpu_error("the driver refuses")

    pool = registry.device.pool
    pool.settle()
    live = pool.live_count
    with monkeypatch.context() as patch:
        patch.setattr(registry.device.gpu.queue, "submit", refuse)
        with pytest.raises(DeviceError, match="the driver refuses"), registry.batch():
            y = double(registry, ONES)
    with pytest.raises(DeviceError, match="discarded"):
        y.numpy()
    del y
    pool.settle()
    assert pool.live_count == live
    np.testing.assert_array_equal(double(registry, ONES).numpy(), 2 * ONES)


def test_refused_memory_inside_leaves_the_batch_whole(
    registry: oplet.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(nbytes: int) -> Any:
        raise DeviceError("no memory left")

    with registry.batch():
        y = double(registry, ONES)
        with monkeypatch.context() as patch:
            patch.setattr(registry.device.pool, "take", refuse)
            with pytest.raises(DeviceError, match="no memory left"):
                double(registry, y)
        z = double(registry, y)
    np.testing.assert_array_equal(z.numpy(), 4 * ONES)


# Threads and tasks ------------------------------------------------------------------------------------


def in_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_another_thread_cannot_use_what_an_open_batch_is_to_fill(registry: oplet.Registry, submits: list[int]) -> None:
    with registry.batch():
        y = double(registry, ONES)
        for use in (
            y.numpy,
            lambda: double(registry, y),
            lambda: registry.run(SCALE, X=ONES, out={"Y": y}),
        ):
            with pytest.raises(
                DeviceError, match="a batch that is still open in another thread or task\nread it there"
            ):
                in_thread(use)
        assert submits == []
    np.testing.assert_array_equal(in_thread(y.numpy), 2 * ONES)
    np.testing.assert_array_equal(in_thread(lambda: double(registry, y).numpy()), 4 * ONES)


def test_a_thread_is_not_in_the_batch_of_another(registry: oplet.Registry, submits: list[int]) -> None:
    with registry.batch():
        double(registry, ONES)
        other = in_thread(lambda: double(registry, ONES))
        assert submits == [1]
        np.testing.assert_array_equal(other.numpy(), 2 * ONES)
        assert submits == [1], "read here, and not filled by the batch that is open here"
    assert submits == [1, 1]


def test_threads_with_batches_of_their_own(registry: oplet.Registry) -> None:
    start = threading.Barrier(4)

    def work(number: int) -> bool:
        start.wait()
        right = True
        for step in range(5):
            with registry.batch():
                y = double(registry, np.full((step + 1, 7), number, np.float32), 3)
                if step % 2:
                    right &= bool((y.numpy() == 8 * number).all())
                z = double(registry, y)
            right &= bool((z.numpy() == 16 * number).all())
        return right

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_tasks_with_batches_of_their_own(registry: oplet.Registry, submits: list[int]) -> None:
    async def work(number: int, fails: bool) -> Any:
        with registry.batch():
            y = double(registry, number * ONES)
            await asyncio.sleep(0)
            y = double(registry, y)
            await asyncio.sleep(0)
            if fails:
                raise Stop
        return y

    async def all_at_once() -> list[Any]:
        tasks = [work(number, fails=number == 2) for number in range(4)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(all_at_once())
    assert submits == [1, 1, 1]
    assert isinstance(results.pop(2), Stop)
    for number, y in zip((0, 1, 3), results, strict=True):
        np.testing.assert_array_equal(y.numpy(), 4 * number * ONES)


def test_a_task_cannot_read_what_another_tasks_batch_is_to_fill(registry: oplet.Registry) -> None:
    async def main() -> None:
        made: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        tried = asyncio.Event()

        async def fill() -> None:
            with registry.batch():
                made.set_result(double(registry, ONES))
                await tried.wait()

        async def read() -> None:
            y = await made
            with pytest.raises(DeviceError, match="open in another thread or task"):
                y.numpy()
            tried.set()

        await asyncio.gather(fill(), read())
        np.testing.assert_array_equal(made.result().numpy(), 2 * ONES)

    asyncio.run(main())


def test_a_context_copied_from_a_batch_that_has_ended_is_in_none(registry: oplet.Registry, submits: list[int]) -> None:
    with registry.batch():
        context = contextvars.copy_context()
        double(registry, ONES)
    assert submits == [1]
    y = context.run(double, registry, ONES)
    assert submits == [1, 1]
    np.testing.assert_array_equal(y.numpy(), 2 * ONES)


def test_a_batch_may_be_closed_in_another_context(registry: oplet.Registry, submits: list[int]) -> None:
    def steps() -> Iterator[Any]:
        with registry.batch():
            yield double(registry, ONES)

    generator = steps()
    y = contextvars.copy_context().run(next, generator)
    assert double(registry, ONES).numpy()[0, 0] == 2
    generator.close()
    with pytest.raises(DeviceError, match="discarded"):
        y.numpy()
    assert submits == [1]


# Everything at once -----------------------------------------------------------------------------------


class Model:
    """Random calls on a registry, and what numpy makes of them."""

    def __init__(self, registry: oplet.Registry, seed: int) -> None:
        self.registry = registry
        self.rng = random.Random(seed)
        self.known: list[tuple[oplet.Tensor, np.ndarray]] = []
        self.gone: list[oplet.Tensor] = []
        self.recorded: list[oplet.Tensor] = []
        self.upload()

    def upload(self) -> None:
        array = np.full((3, 5), self.rng.randint(-9, 9), np.float32)
        self.known.append((self.registry.tensor(array), array.copy()))
        array[:] = 99

    def run(self) -> None:
        (x, x_array), (bias, bias_array) = self.rng.choices(self.known, k=2)
        others = [tensor for tensor, _ in self.known if tensor is not x and tensor is not bias] + self.gone
        out = self.rng.choice([*others, None])
        attrs = {"factor": 0.5, "shift": self.rng.randint(-3, 3)}
        y = self.registry.run(SCALE, X=x, bias=bias, attrs=attrs, out=None if out is None else {"Y": out})
        self.forget(y)
        self.known.append((y, (x_array * np.float32(0.5) + attrs["shift"] + bias_array).astype(np.float32)))
        self.recorded.append(y)

    def read(self) -> None:
        tensor, array = self.rng.choice(self.known)
        np.testing.assert_array_equal(tensor.reshape(-1).numpy(), array.ravel())
        if any(tensor is one for one in self.recorded):
            self.recorded.clear()  # submitted, so no exception can discard it any more
        for tensor in self.gone:
            with pytest.raises(DeviceError, match="discarded"):
                tensor.numpy()

    def drop(self) -> None:
        if len(self.known) > 3:
            self.known.pop(self.rng.randrange(len(self.known)))

    def forget(self, tensor: oplet.Tensor) -> None:
        self.known = [pair for pair in self.known if pair[0] is not tensor]
        self.gone = [one for one in self.gone if one is not tensor]

    def step(self) -> None:
        self.rng.choices([self.upload, self.run, self.read, self.drop], [1, 4, 2, 2])[0]()

    def batch(self) -> None:
        self.recorded.clear()
        with contextlib.suppress(Stop), self.registry.batch():
            for _ in range(self.rng.randint(0, 8)):
                self.step()
            if self.rng.random() < 0.3:
                raise Stop
            self.recorded.clear()
        for tensor in self.recorded:  # by an exception
            self.forget(tensor)
            self.gone.append(tensor)
        if not self.known:
            self.upload()

    def play(self, steps: int) -> None:
        for _ in range(steps):
            self.rng.choices([self.batch, self.step], [1, 3])[0]()
        self.read()


def test_any_sequence_of_calls_is_what_numpy_makes_of_it(registry: oplet.Registry) -> None:
    for seed in range(5):
        Model(registry, seed).play(100)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: Model(registry, seed).play(60), range(100, 106)))
