"""The 24 variants: {packed, separate} × {, bias} × {, attn_bias} × {flash, flash_nosg, serial}."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import numpy as np
import oplet

from oplet_packed_mha import matrices
from oplet_packed_mha.shapes import Attention
from oplet_packed_mha.tiles import MAX_HEAD_SIZE, choose_tile

#: mean tokens of a sequence under which a tile of queries reuses too little of what it loads
MIN_REUSE = 6

_SCALARS = {"float32": "f32", "float16": "f16"}
#: four elements of queries, keys and values, as tiles load them
_LOADED = {"float32": "vec4<f32>", "float16": "vec2<u32>"}

Plan = Callable[["Form", oplet.Request, oplet.Capabilities], Sequence[oplet.Launch]]
Reason = Callable[[Attention, oplet.Capabilities], str | None]


@attrs.frozen
class Form:
    """Which inputs a variant takes: three of the four axes that name it."""

    packed: bool
    bias: bool
    attention_bias: bool

    @property
    def prefix(self) -> str:
        """The variant's name up to its method."""
        parts = ["packed" if self.packed else "separate"]
        parts += ["bias"] * self.bias + ["attn_bias"] * self.attention_bias
        return "_".join(parts)

    def rejects(self, attention: Attention) -> str | None:
        """Why a call is not of this form."""
        if attention.packed != self.packed:
            return "queryT holds keys and values too" if attention.packed else "keyT and valueT are separate"
        for name, wanted, given in (
            ("biasT", self.bias, attention.bias),
            ("attentionBiasT", self.attention_bias, attention.attention_bias is not None),
        ):
            if wanted != given:
                return f"{name} is given" if given else f"{name} is not given"
        return None


def _rejects(form: Form, also: Reason, request: oplet.Request, caps: oplet.Capabilities) -> str | None:
    attention = Attention.of(request)
    if reason := form.rejects(attention):
        return reason
    if attention.dtype == "float16" and "shader-f16" not in caps.features:
        return "float16 needs the device feature shader-f16"
    for name, size in (("head", attention.head_size), ("value head", attention.value_size)):
        if size > MAX_HEAD_SIZE:
            return f"the {name} size {size} is over {MAX_HEAD_SIZE}"
    return also(attention, caps)


def _anything(attention: Attention, caps: oplet.Capabilities) -> str | None:
    return None


def _not_tiled(attention: Attention, caps: oplet.Capabilities, *, subgroups: bool) -> str | None:
    if subgroups and "subgroups" not in caps.features:
        return "needs the device feature subgroups"
    if subgroups and matrices.rejects(attention, caps) is None:
        return None
    for name, size in (("head", attention.head_size), ("value head", attention.value_size)):
        if size % 4:
            return f"the {name} size {size} is not a multiple of 4"
    if choose_tile(attention.value_size, caps, subgroups=subgroups) is None:
        lanes = f"subgroups of {caps.subgroup_size}, " if subgroups else ""
        return (
            f"no tile fits {lanes}workgroups of {caps.limits['maxComputeInvocationsPerWorkgroup']} "
            f"and {caps.limits['maxComputeWorkgroupStorageSize']} bytes of workgroup memory"
        )
    return None


def _little_reuse(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
    attention = Attention.of(request)
    if attention.tokens < MIN_REUSE * attention.batch:
        mean = attention.tokens / attention.batch
        return f"sequences of {mean:.2g} tokens on average reuse a tile of keys too little (under {MIN_REUSE})"
    return None


def _slower_than_matrices(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
    if reason := _little_reuse(request, caps):
        return reason
    if matrices.rejects(Attention.of(request), caps) is None:
        return "flash multiplies in subgroup matrices"
    return None


def _plan_flash(
    form: Form, request: oplet.Request, caps: oplet.Capabilities, *, subgroups: bool
) -> Sequence[oplet.Launch]:
    attention = Attention.of(request)
    if not attention.output.size:
        return []
    if subgroups and matrices.rejects(attention, caps) is None:
        return [_launch_matrices(form, attention, caps)]
    tile = choose_tile(attention.value_size, caps, subgroups=subgroups)
    assert tile is not None  # else rejected
    # Heads whose columns come in whole chunks need no zeros behind the last one.
    whole = attention.head_size % tile.depth == 0
    return [
        oplet.Launch(
            "flash.wgsl.jinja",
            # A sequence has at most length / rows + 1 tiles; see `first_slot` in the template.
            (attention.tokens // tile.queries + attention.batch) * attention.heads,
            context={**_context(form, attention), **attrs.asdict(tile), "subgroups": subgroups, "whole": whole},
            params=_params(attention, unit=4),
            bindings=_bindings(form, attention, unit=4, loaded=_LOADED[attention.dtype]),
            operations=attention.operations,
        )
    ]


def _launch_matrices(form: Form, attention: Attention, caps: oplet.Capabilities) -> oplet.Launch:
    config, tile = matrices.config_for(caps), matrices.tile_for(caps)
    assert config is not None  # else rejected
    params = _params(attention, unit=8)
    # A scale too small to be normal might be read as 0, which a masked score would not survive.
    scale = np.maximum(np.abs(params["scale"]), np.finfo(np.float32).tiny)
    sign = np.uint32(0x8000_8000 if params["scale"] < 0 else 0)  # of two float16
    return oplet.Launch(
        "flash_matrix.wgsl.jinja",
        (attention.tokens // tile.queries(config) + attention.batch) * attention.heads,
        context={
            **_context(form, attention),
            **attrs.asdict(tile),
            "m": config.m,
            "n": config.n,
            "k": config.k,
            "lanes": caps.subgroup_size,
            "head_width": matrices.padded(attention.head_size),
            "value_width": matrices.padded(attention.value_size),
            "whole": attention.head_size % matrices.COLUMNS == 0,
        },
        params=params | {"scale": scale, "sign": sign},
        bindings=_bindings(form, attention, unit=8, loaded="vec4<u32>"),
        operations=attention.operations,
    )


def _plan_serial(form: Form, request: oplet.Request, caps: oplet.Capabilities) -> Sequence[oplet.Launch]:
    attention = Attention.of(request)
    if not attention.output.size:
        return []
    # A software driver runs a barrier as a loop over the workgroup, so it prefers small ones.
    lanes = 32 if caps.adapter.is_cpu else 64
    return [
        oplet.Launch(
            "serial.wgsl.jinja",
            attention.tokens * attention.heads,
            context={**_context(form, attention), "lanes": lanes, "head_limit": MAX_HEAD_SIZE},
            params=_params(attention, unit=1),
            bindings=_bindings(form, attention, unit=1, loaded=_SCALARS[attention.dtype]),
            operations=attention.operations,
        )
    ]


def _context(form: Form, attention: Attention) -> dict[str, str | bool]:
    return {
        "scalar": _SCALARS[attention.dtype],
        "bias": form.bias,
        "attention_bias": form.attention_bias,
        "query": "query",
        "key": "query" if form.packed else "key",
        "value": "query" if form.packed else "value",
        "power": "exp" if form.attention_bias else "exp2",
    }


def _params(attention: Attention, *, unit: int) -> dict[str, np.uint32 | np.float32]:
    """The numbers of a call; sizes and strides in units of so many elements."""
    head, value = attention.head_size // unit, attention.value_size // unit
    # Weights are powers of e. Without an attention bias the scale turns them into powers of 2, which are
    # cheaper; a bias of the lowest float, though, would not survive that factor.
    scale = attention.scale * np.float32(1 if attention.attention_bias else math.log2(math.e))
    params: dict[str, np.uint32 | np.float32] = {
        "tokens": np.uint32(attention.tokens),
        "batch": np.uint32(attention.batch),
        "heads": np.uint32(attention.heads),
        "head_columns" if unit > 1 else "head_size": np.uint32(head),
        "value_columns" if unit > 1 else "value_size": np.uint32(value),
        "scale": np.float32(scale),
        # WGSL has no literal for these.
        "minus_infinity": np.float32(-np.inf),
        "not_a_number": np.float32(np.nan),
    }
    if attention.packed:
        params |= {
            "stride": np.uint32(attention.heads * 3 * head),
            "head_stride": np.uint32(3 * head),
            "key_start": np.uint32(head),
            "value_stride": np.uint32(attention.heads * 3 * head),
            "value_head_stride": np.uint32(3 * head),
            "value_start": np.uint32(2 * head),
        }
    else:
        params |= {
            "stride": np.uint32(attention.heads * head),
            "head_stride": np.uint32(head),
            "key_start": np.uint32(0),
            "value_stride": np.uint32(attention.heads * value),
            "value_head_stride": np.uint32(value),
            "value_start": np.uint32(0),
        }
    if attention.attention_bias is not None:
        batch, heads = attention.attention_bias
        square = attention.length**2
        params |= {
            "length": np.uint32(attention.length),
            "bias_batch_stride": np.uint32(heads * square if batch > 1 else 0),
            "bias_head_stride": np.uint32(square if heads > 1 else 0),
        }
    return params


def _bindings(form: Form, attention: Attention, *, unit: int, loaded: str) -> list[oplet.Binding]:
    scalar = _SCALARS[attention.dtype]
    element = {1: scalar, 4: f"vec4<{scalar}>", 8: "vec4<u32>"}[unit]
    bindings = [oplet.Binding("query", "queryT", "read", loaded)]
    if not form.packed:
        bindings.append(oplet.Binding("key", "keyT", "read", loaded))
        bindings.append(oplet.Binding("value", "valueT", "read", loaded))
    if form.bias:
        bindings.append(oplet.Binding("bias", "biasT", "read", element))
    bindings.append(oplet.Binding("cumulative", "cumulativeSequenceLengthT", "read", "i32"))
    if form.attention_bias:
        bindings.append(oplet.Binding("token_offset", "tokenOffsetT", "read", "i32"))
        bindings.append(oplet.Binding("attention_bias", "attentionBiasT", "read", scalar))
    bindings.append(oplet.Binding("output", "outputT", "read_write", element))
    return bindings


@attrs.frozen
class Method:
    """How the attention is computed: the fourth axis.

    Attributes:
        name: the last part of the variant's name.
        plan, rejects, yields: as of a Variant; `rejects` beyond what every method rejects.
        doc: for `oplet info`.
    """

    name: str
    plan: Plan
    rejects: Reason
    yields: Callable[[oplet.Request, oplet.Capabilities], str | None]
    doc: str


def _never(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
    return None


METHODS = (
    Method(
        "flash",
        partial(_plan_flash, subgroups=True),
        partial(_not_tiled, subgroups=True),
        _little_reuse,
        "Tiles of queries and keys; subgroup shuffles reduce the rows. float16 in matrices, where the device has them.",
    ),
    Method(
        "flash_nosg",
        partial(_plan_flash, subgroups=False),
        partial(_not_tiled, subgroups=False),
        _slower_than_matrices,
        "Tiles of queries and keys; rows are reduced through workgroup memory.",
    ),
    Method(
        "serial",
        _plan_serial,
        _anything,
        _never,
        "One workgroup for each token and head; head sizes need no alignment.",
    ),
)

VARIANTS: tuple[oplet.Variant, ...] = tuple(
    oplet.Variant(
        name=f"{form.prefix}_{method.name}",
        plan=partial(method.plan, form),
        rejects=partial(_rejects, form, method.rejects),
        yields=method.yields,
        doc=method.doc,
    )
    for form in itertools.starmap(Form, itertools.product((True, False), (False, True), (False, True)))
    for method in METHODS
)
