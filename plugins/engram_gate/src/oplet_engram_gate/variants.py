"""The kernels: when each can run, and how it deals rows to invocations. They share one template."""

from __future__ import annotations

import attrs
import numpy as np
import oplet

from oplet_engram_gate.shapes import Rows

#: most words of its row that an invocation keeps in registers, of each input
_STAGED = 8

#: above so many, the subgroups that fit beside each other are too few to keep memory busy
_ROOMY = 4

#: workgroups that keep a large GPU busy. WebGPU does not tell how many cores there are; large GPUs have 100 to 150
_BUSY = 512

#: WGSL variable and port of each input and each output
_INPUTS = {
    "key": "keyT",
    "query": "queryT",
    "value": "valueT",
    "key_scale": "keyNormScaleT",
    "query_scale": "queryNormScaleT",
}
_OUTPUTS = {"gated": "outputT", "normed": "gatedValueNormedT"}


@attrs.frozen
class Layout:
    """How rows are dealt to invocations.

    Attributes:
        element: WGSL type of a word, which is what an invocation reads at a time.
        words: in a row.
        threads: invocations in a workgroup.
        lane_bits: log2 of the lanes that share a row.
        staged: words that a lane keeps in registers; 0 where there are too many, and the row is walked twice.
    """

    element: str
    words: int
    threads: int
    lane_bits: int
    staged: int

    @property
    def side_by_side(self) -> int:
        """Groups of lanes in a workgroup."""
        return self.threads >> self.lane_bits


@attrs.frozen
class Kernel:
    """One of the four ways to share a row.

    Attributes:
        vectors: whether a word holds several elements; else one.
        subgroups: whether the lanes of a row are of one subgroup; else of one workgroup.
    """

    vectors: bool
    subgroups: bool

    def rejects(self, request: oplet.Request, caps: oplet.Capabilities) -> str | None:
        """Why it cannot serve a call."""
        rows = Rows.of(request)
        if self.vectors and rows.hidden % 4:
            return f"hidden_size {rows.hidden} is not a multiple of 4"
        if self.subgroups and "subgroups" not in caps.features:
            return "needs the device feature subgroups"
        # The vectors read float16 as u32, which WGSL has without it. But where it is missing, the conversion is
        # known to take infinities and NaN for numbers.
        if rows.dtype == "float16" and "shader-f16" not in caps.features:
            return "float16 needs the device feature shader-f16"
        if self.subgroups and rows.size and not self._layout(rows, caps).staged:
            return f"hidden_size {rows.hidden} is more than {caps.subgroup_size} lanes keep in registers"
        return None

    def yields(self, request: oplet.Request, caps: oplet.Capabilities) -> str | None:
        """Why the lanes of a workgroup, which are more, are faster."""
        rows = Rows.of(request)
        if not self.subgroups or caps.adapter.is_cpu or not rows.size:
            return None
        staged = self._layout(rows, caps).staged
        return f"{staged} words of a row in each lane leave room for few subgroups" if staged > _ROOMY else None

    def plan(self, request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
        """One launch, or none where the output is empty."""
        rows = Rows.of(request)
        if not rows.size:
            return []
        layout = self._layout(rows, caps)
        # Lanes that take all rows of a token read its value once. With few tokens that leaves a GPU idle.
        whole = caps.adapter.is_cpu or rows.tokens >= _BUSY * layout.side_by_side
        run = rows.streams if whole else 1
        inputs = dict(_INPUTS)
        outputs = {name: port for name, port in _OUTPUTS.items() if port in request.outputs}
        if "normed" in outputs:
            inputs["conv_scale"] = "convNormScaleT"
        return [
            oplet.Launch(
                template="rows.wgsl.jinja",
                workgroups=_ceil(rows.count, run * layout.side_by_side),
                context={
                    "element": layout.element,
                    "threads": layout.threads,
                    "subgroups": self.subgroups,
                    "staged": layout.staged,
                    **{name: name in outputs for name in _OUTPUTS},
                },
                params={
                    "rows": np.uint32(rows.count),
                    "streams": np.uint32(rows.streams),
                    "run": np.uint32(run),
                    "words": np.uint32(layout.words),
                    "lane_bits": np.uint32(layout.lane_bits),
                    "hidden": np.float32(rows.hidden),
                    "epsilon": rows.epsilon,
                    "zero": np.uint32(0),
                },
                bindings=[
                    *(oplet.Binding(name, port, "read", layout.element) for name, port in inputs.items()),
                    *(oplet.Binding(name, port, "read_write", layout.element) for name, port in outputs.items()),
                ],
            )
        ]

    def _layout(self, rows: Rows, caps: oplet.Capabilities) -> Layout:
        element, width = self._word(rows)
        words = rows.hidden // width
        if self.subgroups:
            threads = 64 if caps.adapter.is_cpu else 128
            lane_bits = min(_ceil_log2(words), _floor_log2(caps.subgroup_size))
        else:
            # A software device pays for every barrier of every lane.
            most = 32 if caps.adapter.is_cpu else min(512, caps.limits["maxComputeInvocationsPerWorkgroup"])
            # Two or three words for each lane: its reads are under way together, and there are lanes enough. With the
            # second output up to four, and small workgroups: more registers, so fewer lanes fit beside each other.
            if rows.normed:
                lane_bits = _floor_log2(min(1 << _ceil_log2(_ceil(words, 4)), most))
            else:
                lane_bits = _floor_log2(min(max(words // 2, 1), most))
            threads = max(1 << lane_bits, min(128 if rows.normed else 256, most))
        each = _ceil(words, 1 << lane_bits)
        # Rounded up to a power of two, so that hidden sizes share pipelines.
        staged = 1 << _ceil_log2(each) if each <= _STAGED else 0
        return Layout(element, words, threads, lane_bits, staged)

    def _word(self, rows: Rows) -> tuple[str, int]:
        """WGSL type of a word, and how many elements it holds: 16 bytes, the fastest to read, where that divides."""
        if rows.dtype == "float32":
            return ("vec4<f32>", 4) if self.vectors else ("f32", 1)
        if not self.vectors:
            return "f16", 1
        return ("vec4<u32>", 8) if rows.hidden % 8 == 0 else ("vec2<u32>", 4)


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
        "subgroup_rows_vec4",
        Kernel(vectors=True, subgroups=True),
        "Lanes of a subgroup share a row and keep its value in registers: several rows a subgroup, no barrier.",
    ),
    _variant(
        "packed_rows_vec4",
        Kernel(vectors=True, subgroups=False),
        "Lanes of a workgroup share a row: no subgroups needed; walks rows twice that registers do not hold.",
    ),
    _variant(
        "subgroup_rows_scalar",
        Kernel(vectors=False, subgroups=True),
        "subgroup_rows_vec4 for a hidden size that is no multiple of 4.",
    ),
    _variant(
        "packed_rows_scalar",
        Kernel(vectors=False, subgroups=False),
        "packed_rows_vec4 for any hidden size.",
    ),
)
