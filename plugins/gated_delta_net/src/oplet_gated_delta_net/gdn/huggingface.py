"""Weights and sizes from Hugging Face's names: the linear-attention layers of Qwen3-Next and Qwen3.5."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np
import oplet
from numpy.typing import DTypeLike
from oplet.request import shape_text

from oplet_gated_delta_net.gdn.config import GdnConfig
from oplet_gated_delta_net.gdn.heads import split_ba, split_qkvz
from oplet_gated_delta_net.gdn.refusal import check_type
from oplet_gated_delta_net.gdn.weights import GdnWeights, as_dtype

_CONFIG = {
    "hidden_dim": "hidden_size",
    "num_key_heads": "linear_num_key_heads",
    "num_value_heads": "linear_num_value_heads",
    "key_head_dim": "linear_key_head_dim",
    "value_head_dim": "linear_value_head_dim",
    "conv_kernel_size": "linear_conv_kernel_dim",
    "rms_norm_eps": "rms_norm_eps",
}


def config_from_huggingface(settings: Mapping[str, Any]) -> GdnConfig:
    """The sizes in a model's config.json, or in the part of it for text.

    Args:
        settings: the file's contents, or `config.to_dict()`.

    Raises:
        InputError: these are no settings, or one is missing or no size.
    """
    check_type(
        "config_from_huggingface", "settings", settings, Mapping, "pass config.to_dict(), or config.json as read"
    )
    for name in _CONFIG.values():
        if name not in settings:
            raise oplet.InputError(
                f"settings: there is no {name!r}\n  there are {', '.join(map(repr, settings)) or 'none'}\n"
                "pass those of a model with linear attention; where text has its own, settings['text_config']",
                argument="settings",
            )
    return GdnConfig(**{field: settings[name] for field, name in _CONFIG.items()})


def weights_from_huggingface(
    tensors: Mapping[str, Any], config: GdnConfig, *, prefix: str = "", dtype: DTypeLike = "float32"
) -> GdnWeights:
    """The weights of a layer, from the state dict of a `Qwen3NextGatedDeltaNet` or `Qwen3_5GatedDeltaNet`.

    Args:
        tensors: numpy arrays or torch tensors, of any float dtype, by name.
        config: the sizes.
        prefix: what comes before the names, such as "model.layers.0.linear_attn.".
        dtype: what the block is to compute in, float32 or float16, by name or as numpy's.

    Raises:
        InputError: a tensor is missing, none, of another shape, or past float16; its name is told.
    """
    where = "weights_from_huggingface"
    check_type(where, "tensors", tensors, Mapping, "pass the state dict of the layer: layer.state_dict()")
    check_type(where, "config", config, GdnConfig, "pass config_from_huggingface(settings)")

    def take(name: str, *shape: int) -> np.ndarray:
        key = prefix + name
        if key not in tensors:
            near = difflib.get_close_matches(key, list(tensors), 3)
            raise oplet.InputError(
                f"tensors: there is no {key!r}\n  near it: {', '.join(map(repr, near)) or 'nothing'}\n"
                "pass the state dict of a Gated DeltaNet layer, and what comes before its names as prefix",
                argument="tensors",
            )
        array = _array(key, tensors[key])
        if array.shape != shape:
            raise oplet.InputError(
                f"tensors: {key}: it has the shape {shape_text(array.shape)}, and the configuration says "
                f"{shape_text(shape)}\npass tensors that fit {config}",
                argument="tensors",
            )
        return array

    hidden, heads, channels = config.hidden_dim, config.num_value_heads, config.channels
    if f"{prefix}in_proj_qkv.weight" in tensors:
        qkv = take("in_proj_qkv.weight", channels, hidden)
        gate = take("in_proj_z.weight", config.value_dim, hidden)
        beta = take("in_proj_b.weight", heads, hidden)
        alpha = take("in_proj_a.weight", heads, hidden)
    else:
        qkv, gate = split_qkvz(take("in_proj_qkvz.weight", channels + config.value_dim, hidden), config)
        beta, alpha = split_ba(take("in_proj_ba.weight", 2 * heads, hidden), config)
    fields = {
        "attn_qkv": qkv,
        "attn_gate": gate,
        "ssm_conv1d": take("conv1d.weight", channels, 1, config.conv_kernel_size)[:, 0],
        "ssm_dt": take("dt_bias", heads),
        "ssm_a": -np.exp(take("A_log", heads)),
        "ssm_beta": beta,
        "ssm_alpha": alpha,
        "ssm_norm": take("norm.weight", config.value_head_dim),
        "ssm_out": take("out_proj.weight", hidden, config.value_dim),
    }
    return GdnWeights(**{name: as_dtype(name, array, dtype) for name, array in fields.items()})


def _array(name: str, value: Any) -> np.ndarray:
    """Any float tensor as float32."""
    if hasattr(value, "detach"):  # torch's, whose bfloat16 numpy does not know
        value = value.detach().cpu().float().numpy()
    try:
        return np.asarray(value).astype(np.float32)
    except (TypeError, ValueError) as error:
        raise oplet.InputError(
            f"tensors: {name}: {type(value).__name__} is no tensor: {error}\npass numpy arrays or torch tensors",
            argument="tensors",
        ) from error
