"""`chunked` where there are so many states that another kernel scans their chunks."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import oplet
import pytest
from oplet_gated_delta_net.variants import launches

OP = "com.microsoft.GatedDeltaNet"
BATCH, HQ, HV, DK, DV = 64, 2, 4, 12, 40

Inputs = dict[str, Any]


@cache
def registry() -> oplet.Registry:
    return oplet.Registry()


@pytest.fixture(autouse=True)
def lanes() -> None:
    if registry().device.capabilities.subgroup_size < 8:
        pytest.skip("the kernel is for subgroups of at least 8 lanes")


def make(lengths: list[int], dtype: str = "float32") -> Inputs:
    rng = np.random.default_rng(len(lengths))
    tokens = sum(lengths)
    key = rng.standard_normal((tokens, HQ, DK))
    return {
        "queryT": rng.standard_normal((tokens, HQ, DK)).astype(dtype),
        "keyT": (key / np.linalg.norm(key, axis=-1, keepdims=True)).astype(dtype),
        "valueT": rng.standard_normal((tokens, HV, DV)).astype(dtype),
        "decayT": -rng.exponential(0.2, (tokens, HV)).astype(np.float32),
        "betaT": rng.random((tokens, HV), np.float32),
        "initialStateT": rng.standard_normal((len(lengths), HV, DV, DK)).astype(np.float32),
        "cuSeqlensT": np.cumsum([0, *lengths]).astype(np.int32),
    }


def check(inputs: Inputs, **attributes: Any) -> Any:
    """Runs it and compares the results with the reference, NaN for NaN."""
    with registry().profile() as profile:
        results = registry().run(OP, attrs=attributes, variant="chunked", **inputs)
    assert "wide_scan.wgsl.jinja" in [one.template for one in profile.dispatches]
    for got, want in zip(results, registry().run(OP, attrs=attributes, variant="reference", **inputs), strict=True):
        scale = np.abs(want.numpy().astype(np.float64))
        scale = scale[np.isfinite(scale)].max()
        # Both are rounded to float16, perhaps to either side: one unit.
        rtol = 2.0**-10 if got.dtype == "float16" else 0.0
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=rtol, atol=1e-6 * scale)
    return results


#: of no chunk, parts of one, one, and some
LENGTHS = [0, 1, 15, 16, 17, 40, 33, 8] * (BATCH // 8)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_rules(rule: str) -> None:
    inputs = make(LENGTHS)
    if not rule.startswith("gated"):
        del inputs["decayT"]
    if "delta" not in rule:
        del inputs["betaT"]
    check(inputs, update_rule=rule, qk_l2_norm=1)


def test_float16() -> None:
    if "shader-f16" not in registry().device.capabilities.features:
        pytest.skip("the adapter has no shader-f16")
    check(make(LENGTHS, "float16"))


def test_nan_stays_where_it_belongs() -> None:
    inputs = make([40] * BATCH)
    for request, token in enumerate((0, 5, 8, 15, 16, 31, 39)):
        inputs["valueT"][40 * request + token, 1, 2] = np.nan
        inputs["queryT"][40 * (request + 10) + token, 1, 0] = np.nan
        inputs["keyT"][40 * (request + 20) + token, 0, 0] = np.nan
        inputs["betaT"][40 * (request + 30) + token, 3] = np.nan
        inputs["decayT"][40 * (request + 40) + token, 2] = np.nan
    results = check(inputs)
    state = results.finalStateT.numpy()
    np.testing.assert_array_equal(np.isnan(state[:7]).sum((1, 2, 3)), DK)
    assert not np.isnan(state[7:20]).any()


def test_strong_decay() -> None:
    inputs = make([40] * BATCH)
    for request, decay in enumerate((-25.0, -104.0, -1e30, -np.inf)):
        inputs["decayT"][40 * request + 5 : 40 * request + 30] = decay
    results = check(inputs)
    assert all(np.isfinite(result.numpy()).all() for result in results)


def test_two_calls_are_one() -> None:
    inputs = make([70] * BATCH)
    whole = check(inputs)

    def part(first: int, last: int, state: np.ndarray) -> Any:
        cut = {
            name: array.reshape(BATCH, 70, *array.shape[1:])[:, first:last]
            for name, array in inputs.items()
            if name not in ("initialStateT", "cuSeqlensT")
        }
        return registry().run(OP, variant="chunked", **cut, initialStateT=state)

    one = part(0, 48, inputs["initialStateT"])
    two = part(48, 70, one.finalStateT.numpy())
    outputs = np.concatenate([one.outputT.numpy(), two.outputT.numpy()], 1)
    assert outputs.tobytes() == whole.outputT.numpy().tobytes()
    assert two.finalStateT.numpy().tobytes() == whole.finalStateT.numpy().tobytes()


def test_stretches_give_equal_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make([70, 20] * (BATCH // 2))
    whole = check(inputs)
    monkeypatch.setattr(launches, "STRETCH", 32)
    cut = oplet.Registry(device=registry().device)
    for got, want in zip(cut.run(OP, variant="chunked", **inputs), whole, strict=True):
        assert got.numpy().tobytes() == want.numpy().tobytes()


def test_few_states_and_narrow_ones_are_not_its() -> None:
    caps = registry().device.capabilities

    def scan(batch: int, dv: int) -> str:
        inputs = make([16] * batch) | {"valueT": np.zeros((16 * batch, HV, dv), np.float32)}
        inputs["initialStateT"] = np.zeros((batch, HV, dv, DK), np.float32)
        request = registry()[OP].bind({name: oplet.TensorSpec.of(array) for name, array in inputs.items()})
        return registry()[OP].plan(request, caps, "chunked").launches[1].template

    assert scan(BATCH, 40) == "wide_scan.wgsl.jinja"
    assert scan(BATCH - 1, 40) == "chunk_scan.wgsl.jinja"
    assert scan(BATCH - 1, 65) == "chunk_scan.wgsl.jinja"  # two workgroups a state, and the second one nearly empty


@pytest.mark.parametrize(("tokens", "expected"), [(11, "recurrent"), (12, "chunked"), (22, "chunked")])
def test_the_more_states_there_are_the_fewer_tokens_are_enough(tokens: int, expected: str) -> None:
    batch, heads = 128, 32  # 724 / √4096 = 11.3
    inputs = {
        "queryT": oplet.TensorSpec((batch, tokens, heads, DK), "float32"),
        "keyT": oplet.TensorSpec((batch, tokens, heads, DK), "float32"),
        "valueT": oplet.TensorSpec((batch, tokens, heads, DV), "float32"),
        "decayT": oplet.TensorSpec((batch, tokens, heads), "float32"),
        "betaT": oplet.TensorSpec((batch, tokens, heads), "float32"),
        "initialStateT": oplet.TensorSpec((batch, heads, DV, DK), "float32"),
    }
    assert registry().explain(OP, **inputs).variant == expected
