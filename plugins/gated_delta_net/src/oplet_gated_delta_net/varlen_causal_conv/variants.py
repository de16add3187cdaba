"""The kernels: when each can run, and how it deals tokens and channels to invocations. They share one template."""

from __future__ import annotations

import attrs
import numpy as np
import oplet

from oplet_gated_delta_net.varlen_causal_conv.shapes import Convolution

_THREADS = 64

#: most taps whose tokens an invocation keeps in registers
_WINDOW = 8

#: tokens that an invocation takes one after the other. The longer, the fewer read the same ones before them; the
#: shortest has to cover the window
_RUNS = (32, 16, 8)

#: invocations that keep the memory of a large GPU busy. WebGPU does not tell how many it has room for
_BUSY = 1 << 18

_ELEMENTS = {"float32": "f32", "float16": "f16"}


@attrs.frozen
class Kernel:
    """One of the ways to convolve.

    Attributes:
        vec: channels of an invocation.
        window: whether it keeps the tokens that the taps reach in registers; else each tap reads its own.
    """

    vec: int
    window: bool

    def rejects(self, request: oplet.Request, caps: oplet.Capabilities) -> str | None:
        """Why it cannot serve a call."""
        convolution = Convolution.of(request)
        if convolution.channels % self.vec:
            return f"{convolution.channels} channels are not a multiple of {self.vec}"
        if self.window and convolution.taps > _WINDOW:
            return f"{convolution.taps} taps reach more tokens than registers hold: {_WINDOW}"
        if convolution.dtype == "float16" and "shader-f16" not in caps.features:
            return "float16 needs the device feature shader-f16"
        return None

    def plan(self, request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
        """A launch for output and final_state, one for state_update, without those that would write nothing."""
        convolution = Convolution.of(request)
        wanted = {name for name, spec in convolution.outputs.items() if spec.size}
        launches = []
        if wanted & {"output", "final_state"}:
            launches.append(self._convolve(convolution, wanted))
        if "state_update" in wanted:
            launches.append(self._capture(convolution))
        return launches

    def _convolve(self, convolution: Convolution, wanted: set[str]) -> oplet.Launch:
        vectors = convolution.channels // self.vec
        run = next((run for run in _RUNS if convolution.tokens * vectors >= run * _BUSY), _RUNS[-1])
        # No more strands than tokens, no span longer than all: so nothing overflows, however large the dilation.
        strands = max(min(convolution.dilation, convolution.tokens), 1)
        span = max(min(run * strands, convolution.tokens), 1)
        # The first run of each sequence, and at most one other run in each span behind the first.
        slots = convolution.batch + max(convolution.tokens - 1, 0) // span
        convolving = _ceil(slots * strands * vectors, _THREADS) if "output" in wanted else 0
        # First runs leave the states where they hold them whole.
        apart = "final_state" in wanted and not (convolving and self.window and convolution.dilation == 1)
        carried = convolution.batch * vectors * convolution.history if apart else 0
        element = _ELEMENTS[convolution.dtype]
        word = self._word(convolution)
        inputs = {"input": word, "cumulative": "i32", "initial_state": word}
        if "output" in wanted:
            inputs["weight"] = word
            if convolution.biased:
                inputs["bias"] = word
        ports = {"cumulative": "cumulative_sequence_length"}
        return oplet.Launch(
            template="convolve.wgsl.jinja",
            workgroups=convolving + _ceil(carried, _THREADS),
            context={
                "threads": _THREADS,
                "element": element,
                "vec": self.vec,
                "window": convolution.taps if self.window else 0,
                "biased": convolution.biased,
                "silu": convolution.silu,
                **{name: name in wanted for name in ("output", "final_state")},
            },
            params={
                "tokens": np.uint32(convolution.tokens),
                "channels": np.uint32(convolution.channels),
                "vectors": np.uint32(vectors),
                "taps": np.uint32(convolution.taps),
                "dilation": np.uint32(convolution.dilation),
                "history": np.uint32(convolution.history),
                "batch": np.uint32(convolution.batch),
                "run": np.uint32(run),
                "strands": np.uint32(strands),
                "span": np.uint32(span),
                "slots": np.uint32(slots),
                "convolving": np.uint32(convolving),
            },
            bindings=[
                *(oplet.Binding(name, ports.get(name, name), "read", kind) for name, kind in inputs.items()),
                *(
                    oplet.Binding(name, name, "read_write", word)
                    for name in ("output", "final_state")
                    if name in wanted
                ),
            ],
            operations=convolution.tokens * convolution.channels * convolution.taps,
        )

    def _capture(self, convolution: Convolution) -> oplet.Launch:
        vectors = convolution.channels // self.vec
        word = self._word(convolution)
        return oplet.Launch(
            template="capture.wgsl.jinja",
            workgroups=_ceil(convolution.batch * convolution.capacity * vectors, _THREADS),
            context={"threads": _THREADS, "word": word},
            params={
                "tokens": np.uint32(convolution.tokens),
                "vectors": np.uint32(vectors),
                "batch": np.uint32(convolution.batch),
                "capacity": np.uint32(convolution.capacity),
            },
            bindings=[
                oplet.Binding("input", "input", "read", word),
                oplet.Binding("cumulative", "cumulative_sequence_length", "read", "i32"),
                oplet.Binding("capture_count", "capture_count", "read", "i32"),
                oplet.Binding("state_update", "state_update", "read_write", word),
            ],
        )

    def _word(self, convolution: Convolution) -> str:
        element = _ELEMENTS[convolution.dtype]
        return f"vec4<{element}>" if self.vec == 4 else element


def _ceil(n: int, d: int) -> int:
    return -(-n // d)


def _variant(name: str, kernel: Kernel, doc: str) -> oplet.Variant:
    return oplet.Variant(name, kernel.plan, rejects=kernel.rejects, doc=doc)


VARIANTS = (
    _variant(
        "window_vec4",
        Kernel(vec=4, window=True),
        "The tokens that the taps reach stay in registers, four channels at a time.",
    ),
    _variant("window_scalar", Kernel(vec=1, window=True), "window_vec4 for any number of channels."),
    _variant("taps_scalar", Kernel(vec=1, window=False), "Each tap reads its token: any number of taps."),
)
