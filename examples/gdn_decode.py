"""Decodes with the Gated DeltaNet layers of a GGUF file, and checks them against numpy.

Without an argument it writes a small file first: two layers of random weights in Q8_0, as a converter would. With one,
such as a Qwen3.5 or Qwen3-Next model, it takes that file's first two layers. What a model has besides, embeddings,
attention, experts, is left out: the prompt is random, and the next token is what the layers gave.

    pip install ./core ./plugins/fused_gemm './plugins/gated_delta_net[gguf]'
    python examples/gdn_decode.py [model.gguf]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import oplet
from oplet_gated_delta_net.gdn import DeviceWeights, GdnConfig, GdnState, GdnWeights, gdn_forward
from oplet_gated_delta_net.gdn.gguf import GgufModel

PROMPT = 40  # tokens
STEPS = 24
LAYERS = 2
CONFIG = GdnConfig(hidden_dim=256, num_key_heads=2, num_value_heads=4, key_head_dim=64, value_head_dim=64)

Layer = GdnWeights | DeviceWeights


def write(path: Path) -> None:
    """A model of Qwen3-Next's architecture, as small as a test needs it."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "qwen3next")
    writer.add_embedding_length(CONFIG.hidden_dim)
    writer.add_layer_norm_rms_eps(CONFIG.rms_norm_eps)
    writer.add_ssm_conv_kernel(CONFIG.conv_kernel_size)
    writer.add_ssm_state_size(CONFIG.key_head_dim)
    writer.add_ssm_group_count(CONFIG.num_key_heads)
    writer.add_ssm_time_step_rank(CONFIG.num_value_heads)
    writer.add_ssm_inner_size(CONFIG.value_dim)
    for layer in range(LAYERS):
        for field, shape in CONFIG.weight_shapes.items():
            array = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
            if field == "ssm_a":
                array = -np.exp(array)
            suffix = {"ssm_a": "", "ssm_dt": ".bias"}.get(field, ".weight")
            name = f"blk.{layer}.{field}{suffix}"
            if len(shape) == 1 or field == "ssm_conv1d":  # small ones stay as they are
                writer.add_tensor(name, array)
            else:
                kind = gguf.GGMLQuantizationType.Q8_0
                writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Decoder:
    """Layers one after the other, each with a norm before it and the residual around it, and what they remember."""

    def __init__(self, layers: Sequence[Layer], config: GdnConfig, registry: oplet.Registry | None) -> None:
        """Takes layers that are on the device of a registry, or for None on the host."""
        self._layers = layers
        self._config = config
        self._registry = registry
        self._states = [GdnState.zeros(config) for _ in layers]

    def __call__(self, hidden: np.ndarray) -> np.ndarray:
        """The hidden vectors behind the last layer, (tokens, hidden_dim) as they are before the first."""
        for number, layer in enumerate(self._layers):
            normed = hidden / np.sqrt(np.square(hidden).mean(axis=-1, keepdims=True) + self._config.rms_norm_eps)
            arguments = (self._config, normed.astype(np.float32), self._states[number])
            if self._registry is None:
                assert isinstance(layer, GdnWeights)
                out, self._states[number] = gdn_forward(layer, *arguments)
            else:
                tensor, self._states[number] = gdn_forward(layer, *arguments, registry=self._registry)
                out = tensor.numpy()
            hidden = hidden + out
        return hidden


def decode(decoder: Decoder, prompt: np.ndarray) -> np.ndarray:
    """The prompt at once, then one token after the other: (STEPS, hidden_dim)."""
    tokens = [decoder(prompt)[-1:]]
    while len(tokens) < STEPS:
        tokens.append(decoder(tokens[-1]))
    return np.concatenate(tokens)


def main() -> None:
    """Writes a file where none is given, decodes on the device and in numpy, and compares."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder, "small.gguf")
        if len(sys.argv) == 1:
            write(path)
        model = GgufModel(path)
        print(model)
        weights = [model.weights(layer) for layer in model.layers[:LAYERS]]
        config = model.config
        prompt = np.random.default_rng(1).standard_normal((PROMPT, config.hidden_dim)).astype(np.float32)

        registry = oplet.Registry()
        layers = [one.to(registry) for one in weights]
        decode(Decoder(layers, config, registry), prompt)  # compiles
        start = time.perf_counter()
        got = decode(Decoder(layers, config, registry), prompt)
        seconds = time.perf_counter() - start
        print(f"{STEPS} tokens in {seconds * 1e3:.0f} ms on {registry.device.capabilities.adapter.name}")

        want = decode(Decoder(weights, config, None), prompt)
        # Tokens are fed back, so that each begins with what those before it lost in float32.
        apart = np.abs(got - want).max() / np.abs(want).max()
        if not apart < 1e-4:  # written so that a NaN fails
            raise SystemExit(f"differs from numpy by {apart:.1e} of the largest value")
        print(f"agrees with numpy within {apart:.1e} of the largest value")


if __name__ == "__main__":
    main()
