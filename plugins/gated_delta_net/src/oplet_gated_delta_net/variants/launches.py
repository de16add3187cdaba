"""What the launches of all variants have in common: storage buffers, params and the choices behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import numpy as np
import oplet
from oplet.variant import Access, ContextValue, Param

from oplet_gated_delta_net.shapes import Delta

SCALARS: Mapping[str, str] = {"float32": "f32", "float16": "f16"}

#: WGSL variable of each port
PORTS: Mapping[str, str] = {
    "query": "queryT",
    "key": "keyT",
    "value": "valueT",
    "cu_seqlens": "cuSeqlensT",
    "decay": "decayT",
    "beta": "betaT",
    "initial_state": "initialStateT",
    "a_log": "aLogT",
    "dt_bias": "dtBiasT",
    "capture_count": "captureCountT",
    "state_update_active": "stateUpdateActiveT",
    "output": "outputT",
    "final_state": "finalStateT",
    "state_update": "stateUpdateT",
}

#: storage buffers that gates are computed from
GATE_INPUTS = ("decay", "beta", "a_log", "dt_bias")

#: most elements of a key, and of a head's values
MOST_HEAD_SIZE = 256

#: what is bound in place of absent inputs: as much as one element of any type
_ABSENT = oplet.TensorSpec((4,), "float32")

#: tokens of a request that a launch walks over, at most: one after the other, they take a slow device some 50 ms. A
#: multiple of every chunk.
STRETCH = 1 << 14

#: bytes of workgroup memory that `in_order` of requests.wgsl.jinja takes, each of its variables rounded up to 16
ORDER_STORAGE = 32

#: invocations of a workgroup of precompute_gates
_GATES_WORKGROUP = 64


@attrs.frozen
class Buffers:
    """Storage buffers of a launch.

    In place of absent inputs there is one vec4 of scratch, never read: so one pipeline serves every combination
    of inputs, and compiling is what costs a first call most. An output that nobody asked for is scratch too.
    """

    bindings: tuple[oplet.Binding, ...]
    scratch: Mapping[str, oplet.TensorSpec]


def vec(delta: Delta) -> int:
    """4 where the vectors in storage are whole vec4s, else 1."""
    whole = delta.dk % 4 == 0 and (not delta.packed or delta.hv * delta.dv % 4 == 0)
    return 4 if whole else 1


def buffers(
    request: oplet.Request,
    delta: Delta,
    names: Iterable[str],
    own: Mapping[str, tuple[oplet.TensorSpec, str]] | None = None,
) -> Buffers:
    """Binds ports, and scratch of the variant's own.

    Args:
        request: the call.
        delta: the same, read.
        names: keys of `PORTS`, or of `own`, with "=" behind those that the launch writes.
        own: spec and element type of scratch by the name of its WGSL variable.
    """
    scalar, gate = SCALARS[delta.dtype], SCALARS[delta.gate_dtype]
    vectors = "vec4<{}>" if vec(delta) == 4 else "{}"
    elements = {
        "query": vectors.format(scalar),
        "key": vectors.format(scalar),
        "value": scalar,
        "output": scalar,
        "decay": gate,
        "beta": gate,
        "cu_seqlens": "i32",
        "capture_count": "i32",
        "state_update_active": "i32",
        "initial_state": vectors.format("f32"),
        "final_state": vectors.format("f32"),
    }
    bindings, scratch = [], {}
    for entry in names:
        name = entry.removesuffix("=")
        access: Access = "read_write" if entry.endswith("=") else "read"
        if own and name in own:
            spec, element = own[name]
            scratch[name], tensor = spec, name
        elif delta.packed and name in ("key", "value"):
            continue
        else:
            tensor, element = PORTS[name], elements.get(name, "f32")
            if tensor not in request.inputs and tensor not in request.outputs:
                tensor = f"unasked_{name}" if access == "read_write" else "absent"
                scratch[tensor] = _unasked(delta, name) if access == "read_write" else _ABSENT
        bindings.append(oplet.Binding(name, tensor, access, element))
    return Buffers(tuple(bindings), scratch)


def _unasked(delta: Delta, name: str) -> oplet.TensorSpec:
    if name == "output":
        return oplet.TensorSpec((delta.tokens, delta.hv, delta.dv), delta.dtype)
    return oplet.TensorSpec((delta.batch, delta.hv, delta.dv, delta.dk), "float32")


def gate_params(delta: Delta) -> dict[str, Param]:
    """What gates.wgsl.jinja reads."""
    return {
        "tokens": np.uint32(delta.tokens),
        "hv": np.uint32(delta.hv),
        "decays": np.uint32(delta.decays),
        "retrieves": np.uint32(delta.retrieves),
        "gate": np.uint32(("none", "softplus", "sigmoid").index(delta.gate)),
        "lower_bound": delta.lower_bound,
        "beta_sigmoid": np.uint32(delta.beta_sigmoid),
        "decay_width": np.uint32(delta.dk if delta.per_key else 1),
        "bias_width": np.uint32(delta.bias_width),
    }


def params(delta: Delta) -> dict[str, Param]:
    """What all other templates read."""
    unit = vec(delta)
    keys, values = delta.hq * delta.dk, delta.hv * delta.dv
    row = 2 * keys + values
    return {
        **gate_params(delta),
        "batch": np.uint32(delta.batch),
        "longest": np.uint32(delta.longest),
        "ragged": np.uint32(delta.ragged),
        "initial": np.uint32(delta.initial),
        "group": np.uint32(delta.hv // delta.hq),
        "dv": np.uint32(delta.dv),
        "key_width": np.uint32(delta.dk // unit),
        "query_row": np.uint32((row if delta.packed else keys) // unit),
        "key_first": np.uint32(keys // unit if delta.packed else 0),
        "value_row": np.uint32(row if delta.packed else values),
        "value_first": np.uint32(2 * keys if delta.packed else 0),
        "norm": np.uint32(delta.norm_epsilon is not None),
        "epsilon": delta.norm_epsilon or np.float32(0),
        "scale": delta.scale,
    }


def choices(delta: Delta) -> dict[str, ContextValue]:
    """What vectors.wgsl.jinja and clear.wgsl.jinja are written for."""
    return {"scalar": SCALARS[delta.dtype], "vec": vec(delta), "packed": delta.packed}


def clear_workgroups(delta: Delta, workgroup: int) -> int:
    """Workgroups that look for tokens that no request has, which only `cu_seqlens` can leave."""
    return -(-delta.tokens // workgroup) if delta.ragged else 0


def _gates_spec(delta: Delta) -> oplet.TensorSpec:
    return oplet.TensorSpec((delta.tokens, delta.hv, (delta.dk if delta.per_key else 1) + 1), "float32")


def gates(request: oplet.Request, delta: Delta) -> tuple[oplet.Launch | None, dict[str, tuple[oplet.TensorSpec, str]]]:
    """The launch that computes gates ahead, and the scratch that it fills."""
    spec = _gates_spec(delta)
    own = {"gates": (spec, "f32")}
    if not spec.size:
        return None, own
    bound = buffers(request, delta, (*GATE_INPUTS, "gates="), own)
    launch = oplet.Launch(
        "precompute_gates.wgsl.jinja",
        -(-spec.size // _GATES_WORKGROUP),
        {"workgroup": _GATES_WORKGROUP},
        gate_params(delta),
        bound.bindings,
        bound.scratch,
    )
    return launch, own


def walk(delta: Delta, launch: oplet.Launch, recurrences: int) -> list[oplet.Launch]:
    """A launch that walks over requests, as several where these are long.

    Core splits what is long by workgroups, and each workgroup here walks over all of its request.

    Args:
        delta: the call.
        launch: the whole.
        recurrences: those of its workgroups that walk; the others come after them.
    """
    # The state is decayed, asked what it holds, written to and read from.
    operations = 3 * min(delta.tokens, delta.batch * STRETCH) * delta.hv * delta.dv * delta.dk
    if delta.longest <= STRETCH:
        return [attrs.evolve(launch, context={**launch.context, "stretches": False}, operations=operations)]
    return [
        attrs.evolve(
            launch,
            workgroups=recurrences if first else launch.workgroups,
            context={**launch.context, "stretches": True},
            params={
                **launch.params,
                "stretch_first": np.uint32(first),
                "stretch_last": np.uint32(first + STRETCH),
            },
            operations=operations,
        )
        for first in range(0, delta.longest, STRETCH)
    ]


def unfit(delta: Delta, caps: oplet.Capabilities, *, subgroups: bool) -> str | None:
    """Why no variant of this kind can serve a call."""
    if delta.dtype == "float16" and "shader-f16" not in caps.features:
        return "float16 needs the device feature shader-f16"
    for name, size in (("Dk", delta.dk), ("Dv", delta.dv)):
        if size > MOST_HEAD_SIZE:
            return f"{name} is {size}, and kernels are for at most {MOST_HEAD_SIZE}"
    if subgroups and ("subgroups" not in caps.features or caps.subgroup_size < 4):
        return "needs the device feature subgroups, with at least 4 lanes"
    return None


def for_recurrent(request: oplet.Request, delta: Delta) -> str | None:
    """Why no variant but `recurrent` can serve a call."""
    if delta.per_key:
        return "a decay of each key dimension is for recurrent"
    if "stateUpdateT" in request.outputs:
        return "the capture of state updates is for recurrent"
    return None


def large_gates(delta: Delta, buffers: int, caps: oplet.Capabilities) -> str | None:
    """Why a kernel of so many storage buffers cannot have its gates, if they are computed ahead and are too large."""
    if not lack_of_buffers(buffers + len(GATE_INPUTS), caps):
        return None
    needed, allowed = _gates_spec(delta).nbytes, caps.limits["maxStorageBufferBindingSize"]
    if needed > allowed:
        return (
            f"with {caps.limits['maxStorageBuffersPerShaderStage']} storage buffers its gates are computed ahead, "
            f"which take {needed} bytes, and the device allows {allowed} (maxStorageBufferBindingSize)"
        )
    return None


def lack_of_buffers(needed: int, caps: oplet.Capabilities) -> str | None:
    """Why a launch cannot be, if it needs more storage buffers than there are."""
    allowed = caps.limits["maxStorageBuffersPerShaderStage"]
    if needed > allowed:
        return f"needs {needed} storage buffers, and the device allows {allowed} (maxStorageBuffersPerShaderStage)"
    return None
