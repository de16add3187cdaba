"""Schedules: malformed ones, on the host and on the device, and extreme ones."""

from __future__ import annotations

import re

import numpy as np
import oplet
import pytest
from oplet.testing.guard import GuardPool
from oplet_packed_mha.cases import Attributes, Inputs, draw

OP = "com.microsoft.PackedMultiHeadAttention"


@pytest.fixture(scope="module")
def registry() -> oplet.Registry:
    return oplet.Registry()


@pytest.fixture(scope="module")
def guarded() -> oplet.Registry:
    device = oplet.open_device()
    device.pool = GuardPool(device)
    return oplet.Registry(device=device)


def call(**changes: np.ndarray) -> tuple[Inputs, Attributes]:
    inputs, attributes = draw(np.random.default_rng(0), [3, 2, 4], heads=2, head_size=16, padding="right")
    return {**inputs, **changes}, attributes


MALFORMED = [
    ("cumulativeSequenceLengthT", [1, 3, 5, 9], "entry 0 is 1, not 0"),
    ("cumulativeSequenceLengthT", [0, 3, 2, 9], "entry 2 is 2, less than entry 1, 3"),
    ("cumulativeSequenceLengthT", [0, -3, 5, 9], "entry 1 is -3, less than entry 0, 0"),
    ("cumulativeSequenceLengthT", [0, 3, 5, 8], "entry 3, the last, is 8"),
    ("cumulativeSequenceLengthT", [0, 0, 0, 9], "entry 3 is 9: sequence 2 has 9 tokens"),
    ("cumulativeSequenceLengthT", [0, 2**31 - 1, -(2**31), 9], "entry 1 is 2147483647"),
]


@pytest.mark.parametrize(("name", "entries", "message"), MALFORMED)
@pytest.mark.parametrize("variant", [None, "packed_serial", "reference"])
def test_a_malformed_array_is_refused_by_its_entry(
    registry: oplet.Registry, name: str, entries: list[int], message: str, variant: str | None
) -> None:
    inputs, attributes = call(**{name: np.array(entries, np.int32)})
    with pytest.raises(oplet.InputError) as caught:
        registry.run(OP, attrs=attributes, variant=variant, **inputs)
    assert caught.value.argument == name
    assert message in str(caught.value).splitlines()[0]


@pytest.mark.parametrize(
    ("entry", "place", "message"),
    [
        (1, 0, "entry 1 is 0, as entry 0 is: two tokens in one place"),
        (2, 7, "entry 2 is 7, a place of sequence 1 the token is of sequence 0, whose places are 0 to 6"),
        (8, 3, "entry 8 is 3, a place of sequence 0 the token is of sequence 2, whose places are 14 to 20"),
    ],
)
def test_an_offset_of_another_token_or_sequence_is_refused_by_its_entry(
    registry: oplet.Registry, entry: int, place: int, message: str
) -> None:
    inputs, attributes = call()
    inputs["tokenOffsetT"].reshape(-1)[entry] = place
    with pytest.raises(oplet.InputError) as caught:
        registry.run(OP, attrs=attributes, **inputs)
    assert caught.value.argument == "tokenOffsetT"
    assert message in re.sub(r"\s+", " ", str(caught.value))


def test_tokens_may_be_in_any_places_of_their_sequence(registry: oplet.Registry) -> None:
    inputs, attributes = call()
    inputs["tokenOffsetT"].reshape(-1)[:9] = [2, 0, 6, 8, 7, 20, 15, 14, 17]
    registry.run(OP, attrs=attributes, **inputs)


@pytest.mark.parametrize("wrong", [-1, 10**6])
def test_an_offset_outside_the_grid_is_refused_by_its_entry(registry: oplet.Registry, wrong: int) -> None:
    inputs, attributes = call()
    inputs["tokenOffsetT"].reshape(-1)[4] = wrong
    with pytest.raises(oplet.InputError, match=f"entry 4 is {wrong}, outside the padded grid"):
        registry.run(OP, attrs=attributes, **inputs)


def test_offsets_behind_the_tokens_are_not_read(registry: oplet.Registry) -> None:
    inputs, attributes = call()
    want = registry.run(OP, attrs=attributes, **inputs).numpy()
    inputs["tokenOffsetT"].reshape(-1)[9:] = -1
    assert np.array_equal(registry.run(OP, attrs=attributes, **inputs).numpy(), want)


@pytest.mark.parametrize("seed", range(6))
def test_a_malformed_schedule_on_the_device_stays_in_bounds(guarded: oplet.Registry, seed: int) -> None:
    """Outputs are unspecified then; memory outside the tensors is neither written nor looked at."""
    rng = np.random.default_rng(seed)
    inputs, attributes = draw(
        rng, [3, 0, 30, 4], heads=2, head_size=16, packed=False, bias=True, broadcast=(False, False)
    )
    wild = np.array([0, 1, -1, 20, 37, 38, 2**31 - 1, -(2**31), 5])
    inputs["cumulativeSequenceLengthT"] = rng.choice(wild, 5).astype(np.int32)
    inputs["tokenOffsetT"] = rng.choice(wild, inputs["tokenOffsetT"].shape).astype(np.int32)
    for variant in (
        "separate_bias_attn_bias_flash",
        "separate_bias_attn_bias_flash_nosg",
        "separate_bias_attn_bias_serial",
    ):
        results = []
        for beyond in (False, True):
            with guarded.device.pool.zeroed(contents=True, beyond=beyond), guarded.device.pool.watch() as taken:
                tensors = {name: guarded.tensor(array) for name, array in inputs.items()}
                output = guarded.run(OP, attrs=attributes, variant=variant, **tensors)
                results.append(output.numpy())
                specs = [tensor.spec for tensor in (*tensors.values(), output)]
                seen = [buffer.look(guarded.device, spec) for buffer, spec in zip(taken, specs, strict=True)]
            assert [one.overwritten for one in seen] == [None] * len(seen)
        # What lies behind the tensors is NaN in one run and 0 in the other. The numbers themselves may differ:
        # sequences may overlap now, and which of them writes a row last is chance.
        assert np.array_equal(*map(np.isnan, results)), f"{variant} reads behind a tensor"


def test_more_workgroups_than_one_dimension_holds(registry: oplet.Registry) -> None:
    tokens = 66_000
    rng = np.random.default_rng(0)
    query = rng.standard_normal((tokens, 1, 3, 4)).astype(np.float32)
    inputs = {
        "queryT": query,
        "tokenOffsetT": np.arange(tokens, dtype=np.int32).reshape(-1, 1),
        "cumulativeSequenceLengthT": np.arange(tokens + 1, dtype=np.int32),
    }
    for variant in ("packed_flash", "packed_flash_nosg", "packed_serial"):
        got = registry.run(OP, attrs={"num_heads": 1}, variant=variant, **inputs).numpy()
        # A token alone attends itself with weight 1.
        assert np.array_equal(got, query[:, 0, 2]), variant
