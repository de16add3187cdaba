"""What the checks work with: the op, its cases made ready, and the devices to run them on."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from oplet.device import Device
from oplet.discovery import EXTENSIONS, Offer
from oplet.errors import InputError, OpletError
from oplet.op import Op
from oplet.opening import open_device
from oplet.registry import Registry
from oplet.request import Request, TensorSpec
from oplet.testing.compare import EXACT, Mismatch, Tolerance, compare
from oplet.testing.guard import GuardPool, Seen
from oplet.testing.suite import Arrays, Case, Suite
from oplet.variant import Variant
from oplet.webgpu import Implementation

#: how each device of the kit is opened: real devices, never a faked capability
SETUPS: Mapping[str, Mapping[str, Any]] = {
    "best": {"experimental": True},
    "bare": {"features": []},
    "floor": {"limits": "floor"},
}

SETUP_WORDS: Mapping[str, str] = {
    "best": "everything that the adapter has",
    "bare": "features=[]",
    "floor": 'limits="floor"',
}


@attrs.frozen(eq=False)
class Call:
    """A case made ready: bound, inferred, and its results known.

    Attributes:
        case: where it comes from.
        request: for some of the op's outputs.
        arrays: inputs by manifest name.
        specs: of the outputs.
        want: what has to come out, as exactly as it is known.
        scale: see `oplet.testing.compare`; empty for the default.
    """

    case: Case
    request: Request
    arrays: Arrays
    specs: Mapping[str, TensorSpec]
    want: Arrays
    scale: Arrays

    def request_copy(self) -> Request:
        """The request with mappings of its own."""
        return _copy(self.request)

    def describe(self) -> str:
        """Inputs, attributes and outputs on one line."""
        parts = [f"{name} {spec}" for name, spec in self.request.inputs.items()]
        if self.case.attrs:
            parts.append(f"attrs {dict(self.case.attrs)}")
        return ", ".join([*parts, f"outputs {', '.join(self.request.outputs)}"])


@attrs.frozen
class Finding:
    """Something that a check found wrong.

    Attributes:
        check: name of what is wrong, such as "results" or "guards"; the page of checks lists them.
        message: what, where and why.
        variant: the variant at fault, or "".
        setup: the device it was found on, a key of `SETUPS`, or "".
        case: the case it was found with, or "".
        call: what `Call.describe` says of it, or "".
    """

    check: str
    message: str
    variant: str = ""
    setup: str = ""
    case: str = ""
    call: str = ""

    def __str__(self) -> str:
        place = [f"variant {self.variant}"] if self.variant else []
        place += [f"case {self.case!r}"] if self.case else []
        text = f"{self.check}: {', '.join(place)}: {self.message}" if place else f"{self.check}: {self.message}"
        return f"{text}\n  {self.call}" if self.call else text


@attrs.frozen
class NotRun:
    """Something that a check could not look at here, and why."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class Devices:
    """The devices that ops are tested on, each opened when it is first needed and shared by all ops."""

    def __init__(
        self, *, webgpu: Implementation | None = None, adapter: str | None = None, unchecked: bool = False
    ) -> None:
        self._webgpu = webgpu
        self._adapter = adapter
        self._unchecked = unchecked
        self._open: dict[str, Device] = {}

    def __getitem__(self, setup: str) -> Device:
        """The device of a setup, with a `GuardPool`.

        Raises:
            DeviceError: there is no usable adapter.
        """
        device = self._open.get(setup)
        if device is None:
            device = open_device(webgpu=self._webgpu, adapter=self._adapter, unchecked=self._unchecked, **SETUPS[setup])
            device.pool = GuardPool(device)
            self._open[setup] = device
        return device


class Kit:
    """One op under test.

    Attributes:
        id: the op id.
        seed: what the random cases come from.
        op: the op, loaded.
    """

    def __init__(
        self,
        op: str,
        *,
        devices: Devices | None = None,
        registry: Callable[[Device | None], Registry] = lambda device: Registry(device=device),
        suite: Suite | None = None,
        seed: int | None = None,
        variants: Sequence[str] = (),
    ) -> None:
        """Loads the op.

        Args:
            op: the op id.
            devices: default: of its own.
            registry: makes a registry on a device; the default one discovers what is installed.
            suite: default: test.json and cases.py of the op folder, and cases.py of its extensions' folders,
                read when first needed.
            seed: of the random cases; default: a fresh one.
            variants: the variants to test, and nothing of the op itself: what an extension tests; default all.

        Raises:
            UnknownOpError, PluginError: there is no such op, or its plugin is at fault.
            InputError: no variant has such a name.
        """
        self.id = op
        self.seed = secrets.randbits(32) if seed is None else seed
        self._devices = devices or Devices()
        self._make_registry = registry
        self._registries: dict[tuple[str, str], Registry] = {}
        self._suite = suite
        host = registry(None)
        self.op: Op = host[op]
        for name in variants:
            self.op.require_variant(name)
        #: whether only some variants are tested, and nothing of the op itself
        self.partial = bool(variants)
        #: what is tested
        self.variants: tuple[Variant, ...] = tuple(
            variant for variant in self.op.variants if variant.name in variants or not variants
        )
        modules = {self.op.module_of(variant.name) for variant in self.variants}
        if not variants:
            modules.add(self.op.module)
        #: what installed distributions offer of it; nothing where the op was registered by hand
        self.offers: tuple[Offer, ...] = tuple(
            offer
            for offer in host.offers
            if offer.op == op
            and offer.entry in modules
            and (offer.group == EXTENSIONS or (offer.dist, offer.entry) == (self.op.dist, self.op.module))
        )

    def registry(self, setup: str, purpose: str = "") -> Registry:
        """The registry on the device of a setup; one for each purpose, which remembers the calls made for that."""
        registry = self._registries.get((setup, purpose))
        if registry is None:
            registry = self._registries[setup, purpose] = self._make_registry(self._devices[setup])
        return registry

    @cached_property
    def suite(self) -> Suite:
        """Cases and tolerances.

        Raises:
            PluginContractError: they cannot be read.
        """
        return self._suite or Suite.read(self.op.module, self.op.extensions)

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every case, once for each set of outputs to ask for."""
        return self._prepared[0]

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What is wrong with the cases themselves, or with the reference that has to tell their results."""
        return self._prepared[1]

    @cached_property
    def _prepared(self) -> tuple[tuple[Call, ...], tuple[Finding, ...]]:
        calls: list[Call] = []
        faults: list[Finding] = []
        try:
            for case in self.suite.cases(self.seed):
                for outputs in self._output_sets(case):
                    try:
                        calls.append(self._call(case, outputs))
                    except _FaultyCaseError as error:
                        faults.append(error.finding)
        except OpletError as error:
            faults.append(Finding("cases", str(error)))
        if not calls and not faults:
            faults.append(Finding("cases", "there is no case at all"))
        return tuple(calls), tuple(faults)

    def _output_sets(self, case: Case) -> list[tuple[str, ...]]:
        if case.outputs is not None:
            return [tuple(case.outputs)]
        required = self.op.bind_outputs(None)
        every = tuple(port.name for port in self.op.manifest.outputs)
        if every == required:
            return [required]
        try:
            self.op.infer(self.op.bind(_specs(case), case.attrs, every))
        except OpletError:  # not all at once; if the case itself is at fault, the required ones tell
            return [required]
        return [required, every]

    def _call(self, case: Case, outputs: tuple[str, ...]) -> Call:
        op = self.op
        try:
            request = op.bind(_specs(case), case.attrs, outputs)
            specs = op.infer(_copy(request))
            arrays = {_input_name(op, name): array for name, array in case.inputs.items()}
            op.check(request, arrays)
        except InputError as error:
            raise _FaultyCaseError("cases", case, f"the op refuses it: {error}") from error
        except OpletError as error:
            raise _FaultyCaseError("infer", case, str(error)) from error
        if case.outputs is None:
            try:
                want: Arrays = op.reference(request, arrays)
            except OpletError as error:
                raise _FaultyCaseError("reference", case, str(error)) from error
            where = "reference"
        else:
            names = {name: port.name for name in case.outputs if (port := op.manifest.output(name))}
            want = {names[name]: array for name, array in case.outputs.items()}
            for name, dtype in case.dtypes.items():
                if specs[names[name]].dtype != dtype:
                    fault = f"{name} is {dtype} there, and the op makes {specs[names[name]].dtype}"
                    raise _FaultyCaseError("cases", case, fault)
            where = "the stored result"
        for name, spec in specs.items():
            if want[name].shape != spec.shape:
                fault = f"infer makes {name} {spec.shape}, and {where} is {want[name].shape}"
                raise _FaultyCaseError("infer", case, fault)
            if spec.dtype.startswith("float") and spec.dtype not in self.suite.tolerance:
                raise _FaultyCaseError("cases", case, f"{name}: test.json has no tolerance for {spec.dtype}")
        scale: Arrays = {}
        if self.suite.scale is not None:
            try:
                scales = self.suite.scale(request, arrays)
                scale = {name: np.broadcast_to(scales[name], want[name].shape) for name in want if name in scales}
            except Exception as error:  # a plugin's function may raise anything
                fault = f"scale of cases.py raised {type(error).__name__}: {error}"
                raise _FaultyCaseError("cases", case, fault) from error
        return Call(case, request, arrays, specs, want, scale)

    def tolerance(self, spec: TensorSpec) -> Tolerance:
        """What an output of that dtype is allowed."""
        return self.suite.tolerance[spec.dtype] if spec.dtype.startswith("float") else EXACT

    def compare(self, call: Call, name: str, seen: Seen) -> Mismatch | None:
        """Compares one output with what it should be."""
        tolerance = self.tolerance(call.specs[name])
        return compare(seen.array, call.want[name], tolerance, call.scale.get(name), seen.unwritten)


class _FaultyCaseError(Exception):
    """A case that cannot become a call."""

    def __init__(self, check: str, case: Case, message: str) -> None:
        super().__init__(message)
        self.finding = Finding(check, message, case=case.name)


def _specs(case: Case) -> dict[str, TensorSpec]:
    return {name: TensorSpec.of(array) for name, array in case.inputs.items()}


def _copy(request: Request) -> Request:
    # Hooks get copies, so that one which changes its request is found out.
    return attrs.evolve(request, inputs=dict(request.inputs), attrs=dict(request.attrs))


def _input_name(op: Op, name: str) -> str:
    port = op.manifest.input(name)
    return port.name if port else name
