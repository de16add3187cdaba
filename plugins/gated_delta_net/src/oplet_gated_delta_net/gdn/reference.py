"""The block in numpy: token by token, in float64, rounded where a block on a device stores a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oplet_gated_delta_net.gdn.config import GdnConfig
from oplet_gated_delta_net.gdn.state import GdnState
from oplet_gated_delta_net.gdn.weights import GdnWeights

#: added to the squared length of queries and keys, inside the root
QK_EPSILON = 1e-6


def forward(
    weights: GdnWeights,
    config: GdnConfig,
    hidden: np.ndarray,
    state: GdnState,
    bounds: Sequence[tuple[int, int]],
) -> tuple[np.ndarray, GdnState]:
    """Runs requests one after the other.

    Args:
        weights: of a dtype, the compute dtype.
        config: the sizes.
        hidden: (tokens, hidden_dim) in the compute dtype.
        state: of the requests, on the host.
        bounds: first and last token + 1 of each request.

    Returns:
        (tokens, hidden_dim) in the compute dtype, and the new state.
    """
    out = np.zeros(hidden.shape, weights.dtype)
    recurrent = np.array(state.recurrent, np.float32)
    conv = np.array(state.conv, weights.dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaNs pass through, as on a device
        for request, (first, last) in enumerate(bounds):
            if first < last:
                out[first:last], recurrent[request], conv[request] = _request(
                    weights, config, hidden[first:last], recurrent[request], conv[request]
                )
    return out, GdnState(recurrent, conv)


def _request(
    weights: GdnWeights, config: GdnConfig, hidden: np.ndarray, recurrent: np.ndarray, conv: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One request of at least one token: out, and the new recurrent and convolution states."""

    def stored(array: np.ndarray) -> np.ndarray:
        return array.astype(weights.dtype).astype(np.float64)

    def project(vectors: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        return stored(vectors @ matrix.astype(np.float64).T)

    tokens = len(hidden)
    hidden = hidden.astype(np.float64)
    qkv = project(hidden, weights.attn_qkv)
    gate = project(hidden, weights.attn_gate)
    beta = _sigmoid(project(hidden, weights.ssm_beta))
    alpha = project(hidden, weights.ssm_alpha)

    # The history holds projections as they are, before the convolution and its SiLU.
    history = np.concatenate([conv.T.astype(np.float64), qkv])
    taps = weights.ssm_conv1d.astype(np.float64)
    windows = np.stack([history[tap : tap + tokens] for tap in range(config.conv_kernel_size)], axis=-1)
    mixed = stored(_silu((windows * taps).sum(axis=-1)))

    query, key, value = np.split(mixed, [config.key_dim, 2 * config.key_dim], axis=1)
    # Value head h uses key head h // repeats.
    repeats = config.num_value_heads // config.num_key_heads
    query, key = (
        np.repeat(_normalized(part.reshape(tokens, config.num_key_heads, -1)), repeats, axis=1) for part in (query, key)
    )
    query *= config.key_head_dim**-0.5
    value = value.reshape(tokens, config.num_value_heads, -1)
    decay = np.exp(np.logaddexp(0, alpha + weights.ssm_dt) * weights.ssm_a)

    s = recurrent.astype(np.float64)
    y = np.empty(value.shape)
    for t in range(tokens):
        s = s * decay[t][:, None, None]
        write = beta[t][:, None] * (value[t] - np.einsum("hvk,hk->hv", s, key[t]))
        s = s + write[:, :, None] * key[t][:, None, :]
        y[t] = np.einsum("hvk,hk->hv", s, query[t])

    y = stored(y)
    y /= np.sqrt(np.square(y).mean(axis=-1, keepdims=True) + config.rms_norm_eps)
    normed = stored(y * weights.ssm_norm.astype(np.float64) * _silu(gate).reshape(value.shape))
    out = project(normed.reshape(tokens, -1), weights.ssm_out)
    return out.astype(weights.dtype), s.astype(np.float32), history[tokens:].T.astype(weights.dtype)


def _normalized(vectors: np.ndarray) -> np.ndarray:
    normalized: np.ndarray = vectors / np.sqrt(np.square(vectors).sum(axis=-1, keepdims=True) + QK_EPSILON)
    return normalized


def _sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    result: np.ndarray = np.where(x >= 0, 1.0, small) / (1.0 + small)
    return result


def _silu(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = x * _sigmoid(x)
    return result
