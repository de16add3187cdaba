"""The block, in numpy and on the device: published values, transformers' outputs, prompts against steps, states."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import oplet
import pytest
from oplet_gated_delta_net.gdn import (
    DeviceWeights,
    GdnConfig,
    GdnState,
    GdnWeights,
    config_from_huggingface,
    gdn_forward,
    gdn_forward_token,
    weights_from_huggingface,
)

from .conftest import CONFIG, random_weights, tiled

FOLDER = Path(__file__).parent
GEMM = "com.microsoft.FusedGemm"

#: float32 in two orders of summation, in several products one after the other, as a part of the result's size
SAME = 2e-6


@cache
def device() -> oplet.Registry:
    return oplet.Registry()


@pytest.fixture(params=["numpy", "device"])
def registry(request: pytest.FixtureRequest) -> oplet.Registry | None:
    return None if request.param == "numpy" else device()


def close(got: Any, want: np.ndarray, tolerance: float = SAME) -> None:
    """Within a part of the largest magnitude."""
    np.testing.assert_allclose(np.asarray(got), want, rtol=0, atol=tolerance * np.abs(want).max())


def hidden_of(tokens: int, config: GdnConfig = CONFIG, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((tokens, config.hidden_dim)).astype(np.float32)


def some_state(config: GdnConfig, requests: int) -> GdnState:
    """A state that is not empty."""
    rng = np.random.default_rng(6)
    zeros = GdnState.zeros(config, requests)
    return GdnState(*(rng.standard_normal(part.shape).astype(np.float32) for part in (zeros.recurrent, zeros.conv)))


def bits(array: Any) -> bytes:
    return np.asarray(array).tobytes()


# Values that others computed -------------------------------------------------------------------------


def generated(shape: tuple[int, int], period: int, centre: float, step: float) -> np.ndarray:
    numbers = np.arange(shape[0] * shape[1]) % period
    return ((numbers - np.float32(centre)) * np.float32(step)).astype(np.float32).reshape(shape)


def test_golden_values(registry: oplet.Registry | None) -> None:
    config = GdnConfig(
        hidden_dim=4,
        num_key_heads=2,
        num_value_heads=2,
        key_head_dim=2,
        value_head_dim=2,
        conv_kernel_size=2,
        rms_norm_eps=1e-5,
    )
    weights = GdnWeights(
        attn_qkv=generated((12, 4), 7, 3, 0.1),
        attn_gate=generated((4, 4), 5, 2, 0.08),
        ssm_conv1d=np.tile(np.array([0.1, 1], np.float32), (12, 1)),
        ssm_dt=np.array([0.1, -0.05], np.float32),
        ssm_a=np.array([-0.5, -0.75], np.float32),
        ssm_beta=generated((2, 4), 3, 1, 0.2),
        ssm_alpha=generated((2, 4), 4, 1.5, 0.15),
        ssm_norm=np.ones(2, np.float32),
        ssm_out=generated((4, 4), 6, 2.5, 0.12),
    )
    hidden = np.array([0.2, -0.1, 0.3, -0.4], np.float32)
    state = GdnState.zeros(config)
    for words in (
        [1006633802, 998763940, 3163995192, 1006633802],
        [1006151492, 1000425832, 3164698040, 1006151492],
    ):
        out, state = gdn_forward_token(weights, config, hidden, state, registry=registry)
        np.testing.assert_allclose(np.asarray(out), np.array(words, np.uint32).view(np.float32), rtol=1e-5, atol=1e-7)


@attrs.frozen(eq=False)
class Oracle:
    """What a block of transformers computed: see make_oracles.py."""

    config: GdnConfig
    weights: GdnWeights
    arrays: Mapping[str, np.ndarray]

    @classmethod
    @cache
    def of(cls, name: str) -> Oracle:
        with np.load(FOLDER / f"{name}.npz") as file:
            arrays = dict(file)
        config = config_from_huggingface(json.loads(str(arrays["config"])))
        prefix = "weights/"
        return cls(config, weights_from_huggingface(arrays, config, prefix=prefix), arrays)

    def prompt(self, name: str) -> int:
        """Tokens of a sequence's prompt; the 3 after it are decode steps."""
        return len(self.arrays[f"{name}/hidden"]) - 3

    def check_state(self, state: GdnState, request: int, place: str) -> None:
        close(state.key_major()[request], self.arrays[f"{place}/recurrent"])
        # transformers keeps a projection more than the next token needs.
        close(np.asarray(state.conv)[request], self.arrays[f"{place}/conv"][:, 1:])


@pytest.fixture(params=["qwen3_next", "qwen3_5"])
def oracle(request: pytest.FixtureRequest) -> Oracle:
    return Oracle.of(request.param)


@pytest.mark.parametrize("sequence", ["long", "short"])
def test_transformers_prompt_and_steps(registry: oplet.Registry | None, oracle: Oracle, sequence: str) -> None:
    config, hidden, want = oracle.config, oracle.arrays[f"{sequence}/hidden"], oracle.arrays[f"{sequence}/out"]
    tokens = oracle.prompt(sequence)
    out, state = gdn_forward(oracle.weights, config, hidden[:tokens], GdnState.zeros(config), registry=registry)
    close(out, want[:tokens])
    oracle.check_state(state, 0, f"{sequence}/prompt")
    for t in range(tokens, len(hidden)):
        out, state = gdn_forward_token(oracle.weights, config, hidden[t], state, registry=registry)
        close(out, want[t])
    oracle.check_state(state, 0, f"{sequence}/end")


def test_transformers_two_requests(registry: oplet.Registry | None, oracle: Oracle) -> None:
    config = oracle.config
    sequences = ["long", "short"]
    lengths = [oracle.prompt(name) for name in sequences]
    hidden, want = ([oracle.arrays[f"{name}/{part}"] for name in sequences] for part in ("hidden", "out"))
    prompts = np.concatenate([rows[:n] for rows, n in zip(hidden, lengths, strict=True)])
    offsets = np.cumsum([0, *lengths]).astype(np.int32)
    state = GdnState.zeros(config, 2)
    out, state = gdn_forward(oracle.weights, config, prompts, state, cu_seqlens=offsets, registry=registry)
    close(out, np.concatenate([rows[:n] for rows, n in zip(want, lengths, strict=True)]))
    for request, name in enumerate(sequences):
        oracle.check_state(state, request, f"{name}/prompt")
    for step in range(3):
        tokens = np.stack([rows[n + step] for rows, n in zip(hidden, lengths, strict=True)])
        out, state = gdn_forward_token(oracle.weights, config, tokens, state, registry=registry)
        close(out, np.stack([rows[n + step] for rows, n in zip(want, lengths, strict=True)]))


def test_another_order_of_heads_is_another_block(registry: oplet.Registry | None, oracle: Oracle) -> None:
    """So the comparisons above tell grouped heads from tiled ones, though all weights are reordered alike."""
    config, weights = oracle.config, oracle.weights
    keys = 2 * config.key_dim
    mistaken = attrs.evolve(
        weights,
        attn_qkv=tiled(weights.attn_qkv, config, before=keys),
        ssm_conv1d=tiled(weights.ssm_conv1d, config, before=keys),
        **{
            name: tiled(getattr(weights, name), config)
            for name in ("attn_gate", "ssm_dt", "ssm_a", "ssm_beta", "ssm_alpha")
        },
        ssm_out=tiled(weights.ssm_out, config, axis=1),
    )
    hidden, want = oracle.arrays["long/hidden"][:70], oracle.arrays["long/out"][:70]
    out, _ = gdn_forward(mistaken, config, hidden, GdnState.zeros(config), registry=registry)
    assert np.linalg.norm(np.asarray(out) - want) > 0.1 * np.linalg.norm(want)


def test_float16_on_the_device(oracle: Oracle) -> None:
    """Both round where a tensor is stored, so they part only where a float32 sum falls on the other side of a tie."""
    if "shader-f16" not in device().device.capabilities.features:
        pytest.skip("the device has no shader-f16")
    config = oracle.config
    weights = oracle.weights.astype("float16")
    hidden = oracle.arrays["long/hidden"]
    uploaded = weights.to(device())
    want, expected = gdn_forward(weights, config, hidden, GdnState.zeros(config))
    out, state = gdn_forward(uploaded, config, hidden, GdnState.zeros(config), registry=device())
    assert (out.dtype, want.dtype) == (np.float16, np.float16)
    assert (state.recurrent.dtype, state.conv.dtype) == (np.float32, np.float16)
    close(out, want.astype(np.float32), 2**-10)
    close(state.recurrent, np.asarray(expected.recurrent), 2**-10)
    # Float16 itself: half a unit for weights, hidden and four tensors on the way.
    close(out, oracle.arrays["long/out"][: len(hidden)], 6 * 2**-11)


# One call and several --------------------------------------------------------------------------------


@pytest.mark.parametrize("requests", [1, 3])
def test_a_prompt_is_its_steps(registry: oplet.Registry | None, weights: GdnWeights, requests: int) -> None:
    hidden = hidden_of(12 * requests)
    start = some_state(CONFIG, requests)
    out, state = gdn_forward(weights, CONFIG, hidden, start, registry=registry)
    steps, stepped = [], start
    for token in hidden.reshape(requests, 12, -1).swapaxes(0, 1):
        one, stepped = gdn_forward_token(weights, CONFIG, token, stepped, registry=registry)
        steps.append(np.asarray(one))
    close(np.stack(steps, axis=1).reshape(out.shape), np.asarray(out))
    close(stepped.recurrent, np.asarray(state.recurrent))
    close(stepped.conv, np.asarray(state.conv))


def test_float16_hidden_past_its_range(registry: oplet.Registry | None, weights: GdnWeights) -> None:
    """It is narrowed to infinity without a warning, and tokens before it are untouched."""
    if registry is not None and "shader-f16" not in registry.device.capabilities.features:
        pytest.skip("the device has no shader-f16")
    hidden = hidden_of(3)
    hidden[1, 0] = 1e5
    half = weights.astype("float16")
    out, _ = gdn_forward(half, CONFIG, hidden, GdnState.zeros(CONFIG), registry=registry)
    finite = np.isfinite(np.asarray(out)).all(axis=1)
    assert finite[0]
    assert not finite[1]


def test_requests_are_apart(registry: oplet.Registry | None, weights: GdnWeights) -> None:
    """Among them one without tokens, whose state passes through."""
    offsets = np.array([0, 5, 5, 6, 20], np.int32)
    hidden, start = hidden_of(20), some_state(CONFIG, 4)
    out, state = gdn_forward(weights, CONFIG, hidden, start, cu_seqlens=offsets, registry=registry)
    for request, (first, last) in enumerate(pairwise(offsets)):
        own = GdnState(start.recurrent[request : request + 1], start.conv[request : request + 1])
        if first == last:
            assert bits(np.asarray(state.recurrent)[request]) == bits(own.recurrent)
            assert bits(np.asarray(state.conv)[request]) == bits(own.conv)
            continue
        alone, after = gdn_forward(weights, CONFIG, hidden[first:last], own, registry=registry)
        close(np.asarray(out)[first:last], np.asarray(alone))
        close(np.asarray(state.recurrent)[request], np.asarray(after.recurrent)[0])
        close(np.asarray(state.conv)[request], np.asarray(after.conv)[0])


def test_the_device_agrees_with_numpy(weights: GdnWeights) -> None:
    offsets = np.array([0, 5, 5, 6, 20], np.int32)
    hidden, start = hidden_of(20), some_state(CONFIG, 4)
    want, expected = gdn_forward(weights, CONFIG, hidden, start, cu_seqlens=offsets)
    out, state = gdn_forward(weights, CONFIG, hidden, start, cu_seqlens=offsets, registry=device())
    close(out, want)
    close(state.recurrent, np.asarray(expected.recurrent))
    close(state.conv, np.asarray(expected.conv))


@pytest.mark.parametrize("tokens", [0, 1])
def test_no_history_and_no_tokens(registry: oplet.Registry | None, tokens: int) -> None:
    config = attrs.evolve(CONFIG, conv_kernel_size=1)
    weights, start = random_weights(config), some_state(config, 1)
    out, state = gdn_forward(weights, config, hidden_of(tokens), start, registry=registry)
    want, _ = gdn_forward(weights, config, hidden_of(tokens), start)
    assert out.shape == (tokens, config.hidden_dim)
    if tokens:
        close(out, want)
    assert state.conv.shape == (1, config.channels, 0)
    assert (bits(state.recurrent) == bits(start.recurrent)) is (tokens == 0)


def test_no_requests(registry: oplet.Registry | None, weights: GdnWeights) -> None:
    out, state = gdn_forward(weights, CONFIG, hidden_of(0), GdnState.zeros(CONFIG, 0), registry=registry)
    assert (out.shape, state.requests) == ((0, CONFIG.hidden_dim), 0)


# States ----------------------------------------------------------------------------------------------


def test_what_they_print(weights: GdnWeights) -> None:
    state = GdnState(np.zeros((3, 6, 5, 8), np.float32), np.zeros((3, 62, 3), np.float16))
    assert repr(state) == "GdnState(recurrent float32 (3, 6, 5, 8), conv float16 (3, 62, 3))"
    text = repr(weights)
    assert text.startswith(f"GdnWeights(float32: attn_qkv {weights.attn_qkv.shape}, ")
    assert text.endswith(f"ssm_out {weights.ssm_out.shape})")


def test_a_call_leaves_the_state_as_it_was(registry: oplet.Registry | None, weights: GdnWeights) -> None:
    hidden = hidden_of(1)[0]
    _, state = gdn_forward_token(weights, CONFIG, hidden, some_state(CONFIG, 1), registry=registry)
    before = bits(state.recurrent), bits(state.conv)
    first = [gdn_forward_token(weights, CONFIG, hidden, state, registry=registry) for _ in range(3)]
    assert (bits(state.recurrent), bits(state.conv)) == before
    assert len({(bits(out), bits(after.recurrent), bits(after.conv)) for out, after in first}) == 1


def test_key_major(registry: oplet.Registry | None, weights: GdnWeights) -> None:
    _, state = gdn_forward(weights, CONFIG, hidden_of(4), GdnState.zeros(CONFIG, 2), registry=registry)
    stored = state.key_major()
    assert stored.shape == (2, CONFIG.num_value_heads, CONFIG.key_head_dim, CONFIG.value_head_dim)
    assert stored[1, 2, 3, 4] == np.asarray(state.recurrent)[1, 2, 4, 3]
    again = GdnState.from_key_major(stored, state.conv)
    assert bits(again.recurrent) == bits(state.recurrent)
    host = state.numpy()
    assert isinstance(host.recurrent, np.ndarray)
    assert isinstance(host.conv, np.ndarray)
    with pytest.raises(oplet.InputError, match=r"not \(requests, Hv, dk, dv\)"):
        GdnState.from_key_major(stored[0], state.conv)


# On the device ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uploaded() -> DeviceWeights:
    return random_weights(CONFIG).to(device())


def test_a_call_is_one_submit(uploaded: DeviceWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = device()
    state = GdnState.zeros(CONFIG)
    hidden = registry.tensor(hidden_of(1)[0])
    _, state = gdn_forward_token(uploaded, CONFIG, hidden, state, registry=registry)
    queue = registry.device.gpu.queue
    made: list[int] = []
    submit: Callable[[list[Any]], Any] = queue.submit
    monkeypatch.setattr(queue, "submit", lambda commands: (made.append(len(commands)), submit(commands))[1])
    _, state = gdn_forward_token(uploaded, CONFIG, hidden, state, registry=registry)
    assert made == [1]
    with registry.batch():
        for _ in range(3):
            out, state = gdn_forward_token(uploaded, CONFIG, hidden, state, registry=registry)
            hidden = out
    assert made == [1, 1], "a batch that is open takes the calls"


def test_host_arrays_are_uploaded(weights: GdnWeights, uploaded: DeviceWeights) -> None:
    registry = device()
    hidden, start, offsets = hidden_of(6), some_state(CONFIG, 2), np.array([0, 2, 6], np.int32)
    there = GdnState(registry.tensor(start.recurrent), registry.tensor(start.conv))
    calls = [
        gdn_forward(weights, CONFIG, hidden, start, cu_seqlens=offsets, registry=registry),
        gdn_forward(uploaded, CONFIG, hidden.astype(np.float64), start, cu_seqlens=offsets, registry=registry),
        gdn_forward(
            uploaded, CONFIG, registry.tensor(hidden), there, cu_seqlens=registry.tensor(offsets), registry=registry
        ),
    ]
    assert len({(bits(out), bits(state.recurrent), bits(state.conv)) for out, state in calls}) == 1


def test_memory_is_flat(uploaded: DeviceWeights) -> None:
    registry = device()
    state = GdnState.zeros(CONFIG)
    hidden = registry.tensor(hidden_of(1)[0])
    seen = set()
    for step in range(2000):
        out, state = gdn_forward_token(uploaded, CONFIG, hidden, state, registry=registry)
        if step >= 100 and step % 100 == 0:
            out.numpy()
            pool = registry.device.pool
            pool.settle()
            seen.add((pool.live_count, pool.live_bytes, pool.idle_bytes, registry.device.bind_group_count))
    assert len(seen) == 1, seen
    assert np.isfinite(np.asarray(state.recurrent)).all()


def test_an_op_that_is_not_installed(weights: GdnWeights) -> None:
    registry = oplet.Registry(device=device().device, block=[GEMM])
    with pytest.raises(oplet.UnknownOpError, match=GEMM) as caught:
        weights.to(registry)
    assert str(caught.value).splitlines()[-1] == "pip install oplet-fused-gemm"


# Arguments that do not fit ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "argument", "match"),
    [
        ({"hidden": hidden_of(2)[:, :-1]}, "hidden", r"has the shape \(2, 63\), not \(tokens, 64\)"),
        ({"hidden": hidden_of(2)[0]}, "hidden", r"has the shape \(64,\)"),
        ({"hidden": hidden_of(2).astype(int)}, "hidden", "is int64"),
        ({"hidden": hidden_of(2).tolist()}, "hidden", "list is not ndarray or Tensor"),
        ({"state": GdnState.zeros(CONFIG, 3)}, "hidden", "has 2 tokens, which 3 requests cannot share equally"),
        ({"state": GdnState.zeros(CONFIG, 0)}, "hidden", "has 2 tokens, which 0 requests cannot share equally"),
        (
            {"state": GdnState.zeros(attrs.evolve(CONFIG, key_head_dim=4))},
            "state",
            r"recurrent has the shape \(1, 6, 16, 4\), and the configuration says \(1, 6, 16, 8\)",
        ),
        (
            {"state": GdnState.zeros(attrs.evolve(CONFIG, conv_kernel_size=5))},
            "state",
            r"conv has the shape \(1, 128, 4\), and the configuration says \(1, 128, 3\)",
        ),
        (
            {"config": attrs.evolve(CONFIG, hidden_dim=32)},
            "attn_qkv",
            r"has the shape \(128, 64\), and the configuration says \(128, 32\)",
        ),
        ({"cu_seqlens": np.array([0, 2])}, "cu_seqlens", "is int64, not int32"),
        ({"cu_seqlens": np.array([0, 1, 2], np.int32)}, "cu_seqlens", r"has the shape \(3,\), not \(2,\)"),
        ({"cu_seqlens": np.array([0, 3], np.int32)}, "cu_seqlens", r"\[0 3\] does not rise from 0 to 2"),
        ({"cu_seqlens": np.array([1, 2], np.int32)}, "cu_seqlens", "does not rise from 0"),
        (
            {"cu_seqlens": np.array([0, 2, 1, 2], np.int32), "state": GdnState.zeros(CONFIG, 3)},
            "cu_seqlens",
            "does not rise from 0",
        ),
        ({"cu_seqlens": [0, 2]}, "cu_seqlens", r"list is not ndarray or Tensor or None\n.*int32"),
        ({"weights": None}, "weights", "NoneType is not GdnWeights or DeviceWeights"),
        ({"config": {"hidden_dim": 64}}, "config", "dict is not GdnConfig"),
        ({"state": None}, "state", r"NoneType is not GdnState\npass GdnState\.zeros"),
    ],
    ids=range(18),
)
def test_refused(
    registry: oplet.Registry | None, weights: GdnWeights, changes: dict[str, Any], argument: str, match: str
) -> None:
    call = {"weights": weights, "config": CONFIG, "hidden": hidden_of(2), "state": GdnState.zeros(CONFIG), **changes}
    with pytest.raises(oplet.InputError, match=match) as caught:
        gdn_forward(**call, registry=registry)
    assert caught.value.argument == argument
    assert str(caught.value).startswith(("gdn_forward: ", "GdnWeights: "))
    assert "\n" in str(caught.value)


def test_a_step_has_a_token_of_each_request(registry: oplet.Registry | None, weights: GdnWeights) -> None:
    for hidden in (hidden_of(4), hidden_of(1)[0]):
        with pytest.raises(oplet.InputError, match=r"^gdn_forward_token: hidden: has \d tokens, and the state 2"):
            gdn_forward_token(weights, CONFIG, hidden, GdnState.zeros(CONFIG, 2), registry=registry)
    wrong: tuple[tuple[str, Any, str], ...] = (
        ("hidden", None, "NoneType is not"),
        ("hidden", hidden_of(1)[0, :-1], r"has the shape \(1, 63\)"),
        ("state", None, "NoneType is not"),
        ("state", GdnState.zeros(attrs.evolve(CONFIG, key_head_dim=4)), "recurrent has the shape"),
    )
    for name, value, match in wrong:
        call: dict[str, Any] = {"hidden": hidden_of(1)[0], "state": GdnState.zeros(CONFIG), name: value}
        with pytest.raises(oplet.InputError, match=f"^gdn_forward_token: {name}: {match}"):
            gdn_forward_token(weights, CONFIG, **call, registry=registry)


def test_refused_on_the_device(weights: GdnWeights, uploaded: DeviceWeights) -> None:
    registry = device()
    half = registry.tensor(hidden_of(1).astype(np.float16))
    with pytest.raises(oplet.InputError, match="hidden: is float16 on the device, and the weights are float32"):
        gdn_forward(uploaded, CONFIG, half, GdnState.zeros(CONFIG), registry=registry)
    zeros = GdnState.zeros(CONFIG)
    mixed = GdnState(zeros.recurrent, registry.tensor(np.asarray(zeros.conv, np.float16)))
    with pytest.raises(oplet.InputError, match="state: conv is float16 on the device, and the weights are float32"):
        gdn_forward(uploaded, CONFIG, hidden_of(1), mixed, registry=registry)
    there = registry.tensor(hidden_of(1))
    for call, argument in (((uploaded, hidden_of(1)), "weights"), ((weights, there), "hidden")):
        with pytest.raises(oplet.InputError, match=f"{argument}: is on a device\npass registry="):
            gdn_forward(call[0], CONFIG, call[1], GdnState.zeros(CONFIG))  # type: ignore[call-overload]
    with pytest.raises(oplet.InputError, match="registry: Device is not Registry or None"):
        gdn_forward(weights, CONFIG, hidden_of(1), zeros, registry=registry.device)  # type: ignore[call-overload]
    with pytest.raises(oplet.InputError, match="registry: Device is not Registry"):
        weights.to(registry.device)  # type: ignore[arg-type]


def test_another_device(weights: GdnWeights, uploaded: DeviceWeights) -> None:
    _, there = gdn_forward(uploaded, CONFIG, hidden_of(1), GdnState.zeros(CONFIG), registry=device())
    elsewhere = oplet.Registry(device=oplet.open_device())
    for call, argument in (
        ((uploaded, hidden_of(1), GdnState.zeros(CONFIG)), "weights"),
        ((weights, device().tensor(hidden_of(1)), GdnState.zeros(CONFIG)), "hidden"),
        ((weights, hidden_of(1), there), "state"),
    ):
        with pytest.raises(oplet.InputError, match=f"{argument}: is on another device than registry"):
            gdn_forward(call[0], CONFIG, *call[1:], registry=elsewhere)
    elsewhere.device.gpu.destroy()


def test_fields_of_another_type(weights: GdnWeights) -> None:
    for change, match in (
        ({"ssm_a": -weights.ssm_a}, r"ssm_a: [\d.]+ is above 0, so that the state would grow\npass −exp\(A_log\)"),
        ({"ssm_a": np.full(6, np.nan, np.float32)}, "ssm_a: nan is above 0"),
        ({"ssm_dt": weights.ssm_dt.astype(np.float16)}, "ssm_dt: is float16"),
        ({"ssm_out": weights.ssm_out.astype(np.float16)}, "ssm_out: is float16, and attn_qkv float32"),
        ({"attn_qkv": weights.attn_qkv.astype(np.float64)}, "attn_qkv: is float64"),
        ({"ssm_norm": [1.0] * 16}, "ssm_norm: list is not a numpy array"),
    ):
        with pytest.raises(oplet.InputError, match=match):
            attrs.evolve(weights, **change)
    zeros = GdnState.zeros(CONFIG)
    with pytest.raises(oplet.InputError, match="GdnState: recurrent: it is float16"):
        GdnState(np.asarray(zeros.recurrent, np.float16), zeros.conv)
    with pytest.raises(oplet.InputError, match="GdnState: conv: it is list, neither"):
        GdnState(zeros.recurrent, [])  # type: ignore[arg-type]
    with pytest.raises(oplet.InputError, match="requests: -1 is not an int of at least 0"):
        GdnState.zeros(CONFIG, -1)


def test_sizes_that_are_none() -> None:
    for change, match in (
        ({"num_key_heads": 4}, "num_value_heads: 6 is no multiple of num_key_heads, 4"),
        ({"key_head_dim": 0}, "key_head_dim: 0 is not an int of at least 1"),
        ({"conv_kernel_size": 2.5}, "conv_kernel_size: 2.5 is not an int"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps: '1e-6' is no finite number"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps: -1.0 is no finite number of at least 0"),
    ):
        with pytest.raises(oplet.InputError, match=match):
            attrs.evolve(CONFIG, **change)


def test_sizes_as_numpy_has_them() -> None:
    config = attrs.evolve(CONFIG, num_value_heads=np.int64(6), hidden_dim=np.uint16(64))
    assert config == CONFIG
    assert type(config.num_value_heads) is int


# Hugging Face's names --------------------------------------------------------------------------------


def test_huggingface_errors(oracle: Oracle) -> None:
    tensors = {name: array for name, array in oracle.arrays.items() if name.startswith("weights/")}
    with pytest.raises(oplet.InputError, match=r"there is no 'layers\.0\.in_proj_qkvz\.weight'"):
        weights_from_huggingface(tensors, oracle.config, prefix="layers.0.")
    wrong = {**tensors, "weights/norm.weight": np.ones(4, np.float32)}
    with pytest.raises(oplet.InputError, match=r"weights/norm\.weight: it has the shape \(4,\)") as caught:
        weights_from_huggingface(wrong, oracle.config, prefix="weights/")
    assert caught.value.argument == "tensors"
    del tensors["weights/dt_bias"]
    tensors["weights/dt_bia"] = np.ones(6, np.float32)
    with pytest.raises(oplet.InputError, match=r"there is no 'weights/dt_bias'\n  near it: 'weights/dt_bia'"):
        weights_from_huggingface(tensors, oracle.config, prefix="weights/")
    with pytest.raises(oplet.InputError, match="there is no 'linear_num_key_heads'"):
        config_from_huggingface({"hidden_size": 8})
    with pytest.raises(oplet.InputError, match=r"settings: list is not Mapping\npass config\.to_dict\(\)"):
        config_from_huggingface([])  # type: ignore[arg-type]
    with pytest.raises(oplet.InputError, match=r"tensors: list is not Mapping\npass the state dict"):
        weights_from_huggingface([], oracle.config)  # type: ignore[arg-type]
    tensors["weights/dt_bias"] = np.array(["x"] * 6)
    with pytest.raises(oplet.InputError, match=r"weights/dt_bias: ndarray is no tensor: could not convert"):
        weights_from_huggingface(tensors, oracle.config, prefix="weights/")
