"""The block around the recurrence: the linear-attention layer of Qwen3-Next and Qwen3.5 models.

    model = GgufModel("model.gguf")
    weights = model.weights(0, dtype="float16").to(registry)
    state = GdnState.zeros(model.config)
    out, state = gdn_forward_token(weights, model.config, hidden, state, registry=registry)

Projections, a short causal convolution, gates, `com.microsoft.GatedDeltaNet`, a gated norm, an output projection.
Without a registry everything is numpy, in float64; on a device the block needs `oplet-gated-delta-net[block]`.
`oplet_gated_delta_net.gdn.gguf` reads weights from GGUF files, and needs `oplet-gated-delta-net[gguf]`.
"""

from __future__ import annotations

from oplet_gated_delta_net.gdn.block import gdn_forward, gdn_forward_token
from oplet_gated_delta_net.gdn.config import GdnConfig
from oplet_gated_delta_net.gdn.heads import grouped_from_tiled
from oplet_gated_delta_net.gdn.huggingface import config_from_huggingface, weights_from_huggingface
from oplet_gated_delta_net.gdn.state import GdnState
from oplet_gated_delta_net.gdn.weights import DeviceWeights, GdnWeights

__all__ = [
    "DeviceWeights",
    "GdnConfig",
    "GdnState",
    "GdnWeights",
    "config_from_huggingface",
    "gdn_forward",
    "gdn_forward_token",
    "grouped_from_tiled",
    "weights_from_huggingface",
]
