"""Threads that run all ops of this repository on one registry."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import numpy as np
import oplet

THREADS, RUNS = 8, 200


@attrs.frozen(eq=False)
class Call:
    """A call, and what it gives when nothing else runs."""

    op: str
    arguments: dict[str, Any]
    want: tuple[np.ndarray, ...]


def arrays(results: Any) -> tuple[np.ndarray, ...]:
    return tuple(tensor.numpy() for tensor in (results if isinstance(results, tuple) else (results,)))


def calls(registry: oplet.Registry) -> Iterator[Call]:
    rng = np.random.default_rng(12)

    def random(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    asked: list[tuple[str, dict[str, Any]]] = []
    for rows in (3, 5, 33):
        asked.append(("FusedGemm", {"A": random(rows, 24), "B": random(24, 12), "attrs": {"activation": "Relu"}}))
        key = random(1, rows, 2, 16)
        gate = {"key": key, "query": random(*key.shape), "value": random(1, rows, 16)}
        asked.append(("EngramGate", gate | {"key_norm_scale": random(2, 16), "query_norm_scale": random(2, 16)}))
        schedule = {
            "token_offset": np.arange(rows, dtype=np.int32)[None],
            "cumulative_sequence_length": np.array([0, rows], np.int32),
        }
        asked.append(
            ("PackedMultiHeadAttention", {"query": random(rows, 2, 3, 8), "attrs": {"num_heads": 2}} | schedule)
        )
        heads = {name: random(1, rows, 2, 8) for name in ("query", "key", "value")}
        gates = {"decay": -abs(random(1, rows, 2)), "beta": abs(random(1, rows, 2))}
        asked.append(("GatedDeltaNet", heads | gates | {"attrs": {"qk_l2_norm": 1}}))
    for name, arguments in asked:
        op = f"com.microsoft.{name}"
        yield Call(op, arguments, arrays(registry.run(op, **arguments)))


def test_eight_threads_of_two_hundred_runs_of_all_ops() -> None:
    registry = oplet.Registry()
    made = list(calls(registry))
    for call in made:  # right when alone: the conformance tests tell how right, this that it is the op's result
        for got, want in zip(
            call.want, arrays(registry.run(call.op, **call.arguments, variant="reference")), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * abs(want).max())
    started = threading.Barrier(THREADS)

    def work(thread: int) -> int:
        rng = np.random.default_rng(thread)
        started.wait()
        for number in rng.integers(len(made), size=RUNS):
            call = made[number]
            if rng.random() < 0.3:
                with registry.batch():
                    results = registry.run(call.op, **call.arguments)
            else:
                results = registry.run(call.op, **call.arguments)
            for got, want in zip(arrays(results), call.want, strict=True):
                np.testing.assert_array_equal(got, want)
        return thread

    with ThreadPoolExecutor(THREADS) as pool:
        assert sorted(pool.map(work, range(THREADS))) == list(range(THREADS))
