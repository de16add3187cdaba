"""Random calls for the conformance kit, the fuzzers and the comparison with onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import oplet

from oplet_gated_delta_net.reference import Inputs
from oplet_gated_delta_net.shapes import Delta

Call = tuple[dict[str, np.ndarray], dict[str, Any]]

#: (Dk, Dv), few, since each compiles pipelines of its own: rows of whole vec4s, odd ones, more than 32 keys
HEAD_SIZES = ((8, 5), (7, 12), (36, 9))

RULES = ("linear", "gated", "delta", "gated_delta", "gated_delta", "gated_delta")


def cases(rng: np.random.Generator) -> Iterator[Call]:
    """Calls over everything that the op has."""
    for _ in range(48):
        yield random_call(rng)
    for longest in (0, 1):
        yield random_call(rng, longest=longest)
    for dtype in (np.float32, np.float16):
        yield step_of_many(rng, dtype)


def scale(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What rounding errors grow with.

    A token's output is a product of query and state, and either may cancel: its error is in proportion to
    the lengths of both. An element of the state has errors of everything that went through it and that
    the retrieval spread over its row. What has decayed has the error of the exponents x that made it small:
    of exp(x) WGSL asks for no more than 3 + 2 |x| units of 1.2e-7, where `rtol` has 8; and x may itself be a
    product of such an exp(a_log) and a softplus.
    """
    delta = Delta.of(request)
    inputs = Inputs.of(delta, arrays)
    group = delta.hv // delta.hq
    keys = np.repeat(inputs.key, group, axis=1)
    queries = np.repeat(inputs.query, group, axis=1)
    exponent_error: float | np.ndarray = 2.0  # units of 1.2e-7 for each 1 of the exponent
    if delta.gate != "none":  # past 88 it is 0 or infinite
        exponent_error = 9.0 + 2.0 * np.abs(arrays["aLogT"].astype(np.float64)).clip(0, 88)[:, None]
    output = np.zeros((delta.tokens, delta.hv, delta.dv))
    final = np.zeros((delta.batch, delta.hv, delta.dv, delta.dk))
    update = np.zeros(delta.outputs["stateUpdateT"].shape) if "stateUpdateT" in delta.outputs else None
    with np.errstate(invalid="ignore", over="ignore"):
        for request_, (first, last) in enumerate(inputs.bounds):
            # The length that each row of the state can have at most, were nothing ever taken out of it.
            length = np.linalg.norm(inputs.state[request_], axis=-1)
            decayed = np.zeros_like(length)
            most = length.max(initial=0.0)
            for t in range(first, last):
                key = np.linalg.norm(keys[t], axis=-1)[:, None]
                factor = np.minimum(inputs.factor[t].max(axis=-1, keepdims=True), 1.0)
                exponent = -np.log(np.maximum(factor, np.finfo(np.float32).tiny))
                decayed = factor * (decayed + exponent_error / 8 * exponent * length)
                length = factor * length
                write = np.abs(inputs.rate[t]) * (np.abs(inputs.value[t]) + (length * key if delta.retrieves else 0))
                added = np.abs(inputs.rate[t] * inputs.value[t]) * key
                if delta.retrieves:
                    # Along the key the state moves from what it was towards value / key, or past it at a high rate.
                    target = np.divide(np.abs(inputs.value[t]), key, out=np.full_like(length, np.inf), where=key > 0)
                    moved = np.minimum(length + added, np.maximum(length, target))
                    length = np.maximum(moved, write * key)
                else:
                    length = length + added
                output[t] = abs(delta.scale) * (length + decayed) * np.linalg.norm(queries[t], axis=-1)[:, None]
                most = max(most, float(write.max(initial=0.0)), float(length.max(initial=0.0)))
            final[request_] = (length + decayed)[:, :, None]
            if update is not None and delta.capacity:
                update[request_] = max(most, 1.0)
    scales = {"outputT": output.reshape(*delta.lead, delta.hv, delta.dv), "finalStateT": final}
    if update is not None:
        scales["stateUpdateT"] = update
    return scales


def step_of_many(rng: np.random.Generator, dtype: type) -> Call:
    """A token for each of so many requests, and rows enough, that `decode` has a kernel of its own for it."""
    batch, hv, dk, dv = 512, 2, 36, 40
    key = rng.standard_normal((batch, 1, 1, dk))
    inputs = {
        "queryT": rng.standard_normal((batch, 1, 1, dk)).astype(dtype),
        "keyT": (key / np.linalg.norm(key, axis=-1, keepdims=True)).astype(dtype),
        "valueT": rng.standard_normal((batch, 1, hv, dv)).astype(dtype),
        "decayT": -rng.exponential(0.4, (batch, 1, hv)).astype(np.float32),
        "betaT": rng.random((batch, 1, hv), np.float32),
        "initialStateT": rng.standard_normal((batch, hv, dv, dk)).astype(np.float32),
    }
    return inputs, {}


def random_call(rng: np.random.Generator, *, longest: int = 130, oracle: bool = False) -> Call:
    """One valid call.

    Args:
        rng: where every choice comes from.
        longest: most tokens of a request.
        oracle: only what onnxruntime's CPU kernel accepts: no uniform packing without a state, no
            epsilon, every token in a request.
    """
    dk, dv = HEAD_SIZES[rng.integers(len(HEAD_SIZES))]
    hq = int(rng.integers(1, 4))
    hv = hq * int(rng.integers(1, 4))
    dtype = np.dtype(rng.choice(["float32", "float16"]))
    rule = str(rng.choice(RULES))
    layout = str(rng.choice(["ragged", "uniform", "rank4", "packed", "packed ragged"]))
    batch = int(rng.integers(1, 4))
    decays, retrieves = rule.startswith("gated"), rule.endswith("delta")
    attributes: dict[str, Any] = {"update_rule": rule}
    inputs: dict[str, np.ndarray] = {}

    if layout.endswith("ragged"):
        lengths = rng.integers(0, longest + 1, batch)
        lengths[rng.random(batch) < 0.3] = 0
        if oracle and not lengths.any():
            lengths[0] = 1
        inputs["cuSeqlensT"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        lead: tuple[int, ...] = (int(lengths.sum()),)
    else:
        length = int(rng.integers(min(1, longest), longest // batch + 1)) if longest >= batch else min(1, longest)
        lead = (batch, length) if layout == "rank4" else (batch * length,)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    query, key, value = normal(*lead, hq, dk), normal(*lead, hq, dk), normal(*lead, hv, dv)
    if rng.random() < 0.5:
        attributes["qk_l2_norm"] = 1
        if not oracle and rng.random() < 0.3:
            attributes["qk_l2_norm_epsilon"] = 1e-6
    else:
        key = (key / np.linalg.norm(key.astype(np.float32), axis=-1, keepdims=True)).astype(dtype)
    if layout.startswith("packed"):
        parts = [part.reshape(lead[0], part.shape[1] * part.shape[2]) for part in (query, key, value)]
        inputs["queryT"] = np.concatenate(parts, axis=1)
    else:
        inputs |= {"queryT": query, "keyT": key, "valueT": value}

    # Not everything with everything: each combination that changes the code compiles pipelines of its own.
    packed = layout.startswith("packed")
    gates = dtype if dk == 8 and rng.random() < 0.6 else np.dtype(np.float32)
    per_key = decays and not packed and dk != 8 and rng.random() < 0.5
    gate = str(rng.choice(["none", "none", "qwen", "softplus", "sigmoid", "kda"]))
    if gate != "none":
        attributes["gate_activation"] = gate
        inputs["aLogT"] = rng.uniform(-2, 0.5, hv).astype(np.float32)
        bias = [(hv,), (hv, dk), (hv * dk,)][rng.integers(3)] if per_key else (hv,)
        inputs["dtBiasT"] = rng.standard_normal(bias).astype(np.float32)
        if gate in ("sigmoid", "kda") and rng.random() < 0.5:
            attributes["gate_lower_bound"] = -2.5
    if decays:
        shape = (*lead, hv, dk) if per_key else (*lead, hv)
        decay = rng.standard_normal(shape) if gate != "none" else -rng.exponential(0.4, shape)
        inputs["decayT"] = decay.astype(gates)
    if retrieves:
        beta = rng.uniform(0, 1, (*lead, hv))
        if rng.random() < 0.5:
            attributes["beta_activation"] = "sigmoid"
            beta = rng.standard_normal((*lead, hv)) * 2
        inputs["betaT"] = beta.astype(gates)
    if packed or (layout in ("uniform", "rank4") and (oracle or batch > 1)) or rng.random() < 0.6:
        inputs["initialStateT"] = rng.standard_normal((batch, hv, dv, dk)).astype(np.float32)
    if rng.random() < 0.3:
        attributes["scale"] = float(rng.choice([1.0, -0.5]))
    if rng.random() < 0.3:
        attributes["chunk_size"] = int(rng.choice([1, 16, 32, 128]))
    if not packed and dk != 7 and rng.random() < 0.4:
        attributes["state_update_capacity"] = int(rng.integers(1, 9))
        inputs["captureCountT"] = rng.integers(-1, 10, batch).astype(np.int32)
        if dk == 8 and rng.random() < 0.5:
            inputs["stateUpdateActiveT"] = rng.integers(0, 2, 1).astype(np.int32)
    return inputs, attributes
