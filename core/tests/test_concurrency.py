"""Coroutines and threads: right results whoever calls, an event loop that goes on, and memory that does not grow."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import acme_affine
import acme_scale
import numpy as np
import oplet
import pytest
from oplet import DeviceError, InputError, TensorSpec

SCALE, AFFINE = acme_scale.ID, "com.acme.Affine"
ONES = np.ones((4, 3), np.float32)


@pytest.fixture
def both(device: oplet.Device) -> oplet.Registry:
    registry = oplet.Registry(device=device, discover=False)
    registry.register(SCALE, acme_scale)
    registry.register(AFFINE, acme_affine)
    return registry


def numbered(number: int) -> np.ndarray:
    """An array of a shape and values of its own."""
    return np.full((1 + number % 5, 1 + number % 7), number, np.float32)


# Threads ----------------------------------------------------------------------------------------------


def scaled(registry: oplet.Registry, number: int) -> None:
    x = numbered(number)
    y = registry.run(SCALE, X=x, attrs={"factor": 4.0})
    np.testing.assert_array_equal(y.numpy(), 4 * x)


def with_bias(registry: oplet.Registry, number: int) -> None:
    x = numbered(number)
    y, negated = registry.run(SCALE, X=registry.tensor(x), bias=x, outputs=("Y", "negatedY"))
    np.testing.assert_array_equal(negated.numpy(), -3 * x)
    np.testing.assert_array_equal(y.numpy(), 3 * x)


def affine(registry: oplet.Registry, number: int) -> None:
    x = numbered(number)
    y, sums = registry.run(
        AFFINE, X=x, bias=-2 * x[0], attrs={"factor": 1.0, "activation": "Relu"}, outputs=("Y", "sums")
    )
    np.testing.assert_array_equal(y.numpy(), 0 * x)
    assert sums.shape == (len(x),)


def batched(registry: oplet.Registry, number: int) -> None:
    x = numbered(number)
    with registry.batch():
        y = registry.run(SCALE, X=x)
        for _ in range(number % 4):
            y = registry.run(SCALE, X=y)
        z = registry.run(AFFINE, X=y, bias=x[0])
    np.testing.assert_array_equal(z.numpy(), x * (1 + 2 ** (1 + number % 4)))


def into(registry: oplet.Registry, number: int) -> None:
    x = numbered(number)
    y = registry.empty(x.shape)
    registry.run(SCALE, X=x, out={"Y": y})
    np.testing.assert_array_equal(np.asarray(y), 2 * x)


def on_the_host(registry: oplet.Registry, number: int) -> None:
    x = numbered(number)
    np.testing.assert_array_equal(registry.run(SCALE, X=x, variant="reference").numpy(), 2 * x)


def refused(registry: oplet.Registry, number: int) -> None:
    with pytest.raises(InputError, match=f"^{SCALE}: Z: no such input"):
        registry.run(SCALE, X=ONES, Z=ONES)


TASKS: tuple[Callable[[oplet.Registry, int], None], ...] = (
    scaled,
    with_bias,
    affine,
    batched,
    into,
    on_the_host,
    refused,
)


def test_eight_threads_of_two_hundred_mixed_runs(both: oplet.Registry) -> None:
    started = threading.Barrier(8)

    def work(thread: int) -> int:
        started.wait()
        for number in range(200):
            TASKS[(thread + number) % len(TASKS)](both, 1000 * thread + number)
        return thread

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(work, range(8))) == list(range(8))


def test_threads_that_start_with_one_call_compile_it_once(device: oplet.Device) -> None:
    registry = oplet.Registry(device=device, discover=False)
    registry.register(SCALE, acme_scale.changed("acme_fresh"))
    compiled = device.pipelines.compiled
    started = threading.Barrier(4)

    def work(_: int) -> np.ndarray:
        started.wait()
        x = ONES.astype(np.uint32)
        return np.asarray(registry.run(SCALE, X=x, bias=x, attrs={"mode": "absolute"}, outputs=("Y", "negatedY"))[0])

    with ThreadPoolExecutor(4) as pool:
        for y in pool.map(work, range(4)):
            np.testing.assert_array_equal(y, 3 * ONES)
    assert device.pipelines.compiled == compiled + 1


def test_a_tensor_of_another_threads_open_batch_is_refused_in_run_and_read(both: oplet.Registry) -> None:
    with both.batch(), ThreadPoolExecutor(1) as pool:
        y = both.run(SCALE, X=ONES)
        for call in (y.numpy, lambda: both.run(SCALE, X=y)):
            with pytest.raises(DeviceError, match=r"still open in another thread or task\nread it there, or after"):
                pool.submit(call).result()
    np.testing.assert_array_equal(y.numpy(), 2 * ONES)


# Coroutines -------------------------------------------------------------------------------------------


def test_run_and_read_in_a_coroutine(both: oplet.Registry) -> None:
    async def main() -> None:
        y = await both.run_async(SCALE, X=ONES)
        np.testing.assert_array_equal(await y.numpy_async(), 2 * ONES)
        z = both.empty(ONES.shape)
        assert await both.run_async(SCALE, X=y, bias=ONES, attrs={"factor": 4.0}, out={"Y": z}) is z
        np.testing.assert_array_equal(await z.numpy_async(), 9 * ONES)
        host = await both.run_async(SCALE, X=ONES, variant="reference")
        np.testing.assert_array_equal(await host.numpy_async(), 2 * ONES)
        with pytest.raises(InputError, match="no such input"):
            await both.run_async(SCALE, X=ONES, Z=ONES)

    asyncio.run(main())


def test_a_batch_in_a_coroutine_is_one_submit(both: oplet.Registry) -> None:
    async def main() -> None:
        with both.batch():
            y = await both.run_async(SCALE, X=ONES)
            y = await both.run_async(SCALE, X=y)
            assert y.buffer.pending is not None
            assert y.buffer.pending.state == "open"
        np.testing.assert_array_equal(await y.numpy_async(), 4 * ONES)
        with both.batch():
            y = await both.run_async(SCALE, X=ONES)
            np.testing.assert_array_equal(await y.numpy_async(), 2 * ONES)

    asyncio.run(main())


def test_the_event_loop_goes_on_while_the_device_is_busy(both: oplet.Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = both.device.gpu.queue
    y = both.run(SCALE, X=ONES)
    read, busy = queue.read_buffer, threading.Event()

    def slow(*arguments: Any) -> Any:
        assert busy.wait(60)
        return read(*arguments)

    monkeypatch.setattr(queue, "read_buffer", slow)

    async def main() -> None:
        reading = asyncio.ensure_future(y.numpy_async())
        # The read holds the device, so the run has to wait for it; the loop has to wait for neither.
        running = asyncio.ensure_future(both.run_async(SCALE, X=ONES))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not reading.done()
        busy.set()
        np.testing.assert_array_equal(await reading, 2 * ONES)
        np.testing.assert_array_equal(await (await running).numpy_async(), 2 * ONES)

    asyncio.run(main())


def test_a_thousand_awaits_at_once_and_memory_stays_flat(both: oplet.Registry) -> None:
    x = both.tensor(ONES)
    pool = both.device.pool
    pool.settle()
    before = pool.live_bytes + pool.idle_bytes

    async def one(number: int) -> bool:
        y = await both.run_async(SCALE, X=x, attrs={"shift": number % 3})
        z = await both.run_async(SCALE, X=y, bias=y)
        got = await z.numpy_async()
        return bool((got == 3 * (2 + number % 3)).all())

    async def main() -> list[tuple[int, int]]:
        seen = []
        for _ in range(3):
            assert await asyncio.gather(*map(one, range(1000))) == [True] * 1000
            gc.collect()  # what tests before this one left in cycles
            pool.settle()
            seen.append((pool.live_bytes, pool.live_bytes + pool.idle_bytes))
        return seen

    seen = asyncio.run(main())
    live, held = zip(*seen, strict=True)
    assert max(live) - min(live) <= 20 * 256  # threads of the pool may still hold what they had last
    # Each of a thousand has two tensors at most, of the smallest capacity, and the next round takes the same ones.
    assert max(held) - before <= 2 * 1000 * 256


# Prewarming -------------------------------------------------------------------------------------------


def test_a_prewarmed_call_neither_plans_nor_compiles(device: oplet.Device) -> None:
    planned = []

    def plan(request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
        planned.append(request.inputs["X"].shape)
        return acme_scale.plan(request, caps)

    registry = oplet.Registry(device=device, discover=False)
    registry.register(SCALE, acme_scale.with_variants(oplet.Variant("scalar", plan)))
    taken = device.pool.live_count
    registry.prewarm(SCALE, X=TensorSpec((4, 3), "uint32"), data=None, attrs={"mode": "absolute"}, bias=None)
    compiled, live = device.pipelines.compiled, device.pool.live_count
    assert planned == [(4, 3)]
    assert live <= taken  # nothing ran, nothing was made
    x = registry.tensor(ONES.astype(np.uint32))
    y = registry.run(SCALE, X=x, attrs={"mode": "absolute"})
    assert planned == [(4, 3)]
    z = registry.run(SCALE, X=np.ones((7, 9), np.uint32), attrs={"mode": "absolute"})
    assert device.pipelines.compiled == compiled
    assert (y.numpy() == 2).all()
    assert (z.numpy() == 2).all()


def test_prewarming_takes_what_run_takes_and_refuses_what_it_refuses(both: oplet.Registry) -> None:
    spec = TensorSpec((4, 3), "float32")
    both.prewarm(SCALE, X=ONES, bias=spec, outputs=("negatedY",), variant="scalar")
    both.prewarm(SCALE, X=spec, variant="reference")
    with pytest.raises(oplet.UnknownOpError):
        both.prewarm("com.acme.None", X=spec)
    for arguments in ({"Z": spec}, {"attrs": {"factor": "1"}}, {"outputs": ("Q",)}, {"variant": "no"}):
        with pytest.raises(InputError):
            both.prewarm(SCALE, X=spec, **arguments)
    for variant in (None, "scalar", "reference"):
        with pytest.raises(InputError, match="X: float64 is not one of"):
            both.prewarm(SCALE, X=TensorSpec((2,), "float64"), variant=variant)
        with pytest.raises(InputError, match=r"bias: \(3, 4\) is not X's \(4, 3\)"):
            both.prewarm(SCALE, X=spec, bias=TensorSpec((3, 4), "float32"), variant=variant)


def test_prewarming_in_a_thread(both: oplet.Registry) -> None:
    async def main() -> None:
        spec = TensorSpec((4, 3), "int32")
        await asyncio.to_thread(both.prewarm, SCALE, X=spec, bias=spec, attrs={"mode": "absolute"})
        compiled = both.device.pipelines.compiled
        x = -ONES.astype(np.int32)
        y = await both.run_async(SCALE, X=x, bias=x, attrs={"mode": "absolute"})
        np.testing.assert_array_equal(await y.numpy_async(), 3 * ONES)
        assert both.device.pipelines.compiled == compiled

    asyncio.run(main())
