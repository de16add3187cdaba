"""What a request means: sizes, layout, rule and gate, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import attrs
import numpy as np
import oplet
from oplet.request import shape_text

#: tokens of a request that the capture of state updates can hold at most
MOST_CAPTURED = 8

Gate = Literal["none", "softplus", "sigmoid"]

#: gate_activation by its names; Hugging Face's kernel calls softplus qwen, and onnxruntime sigmoid also kda
GATES: Mapping[str, Gate] = {
    "none": "none",
    "qwen": "softplus",
    "softplus": "softplus",
    "sigmoid": "sigmoid",
    "kda": "sigmoid",
}


@attrs.frozen
class Delta:
    """One call, in the terms of the kernels.

    Attributes:
        dtype: of query, key, value and output.
        gate_dtype: of decay and beta; float32 where neither is there.
        lead: the dimensions before the heads, (tokens,) or (batch, sequence).
        batch: number of requests.
        hq, hv: query and value heads.
        dk, dv: head sizes of keys and values.
        packed: whether query, key and value of a token lie side by side in queryT.
        ragged: whether cuSeqlensT tells where requests begin.
        decays: whether the rule has a decay.
        retrieves: whether the rule subtracts what the state already holds for a key.
        per_key: whether each key dimension decays at its own rate.
        bias_width: elements of dt_bias of one head.
        gate: what the raw decay goes through.
        lower_bound: parameter of the sigmoid gate.
        beta_sigmoid: whether beta goes through a sigmoid.
        norm_epsilon: of the normalization of queries and keys; None without.
        scale: of the output.
        initial: whether there is an initial state.
        capacity: captured tokens of a request, 0 where the capture is not asked for.
        switch: whether stateUpdateActiveT can turn the capture off.
        outputs: specs of the requested outputs.
    """

    dtype: str
    gate_dtype: str
    lead: tuple[int, ...]
    batch: int
    hq: int
    hv: int
    dk: int
    dv: int
    packed: bool
    ragged: bool
    decays: bool
    retrieves: bool
    per_key: bool
    bias_width: int
    gate: Gate
    lower_bound: np.float32
    beta_sigmoid: bool
    norm_epsilon: np.float32 | None
    scale: np.float32
    initial: bool
    capacity: int
    switch: bool
    outputs: Mapping[str, oplet.TensorSpec]

    @property
    def tokens(self) -> int:
        """Tokens of all requests."""
        return math.prod(self.lead)

    @property
    def longest(self) -> int:
        """Tokens that a request has, or can have at most where that is known on the device only."""
        return self.tokens if self.ragged else self.tokens // max(self.batch, 1)

    @property
    def decay_width(self) -> int:
        """Decay factors of one token."""
        return self.hv * self.dk if self.per_key else self.hv

    def bounds(self, cu_seqlens: np.ndarray | None) -> list[tuple[int, int]]:
        """First and last token + 1 of each request."""
        if cu_seqlens is None:
            return [(b * self.longest, (b + 1) * self.longest) for b in range(self.batch)]
        bounds = []
        for first, last in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
            first = min(max(first, 0), self.tokens)
            bounds.append((first, min(max(last, first), self.tokens)))
        return bounds

    @classmethod
    def of(cls, request: oplet.Request) -> Delta:
        """Reads a request.

        Raises:
            InputError: when shapes do not fit together, or an input is there that the attributes forbid or
                missing though they need it.
        """
        attributes = request.attrs
        query = request.inputs["queryT"]
        packed = "keyT" not in request.inputs and "valueT" not in request.inputs
        lead, hq, hv, dk, dv = _packed(request) if packed else _separate(request)
        ragged = "cuSeqlensT" in request.inputs
        batch = _batch(request, lead)
        rule = str(attributes["update_rule"])
        decays, retrieves = rule in ("gated", "gated_delta"), rule in ("delta", "gated_delta")
        gate = GATES[str(attributes["gate_activation"])]
        _presence(request, "decayT", decays, f"update_rule {rule}")
        _presence(request, "betaT", retrieves, f"update_rule {rule}")
        for name in ("aLogT", "dtBiasT"):
            _presence(request, name, gate != "none", f"gate_activation {attributes['gate_activation']}")
        per_key = decays and request.inputs["decayT"].rank == len(lead) + 2
        if decays:
            _shape(request, "decayT", (*lead, hv, dk) if per_key else (*lead, hv))
        if retrieves:
            _shape(request, "betaT", (*lead, hv))
        if "initialStateT" in request.inputs:
            _shape(request, "initialStateT", (batch, hv, dv, dk))
        if gate != "none":
            _shape(request, "aLogT", (hv,))
            _shape(request, "dtBiasT", (hv,), *([(hv, dk), (hv * dk,)] if per_key else []))
        gate_dtype = request.types.get("TG", "float32")
        if gate_dtype == "float16" and query.dtype != "float16":
            name = "decayT" if decays else "betaT"
            raise request.refusal(
                name, f"is float16, and queryT {query.dtype}", do=f"convert with {name}.astype(np.float32)"
            )
        capacity = _capacity(request, batch)
        lower_bound = float(attributes["gate_lower_bound"] or 0.0)
        if gate == "sigmoid" and not (math.isfinite(lower_bound) and lower_bound < 0):
            raise request.refusal(
                "gate_lower_bound", f"{lower_bound} is not a finite number below 0", do="pass a negative one"
            )
        epsilon = np.float32(attributes["qk_l2_norm_epsilon"])
        if not 0 <= epsilon < math.inf:
            raise request.refusal(
                "qk_l2_norm_epsilon", f"{epsilon} is not a finite number of at least 0", do="pass one"
            )
        scale = np.float32(attributes["scale"])
        width = hv * dk if per_key else hv
        outputs = {
            "outputT": oplet.TensorSpec((*lead, hv, dv), query.dtype),
            "finalStateT": oplet.TensorSpec((batch, hv, dv, dk), "float32"),
            "stateUpdateT": oplet.TensorSpec((batch, capacity * (width + hq * dk + hv * dv)), "float32"),
        }
        return cls(
            dtype=query.dtype,
            gate_dtype=gate_dtype,
            lead=lead,
            batch=batch,
            hq=hq,
            hv=hv,
            dk=dk,
            dv=dv,
            packed=packed,
            ragged=ragged,
            decays=decays,
            retrieves=retrieves,
            per_key=per_key,
            bias_width=request.inputs["dtBiasT"].size // hv if gate != "none" else 1,
            gate=gate,
            lower_bound=np.float32(lower_bound),
            beta_sigmoid=attributes["beta_activation"] == "sigmoid",
            norm_epsilon=epsilon if attributes["qk_l2_norm"] else None,
            scale=np.float32(1 / math.sqrt(dk)) if scale == 0 else scale,
            initial="initialStateT" in request.inputs,
            capacity=capacity if "stateUpdateT" in request.outputs else 0,
            switch="stateUpdateActiveT" in request.inputs and "stateUpdateT" in request.outputs,
            outputs={name: outputs[name] for name in request.outputs},
        )


def _packed(request: oplet.Request) -> tuple[tuple[int, ...], int, int, int, int]:
    """Sizes of a call whose query, key and value are one tensor."""
    query, state = request.inputs["queryT"], request.inputs.get("initialStateT")
    if query.rank in (3, 4):
        raise request.refusal(
            "keyT", "is missing", f"queryT {query}", do="pass keyT and valueT, or a packed queryT of rank 2"
        )
    if query.rank != 2:
        raise request.refusal(
            "queryT", f"has rank {query.rank}", f"queryT {query}", do="pass it with rank 3 or 4, or packed, 2"
        )
    if state is None:
        raise request.refusal(
            "initialStateT",
            "is missing; a packed queryT needs it to tell the head counts and sizes",
            f"queryT {query}",
            do="pass zeros of shape (batch, Hv, Dv, Dk)",
        )
    tokens, width = query.shape
    _, hv, dv, dk = state.shape
    if min(hv, dv, dk) < 1:
        raise request.refusal(
            "initialStateT", f"{shape_text(state.shape)} has no heads or empty ones", do="pass at least one"
        )
    keys = width - hv * dv
    hq = keys // (2 * dk)
    if hq < 1 or keys != 2 * hq * dk or hv % hq:
        raise request.refusal(
            "queryT",
            f"its width {width} is not 2 * Hq * Dk + Hv * Dv with Hv a multiple of Hq",
            f"initialStateT {state}: Hv {hv}, Dv {dv}, Dk {dk}",
            do=f"pass query, key and value of each token side by side, 2 * Hq * {dk} + {hv * dv} numbers",
        )
    return (tokens,), hq, hv, dk, dv


def _separate(request: oplet.Request) -> tuple[tuple[int, ...], int, int, int, int]:
    """Sizes of a call with query, key and value of their own."""
    query = request.inputs["queryT"]
    for name in ("keyT", "valueT"):
        if name not in request.inputs:
            raise request.refusal(
                name, "is missing", f"queryT {query}", do="pass keyT and valueT, or a packed queryT alone"
            )
    value = request.inputs["valueT"]
    if query.rank not in (3, 4):
        raise request.refusal("queryT", f"has rank {query.rank}", f"queryT {query}", do="pass it with rank 3 or 4")
    *lead, hq, dk = query.shape
    _shape(request, "keyT", query.shape)
    if value.rank != query.rank or value.shape[:-2] != tuple(lead):
        raise request.refusal(
            "valueT", f"{value} does not have the tokens of queryT", f"queryT {query}", do="pass one row a token"
        )
    hv, dv = value.shape[-2:]
    for name, spec in (("queryT", query), ("valueT", value)):
        if min(spec.shape[-2:]) < 1:
            raise request.refusal(name, f"{shape_text(spec.shape)} has no heads or empty ones", do="pass at least one")
    if hv % hq:
        raise request.refusal(
            "valueT",
            f"its {hv} heads are not a multiple of the {hq} of queryT",
            do="every query head serves the same number of value heads",
        )
    return tuple(lead), hq, hv, dk, dv


def _batch(request: oplet.Request, lead: tuple[int, ...]) -> int:
    """The number of requests."""
    cu_seqlens, state = request.inputs.get("cuSeqlensT"), request.inputs.get("initialStateT")
    if cu_seqlens is not None:
        if len(lead) == 2:
            raise request.refusal(
                "cuSeqlensT",
                "goes with tokens in one dimension; queryT of rank 4 is (batch, sequence, Hq, Dk)",
                do="leave it out, or reshape queryT, keyT and valueT to rank 3",
            )
        if cu_seqlens.size < 1:
            raise request.refusal(
                "cuSeqlensT", "is empty; it has batch + 1 entries", do="pass np.zeros(1, np.int32) for no request"
            )
        return cu_seqlens.size - 1
    if len(lead) == 2:
        return lead[0]
    # Uniform packing. Hugging Face's kernel allows it without a state too, onnxruntime does not: one request then.
    batch = 1 if state is None else state.shape[0]
    if lead[0] != 0 and (batch == 0 or lead[0] % batch):
        raise request.refusal(
            "initialStateT",
            f"its batch {batch} does not divide the {lead[0]} tokens of queryT",
            do="pass cuSeqlensT where requests differ in length",
        )
    return batch


def _capacity(request: oplet.Request, batch: int) -> int:
    """The capacity of the capture."""
    capacity = int(request.attrs["state_update_capacity"] or 0)
    if not 0 <= capacity <= MOST_CAPTURED:
        raise request.refusal(
            "state_update_capacity", f"{capacity} is not in 0 to {MOST_CAPTURED}", do="pass 0 for no capture"
        )
    _presence(request, "captureCountT", capacity > 0, f"state_update_capacity {capacity}")
    if capacity:
        _shape(request, "captureCountT", (batch,))
    elif "stateUpdateT" in request.outputs:
        raise request.refusal(
            "stateUpdateT", "was asked for with state_update_capacity 0", do="set state_update_capacity to 1 to 8"
        )
    if "stateUpdateActiveT" in request.inputs:
        _shape(request, "stateUpdateActiveT", (1,))
    return capacity


def _presence(request: oplet.Request, name: str, wanted: bool, because: str) -> None:
    if (name in request.inputs) != wanted:
        fault, do = ("is missing", "pass it") if wanted else ("is not allowed", "leave it out")
        raise request.refusal(name, f"{fault} with {because}", do=do)


def _shape(request: oplet.Request, name: str, *allowed: tuple[int, ...]) -> None:
    spec = request.inputs[name]
    if spec.shape not in allowed:
        raise request.refusal(
            name,
            f"has shape {shape_text(spec.shape)}, not {' or '.join(map(shape_text, allowed))}",
            *(f"{port} {given}" for port, given in request.inputs.items() if port in ("queryT", "valueT")),
            do="pass the shape that the other inputs make",
        )
