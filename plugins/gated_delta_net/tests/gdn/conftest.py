"""What the tests of the block share: a small block with random weights, and GGUF files of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
from oplet_gated_delta_net.gdn import GdnConfig, GdnWeights

#: 3 value heads to a key head, dk ≠ dv, and rows that blocks of 32 divide, which quantised types need
CONFIG = GdnConfig(hidden_dim=64, num_key_heads=2, num_value_heads=6, key_head_dim=8, value_head_dim=16)

Writer = Callable[..., Path]


def random_weights(config: GdnConfig, seed: int = 0) -> GdnWeights:
    """Weights in the size of a trained model's."""
    rng = np.random.default_rng(seed)
    arrays = {
        name: rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[-1]))
        for name, shape in config.weight_shapes.items()
    }
    arrays["ssm_dt"] = rng.uniform(-2, 1, config.num_value_heads).astype(np.float32)
    arrays["ssm_a"] = -rng.uniform(0.1, 2, config.num_value_heads).astype(np.float32)
    arrays["ssm_norm"] = rng.uniform(0.5, 1.5, config.value_head_dim).astype(np.float32)
    return GdnWeights(**arrays)


def tiled(array: np.ndarray, config: GdnConfig, axis: int = 0, before: int = 0) -> np.ndarray:
    """Grouped value heads in the order of a qwen35 file, slot by slot: slot j · Hk + k holds head k · r + j."""
    repeats = config.num_value_heads // config.num_key_heads
    result = array.copy()
    to, source = np.moveaxis(result, axis, 0)[before:], np.moveaxis(array, axis, 0)[before:]
    width = len(source) // config.num_value_heads
    for j in range(repeats):
        for k in range(config.num_key_heads):
            slot, head = j * config.num_key_heads + k, k * repeats + j
            to[slot * width : (slot + 1) * width] = source[head * width : (head + 1) * width]
    return result


def tensors_of(weights: GdnWeights, config: GdnConfig, *, tile: bool) -> dict[str, np.ndarray]:
    """The tensors of a layer by their names in a file, without its number."""
    arrays = {name: getattr(weights, name) for name in weights.names}
    if tile:
        for name in ("attn_gate", "ssm_dt", "ssm_a", "ssm_beta", "ssm_alpha"):
            arrays[name] = tiled(arrays[name], config)
        for name in ("attn_qkv", "ssm_conv1d"):
            arrays[name] = tiled(arrays[name], config, before=2 * config.key_dim)
        arrays["ssm_out"] = tiled(arrays["ssm_out"], config, axis=1)
    names = {"ssm_dt": "ssm_dt.bias", "ssm_a": "ssm_a"}
    return {names.get(name, f"{name}.weight"): array for name, array in arrays.items()}


def settings_of(config: GdnConfig) -> dict[str, int | float]:
    """The metadata of a model, without its architecture."""
    return {
        "embedding_length": config.hidden_dim,
        "ssm.conv_kernel": config.conv_kernel_size,
        "ssm.state_size": config.key_head_dim,
        "ssm.group_count": config.num_key_heads,
        "ssm.time_step_rank": config.num_value_heads,
        "ssm.inner_size": config.value_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }


@pytest.fixture
def config() -> GdnConfig:
    return CONFIG


@pytest.fixture
def weights() -> GdnWeights:
    return random_weights(CONFIG)


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    """Writes a file of a model, with the gguf package."""

    def write(
        architecture: str,
        layers: Mapping[int, Mapping[str, np.ndarray]],
        settings: Mapping[str, int | float],
        kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
        name: str = "model.gguf",
    ) -> Path:
        """Matrices that a converter would quantise get the type, all else is F32."""
        path = tmp_path / name
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in settings.items():
            add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            add(key if key.startswith("split.") else f"{architecture}.{key}", value)
        writer.add_array("tokenizer.ggml.tokens", ["a", "bc", ""])
        writer.add_array("tokenizer.ggml.scores", [0.5, 1.5])
        writer.add_tensor("token_embd.weight", np.ones((2, 32), np.float32))
        for layer, tensors in layers.items():
            for tensor, array in tensors.items():
                quantise = array.ndim == 2 and "conv1d" not in tensor and kind != gguf.GGMLQuantizationType.F32
                data = gguf.quantize(array, kind) if quantise else array
                writer.add_tensor(f"blk.{layer}.{tensor}", data, raw_dtype=kind if quantise else None)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write
