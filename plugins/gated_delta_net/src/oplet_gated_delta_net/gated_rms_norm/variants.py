"""The kernels: when each can run, and how it deals groups to invocations. They share one template."""

from __future__ import annotations

import attrs
import numpy as np
import oplet

from oplet_gated_delta_net.gated_rms_norm.shapes import Groups

#: most words of its group that an invocation keeps in registers, of X and of the gate
_STAGED = 8

#: above so many, the subgroups that fit beside each other are too few to keep memory busy
_ROOMY = 4

_ELEMENTS = {"float32": "f32", "float16": "f16"}


@attrs.frozen
class Layout:
    """How groups are dealt to invocations.

    Attributes:
        element: WGSL type of a word, which is what an invocation reads at a time.
        words: in a group.
        threads: invocations in a workgroup.
        lane_bits: log2 of the lanes that share a group.
        staged: words that a lane keeps in registers; 0 where there are too many, and the group is walked twice.
    """

    element: str
    words: int
    threads: int
    lane_bits: int
    staged: int


@attrs.frozen
class Kernel:
    """One of the four ways to share a group.

    Attributes:
        vectors: whether a word holds several elements; else one.
        subgroups: whether the lanes of a group are of one subgroup; else of one workgroup.
    """

    vectors: bool
    subgroups: bool

    def rejects(self, request: oplet.Request, caps: oplet.Capabilities) -> str | None:
        """Why it cannot serve a call."""
        groups = Groups.of(request)
        if self.vectors and groups.width % 4:
            return f"groups of {groups.width} elements are not a multiple of 4"
        if self.subgroups and "subgroups" not in caps.features:
            return "needs the device feature subgroups"
        # Words of eight are read as u32, which every device has. But where shader-f16 is missing, unpacking them is
        # known to take infinities and NaN for numbers.
        if groups.dtype == "float16" and "shader-f16" not in caps.features:
            return "float16 needs the device feature shader-f16"
        if self.subgroups and not self._layout(groups, caps).staged:
            return f"groups of {groups.width} elements are more than {caps.subgroup_size} lanes keep in registers"
        return None

    def yields(self, request: oplet.Request, caps: oplet.Capabilities) -> str | None:
        """Why the lanes of a workgroup, which are more, are faster."""
        if not self.subgroups or caps.adapter.is_cpu:
            return None
        staged = self._layout(Groups.of(request), caps).staged
        return f"{staged} words of a group in each lane leave room for few subgroups" if staged > _ROOMY else None

    def plan(self, request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
        """One launch, or none where the output is empty."""
        groups = Groups.of(request)
        if not groups.count:
            return []
        layout = self._layout(groups, caps)
        return [
            oplet.Launch(
                template="rows.wgsl.jinja",
                workgroups=_ceil(groups.count, layout.threads >> layout.lane_bits),
                context={
                    "element": layout.element,
                    "threads": layout.threads,
                    "subgroups": self.subgroups,
                    "staged": layout.staged,
                    "silu": groups.silu,
                },
                params={
                    "count": np.uint32(groups.count),
                    "words": np.uint32(layout.words),
                    "lane_bits": np.uint32(layout.lane_bits),
                    "width": np.float32(groups.width),
                    "epsilon": groups.epsilon,
                },
                bindings=[
                    oplet.Binding("x", "X", "read", layout.element),
                    oplet.Binding("scale", "scale", "read", layout.element),
                    oplet.Binding("gate", "gate", "read", layout.element),
                    oplet.Binding("y", "Y", "read_write", layout.element),
                ],
            )
        ]

    def _layout(self, groups: Groups, caps: oplet.Capabilities) -> Layout:
        element, size = self._word(groups)
        words = groups.width // size
        # Two words for each lane: its reads are under way together, and there are lanes enough.
        lane_bits = _ceil_log2(max(_ceil(words, 2), 1))
        if self.subgroups:
            threads = 64 if caps.adapter.is_cpu else 128
            lane_bits = min(lane_bits, _floor_log2(caps.subgroup_size))
        else:
            # A software device pays for every barrier of every lane.
            most = 32 if caps.adapter.is_cpu else min(512, caps.limits["maxComputeInvocationsPerWorkgroup"])
            lane_bits = min(lane_bits, _floor_log2(most))
            threads = max(1 << lane_bits, min(128, most))
        each = _ceil(words, 1 << lane_bits)
        # Rounded up to a power of two, so that widths share pipelines.
        return Layout(element, words, threads, lane_bits, 1 << _ceil_log2(each) if each <= _STAGED else 0)

    def _word(self, groups: Groups) -> tuple[str, int]:
        """WGSL type of a word, and how many elements it holds: 16 bytes, the fastest to read, where that divides."""
        element = _ELEMENTS[groups.dtype]
        if not self.vectors:
            return element, 1
        if element == "f16" and groups.width % 8 == 0:
            return "vec4<u32>", 8
        return f"vec4<{element}>", 4


def _ceil(n: int, d: int) -> int:
    return -(-n // d)


def _floor_log2(n: int) -> int:
    return n.bit_length() - 1


def _ceil_log2(n: int) -> int:
    return (n - 1).bit_length()


def _variant(name: str, kernel: Kernel, doc: str) -> oplet.Variant:
    return oplet.Variant(name, kernel.plan, rejects=kernel.rejects, yields=kernel.yields, doc=doc)


VARIANTS = (
    _variant(
        "subgroup_vec4",
        Kernel(vectors=True, subgroups=True),
        "Lanes of a subgroup share a group of elements: no barrier, several groups a subgroup.",
    ),
    _variant(
        "workgroup_vec4",
        Kernel(vectors=True, subgroups=False),
        "Lanes of a workgroup share a group of elements; groups that registers do not hold are walked twice.",
    ),
    _variant(
        "subgroup_scalar", Kernel(vectors=False, subgroups=True), "subgroup_vec4 for groups that are no multiple of 4."
    ),
    _variant("workgroup_scalar", Kernel(vectors=False, subgroups=False), "workgroup_vec4 for groups of any length."),
)
