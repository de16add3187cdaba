"""The block: one step or a whole prompt, in numpy or on a device."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import NoneType
from typing import Any, NoReturn, overload

import numpy as np
import oplet
from oplet.request import shape_text

from oplet_gated_delta_net.gdn.config import GdnConfig
from oplet_gated_delta_net.gdn.reference import QK_EPSILON, forward
from oplet_gated_delta_net.gdn.refusal import check_type, refuse
from oplet_gated_delta_net.gdn.state import Array, GdnState, check_state
from oplet_gated_delta_net.gdn.weights import GEMM, DeviceWeights, GdnWeights, check_weights

CONV = "com.microsoft.VarlenCausalConvWithState"
DELTA = "com.microsoft.GatedDeltaNet"
NORM = "com.microsoft.GatedRMSNorm"

_ARRAYS = (np.ndarray, oplet.Tensor)

_GEMM_ATTRS = {"transB": 1}
_CONV_ATTRS = {"activation": "silu"}
_DELTA_ATTRS = {
    "gate_activation": "softplus",
    "beta_activation": "sigmoid",
    "qk_l2_norm": 1,
    "qk_l2_norm_epsilon": QK_EPSILON,
}


@overload
def gdn_forward_token(
    weights: GdnWeights, config: GdnConfig, hidden: Array, state: GdnState, *, registry: None = None
) -> tuple[np.ndarray, GdnState]: ...


@overload
def gdn_forward_token(
    weights: GdnWeights | DeviceWeights,
    config: GdnConfig,
    hidden: Array,
    state: GdnState,
    *,
    registry: oplet.Registry,
) -> tuple[oplet.Tensor, GdnState]: ...


def gdn_forward_token(
    weights: GdnWeights | DeviceWeights,
    config: GdnConfig,
    hidden: Array,
    state: GdnState,
    *,
    registry: oplet.Registry | None = None,
) -> tuple[Array, GdnState]:
    """One decode step: a token of each request.

    Args:
        weights, config, state, registry: as for `gdn_forward`.
        hidden: (hidden_dim,), or (requests, hidden_dim): normed hidden vectors, otherwise as for `gdn_forward`.

    Returns:
        The block's output, in the shape of hidden, to be added to the residual stream; and the new state.

    Raises:
        As `gdn_forward`.
    """
    where = "gdn_forward_token"
    _check_types(where, weights, config, hidden, state, None, registry)
    rows = hidden.reshape(1, -1) if hidden.ndim == 1 else hidden
    if rows.ndim == 2 and rows.shape[0] != state.requests:
        refuse(
            where,
            "hidden",
            f"has {rows.shape[0]} tokens, and the state {state.requests} requests",
            "pass one token of each request, or call gdn_forward",
        )
    out, state = _forward(where, weights, config, rows, state, None, registry)
    return out.reshape(hidden.shape), state


@overload
def gdn_forward(
    weights: GdnWeights,
    config: GdnConfig,
    hidden: Array,
    state: GdnState,
    *,
    cu_seqlens: Array | None = None,
    registry: None = None,
) -> tuple[np.ndarray, GdnState]: ...


@overload
def gdn_forward(
    weights: GdnWeights | DeviceWeights,
    config: GdnConfig,
    hidden: Array,
    state: GdnState,
    *,
    cu_seqlens: Array | None = None,
    registry: oplet.Registry,
) -> tuple[oplet.Tensor, GdnState]: ...


def gdn_forward(
    weights: GdnWeights | DeviceWeights,
    config: GdnConfig,
    hidden: Array,
    state: GdnState,
    *,
    cu_seqlens: Array | None = None,
    registry: oplet.Registry | None = None,
) -> tuple[Array, GdnState]:
    """The block on the tokens of one request or several, which go on from the state.

    On a registry the call is one submit, or part of the batch that is open, and returns before the device is done.
    Host arrays are uploaded in every call, weights too: `weights.to(registry)` uploads them once.

    Args:
        weights: their dtype is the one that the block computes in. Gates and the recurrent state are float32.
        config: the sizes.
        hidden: (tokens, hidden_dim), normed hidden vectors. On the host of any float dtype, narrowed once; on a
            device of the weights' dtype.
        state: of each request, on the host or the device. It stays as it was.
        cu_seqlens: (requests + 1,) int32, where requests begin and end among the tokens: 0 first, the number of
            tokens last. Without it all requests are equally long. On a device its values are not checked: see
            com.microsoft.VarlenCausalConvWithState.
        registry: where to run; None: numpy, in float64, for host arrays.

    Returns:
        (tokens, hidden_dim) in the weights' dtype, to be added to the residual stream; and the new state.

    Raises:
        InputError: an argument that does not fit; its `argument` tells which.
        UnknownOpError: an op that the block needs is not installed.
        oplet.OpletError: as `oplet.Registry.run`.
    """
    where = "gdn_forward"
    _check_types(where, weights, config, hidden, state, cu_seqlens, registry)
    return _forward(where, weights, config, hidden, state, cu_seqlens, registry)


def _forward(
    where: str,
    weights: GdnWeights | DeviceWeights,
    config: GdnConfig,
    hidden: Array,
    state: GdnState,
    cu_seqlens: Array | None,
    registry: oplet.Registry | None,
) -> tuple[Array, GdnState]:
    check_weights(weights, config)
    check_state(where, state, config, weights.dtype)
    _check_hidden(where, hidden, config, weights.dtype)
    _check_offsets(where, cu_seqlens, hidden.shape[0], state.requests)
    if registry is not None:
        return _on_device(where, weights, config, hidden, state, cu_seqlens, registry)
    if isinstance(weights, DeviceWeights):
        _refuse_device(where, "weights")
    for name, value in _tensors(hidden, state, cu_seqlens):
        if not value.on_host:
            _refuse_device(where, name)
    tokens, requests = hidden.shape[0], state.requests
    offsets = np.linspace(0, tokens, requests + 1) if cu_seqlens is None else np.asarray(cu_seqlens)
    bounds = [(int(first), int(last)) for first, last in pairwise(offsets)]
    return forward(weights, config, _narrowed(np.asarray(hidden), weights.dtype), state, bounds)


def _on_device(
    where: str,
    weights: GdnWeights | DeviceWeights,
    config: GdnConfig,
    hidden: Array,
    state: GdnState,
    cu_seqlens: Array | None,
    registry: oplet.Registry,
) -> tuple[oplet.Tensor, GdnState]:
    run = registry.run
    for name, tensor in _tensors(hidden, state, cu_seqlens):
        _check_place(where, name, tensor, registry)
    if isinstance(weights, GdnWeights):
        weights = weights.to(registry)
    else:
        _check_place(where, "weights", weights.attn_qkv, registry)
    tokens, requests = hidden.shape[0], state.requests
    hidden = _narrowed(hidden, weights.dtype)
    if cu_seqlens is None:
        offsets: Array = weights.equal_offsets(registry, requests, tokens)
    else:
        offsets = cu_seqlens if isinstance(cu_seqlens, oplet.Tensor) else registry.tensor(cu_seqlens)
    with registry.batch():
        # Four products instead of one, whose result would have to be cut up again: what does not wait for another
        # overlaps on the device. The gate's comes where a step leaves most of a GPU idle, beside the recurrence.
        qkv = run(GEMM, A=hidden, B=weights.attn_qkv, attrs=_GEMM_ATTRS)
        beta = run(GEMM, A=hidden, B=weights.ssm_beta, attrs=_GEMM_ATTRS)
        alpha = run(GEMM, A=hidden, B=weights.ssm_alpha, attrs=_GEMM_ATTRS)
        mixed, conv = run(
            CONV,
            input=qkv,
            weight=weights.ssm_conv1d,
            cumulative_sequence_length=offsets,
            initial_state=_narrowed(state.conv, weights.dtype),
            attrs=_CONV_ATTRS,
        )
        y, recurrent = run(
            DELTA,
            query=mixed,
            decay=alpha,
            beta=beta,
            initial_state=state.recurrent,
            a_log=weights.a_log,
            dt_bias=weights.ssm_dt,
            cu_seqlens=None if cu_seqlens is None else offsets,
            attrs=_DELTA_ATTRS,
        )
        gate = run(GEMM, A=hidden, B=weights.attn_gate, attrs=_GEMM_ATTRS)
        normed = run(
            NORM,
            X=y.reshape(tokens, config.value_dim),
            scale=weights.ssm_norm,
            gate=gate,
            attrs={"epsilon": config.rms_norm_eps},
        )
        out = run(GEMM, A=normed, B=weights.ssm_out, attrs=_GEMM_ATTRS)
    return out, GdnState(recurrent, conv)


def _narrowed(array: Any, dtype: np.dtype[Any]) -> Any:
    """A host array in the compute dtype; device tensors have it already."""
    if isinstance(array, oplet.Tensor):
        return array
    with np.errstate(over="ignore"):  # to infinity, as a device would
        return array.astype(dtype, copy=False)


def _check_types(
    where: str,
    weights: object,
    config: object,
    hidden: object,
    state: object,
    cu_seqlens: object,
    registry: object,
) -> None:
    check_type(where, "weights", weights, (GdnWeights, DeviceWeights), "pass GdnWeights, or weights.to(registry)")
    check_type(where, "config", config, GdnConfig, "pass the sizes, as GgufModel.config has them")
    check_type(where, "hidden", hidden, _ARRAYS, "pass np.asarray(hidden, np.float32)")
    check_type(where, "state", state, GdnState, "pass GdnState.zeros(config), or what a call before gave")
    check_type(where, "cu_seqlens", cu_seqlens, (*_ARRAYS, NoneType), "pass np.asarray(cu_seqlens, np.int32)")
    check_type(where, "registry", registry, (oplet.Registry, NoneType), "pass oplet.Registry(), or None for numpy")


def _check_hidden(where: str, hidden: Array, config: GdnConfig, dtype: np.dtype[Any]) -> None:
    if hidden.ndim != 2 or hidden.shape[1] != config.hidden_dim:
        refuse(
            where,
            "hidden",
            f"has the shape {shape_text(hidden.shape)}, not (tokens, {config.hidden_dim})",
            "pass one row for each token; gdn_forward_token also takes a single vector",
        )
    if isinstance(hidden, oplet.Tensor) and hidden.dtype != dtype:
        refuse(
            where,
            "hidden",
            f"is {hidden.dtype.name} on the device, and the weights are {dtype.name}",
            f"make it {dtype.name}, or take weights.astype({hidden.dtype.name!r})",
        )
    if hidden.dtype.kind != "f":
        refuse(where, "hidden", f"is {hidden.dtype.name}", "pass floats: hidden.astype(np.float32)")


def _check_offsets(where: str, cu_seqlens: Array | None, tokens: int, requests: int) -> None:
    if cu_seqlens is None:
        if tokens % requests if requests else tokens:
            refuse(
                where,
                "hidden",
                f"has {tokens} tokens, which {requests} requests cannot share equally",
                "pass cu_seqlens, which says where each request begins and ends",
            )
        return
    if cu_seqlens.dtype != np.int32:
        refuse(where, "cu_seqlens", f"is {cu_seqlens.dtype.name}, not int32", "pass cu_seqlens.astype(np.int32)")
    if cu_seqlens.shape != (requests + 1,):
        refuse(
            where,
            "cu_seqlens",
            f"has the shape {shape_text(cu_seqlens.shape)}, not ({requests + 1},)",
            "pass an offset more than the state has requests",
        )
    host = cu_seqlens if isinstance(cu_seqlens, np.ndarray) else cu_seqlens.host
    if host is not None and (host[0] != 0 or host[-1] != tokens or (np.diff(host) < 0).any()):
        refuse(
            where,
            "cu_seqlens",
            f"{np.array2string(host, threshold=8)} does not rise from 0 to {tokens}, the number of tokens",
            "pass where each request begins, and last the number of tokens",
        )


def _tensors(hidden: Array, state: GdnState, cu_seqlens: Array | None) -> Iterator[tuple[str, oplet.Tensor]]:
    """Those of the arguments that are tensors, by the argument's name."""
    for name, value in (
        ("hidden", hidden),
        ("state", state.recurrent),
        ("state", state.conv),
        ("cu_seqlens", cu_seqlens),
    ):
        if isinstance(value, oplet.Tensor):
            yield name, value


def _check_place(where: str, argument: str, tensor: oplet.Tensor, registry: oplet.Registry) -> None:
    if tensor.device is not None and tensor.device is not registry.device:
        refuse(where, argument, "is on another device than registry", "pass the registry that it was made with")


def _refuse_device(where: str, argument: str) -> NoReturn:
    refuse(where, argument, "is on a device", "pass registry=, the one that it is on")
