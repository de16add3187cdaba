"""At the largest shapes no dispatch is longer than its bound: work is split by workgroups, recurrences by tokens."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import oplet
import pytest
from oplet import TensorSpec
from oplet.capabilities import FEATURES, FLOOR, Adapter, Capabilities
from oplet.device import MAX_OPERATIONS, MAX_OPERATIONS_DISCRETE
from oplet.shader import ranges

GPU = Capabilities(
    features=frozenset(FEATURES) - {"subgroup-matrix"},
    limits={
        **FLOOR,
        "maxBufferSize": 1 << 40,
        "maxStorageBufferBindingSize": (1 << 32) - 4,
        "maxComputeWorkgroupStorageSize": 49152,
        "maxComputeInvocationsPerWorkgroup": 1024,
        "maxStorageBuffersPerShaderStage": 16,
        "minStorageBufferOffsetAlignment": 32,
    },
    subgroup_size=32,
    subgroup_matrix_configs=(),
    dialect="naga",
    adapter=Adapter("a large GPU", "", "Vulkan", is_cpu=False),
)

#: multiply-adds for an element of a tensor, at most, in a launch that does not say how many it takes
FEW = 16


@attrs.frozen
class Long:
    """A call that takes long.

    Attributes:
        op: its name in com.microsoft.
        inputs: by name, as `TensorSpec.parse` reads them.
        attributes: by name.
        operations: multiply-adds that it takes, at least.
    """

    op: str
    inputs: Mapping[str, str]
    attributes: Mapping[str, int | float | str]
    operations: int


TOKENS = 1 << 17
CALLS = (
    Long("FusedGemm", {"A": "16384x16384:f32", "B": "16384x16384:f32"}, {}, 1 << 42),
    Long("FusedGemm", {"A": "32768x32768:f16", "B": "32768x32768:f16"}, {}, 1 << 45),
    Long("FusedGemm", {"A": "20x50000000:f32", "B": "50000000x20:f32"}, {}, 20 * 20 * 50_000_000),
    Long("FusedGemm", {"A": "1x16384:f32", "B": "16384x65535:f32"}, {}, 16384 * 65535),
    Long(
        "PackedMultiHeadAttention",
        {
            "queryT": f"{TOKENS}x16x3x128:f16",
            "tokenOffsetT": f"1x{TOKENS}:i32",
            "cumulativeSequenceLengthT": "2:i32",
        },
        {"num_heads": 16},
        TOKENS * TOKENS * 16 * 256,
    ),
    Long(
        "GatedDeltaNet",
        {
            "queryT": "1048576x2x128:f32",
            "keyT": "1048576x2x128:f32",
            "valueT": "1048576x4x128:f32",
            "decayT": "1048576x4:f32",
            "betaT": "1048576x4:f32",
        },
        {},
        3 * 1048576 * 4 * 128 * 128,
    ),
    Long(
        "EngramGate",
        {
            "keyT": "1x32768x4x7168:f32",
            "queryT": "1x32768x4x7168:f32",
            "valueT": "1x32768x7168:f32",
            "keyNormScaleT": "4x7168:f32",
            "queryNormScaleT": "4x7168:f32",
        },
        {},
        4 * 32768 * 4 * 7168,
    ),
)


@pytest.mark.parametrize("bound", [MAX_OPERATIONS, MAX_OPERATIONS_DISCRETE])
@pytest.mark.parametrize("call", CALLS, ids=[f"{call.op} {next(iter(call.inputs.values()))}" for call in CALLS])
def test_no_dispatch_is_longer_than_the_bound(call: Long, bound: int) -> None:
    op = oplet.default_registry()[f"com.microsoft.{call.op}"]
    request = op.bind({name: TensorSpec.parse(text) for name, text in call.inputs.items()}, call.attributes)
    served = 0
    for variant in op.variants:
        try:
            plan = op.plan(request, GPU, variant.name)
        except oplet.NoVariantError:
            continue
        served += 1
        told = sum(launch.operations for launch in plan.launches)
        specs = plan.specs
        for launch in plan.launches:
            elements = sum(specs[binding.tensor].size for binding in launch.bindings)
            assert FEW * elements <= bound or launch.operations, launch.template
            most = max(count for _, count in ranges(launch.workgroups, launch.operations, bound, 65535))
            assert launch.operations * most <= bound * launch.workgroups, launch.template
        assert told >= call.operations or call.operations <= bound, variant.name
    assert served
