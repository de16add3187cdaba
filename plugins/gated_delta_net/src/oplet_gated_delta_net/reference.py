"""The op in numpy: token by token, in float64."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np

from oplet_gated_delta_net.shapes import Delta


@attrs.frozen(eq=False)
class Inputs:
    """The tensors of a call in float64, one row a token.

    Attributes:
        query, key: (tokens, Hq, Dk), normalized where the call says so.
        value: (tokens, Hv, Dv).
        factor: (tokens, Hv, W), what the state is multiplied by; W is 1, or Dk for a decay of each key.
        rate: (tokens, Hv, 1), beta; 1 without.
        state: (batch, Hv, Dv, Dk).
        bounds: of each request.
        capture: for each request the number of its captured tokens.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    factor: np.ndarray
    rate: np.ndarray
    state: np.ndarray
    bounds: list[tuple[int, int]]
    capture: list[int]

    @classmethod
    def of(cls, delta: Delta, arrays: Mapping[str, np.ndarray]) -> Inputs:
        """Reads the arrays of a call."""
        keys = delta.hq * delta.dk
        parts = [arrays[name] for name in ("queryT", "keyT", "valueT") if name in arrays]
        if delta.packed:
            parts = np.split(arrays["queryT"], [keys, 2 * keys], axis=1)
        query, key = (part.reshape(delta.tokens, delta.hq, delta.dk).astype(np.float64) for part in parts[:2])
        if delta.norm_epsilon is not None:
            query, key = (_normalized(vectors, float(delta.norm_epsilon)) for vectors in (query, key))
        shape = (delta.batch, delta.hv, delta.dv, delta.dk)
        bounds = delta.bounds(arrays.get("cuSeqlensT"))
        return cls(
            query=query,
            key=key,
            value=parts[2].reshape(delta.tokens, delta.hv, delta.dv).astype(np.float64),
            factor=_factor(delta, arrays),
            rate=_rate(delta, arrays),
            state=arrays.get("initialStateT", np.zeros(shape, np.float32)).astype(np.float64),
            bounds=bounds,
            capture=_capture(delta, arrays, bounds),
        )


def gated_delta_net(delta: Delta, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Output, final state and, where it is asked for, state update."""
    inputs = Inputs.of(delta, arrays)
    group = delta.hv // delta.hq
    output = np.zeros((delta.tokens, delta.hv, delta.dv))
    factors = np.zeros((delta.batch, delta.capacity, delta.hv, inputs.factor.shape[2]))
    keys = np.zeros((delta.batch, delta.capacity, delta.hq, delta.dk))
    writes = np.zeros((delta.batch, delta.capacity, delta.hv, delta.dv))
    final = inputs.state.copy()
    with np.errstate(invalid="ignore", over="ignore"):
        for request, (first, last) in enumerate(inputs.bounds):
            state = final[request]
            for t in range(first, last):
                key = np.repeat(inputs.key[t], group, axis=0)
                query = np.repeat(inputs.query[t], group, axis=0)
                if delta.decays:
                    state *= inputs.factor[t][:, None, :]
                write = inputs.value[t]
                if delta.retrieves:
                    write = inputs.rate[t] * (write - np.einsum("hvk,hk->hv", state, key))
                state += write[:, :, None] * key[:, None, :]
                output[t] = float(delta.scale) * np.einsum("hvk,hk->hv", state, query)
                if t - first < inputs.capture[request]:
                    place = request, t - first
                    factors[place], keys[place], writes[place] = inputs.factor[t], inputs.key[t], write
    results = {"outputT": output.reshape(*delta.lead, delta.hv, delta.dv), "finalStateT": final}
    if delta.capacity:
        parts = [part.reshape(delta.batch, -1) for part in (factors, keys, writes)]
        results["stateUpdateT"] = np.concatenate(parts, axis=1)
    elif "stateUpdateT" in delta.outputs:
        results["stateUpdateT"] = np.zeros(delta.outputs["stateUpdateT"].shape)
    return results


def _normalized(vectors: np.ndarray, epsilon: float) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        normalized: np.ndarray = vectors / np.sqrt(np.square(vectors).sum(axis=-1, keepdims=True) + epsilon)
    return normalized


def _factor(delta: Delta, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    width = delta.dk if delta.per_key else 1
    if not delta.decays:
        return np.ones((delta.tokens, delta.hv, width))
    decay = arrays["decayT"].reshape(delta.tokens, delta.hv, width).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        if delta.gate != "none":
            rate = np.exp(arrays["aLogT"].astype(np.float64))[:, None]
            raw = decay + arrays["dtBiasT"].astype(np.float64).reshape(delta.hv, -1)
            if delta.gate == "softplus":
                decay = -rate * np.logaddexp(0.0, raw)
            else:
                decay = float(delta.lower_bound) * _sigmoid(rate * raw)
        # The factor is a float32, as everything inside is: it is 0 from -104 on, and 0 times infinity NaN.
        return np.exp(decay).astype(np.float32).astype(np.float64)


def _rate(delta: Delta, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    if not delta.retrieves:
        return np.ones((delta.tokens, delta.hv, 1))
    beta = arrays["betaT"].reshape(delta.tokens, delta.hv, 1).astype(np.float64)
    return _sigmoid(beta) if delta.beta_sigmoid else beta


def _sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    result: np.ndarray = np.where(x >= 0, 1.0, small) / (1.0 + small)
    return result


def _capture(delta: Delta, arrays: Mapping[str, np.ndarray], bounds: list[tuple[int, int]]) -> list[int]:
    if not delta.capacity or (delta.switch and not arrays["stateUpdateActiveT"][0]):
        return [0] * delta.batch
    counts = arrays["captureCountT"].tolist()
    return [
        min(max(count, 0), delta.capacity, last - first) for count, (first, last) in zip(counts, bounds, strict=True)
    ]
