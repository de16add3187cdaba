"""The short form of tests/soak.py: what ran once needs no more memory when it runs again."""

from __future__ import annotations

import gc

import attrs
import oplet
from soak import Memory, Soak


def test_the_same_mixed_runs_again_need_the_same_memory() -> None:
    registry = oplet.Registry()
    soak = Soak(registry, registry.ids, cases=2, seed=0)
    soak.every_way_once()
    registry.device.wait()  # takes a buffer the first time

    def look() -> Memory:
        gc.collect()
        gc.disable()  # tensors in cycles come back at the same runs each time
        try:
            for done in soak.runs(300, seed=1):
                if done % 50 == 0:
                    gc.collect()
            return Memory.of(registry.device)
        finally:
            gc.enable()

    first, again = look(), look()
    # Which buffers meet in a bind group depends on what ran before; the cache of them is bounded.
    assert attrs.evolve(again, process=0, bind_groups=0) == attrs.evolve(first, process=0, bind_groups=0)
    assert again.live == 256, "what Device.wait has, and nothing that was run"
