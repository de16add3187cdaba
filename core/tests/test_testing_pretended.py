"""Made-up devices: whole ones, and ones that lack something."""

import attrs
import pytest
from oplet.capabilities import FEATURES, FLOOR
from oplet.testing.pretended import LARGE, MATRICES, pretended


def test_a_device_that_lacks_nothing() -> None:
    device = pretended()
    assert device.features == set(FEATURES)
    assert (device.subgroup_size, device.subgroup_matrix_configs) == (32, MATRICES)
    assert set(device.limits) == set(FLOOR)
    assert device.limits["maxStorageBuffersPerShaderStage"] > FLOOR["maxStorageBuffersPerShaderStage"]
    assert LARGE["minUniformBufferOffsetAlignment"] == FLOOR["minUniformBufferOffsetAlignment"]


@pytest.mark.parametrize("feature", FEATURES)
def test_a_device_without_a_feature_has_nothing_of_it_left(feature: str) -> None:
    whole, left = pretended(), frozenset(FEATURES) - {feature}
    gone = {"subgroups": {"subgroup_size": 0}, "subgroup-matrix": {"subgroup_matrix_configs": ()}}
    assert pretended(left) == attrs.evolve(whole, features=left, **gone.get(feature, {}))
