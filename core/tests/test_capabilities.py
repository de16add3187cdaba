"""What a device was granted, in one spelling."""

from typing import Any

import attrs
import numpy as np
import oplet
import pytest
from oplet import capabilities
from oplet.capabilities import FEATURES, FLOOR, kebab, measure_subgroup_size, webgpu_limits


def test_the_device_that_tests_run_on(device: oplet.Device) -> None:
    caps = device.capabilities
    assert caps.dialect == {"wgpu": "naga", "dawn": "tint"}[device.implementation]
    assert caps.features <= set(FEATURES)
    assert caps.adapter.backend in ("Vulkan", "Metal", "D3D12")
    assert caps.adapter.name
    assert set(caps.limits) == set(FLOOR)
    assert hash(caps) == hash(attrs.evolve(caps))


def test_every_device_has_the_floor(device: oplet.Device) -> None:
    for name, value in device.capabilities.limits.items():
        assert value <= FLOOR[name] if name.startswith("min") else value >= FLOOR[name], name


def test_the_subgroup_size_is_what_a_shader_sees(device: oplet.Device) -> None:
    caps = device.capabilities
    if "subgroups" in caps.features:
        assert caps.subgroup_size in (4, 8, 16, 32, 64, 128)
        assert measure_subgroup_size(device.gpu, caps.dialect) == caps.subgroup_size
    else:
        assert caps.subgroup_size == 0
    assert bool(caps.subgroup_matrix_configs) == ("subgroup-matrix" in caps.features)


def test_limits_by_webgpus_names() -> None:
    assert kebab("maxComputeWorkgroupSizeX") == "max-compute-workgroup-size-x"
    assert kebab("maxBufferSize") == "max-buffer-size"
    found = {kebab(name): number for number, name in enumerate(FLOOR)} | {"max-texture-dimension-1d": 99}
    assert webgpu_limits(found) == {name: number for number, name in enumerate(FLOOR)}


class Gpu:
    """Answers the probe with lanes of its own."""

    def __init__(self, seen: np.ndarray) -> None:
        self._seen = seen.astype(np.uint32)

    def read_buffer(self, buffer: Any) -> bytes:
        return self._seen.tobytes()

    def __getattr__(self, name: str) -> Any:
        return self if name == "queue" else lambda *arguments, **named: self


def lanes(size: int, count: int = 128) -> np.ndarray:
    return np.stack([np.full(count, size), np.arange(count) % size], axis=1)


@pytest.mark.parametrize("size", [4, 8, 32, 64, 128])
def test_a_subgroup_is_consecutive_invocations(size: int) -> None:
    assert measure_subgroup_size(Gpu(lanes(size)), "naga") == size


def test_lanes_in_another_order_are_no_subgroups_to_us() -> None:
    swapped = lanes(8)
    swapped[:, 1] = swapped[::-1, 1]
    mixed = lanes(8)
    mixed[64:, 0] = 16
    for seen in (swapped, mixed):
        assert measure_subgroup_size(Gpu(seen), "naga") == 0


def test_without_known_lanes_the_feature_is_not_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "measure_subgroup_size", lambda gpu, dialect: 0)
    opened = oplet.open_device()
    assert "subgroups" not in opened.capabilities.features
    assert opened.capabilities.subgroup_size == 0
    opened.gpu.destroy()
