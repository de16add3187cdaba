"""`chunked`: what tokens do to each other is computed for all chunks at once, then chunks are scanned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import attrs
import numpy as np
import oplet
from oplet.variant import ContextValue

from oplet_gated_delta_net.shapes import Delta
from oplet_gated_delta_net.variants import launches, recurrent

#: tokens of a request, on average, from which on it is the fastest: on an H200, 97 are level with `recurrent`
FEWEST_TOKENS = 112

#: the same with wide_scan, for one state: the square root of the states divides it. On an H200 about 64 tokens are
#: level for 128 states, 45 for 256, 28 for 512 and 12 for 2048.
FEWEST_WIDE_TOKENS = 724

#: value heads that a workgroup of chunk_prepare serves at once
_TEAMS = 2

#: vec4s of keys that an invocation of chunk_scan fetches ahead at most; more of them spill
_MOST_FETCHED = 16

#: workgroups of wide_scan from which on it is the faster scan: two of them on each multiprocessor of a large device
FEWEST_WIDE = 256

#: keys that a team of wide_scan has at most; more of them spill
_MOST_WIDE_KEYS = 128

_PREPARE_TENSORS = ("query", "key", "cu_seqlens", *launches.GATE_INPUTS, "chunks=")
_SCAN_TENSORS = ("query", "key", "value", "cu_seqlens", "chunks", "initial_state", "output=", "final_state=")


@attrs.frozen
class Tiling:
    """How the work is cut.

    Attributes:
        chunk: tokens.
        width: values of a workgroup of the scan.
        pieces: vec4s of a key, rounded up to fours.
        scan: template of the scan.
        element: element type of `chunks` there.
    """

    chunk: int
    width: int
    pieces: int

    scan: ClassVar[str] = "chunk_scan.wgsl.jinja"
    element: ClassVar[str] = "vec4<f32>"

    @property
    def threads(self) -> int:
        """Invocations of a workgroup of the scan."""
        return self.chunk // 4 * self.width

    def choices(self, caps: oplet.Capabilities, *, subgroups: bool) -> dict[str, ContextValue]:
        """What the scan's template is written for."""
        hop = 4 if caps.subgroup_size >= 16 else 1
        return {"width": self.width, "subgroups": subgroups, "hop": hop, "pieces": self.pieces}

    @property
    def prepare_storage(self) -> int:
        """Bytes of workgroup memory of chunk_prepare."""
        planes = max(16, _TEAMS * self.chunk // 4)
        return 16 * planes * (self.chunk + 1) + 8 * self.chunk * (1 + _TEAMS) + launches.ORDER_STORAGE

    @property
    def scan_storage(self) -> int:
        """Bytes of workgroup memory of the scan."""
        vectors = (self.width + self.chunk + 2) * self.pieces * 16
        return vectors + 8 * self.width * self.chunk + 4 * self.threads + launches.ORDER_STORAGE

    @property
    def record(self) -> int:
        """Numbers that chunk_prepare leaves for a chunk and a value head."""
        return 2 * self.chunk**2 + 3 * self.chunk + 4

    def slots(self, delta: Delta) -> int:
        """Places for chunks."""
        if delta.ragged:
            return delta.tokens // self.chunk + delta.batch
        return delta.batch * -(-delta.longest // self.chunk)

    def chunks(self, delta: Delta) -> oplet.TensorSpec:
        """The scratch between the launches."""
        return oplet.TensorSpec((self.slots(delta) * delta.hv, self.record), "float32")

    def blocks(self, delta: Delta) -> int:
        """Workgroups of the scan for a state."""
        return -(-delta.dv // self.width)

    def fits(self, caps: oplet.Capabilities) -> bool:
        """Whether a device can run it."""
        storage = max(self.prepare_storage, self.scan_storage)
        return (
            storage <= caps.limits["maxComputeWorkgroupStorageSize"]
            and self.threads <= caps.limits["maxComputeInvocationsPerWorkgroup"]
        )

    @classmethod
    def of(cls, delta: Delta, caps: oplet.Capabilities, *, subgroups: bool) -> Tiling | None:
        """The fastest that fits a call and a device, if one does."""
        if subgroups and (wide := WideTiling.wide(delta, caps)):
            return wide
        sizes = [(32, 32), (32, 16), (16, 16), (16, 8)]
        for chunk, width in sizes[2:] if caps.adapter.is_cpu else sizes:
            tiling = cls(chunk, width, -(-delta.dk // 16) * 4)
            if tiling.fits(caps) and chunk * tiling.pieces <= _MOST_FETCHED * tiling.threads:
                return tiling
        return None


@attrs.frozen
class WideTiling(Tiling):
    """With wide_scan, for many states: fewer invocations have more values, and the state in registers."""

    scan: ClassVar[str] = "wide_scan.wgsl.jinja"
    element: ClassVar[str] = "f32"

    #: of a team, which has all keys of four values
    LANES: ClassVar[int] = 8

    @property
    def threads(self) -> int:
        """Invocations of a workgroup of the scan."""
        return self.width // 4 * self.LANES

    @property
    def scan_storage(self) -> int:
        """Bytes of workgroup memory of the scan."""
        vectors = self.chunk * (2 * self.pieces + self.width // 4)
        return 16 * vectors + 4 * (self.record + self.threads) + launches.ORDER_STORAGE

    def choices(self, caps: oplet.Capabilities, *, subgroups: bool) -> dict[str, ContextValue]:
        """What the scan's template is written for."""
        hop = min(caps.subgroup_size // self.LANES, self.width // 4)
        return {"width": self.width, "lanes": self.LANES, "key_quads": self.pieces // self.LANES, "hop": hop}

    @classmethod
    def wide(cls, delta: Delta, caps: oplet.Capabilities) -> WideTiling | None:
        """The one of a call, where it is the faster and fits the device."""
        tiling = cls(16, 64, -(-delta.dk // (4 * cls.LANES)) * cls.LANES)
        pays = (
            delta.batch * delta.hv * tiling.blocks(delta) >= FEWEST_WIDE
            and delta.dk <= _MOST_WIDE_KEYS
            and -delta.dv % tiling.width < tiling.width // 2
        )
        return tiling if pays and caps.subgroup_size >= cls.LANES and tiling.fits(caps) else None


def plan(request: oplet.Request, delta: Delta, caps: oplet.Capabilities, *, subgroups: bool) -> Sequence[oplet.Launch]:
    """Two launches, and with `cu_seqlens` those of `recurrent` for requests that overlap.

    The chunks of such requests would share their slots, and only the device knows that there are any.
    """
    tiling = Tiling.of(delta, caps, subgroups=subgroups)
    assert tiling is not None, "rejects() has looked"
    blocks = tiling.blocks(delta)
    recurrences = delta.batch * delta.hv * blocks
    workgroups = recurrences + launches.clear_workgroups(delta, tiling.threads)
    if not workgroups:
        return []
    spec = tiling.chunks(delta)
    choices = {**launches.choices(delta), "chunk": tiling.chunk}
    params = {
        **launches.params(delta),
        "hq": np.uint32(delta.hq),
        "pieces": np.uint32(-(-delta.dk // 4)),
        "longest_chunks": np.uint32(-(-delta.longest // tiling.chunk)),
        "blocks": np.uint32(blocks),
        "recurrences": np.uint32(recurrences),
    }
    steps = []
    if spec.size:
        bound = launches.buffers(request, delta, _PREPARE_TENSORS, {"chunks": (spec, "f32")})
        prepare = tiling.slots(delta) * delta.hq
        # Products of keys with keys and queries, and a triangle solved for each value head.
        operations = prepare * tiling.chunk**2 * (2 * delta.dk + delta.hv // delta.hq * tiling.chunk)
        steps.append(
            oplet.Launch(
                "chunk_prepare.wgsl.jinja",
                prepare,
                {**choices, "teams": _TEAMS},
                params,
                bound.bindings,
                bound.scratch,
                operations,
            )
        )
    bound = launches.buffers(request, delta, _SCAN_TENSORS, {"chunks": (spec, tiling.element)})
    scan = oplet.Launch(
        tiling.scan,
        workgroups,
        {**choices, **tiling.choices(caps, subgroups=subgroups)},
        params,
        bound.bindings,
        bound.scratch,
    )
    steps += launches.walk(delta, scan, recurrences)
    if delta.ragged:
        steps += recurrent.plan(request, delta, caps, subgroups=subgroups, only_disorder=True)
    return steps


def rejects(request: oplet.Request, delta: Delta, caps: oplet.Capabilities, *, subgroups: bool) -> str | None:
    """Why it cannot serve a call."""
    if reason := launches.for_recurrent(request, delta):
        return reason
    tiling = Tiling.of(delta, caps, subgroups=subgroups)
    if tiling is None:
        allowed = caps.limits["maxComputeWorkgroupStorageSize"]
        return f"Dk {delta.dk} needs more than the {allowed} bytes of maxComputeWorkgroupStorageSize for its tiles"
    needed, allowed = tiling.chunks(delta).nbytes, caps.limits["maxStorageBufferBindingSize"]
    if needed > allowed:
        return f"its chunks take {needed} bytes, and the device allows {allowed} (maxStorageBufferBindingSize)"
    return recurrent.rejects(request, delta, caps, subgroups=subgroups) if delta.ragged else None


def yields(delta: Delta, caps: oplet.Capabilities, *, subgroups: bool) -> str | None:
    """Why another one is expected to be faster."""
    fewest = FEWEST_TOKENS
    if isinstance(Tiling.of(delta, caps, subgroups=subgroups), WideTiling):
        fewest = min(fewest, math.ceil(FEWEST_WIDE_TOKENS / math.sqrt(delta.batch * delta.hv)))
    if delta.tokens < fewest * delta.batch:
        return f"for at least {fewest} tokens a request; these have {delta.tokens / delta.batch:.4g}"
    return None
