"""Variants come in twins: one with subgroup operations, and one for devices without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import oplet

from oplet_gated_delta_net.shapes import Delta
from oplet_gated_delta_net.variants import launches


class Kernel(Protocol):
    """What a module of this package is: how one kind of kernel serves calls."""

    def plan(
        self, request: oplet.Request, delta: Delta, caps: oplet.Capabilities, *, subgroups: bool
    ) -> Sequence[oplet.Launch]:
        """The launches of a call, which has not been rejected."""

    def rejects(self, request: oplet.Request, delta: Delta, caps: oplet.Capabilities, *, subgroups: bool) -> str | None:
        """Why it cannot serve a call, beyond what holds for all kernels."""

    def yields(self, delta: Delta, caps: oplet.Capabilities, *, subgroups: bool) -> str | None:
        """Why another one is expected to be faster."""


def twins(name: str, kernel: Kernel, doc: str, doc_nosg: str) -> tuple[oplet.Variant, oplet.Variant]:
    """The variant `name` and its twin `name`_nosg."""
    return _variant(name, kernel, doc, subgroups=True), _variant(f"{name}_nosg", kernel, doc_nosg, subgroups=False)


def _variant(name: str, kernel: Kernel, doc: str, *, subgroups: bool) -> oplet.Variant:
    def plan(request: oplet.Request, caps: oplet.Capabilities) -> Sequence[oplet.Launch]:
        return kernel.plan(request, Delta.of(request), caps, subgroups=subgroups)

    def rejects(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
        delta = Delta.of(request)
        if reason := launches.unfit(delta, caps, subgroups=subgroups):
            return reason
        return kernel.rejects(request, delta, caps, subgroups=subgroups)

    def yields(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
        if not subgroups and "subgroups" in caps.features:
            return "the device has subgroups"
        return kernel.yields(Delta.of(request), caps, subgroups=subgroups)

    return oplet.Variant(name, plan, rejects, yields, doc)
