"""The orders in which files store heads, and the one that the block uses: grouped.

Grouped: value heads of one key head are neighbours, so that value head h uses key head h // r, with r = Hv / Hk.
Tiled, in GGUF files of qwen35 and qwen35moe: the key heads repeat, so that value slot t uses key head t % Hk.
Where Hk is 1 or Hv the two agree, and elsewhere a mix-up gives results that are wrong but look like any others.
"""

from __future__ import annotations

import numpy as np

from oplet_gated_delta_net.gdn.config import GdnConfig


def grouped_from_tiled(config: GdnConfig) -> np.ndarray:
    """For each grouped value head the tiled slot that holds it: `grouped = tiled[grouped_from_tiled(config)]`.

    For 2 key heads and 6 value heads the slots hold heads 0, 3, 1, 4, 2, 5, and this is 0, 2, 4, 1, 3, 5. A state
    saved by a program that works on tiled heads is reordered alike, along its axis of heads.

    Returns:
        int64, (num_value_heads,).
    """
    repeats = config.num_value_heads // config.num_key_heads
    return np.arange(config.num_value_heads).reshape(repeats, config.num_key_heads).T.ravel()


def untile(array: np.ndarray, config: GdnConfig, *, axis: int = 0, before: int = 0) -> np.ndarray:
    """Brings the value heads along an axis from tiled into grouped order.

    Args:
        array: of any shape; behind `before`, the axis has equally many elements of each value head.
        config: the numbers of heads.
        axis: the axis of heads.
        before: leading elements of the axis that are no value head's, such as queries and keys; they stay.
    """
    rest = np.arange(before, array.shape[axis]).reshape(config.num_value_heads, -1)
    order = np.concatenate([np.arange(before), rest[grouped_from_tiled(config)].ravel()])
    return np.take(array, order, axis=axis)


def split_qkvz(rows: np.ndarray, config: GdnConfig) -> tuple[np.ndarray, np.ndarray]:
    """Rows that lie by key head, each with its query, key, values and gates, as attn_qkv and attn_gate.

    Args:
        rows: (2 · key_dim + 2 · value_dim, hidden_dim).
        config: the sizes.
    """
    dk, heads = config.key_head_dim, config.num_key_heads
    values = config.value_dim // heads
    groups = rows.reshape(heads, 2 * dk + 2 * values, -1)
    query, key, value, gate = (
        part.reshape(-1, rows.shape[1]) for part in np.split(groups, [dk, 2 * dk, 2 * dk + values], axis=1)
    )
    return np.concatenate([query, key, value]), gate


def split_ba(rows: np.ndarray, config: GdnConfig) -> tuple[np.ndarray, np.ndarray]:
    """Rows that lie by key head, each with its betas and alphas, as ssm_beta and ssm_alpha.

    Args:
        rows: (2 · num_value_heads, hidden_dim).
        config: the sizes.
    """
    beta, alpha = np.split(rows.reshape(config.num_key_heads, -1, rows.shape[1]), 2, axis=1)
    return beta.reshape(-1, rows.shape[1]), alpha.reshape(-1, rows.shape[1])
