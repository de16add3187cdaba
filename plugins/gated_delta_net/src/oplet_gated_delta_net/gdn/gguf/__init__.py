"""Weights of Gated DeltaNet layers from GGUF files. Needs the extra `oplet-gated-delta-net[gguf]`.

model = GgufModel("model.gguf")
weights = model.weights(model.layers[0], dtype="float16")
out, state = gdn_forward(weights, model.config, hidden, GdnState.zeros(model.config))
"""

from __future__ import annotations

from oplet import MissingExtraError

try:
    import gguf  # noqa: F401  # so that what is missing is told once, here
    import tqdm  # noqa: F401
except ImportError as error:
    raise MissingExtraError(
        f"oplet_gated_delta_net.gdn.gguf needs the packages gguf and tqdm: {error}\n"
        "pip install 'oplet-gated-delta-net[gguf]'"
    ) from error

from oplet_gated_delta_net.gdn.gguf.file import GgufFile, TensorInfo
from oplet_gated_delta_net.gdn.gguf.model import GgufModel

__all__ = ["GgufFile", "GgufModel", "TensorInfo"]
