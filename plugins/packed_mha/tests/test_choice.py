"""Which variant runs, and why the others do not."""

from __future__ import annotations

import numpy as np
import oplet
import pytest
from oplet import TensorSpec

OP = "com.microsoft.PackedMultiHeadAttention"


@pytest.fixture(scope="module")
def registry() -> oplet.Registry:
    return oplet.Registry()


@pytest.fixture(scope="module")
def bare() -> oplet.Registry:
    return oplet.Registry(device=oplet.open_device(features=[]))


def shapes(tokens: int, batch: int, length: int, **tensors: tuple[int, ...]) -> dict[str, TensorSpec]:
    return {
        "tokenOffsetT": TensorSpec((batch, length), "int32"),
        "cumulativeSequenceLengthT": TensorSpec((batch + 1,), "int32"),
        **{name: TensorSpec(shape, "float32") for name, shape in tensors.items()},
    }


TYPICAL = {
    "an encoder's layer": (
        12,
        shapes(8000, 32, 512, queryT=(8000, 12, 3, 64), biasT=(2304,)),
        "packed_bias_flash",
        {"packed_bias_flash_nosg": "later", "packed_bias_serial": "later", "packed_flash": "biasT is given"},
    ),
    "relative positions, wider values": (
        8,
        shapes(
            3000, 4, 1024, queryT=(3000, 512), keyT=(3000, 512), valueT=(3000, 1024), attentionBiasT=(1, 8, 1024, 1024)
        ),
        "separate_attn_bias_flash",
        {"packed_serial": "keyT and valueT are separate", "separate_flash": "attentionBiasT is given"},
    ),
    "a head size that is no multiple of 4": (
        4,
        shapes(500, 8, 128, queryT=(500, 4, 3, 50)),
        "packed_serial",
        {"packed_flash": "the head size 50 is not a multiple of 4", "packed_flash_nosg": "not a multiple of 4"},
    ),
    "sequences of two or three tokens": (
        12,
        shapes(640, 256, 4, queryT=(640, 12, 3, 64)),
        "packed_serial",
        {"packed_flash": "2.5 tokens on average", "packed_flash_nosg": "2.5 tokens on average"},
    ),
}


@pytest.mark.parametrize("name", TYPICAL)
def test_explain_says_what_runs_and_why_the_others_do_not(registry: oplet.Registry, name: str) -> None:
    heads, inputs, expected, reasons = TYPICAL[name]
    found = registry.explain(OP, attrs={"num_heads": heads}, **inputs)
    assert found.variant == expected
    told = {one.variant: f"{one.kind}: {one.reason}" for one in found.rejections}
    assert set(told) == {variant.name for variant in registry[OP].variants} - {expected}
    assert all(one.reason for one in found.rejections)
    for variant, reason in reasons.items():
        assert reason in told[variant]


def test_without_subgroups_tiles_go_through_memory(bare: oplet.Registry) -> None:
    heads, inputs, _, _ = TYPICAL["an encoder's layer"]
    found = bare.explain(OP, attrs={"num_heads": heads}, **inputs)
    assert found.variant == "packed_bias_flash_nosg"
    told = {one.variant: one.reason for one in found.rejections}
    assert told["packed_bias_flash"] == "needs the device feature subgroups"


def test_there_is_a_variant_of_every_name() -> None:
    forms = ["", "_attn_bias", "_bias", "_bias_attn_bias"]
    methods = ["flash", "flash_nosg", "serial"]
    wanted = [f"{form}{added}_{method}" for form in ("packed", "separate") for added in forms for method in methods]
    assert [variant.name for variant in oplet.Registry()[OP].variants] == wanted


@pytest.mark.parametrize(("head_size", "value_size", "which"), [(257, 8, "head"), (8, 260, "value head")])
def test_a_head_over_256_is_rejected_with_the_reason(
    registry: oplet.Registry, head_size: int, value_size: int, which: str
) -> None:
    tensors = {"queryT": (9, head_size), "keyT": (9, head_size), "valueT": (9, value_size)}
    with pytest.raises(oplet.NoVariantError, match=f"the {which} size {max(head_size, value_size)} is over 256"):
        registry.explain(OP, attrs={"num_heads": 1}, **shapes(9, 1, 9, **tensors))


REFUSED = [
    ({"keyT": (5, 32)}, "valueT", "was not given"),
    ({"queryT": (5, 32)}, "queryT", "has rank 2"),
    ({"queryT": (5, 2, 2, 16)}, "queryT", "is not (token_count, 2, 3, head_size)"),
    ({"queryT": (5, 3, 3, 16)}, "queryT", "is not (token_count, 2, 3, head_size)"),
    ({"queryT": (5, 32), "keyT": (5, 16), "valueT": (5, 32)}, "keyT", "differs from queryT"),
    ({"queryT": (5, 32), "keyT": (5, 32), "valueT": (4, 32)}, "valueT", "has 4 tokens"),
    ({"queryT": (5, 33), "keyT": (5, 33), "valueT": (5, 32)}, "queryT", "cannot be divided among 2 heads"),
    ({"queryT": (5, 32), "keyT": (5, 32), "valueT": (5, 33)}, "valueT", "cannot be divided among 2 heads"),
    ({"biasT": (64,)}, "biasT", "(64,) is not (96,)"),
    ({"attentionBiasT": (2, 2, 4, 5)}, "attentionBiasT", "is not (2 or 1, 2 or 1, 4, 4)"),
    ({"attentionBiasT": (2, 3, 4, 4)}, "attentionBiasT", "is not (2 or 1, 2 or 1, 4, 4)"),
    ({"cumulativeSequenceLengthT": (2,)}, "cumulativeSequenceLengthT", "(2,) is not (3,)"),
    ({"tokenOffsetT": (2, 2)}, "tokenOffsetT", "has no room for 5 tokens"),
]


@pytest.mark.parametrize(("changes", "argument", "message"), REFUSED)
def test_shapes_that_do_not_fit_name_the_argument(
    registry: oplet.Registry, changes: dict[str, tuple[int, ...]], argument: str, message: str
) -> None:
    inputs = shapes(5, 2, 4, queryT=(5, 2, 3, 16))
    for name, shape in changes.items():
        inputs[name] = TensorSpec(shape, "int32" if name[0] in "tc" else "float32")
    with pytest.raises(oplet.InputError) as caught:
        registry.explain(OP, attrs={"num_heads": 2}, **inputs)
    assert caught.value.argument == argument
    assert message in str(caught.value).splitlines()[0]


@pytest.mark.parametrize("heads", [0, -1])
def test_no_heads_are_refused(registry: oplet.Registry, heads: int) -> None:
    with pytest.raises(oplet.InputError, match="is not a number of heads"):
        registry.explain(OP, attrs={"num_heads": heads}, **shapes(5, 2, 4, queryT=(5, 2, 3, 16)))


def test_a_scale_of_zero_is_the_default(registry: oplet.Registry) -> None:
    rng = np.random.default_rng(0)
    inputs = {
        "queryT": rng.standard_normal((5, 2, 3, 16)).astype(np.float32),
        "tokenOffsetT": np.arange(6, dtype=np.int32).reshape(1, 6),
        "cumulativeSequenceLengthT": np.array([0, 5], np.int32),
    }
    results = [
        registry.run(OP, attrs={"num_heads": 2, **scale}, **inputs).numpy()
        for scale in ({}, {"scale": 0.0}, {"scale": -0.0}, {"scale": 0.25}, {"scale": 0.5}, {"mask_filter_value": 3.0})
    ]
    assert all(np.array_equal(results[0], results[number]) for number in (1, 2, 3, 5))
    assert not np.array_equal(results[0], results[4])


def test_two_shapes_share_a_pipeline(registry: oplet.Registry) -> None:
    def run(tokens: int, head_size: int) -> int:
        inputs = {
            "queryT": np.ones((tokens, 2, 3, head_size), np.float32),
            "tokenOffsetT": np.arange(tokens, dtype=np.int32).reshape(1, tokens),
            "cumulativeSequenceLengthT": np.array([0, tokens], np.int32),
        }
        registry.run(OP, attrs={"num_heads": 2}, **inputs)
        return len(registry.device.pipelines)

    assert run(9, 8) == run(31, 16)
