"""Times the Gated DeltaNet block: a decode step and a prompt, beside the copy rate and torch on CUDA.

    python plugins/gated_delta_net/benchmarks/gdn_block.py

The default is a layer of Qwen3-Next in float16. Several layers, together larger than any cache, follow each other as in
a model: each takes the one before's output. Device time is between timestamps around all of them, divided by their
number; host time is what a call costs without waiting. The floor is the time to read weights and states and to write
states once, at the rate of a copy. Where torch has a CUDA device, the same layers run there too, and their results are
compared; with flash-linear-attention where that is installed, and without it the decode step only.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import numpy as np
import oplet
from oplet.bench.meter import Meter, copies_past_caches
from oplet.buffers import Buffer
from oplet.device import Device, Program
from oplet_gated_delta_net.gdn import DeviceWeights, GdnConfig, GdnState, GdnWeights, gdn_forward

try:
    import torch
except ImportError:
    torch = None

Run = tuple[Program, Sequence[Buffer | None]]

#: groups of samples of the device
ROUNDS = 5

#: seconds that a measurement of torch takes at least; a GPU needs some of them to reach its clock
SECONDS = 0.5


@attrs.frozen(eq=False)
class Layers:
    """Layers that follow each other.

    Attributes:
        config: sizes of each.
        weights: of each, on the host.
        state: before the first token, the same of all.
        hidden: (tokens, hidden_dim), what the first takes.
    """

    config: GdnConfig
    weights: Sequence[GdnWeights]
    state: GdnState
    hidden: np.ndarray

    @classmethod
    def random(cls, config: GdnConfig, dtype: str, count: int, tokens: int) -> Layers:
        """Random layers, whose outputs neither vanish nor overflow when they follow each other.

        Hence the state: a recurrence that starts from nothing gives so little that eps outweighs it in the norm.
        And hence the norm's scale: an output is its half times as large as a small input.
        """
        rng = np.random.default_rng(0)

        def one() -> GdnWeights:
            arrays = {
                name: rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))
                for name, shape in config.weight_shapes.items()
            }
            arrays["ssm_a"] = -np.exp(arrays["ssm_a"])
            arrays["ssm_norm"] = np.full(config.value_head_dim, 2, np.float32)
            return GdnWeights(**arrays).astype(dtype)

        # One layer's numbers in many places do: no cache knows that they are equal.
        weights = [one()] * count
        zeros = GdnState.zeros(config)
        state = GdnState(
            rng.standard_normal(zeros.recurrent.shape, np.float32),
            rng.standard_normal(zeros.conv.shape, np.float32).astype(dtype),
        )
        return cls(config, weights, state, rng.standard_normal((tokens, config.hidden_dim)).astype(dtype))

    @property
    def floor_bytes(self) -> int:
        """Bytes of a layer's weights, read once, and of its states, read and written once."""
        layer = self.weights[0]
        weights: int = sum(getattr(layer, name).nbytes for name in layer.names)
        return weights + 2 * (self.state.recurrent.nbytes + self.state.conv.nbytes)


class OnDevice:
    """The layers on a device."""

    def __init__(self, layers: Layers, registry: oplet.Registry) -> None:
        self._config = layers.config
        self._registry = registry
        self._weights: list[DeviceWeights] = [weights.to(registry) for weights in layers.weights]
        state = layers.state
        self._states = [GdnState(registry.tensor(state.recurrent), registry.tensor(state.conv)) for _ in layers.weights]
        self._hidden = registry.tensor(layers.hidden)

    def step(self) -> oplet.Tensor:
        """Calls every layer once, on the states before the first token."""
        hidden = self._hidden
        for weights, state in zip(self._weights, self._states, strict=True):
            hidden, _ = gdn_forward(weights, self._config, hidden, state, registry=self._registry)
        return hidden

    def device_seconds(self, meter: Meter) -> float:
        """Device time of a layer: the median of several passes with all layers in each."""
        self.step().numpy()  # compiles, and has offsets uploaded
        with recorded(self._registry.device) as runs:
            self.step()
        samples: list[float] = []
        for _ in range(ROUNDS):
            samples += meter.at_full_clock([runs] * 4)[1:]
        return statistics.median(samples) / len(self._weights)

    def host_seconds(self) -> float:
        """What a call costs that does not wait."""

        def step() -> float:
            self._registry.device.wait()
            start = time.perf_counter()
            self.step()
            return time.perf_counter() - start

        return statistics.median(step() for _ in range(20)) / len(self._weights)


@contextmanager
def recorded(device: Device) -> Iterator[list[Run]]:
    """Takes down what would run, for timestamps around all of it."""
    runs: list[Run] = []

    def run(program: Program, buffers: Sequence[Buffer | None]) -> None:
        if program.steps:
            runs.append((program, list(buffers)))  # holding its buffers, so that no other run gets them

    original: Callable[..., None] = device.run
    device.run = run  # type: ignore[method-assign]
    try:
        yield runs
    finally:
        device.run = original  # type: ignore[method-assign]


# The same in torch ------------------------------------------------------------------------------------

#: (query, key, value, decay, beta, state) -> (output, state); queries and keys normalized, a head each for every value
#: head; the state keys first, as torch's code has it
Recurrence = Callable[..., tuple[Any, Any]]


def plain_recurrence(query: Any, key: Any, value: Any, decay: Any, beta: Any, state: Any) -> tuple[Any, Any]:
    """Token by token in torch operations: what a model's code does in a decode step.

    Args:
        query: (tokens, Hv, dk), normalized.
        key: (tokens, Hv, dk), normalized.
        value: (tokens, Hv, dv).
        decay: (tokens, Hv) float32, the logarithm.
        beta: (tokens, Hv).
        state: (Hv, dk, dv) float32.
    """
    outputs = []
    for q, k, v, g, b in zip(query.float(), key.float(), value.float(), decay, beta.float(), strict=True):
        state = state * g.exp()[:, None, None]
        write = (v - (state * k[:, :, None]).sum(1)) * b[:, None]
        state = state + k[:, :, None] * write[:, None, :]
        outputs.append((state * q[:, :, None]).sum(1) * query.shape[-1] ** -0.5)
    return torch.stack(outputs).to(value.dtype), state


def fla_recurrence(function: Any) -> Recurrence:
    """flash-linear-attention's kernel, chunked or recurrent."""

    def run(query: Any, key: Any, value: Any, decay: Any, beta: Any, state: Any) -> tuple[Any, Any]:
        inputs = (part[None] for part in (query, key, value))
        output, last = function(
            *inputs, g=decay[None], beta=beta[None], initial_state=state[None], output_final_state=True
        )
        return output[0], last[0]

    return run


@attrs.frozen(eq=False)
class TorchLayer:
    """A layer's tensors, on one torch device."""

    config: GdnConfig
    weights: dict[str, Any]
    conv: Any  # (channels, K − 1), the state
    recurrent: Any  # (Hv, dk, dv), the state

    @classmethod
    def of(cls, config: GdnConfig, weights: GdnWeights, state: GdnState, device: str) -> TorchLayer:
        """Uploads weights, and a state before the first token."""
        tensors = {name: torch.from_numpy(np.array(getattr(weights, name))).to(device) for name in weights.names}
        conv = torch.from_numpy(np.asarray(state.conv)[0]).to(device)
        return cls(config, tensors, conv, torch.from_numpy(np.array(state.key_major()[0])).to(device))

    def __call__(self, hidden: Any, recurrence: Recurrence) -> tuple[Any, Any, Any]:
        """Output, and both new states."""
        functional = torch.nn.functional
        linear, silu = functional.linear, functional.silu
        w, config = self.weights, self.config
        tokens = hidden.shape[0]
        qkv, gate = linear(hidden, w["attn_qkv"]), linear(hidden, w["attn_gate"])
        beta, alpha = linear(hidden, w["ssm_beta"]), linear(hidden, w["ssm_alpha"])
        history = torch.cat([self.conv, qkv.T], dim=1)
        taps = w["ssm_conv1d"]
        mixed = silu(functional.conv1d(history[None], taps[:, None], groups=len(taps))[0]).T
        query, key, value = mixed.split([config.key_dim, config.key_dim, config.value_dim], dim=1)
        repeats = config.num_value_heads // config.num_key_heads
        query, key = (
            _normalized(part.reshape(tokens, config.num_key_heads, -1)).repeat_interleave(repeats, dim=1)
            for part in (query, key)
        )
        value = value.reshape(tokens, config.num_value_heads, -1)
        decay = w["ssm_a"] * functional.softplus(alpha.float() + w["ssm_dt"])
        y, state = recurrence(query, key, value, decay, beta.sigmoid(), self.recurrent)
        y = y.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + config.rms_norm_eps) * w["ssm_norm"]
        y = (y * silu(gate.float()).reshape(y.shape)).to(hidden.dtype)
        return linear(y.reshape(tokens, -1), w["ssm_out"]), state, history[:, tokens:].contiguous()


def _normalized(vectors: Any) -> Any:
    wide = vectors.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)).to(vectors.dtype)


def torch_step(layers: Sequence[TorchLayer], hidden: Any, recurrence: Recurrence) -> Any:
    """All layers, one after the other."""
    kept = []  # the new states have to be made, and to be kept until the end
    for layer in layers:
        hidden, *states = layer(hidden, recurrence)
        kept.append(states)
    return hidden


@attrs.frozen(eq=False)
class Peer:
    """The layers in torch, one way.

    Attributes:
        name: what the table calls it.
        run: enqueues all layers and gives the result.
    """

    name: str
    run: Callable[[], Any]

    def result(self) -> np.ndarray:
        """One run's."""
        return np.asarray(self.run().float().cpu().numpy())

    def seconds(self, *, graph: bool) -> float:
        """Device time of all layers, with that of launches where the device waits for them; a CUDA graph has one."""
        run = self._graph() if graph else self.run
        samples: list[float] = []
        deadline = time.perf_counter() + SECONDS
        while time.perf_counter() < deadline or len(samples) < 3:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            samples.append(float(begin.elapsed_time(end)) * 1e-3)
        return statistics.median(samples[len(samples) // 2 :])

    def _graph(self) -> Callable[[], Any]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run()
        replay: Callable[[], Any] = graph.replay
        return replay


def peers(layers: Layers, device: str) -> Iterator[Peer]:
    """The layers in torch: its operations for a single token, and flash-linear-attention where that is installed."""
    uploaded = [TorchLayer.of(layers.config, weights, layers.state, device) for weights in layers.weights]
    hidden = torch.from_numpy(layers.hidden).to(device)
    one = len(layers.hidden) == 1

    def peer(name: str, recurrence: Recurrence) -> Peer:
        def run() -> Any:
            with torch.no_grad():
                return torch_step(uploaded, hidden, recurrence)

        return Peer(name, run)

    if one:
        yield peer("torch", plain_recurrence)
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
    except ImportError as error:
        print(f"torch and flash-linear-attention: not timed: {error}")
    else:
        function = fused_recurrent_gated_delta_rule if one else chunk_gated_delta_rule
        yield peer("torch, flash-linear-attention", fla_recurrence(function))


# The table -------------------------------------------------------------------------------------------


def row(name: str, what: str, seconds: float, rest: str = "") -> None:
    """A line of the table."""
    print(f"{name:12}{what:44}{seconds * 1e6:11.1f} µs  {rest}".rstrip(), flush=True)


def compare(name: str, layers: Layers, registry: oplet.Registry, meter: Meter, floor: float) -> None:
    """Times the layers here and, where there is CUDA, in torch."""
    here = OnDevice(layers, registry)
    seconds = here.device_seconds(meter)
    over = f"{seconds / floor:.2f} × the floor" if len(layers.hidden) == 1 else ""
    row(name, "oplet, device", seconds, over)
    row(name, "oplet, host", here.host_seconds())
    want = here.step().numpy().astype(np.float32)
    if torch is None or not torch.cuda.is_available():
        print(f"{name:12}torch: not timed: it is not installed, or has no CUDA device")
        return
    for peer in peers(layers, "cuda"):
        for graph in (False, True):
            what = f"{peer.name}, CUDA graph" if graph else peer.name
            try:
                apart = np.abs(peer.result() - want).max() / np.abs(want).max()
                other = peer.seconds(graph=graph) / len(layers.weights)
            except Exception as error:  # whatever torch and triton raise; the others are timed all the same
                print(f"{name:12}{what}: not timed: {error}")
            else:
                row(name, what, other, f"oplet / this: {seconds / other:.2f}, results {apart:.1e} apart")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["float16", "float32"], default="float16")
    sizes = {"hidden-dim": 2048, "key-heads": 16, "value-heads": 32, "key-head-dim": 128, "value-head-dim": 128}
    for option, size in {**sizes, "prompt": 2048}.items():
        parser.add_argument(f"--{option}", type=int, default=size, help=f"default {size}")
    parser.add_argument("--webgpu", choices=["wgpu", "dawn"], help="the implementation of WebGPU")
    parser.add_argument("--experimental", action="store_true", help="also use matrix units, on Dawn")
    parser.add_argument("--unchecked", action="store_true", help="compile shaders without bounds checks")
    arguments = parser.parse_args()
    config = GdnConfig(
        hidden_dim=arguments.hidden_dim,
        num_key_heads=arguments.key_heads,
        num_value_heads=arguments.value_heads,
        key_head_dim=arguments.key_head_dim,
        value_head_dim=arguments.value_head_dim,
    )
    device = oplet.open_device(
        webgpu=arguments.webgpu, experimental=arguments.experimental, unchecked=arguments.unchecked
    )
    registry = oplet.Registry(device=device)
    device.require_timestamps()
    meter = Meter(device)
    copy, _ = meter.ceilings(1)
    nbytes = Layers.random(config, arguments.dtype, 1, 1).floor_bytes
    count = copies_past_caches(nbytes, is_cpu=device.capabilities.adapter.is_cpu)
    floor = nbytes / copy
    print(f"{device}, {arguments.dtype}, {count} layers, {config}")
    row("decode", f"floor: {nbytes / 1e6:.1f} MB at {copy / 1e9:,.0f} GB/s", floor)
    compare("decode", Layers.random(config, arguments.dtype, count, 1), registry, meter, floor)
    compare(
        f"{arguments.prompt} tokens",
        Layers.random(config, arguments.dtype, 2, arguments.prompt),
        registry,
        meter,
        floor,
    )


if __name__ == "__main__":
    main()
