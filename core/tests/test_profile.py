"""Profiles: every dispatch inside is measured, whatever submits it, and nothing outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import acme_scale
import numpy as np
import oplet
import pytest
from oplet import DeviceError
from oplet.profile import MAX_DISPATCHES, MAX_UNREAD, DispatchTime, Profile

SCALE = acme_scale.ID
ONES = np.ones((4, 3), np.float32)


def grids(profile: Profile) -> list[int]:
    """Workgroups of each dispatch: tests give each run a size of its own."""
    return [one.grid[0] for one in profile.dispatches]


def double(registry: oplet.Registry, workgroups: int) -> oplet.Tensor:
    tensor: oplet.Tensor = registry.run(SCALE, X=np.ones(64 * workgroups, np.float32))
    return tensor


def test_each_dispatch_inside_is_measured_alone_and_in_batches(registry: oplet.Registry) -> None:
    double(registry, 9)
    with registry.profile() as profile:
        first = double(registry, 1)
        with registry.batch():
            double(registry, 2)
            double(registry, 3)
        double(registry, 4)
        assert profile.dispatches == ()
    double(registry, 9)
    assert grids(profile) == [1, 2, 3, 4]
    assert (first.numpy() == 2).all()
    for dispatch in profile.dispatches:
        assert (dispatch.op, dispatch.variant, dispatch.template) == (SCALE, "scalar", "scale.wgsl.jinja")
        assert 0 < dispatch.seconds < 10
    begins = [one.begin for one in profile.dispatches]
    assert begins == sorted(begins)
    assert profile.seconds == sum(one.seconds for one in profile.dispatches)


def test_a_longer_dispatch_takes_longer(registry: oplet.Registry) -> None:
    with registry.profile() as profile:
        for _ in range(3):
            double(registry, 1)
            double(registry, 20_000)
    short, long = (min(one.seconds for one in profile.dispatches if one.grid[0] == n) for n in (1, 20_000))
    assert long > short


def test_a_profile_inside_a_batch_measures_its_part(registry: oplet.Registry) -> None:
    with registry.batch():
        before = double(registry, 1)
        with registry.profile() as profile:
            double(registry, 2)
        after = double(registry, 3)
    assert grids(profile) == [2]
    assert (before.numpy() == 2).all()
    assert (after.numpy() == 2).all()


def test_nested_profiles(registry: oplet.Registry) -> None:
    with registry.profile() as outer:
        double(registry, 1)
        with registry.profile() as inner:
            double(registry, 2)
        double(registry, 3)
    assert grids(inner) == [2]
    assert grids(outer) == [1, 2, 3]


def test_more_dispatches_than_query_sets_hold(registry: oplet.Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = registry.device.gpu
    make, sets = gpu.create_query_set, []
    monkeypatch.setattr(gpu, "create_query_set", lambda **how: sets.append(how["count"]) or make(**how))
    with registry.profile() as profile:
        with registry.batch():
            for _ in range(MAX_DISPATCHES + 5):
                double(registry, 1)
        assert 1 < len(sets) < MAX_UNREAD, "a large batch does not take all that there are"
        for _ in range(MAX_UNREAD + 5):
            double(registry, 2)
    assert grids(profile) == [1] * (MAX_DISPATCHES + 5) + [2] * (MAX_UNREAD + 5)
    assert max(sets) <= 4096, "what WebGPU allows"


def test_what_an_exception_discards_is_not_measured(registry: oplet.Registry) -> None:
    with registry.profile() as profile:
        with contextlib.suppress(ZeroDivisionError), registry.batch():
            double(registry, 1)
            raise ZeroDivisionError
        double(registry, 2)
    assert grids(profile) == [2]


def test_an_exception_leaves_the_profile_closed(registry: oplet.Registry) -> None:
    with pytest.raises(ZeroDivisionError), registry.profile() as profile:
        raise ZeroDivisionError
    double(registry, 1)
    assert profile.dispatches == ()


def test_it_belongs_to_its_thread_and_goes_with_its_coroutines(registry: oplet.Registry) -> None:
    async def main() -> Profile:
        with registry.profile() as profile:
            other = threading.Thread(target=double, args=(registry, 1))
            other.start()
            other.join()
            await registry.run_async(SCALE, X=np.ones(128, np.float32))
        return profile

    assert grids(asyncio.run(main())) == [2]


def test_an_empty_profile(registry: oplet.Registry) -> None:
    with registry.profile() as profile:
        pass
    assert profile.dispatches == ()
    assert str(profile).startswith('0 dispatches, 0.0 µs of device time on "')
    assert [event["ph"] for event in profile.chrome_trace()["traceEvents"]] == ["M", "M"]


def test_memory_is_given_back(registry: oplet.Registry) -> None:
    pool = registry.device.pool
    double(registry, 1).numpy()
    pool.settle()
    before = pool.live_count
    for _ in range(3):
        with registry.profile():
            double(registry, 1)
    pool.settle()
    assert pool.live_count == before


def made(device: oplet.Device, dispatches: Sequence[DispatchTime]) -> Profile:
    profile = Profile(device)
    profile.dispatches = tuple(dispatches)
    return profile


def test_the_table_sums_up_templates(device: oplet.Device) -> None:
    dispatches = [
        DispatchTime("com.acme.A", "fast", "one.wgsl.jinja", (1, 1, 1), 5.0, 2e-6),
        DispatchTime("com.acme.A", "fast", "one.wgsl.jinja", (1, 1, 1), 5.1, 4e-6),
        DispatchTime("com.acme.A", "fast", "two.wgsl.jinja", (1, 1, 1), 5.2, 18e-3),
    ]
    title, header, *rows = str(made(device, dispatches)).splitlines()
    assert title.startswith("3 dispatches, 18.0 ms of device time on ")
    assert header.split() == ["op/variant", "template", "dispatches", "total", "mean", "share"]
    assert [row.split() for row in rows] == [
        ["com.acme.A/fast", "two.wgsl.jinja", "1", "18.0", "ms", "18.0", "ms", "100%"],
        ["com.acme.A/fast", "one.wgsl.jinja", "2", "6.0", "µs", "3.0", "µs", "0%"],
    ]
    assert "<td" in made(device, dispatches)._repr_html_()


def test_a_trace_that_cannot_be_written_names_the_path(device: oplet.Device, tmp_path: Path) -> None:
    with pytest.raises(oplet.InputError, match=r"path: .*no such folder.*\n.*can be written"):
        made(device, []).save(tmp_path / "no such folder" / "trace.json")


def test_the_chrome_trace(device: oplet.Device, tmp_path: Path) -> None:
    dispatches = [
        DispatchTime("com.acme.A", "fast", "one.wgsl.jinja", (3, 2, 1), 5.0, 2e-6),
        DispatchTime("com.acme.B", "slow", "two.wgsl.jinja", (1, 1, 1), 5.5, 1e-3),
    ]
    path = tmp_path / "trace.json"
    made(device, dispatches).save(path)
    trace = json.loads(path.read_text(encoding="utf-8"))
    names, threads = trace["traceEvents"][:2]
    assert (names["name"], threads["args"]) == ("process_name", {"name": device.capabilities.adapter.name})
    first, second = trace["traceEvents"][2:]
    assert {key: first[key] for key in ("ph", "name", "pid", "tid", "ts", "args")} == {
        "ph": "X",
        "name": "com.acme.A/fast",
        "pid": 1,
        "tid": 1,
        "ts": 0.0,
        "args": {"template": "one.wgsl.jinja", "grid": [3, 2, 1]},
    }
    assert (first["dur"], second["ts"], second["dur"]) == pytest.approx((2.0, 0.5e6, 1e3))


def test_a_device_without_timestamps(device: oplet.Device) -> None:
    plain = oplet.open_device(features=[])
    profile = oplet.Registry(device=plain, discover=False).profile()
    with pytest.raises(DeviceError, match=r"no timestamps \(timestamp-query\)\nopen it with that feature"), profile:
        pytest.fail("it must not begin")
