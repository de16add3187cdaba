"""Records what transformers' Gated DeltaNet blocks compute, as oracles for the tests. `make oracles` runs it.

Writes NAME.npz beside itself for each block: random weights under the names of its state dict as `weights/…`, the
settings of its configuration as `config`, and for two sequences, `long` and `short`, hidden vectors of a prompt and of
a few decode steps, the block's outputs for both, and the states after the prompt and after the last step.

    python make_oracles.py     # needs torch and transformers: oracles-requirements.txt
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet, Qwen3_5TextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextConfig, Qwen3NextGatedDeltaNet

# Three value heads to a key head and dk ≠ dv, so that no order of heads and no size can be taken for another.
SETTINGS = {
    "hidden_size": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 5,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
}
# The rest of a model, which a block alone does not look at.
MODEL = {"num_hidden_layers": 1, "layer_types": ["linear_attention"], "num_attention_heads": 2, "head_dim": 12}
STEPS = 3
PROMPTS = {"long": 70, "short": 5}  # past transformers' chunk of 64, and not


def record(block_type: Any, config_type: Any, seed: int) -> dict[str, np.ndarray]:
    """All that one block's oracle holds."""
    torch.manual_seed(seed)
    config = config_type(**SETTINGS, **MODEL)
    block = block_type(config, 0).eval()
    with torch.no_grad():
        # Trained values are neither all 1 nor as far apart as the initial ones.
        block.norm.weight.uniform_(0.5, 1.5)
        block.dt_bias.uniform_(-2, 1)
        block.A_log.uniform_(-2, 1)
    arrays = {f"weights/{name}": value.numpy() for name, value in block.state_dict().items()}
    arrays["config"] = np.array(json.dumps(SETTINGS))
    arrays["versions"] = np.array(f"transformers {transformers.__version__}, torch {torch.__version__}")
    for name, tokens in PROMPTS.items():
        cache = transformers.DynamicCache(config=config)
        hidden = torch.randn(1, tokens + STEPS, SETTINGS["hidden_size"])
        outputs = []
        with torch.no_grad():
            outputs.append(block(hidden[:, :tokens], cache))
            arrays |= states(cache, f"{name}/prompt")
            outputs += [block(hidden[:, t : t + 1], cache) for t in range(tokens, tokens + STEPS)]
        arrays |= states(cache, f"{name}/end")
        arrays[f"{name}/hidden"] = hidden[0].numpy()
        arrays[f"{name}/out"] = torch.cat(outputs, dim=1)[0].numpy()
    return arrays


def states(cache: Any, prefix: str) -> dict[str, np.ndarray]:
    """The states in a cache: keys first (Hv, dk, dv), and the last K projections (channels, K)."""
    return {
        f"{prefix}/recurrent": cache.get_recurrent_state(0, state_idx=0)[0].numpy().copy(),
        f"{prefix}/conv": cache.get_conv_state(0, state_idx=0)[0].numpy().copy(),
    }


def main() -> None:
    """Writes a file for each block."""
    folder = Path(__file__).parent
    blocks = {
        "qwen3_next": (Qwen3NextGatedDeltaNet, Qwen3NextConfig, 1),
        "qwen3_5": (Qwen3_5GatedDeltaNet, Qwen3_5TextConfig, 2),
    }
    for name, arguments in blocks.items():
        path = folder / f"{name}.npz"
        np.savez_compressed(path, **record(*arguments))
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
