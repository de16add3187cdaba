"""The registry: ops by id, and a device to run them on."""

from __future__ import annotations

import threading
from collections import OrderedDict, namedtuple
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeGuard

import attrs
import numpy as np

from oplet import discovery, tables
from oplet.buffers import TENSOR_USAGE, Buffer, Tensor, padded, spec_of
from oplet.device import Device, Program
from oplet.discovery import EXTENSIONS, OPS, Offer
from oplet.errors import InputError, PluginConflictError, UnknownOpError
from oplet.loading import REFERENCE
from oplet.manifest import Manifest
from oplet.op import Op
from oplet.opening import check_max_bytes, open_device, wrap_device
from oplet.request import DTYPES, Request, TensorSpec
from oplet.variant import Rejection
from oplet.webgpu import device_of

if TYPE_CHECKING:
    from oplet.profile import Profile

#: calls that a registry remembers; past it the longest unused is forgotten
MAX_CALLS = 1024

#: what `run` takes for an input
InputValue = Tensor | np.ndarray | np.generic


@attrs.frozen
class Explanation:
    """What a call would do, as `Registry.explain` tells it.

    Attributes:
        op: the op id.
        inputs, outputs: spec of each.
        variant: name of the one that would run.
        rejections: one for each of the others, in order of preference.
        device: the adapter's name; "host" for the reference.
    """

    op: str
    inputs: Mapping[str, TensorSpec] = attrs.field(hash=False)
    outputs: Mapping[str, TensorSpec] = attrs.field(hash=False)
    variant: str
    rejections: tuple[Rejection, ...]
    device: str

    @property
    def _verdict(self) -> str:
        return (
            "runs in numpy on the host: it was asked for, and never runs otherwise"
            if self.variant == REFERENCE
            else "runs"
        )

    def __str__(self) -> str:
        variants = [(f"  {self.variant}", self._verdict)]
        variants += [(f"  {one.variant}", f"{one.kind}: {one.reason}") for one in self.rejections]
        return "\n".join(
            [
                f'{self.op} on "{self.device}"',
                *(f"  {name} {spec}" for name, spec in self.inputs.items()),
                *(f"  → {name} {spec}" for name, spec in self.outputs.items()),
                tables.text(variants),
            ]
        )

    def _repr_html_(self) -> str:
        ports = [*((name, str(spec)) for name, spec in self.inputs.items())]
        ports += [(f"→ {name}", str(spec)) for name, spec in self.outputs.items()]
        variants = [
            (self.variant, self._verdict, ""),
            *((one.variant, one.kind, one.reason) for one in self.rejections),
        ]
        return tables.html(f'{self.op} on "{self.device}"', ports) + tables.html("variants", variants)


@attrs.frozen(eq=False)
class _Call:
    """All that a repeated call needs, so that it neither validates nor plans again."""

    op: Op
    request: Request
    program: Program
    inputs: tuple[tuple[str, str], ...]  # name of each, and the caller's keyword for it
    outputs: tuple[tuple[str, TensorSpec, int], ...]  # name, spec and bytes of each
    result: Any  # the namedtuple of several outputs, or None for one


class Registry:
    """Finds ops and runs them on one device.

    A registry is cheap to make; its device opens at the first call that needs one. Listing ops,
    `register` and `variant="reference"` need none.

    Threads may share a registry, its device and its tensors: calls take turns on the device, and a `numpy()` has
    its turn until the device is done. Only a batch is one thread's own: until it ends, another thread that reads or
    runs on its tensors gets a DeviceError. Coroutines use `run_async` and `Tensor.numpy_async`.
    """

    def __init__(
        self,
        *,
        device: Any = None,
        discover: bool = True,
        prefer: Mapping[str, str] | None = None,
        block: Iterable[str] | None = None,
        max_bytes: int | None = None,
    ) -> None:
        """Makes a registry.

        Args:
            device: from `open_device`, or a wgpu or wgpudawn GPUDevice of your own, which is never destroyed
                for you; None opens the default one when it is needed.
            discover: whether installed plugins are found; False leaves only what `register` adds.
            prefer: the distribution to take for an op that several offer; over `OPLET_PREFER`.
            block: op ids and distributions to ignore; with `OPLET_BLOCK`.
            max_bytes: most device memory that tensors and idle buffers may hold together, in bytes; for the
                device that the registry opens, since one that is given may have other users.

        Raises:
            InputError: an argument is not one of those.
        """
        check_max_bytes(max_bytes)
        self._max_bytes = max_bytes
        self._device: Device | None = None
        if device is not None:
            self._device = device if isinstance(device, Device) else wrap_device(device)
            if max_bytes is not None:
                raise InputError(
                    "max_bytes: the device is given, and others may use it too\n"
                    "pass max_bytes to open_device, or leave out device",
                    argument="max_bytes",
                )
        self._prefer = discovery.preferences(prefer)
        self._blocked = discovery.blocked(block)
        self._discover = discover
        self._registered: dict[str, object] = {}
        self._ops: dict[str, Op] = {}
        self._calls: OrderedDict[object, _Call] = OrderedDict()
        self._lock = threading.RLock()
        self._offers: tuple[Offer, ...] | None = None

    def __repr__(self) -> str:
        return f"Registry({self._device or 'no device yet'}, {len(self.offers)} offers)"

    # Ops

    @property
    def offers(self) -> tuple[Offer, ...]:
        """What installed distributions offer, blocked ones left out. Imports no plugin and touches no GPU."""
        if self._offers is None:
            found = discovery.installed() if self._discover else []
            self._offers = tuple(
                offer
                for offer in found
                if offer.op not in self._blocked and discovery.canonical(offer.dist) not in self._blocked
            )
        return self._offers

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the ops that are installed or registered, in alphabetical order."""
        return tuple(sorted({offer.op for offer in self.offers if offer.group == OPS} | set(self._registered)))

    def register(self, op: str, plugin: object) -> None:
        """Adds an op by hand, before any that discovery finds.

        Args:
            op: the op id, its manifest's.
            plugin: a module, or any object, whose attributes are hook implementations.

        Raises:
            PluginContractError, ManifestError: the plugin does not keep the contract.
        """
        loaded = Op.of_module(op, plugin, self._extensions(op))
        with self._lock:
            self._registered[op] = plugin
            self._ops[op] = loaded
            self._calls.clear()

    def __getitem__(self, op: str) -> Op:
        """Loads an op, importing its plugin the first time.

        Raises:
            UnknownOpError: nothing offers it.
            PluginError: its plugin is at fault, or several offer it.
        """
        if not isinstance(op, str):
            raise self._unknown(op)
        loaded = self._ops.get(op)
        if loaded is None:
            with self._lock:
                loaded = self._ops.get(op)
                if loaded is None:
                    loaded = self._ops[op] = Op.load(self._offer(op), self._extensions(op))
        return loaded

    def __contains__(self, op: object) -> bool:
        return op in self.ids

    def offers_of(self, op: str) -> tuple[Offer, ...]:
        """The offers of an op and of extensions to it. Imports nothing.

        Raises:
            UnknownOpError: no distribution offers the op.
        """
        offers = tuple(offer for offer in self.offers if offer.op == op)
        if not any(offer.group == OPS for offer in offers):
            raise self._unknown(op)
        return offers

    def _extensions(self, op: str) -> list[Offer]:
        return [offer for offer in self.offers if offer.op == op and offer.group == EXTENSIONS]

    def _offer(self, op: str) -> Offer:
        offers = [offer for offer in self.offers if offer.op == op and offer.group == OPS]
        if not offers:
            raise self._unknown(op)
        parties = " and ".join(f"{offer.dist} {offer.version} ({offer.entry})" for offer in offers)
        if op in self._prefer:
            wanted = discovery.canonical(self._prefer[op])
            offers = [offer for offer in offers if discovery.canonical(offer.dist) == wanted]
            if not offers:
                raise PluginConflictError(
                    f"{op}: prefer names {self._prefer[op]}, which does not offer it\noffered by {parties}\n"
                    "name one of these, or take the op out of prefer and OPLET_PREFER",
                    op=op,
                    dist=self._prefer[op],
                )
        if len(offers) > 1:
            advice = (
                f"uninstall all but one, or choose: Registry(prefer={{{op!r}: {offers[0].dist!r}}}) "
                f"or OPLET_PREFER={op}={offers[0].dist}"
            )
            if len({offer.dist for offer in offers}) == 1:
                advice = f"{offers[0].dist} offers one op twice; report it to its author"
            raise PluginConflictError(
                f"{op} is offered by {parties}\n{advice}",
                op=op,
                dist=", ".join(offer.dist for offer in offers),
            )
        return offers[0]

    def _unknown(self, op: object) -> UnknownOpError:
        if not isinstance(op, str):
            return UnknownOpError(f"op: {op!r} is not an op id\nan op id is a string such as 'com.microsoft.FusedGemm'")
        if op in self._blocked:
            return UnknownOpError(f"{op!r} is blocked\nleave it out of block= and OPLET_BLOCK")
        lines = [f"no plugin offers {op!r}"]
        ids = self.ids
        import difflib

        # By the last word: ids of one domain are alike, whatever they name.
        words = {known: known.rpartition(".")[2].casefold() for known in ids}
        similar = difflib.get_close_matches(op.rpartition(".")[2].casefold(), set(words.values()), 2)
        near = [known for known, word in words.items() if word in similar]
        lines.append(f"installed: {', '.join(ids) or 'none'}")
        if near:
            lines.append(f"did you mean {' or '.join(map(repr, near))}?")
        else:
            lines.append(discovery.advice_to_install(op))
        return UnknownOpError("\n".join(lines))

    # The device and its tensors

    @property
    def device(self) -> Device:
        """The device, opened now if it was not yet.

        Raises:
            DeviceError: there is no usable adapter.
        """
        if self._device is None:
            with self._lock:
                if self._device is None:
                    self._device = open_device(max_bytes=self._max_bytes)
        return self._device

    @property
    def lost(self) -> bool:
        """Whether its device is known to be lost: only a new registry helps."""
        return self._device is not None and self._device.lost

    def tensor(self, array: Any) -> Tensor:
        """Uploads an array.

        Args:
            array: float32, float16, int32 or uint32, of any shape, layout and byte order: numpy's, or any object
                with `__array_interface__`, or with `__dlpack__` in host memory, such as a torch CPU tensor.

        Raises:
            InputError: it is not such an array; nothing is cast.
            DeviceError: memory was refused.
        """
        host = _host_array(array)
        spec = TensorSpec.of(host)
        if spec.dtype not in DTYPES:
            raise InputError(
                f"array: {spec.dtype} is not one of {', '.join(DTYPES)}\nconvert with array.astype({_nearest(host)})",
                argument="array",
            )
        return Tensor(spec, self.device, self.device.upload(host))

    def empty(self, shape: tuple[int, ...] | int, dtype: Any = "float32") -> Tensor:
        """A tensor with undefined contents, to be filled through `out=`.

        Raises:
            InputError: no such shape or dtype.
            DeviceError: memory was refused.
        """
        spec = spec_of(shape, dtype)
        return Tensor(spec, self.device, self.device.take(spec.nbytes) if spec.size else None)

    def from_buffer(self, buffer: Any, shape: tuple[int, ...] | int, dtype: Any = "float32") -> Tensor:
        """A tensor on a GPUBuffer of yours, which stays yours: it is neither pooled nor destroyed.

        Args:
            buffer: of this registry's device, with the usages STORAGE, COPY_SRC and COPY_DST.
            shape: the data's, from the start of the buffer.
            dtype: the data's.

        Raises:
            InputError: the buffer is of another device, too small or lacks a usage.
            DeviceError: this version of the implementation does not tell which device a buffer is of.
        """
        spec = spec_of(shape, dtype)
        if device_of(buffer) is not self.device.gpu:
            raise InputError(
                "buffer: it is not a GPUBuffer of this registry's device\n"
                "make it with registry.device.gpu.create_buffer(…)",
                argument="buffer",
            )
        if buffer.usage & TENSOR_USAGE != TENSOR_USAGE:
            raise InputError(
                f"buffer: its usage {buffer.usage:#x} lacks one of STORAGE, COPY_SRC and COPY_DST\n"
                f"make it with usage={TENSOR_USAGE:#x}",
                argument="buffer",
            )
        if buffer.size < padded(spec.nbytes):
            raise InputError(
                f"buffer: it has {buffer.size} bytes, and {spec} needs {padded(spec.nbytes)}\nmake a larger one",
                argument="buffer",
            )
        return Tensor(spec, self.device, Buffer.wrap(buffer) if spec.size else None)

    # Running

    def run(
        self,
        op: str,
        /,
        *,
        attrs: Mapping[str, object] | None = None,
        out: Mapping[str, Tensor] | None = None,
        outputs: Sequence[str] | None = None,
        variant: str | None = None,
        **inputs: InputValue | None,
    ) -> Any:
        """Runs an op. Returns before the device is done; `Tensor.numpy` waits.

        Args:
            op: the op id.
            attrs: attributes by ONNX name; absent ones take their defaults.
            out: tensors to write to, by output name; each of these outputs counts as asked for.
            outputs: names of the outputs to make; default the required ones.
            variant: the variant to run, whether or not it yields; "reference" runs numpy on the host.
            inputs: numpy arrays, numpy scalars or tensors, by manifest or ONNX name; None is absent.

        Returns:
            The output's tensor; where several were asked for, a namedtuple of them, by manifest or ONNX name.

        Raises:
            UnknownOpError, PluginError: there is no such op, or its plugin is at fault.
            InputError: an argument that the op does not accept; nothing has run.
            NoVariantError: no variant can serve the call on this device.
            ShaderError: a template is at fault.
            DeviceError: no adapter, memory refused, a limit exceeded, or a lost device.
        """
        if variant == REFERENCE:
            return self._run_reference(op, attrs, out, outputs, inputs)
        return self._run(self._call(op, attrs, out, outputs, variant, inputs), out, inputs)

    async def run_async(
        self,
        op: str,
        /,
        *,
        attrs: Mapping[str, object] | None = None,
        out: Mapping[str, Tensor] | None = None,
        outputs: Sequence[str] | None = None,
        variant: str | None = None,
        **inputs: InputValue | None,
    ) -> Any:
        """As `run`, for a coroutine: asyncio's event loop goes on meanwhile.

        Like `run` it returns before the device is done; `Tensor.numpy_async` waits.
        """
        import asyncio

        # In a thread from begin to end: not only a compile takes long. An upload may wait for the device's earlier
        # work, and any step for another thread's lock. The thread gets this context, so an open batch is found.
        return await asyncio.to_thread(self.run, op, attrs=attrs, out=out, outputs=outputs, variant=variant, **inputs)

    def prewarm(
        self,
        op: str,
        /,
        *,
        attrs: Mapping[str, object] | None = None,
        outputs: Sequence[str] | None = None,
        variant: str | None = None,
        **inputs: InputValue | TensorSpec | None,
    ) -> None:
        """Makes ready for calls like this one: loads the plugin, plans, compiles. Runs nothing.

        A kernel serves many shapes, so calls of other shapes may be ready then as well.

        Args:
            inputs: as for `run`, or a TensorSpec in place of any.

        Raises:
            As `run`.
        """
        loaded = self[op]
        specs = _specs(loaded, inputs, data=False)
        if variant == REFERENCE:
            loaded.infer(loaded.bind(specs, attrs, outputs))
            return
        # Tensors without data stand in, so that a call with tensors finds itself planned.
        stand_ins = {name: Tensor(spec, None, None) for name, spec in specs.items()}
        self._call(op, attrs, None, outputs, variant, stand_ins)

    def _call(
        self,
        op: str,
        attributes: Mapping[str, object] | None,
        out: Mapping[str, Tensor] | None,
        outputs: Sequence[str] | None,
        variant: str | None,
        inputs: Mapping[str, InputValue | None],
    ) -> _Call:
        """The call, remembered or prepared."""
        key = _key(op, attributes, out, outputs, variant, inputs)
        call = None if key is None else self._calls.get(key)
        if call is None:
            call = self._prepare(op, attributes, out, outputs, variant, inputs)
            if key is not None:
                with self._lock:
                    if self._ops.get(op) is call.op:  # `register` may have replaced it meanwhile
                        self._calls[key] = call
                        if len(self._calls) > MAX_CALLS:
                            self._calls.popitem(last=False)
        elif len(self._calls) > MAX_CALLS // 2:
            # With fewer calls none is near its end, and this costs more than finding it did.
            with self._lock:
                if key in self._calls:  # another thread may have pushed it out
                    self._calls.move_to_end(key)
        return call

    def explain(
        self,
        op: str,
        /,
        *,
        attrs: Mapping[str, object] | None = None,
        outputs: Sequence[str] | None = None,
        variant: str | None = None,
        **inputs: InputValue | TensorSpec | None,
    ) -> Explanation:
        """Tells which variant `run` would take, and why each of the others does not run. Runs nothing.

        Args:
            attrs, outputs, variant: as for `run`.
            inputs: as for `run`, or a TensorSpec in place of any.

        Raises:
            As `run`.
        """
        loaded = self[op]
        request = loaded.bind(_specs(loaded, inputs, data=False), attrs, outputs)
        if variant == REFERENCE:
            asked = f"{REFERENCE} was asked for"
            return Explanation(
                op=op,
                inputs=request.inputs,
                outputs=loaded.infer(request),
                variant=REFERENCE,
                rejections=tuple(Rejection(one.name, "later", asked) for one in loaded.variants),
                device="host",
            )
        plan = loaded.plan(request, self.device.capabilities, variant)
        self.device.check(plan)
        return Explanation(
            op=op,
            inputs=request.inputs,
            outputs=plan.outputs,
            variant=plan.variant,
            rejections=plan.rejections,
            device=self.device.capabilities.adapter.name,
        )

    def batch(self) -> AbstractContextManager[None]:
        """Records the runs inside it for one submit, at its end.

        Reading a tensor made in it submits what is recorded so far. An exception discards the rest, and
        the tensors that it would have filled raise DeviceError when read. Nested batches join the outer
        one. It belongs to the thread, or task, that opened it.
        """
        return self.device.batch()

    def profile(self) -> AbstractContextManager[Profile]:
        """Measures the device time of every dispatch inside it; the profile that it gives is complete at its end.

            with registry.profile() as profile:
                registry.run(…)
            print(profile)
            profile.save("trace.json")

        Each dispatch gets a compute pass of its own, which costs some time between them, and the end waits
        for the device. Of nested profiles the outer has the inner's dispatches too. It belongs to the thread, or
        task, that opened it.

        Raises:
            DeviceError: the device has no timestamps (`timestamp-query`).
        """
        return self.device.profile()

    def _prepare(
        self,
        op: str,
        attributes: Mapping[str, object] | None,
        out: Mapping[str, Tensor] | None,
        outputs: Sequence[str] | None,
        variant: str | None,
        inputs: Mapping[str, InputValue | None],
    ) -> _Call:
        loaded = self[op]
        request = loaded.bind(_specs(loaded, inputs), attributes, outputs, _out_names(loaded, out))
        plan = loaded.plan(request, self.device.capabilities, variant)
        program = self.device.prepare(plan, loaded.templates)
        return _Call(
            op=loaded,
            request=request,
            program=program,
            inputs=tuple((name, _keyword(loaded, name, inputs)) for name in request.inputs),
            outputs=tuple((name, spec, spec.nbytes) for name, spec in plan.outputs.items()),
            result=_result_type(loaded.manifest, request.outputs) if len(request.outputs) > 1 else None,
        )

    def _run(self, call: _Call, out: Mapping[str, Tensor] | None, inputs: Mapping[str, InputValue | None]) -> Any:
        device = self.device
        buffers: list[Buffer | None] = []
        hosts: dict[str, Any] = {}
        for name, word in call.inputs:
            value = inputs[word]
            if isinstance(value, Tensor) and value.host is None:
                if value.device is not device:
                    raise _foreign(call.op.id, word)
                buffers.append(value.buffer)
            else:
                hosts[name] = value.host if isinstance(value, Tensor) else np.asarray(value)
                buffers.append(None)
        if hosts:
            call.op.check(call.request, hosts)
        given = _bind_out(call, device, out) if out else None
        if hosts:
            for number, (name, _) in enumerate(call.inputs):
                if name in hosts:
                    buffers[number] = device.upload(hosts[name])
        if given:
            _refuse_aliases(call, given, buffers)
        results = []
        for name, spec, nbytes in call.outputs:
            tensor = given.get(name) if given else None
            if tensor is None:
                tensor = Tensor(spec, device, device.take(nbytes) if nbytes else None)
            results.append(tensor)
            buffers.append(tensor.buffer)
        device.run(call.program, buffers)
        return results[0] if call.result is None else call.result(*results)

    def _run_reference(
        self,
        op: str,
        attributes: Mapping[str, object] | None,
        out: Mapping[str, Tensor] | None,
        outputs: Sequence[str] | None,
        inputs: Mapping[str, InputValue | None],
    ) -> Any:
        loaded = self[op]
        if out is not None:
            raise InputError(
                f'{op}: out: variant="reference" makes host tensors and fills none\ndo not pass out=',
                op=op,
                argument="out",
            )
        request = loaded.bind(_specs(loaded, inputs), attributes, outputs)
        specs = loaded.infer(request)
        arrays = {}
        for name in request.inputs:
            value = inputs[_keyword(loaded, name, inputs)]
            if isinstance(value, Tensor):
                array = value.numpy() if value.host is None else value.host
            else:
                array = np.asarray(value)
            arrays[name] = array.view()
            arrays[name].flags.writeable = False  # it may be the caller's own memory
        loaded.check(request, arrays)
        results = loaded.reference(request, arrays)
        tensors = []
        for name, spec in specs.items():
            with np.errstate(over="ignore"):  # a float16 result may overflow to infinity, as on a device
                array = np.ascontiguousarray(results[name].astype(spec.dtype)).reshape(results[name].shape)
            if array.shape != spec.shape:
                raise loaded.breach(f"reference returned {name} of shape {array.shape}, inferred {spec.shape}")
            tensors.append(Tensor(spec, None, None, array))
        return tensors[0] if len(tensors) == 1 else _result_type(loaded.manifest, tuple(specs))(*tensors)


# A call's pieces -------------------------------------------------------------------------------------


def _key(
    op: str,
    attributes: Mapping[str, object] | None,
    out: Mapping[str, Tensor] | None,
    outputs: Sequence[str] | None,
    variant: str | None,
    inputs: Mapping[str, object],
) -> tuple[object, ...] | None:
    """What decides a call but the data; None where something in it can be no part of a key."""
    if not (
        (attributes is None or isinstance(attributes, Mapping))
        and (out is None or isinstance(out, Mapping))
        and (outputs is None or isinstance(outputs, tuple | list))
    ):
        return None
    key: list[object] = [op, variant, None if outputs is None else tuple(outputs), tuple(out) if out else None]
    for name, value in inputs.items():
        if isinstance(value, Tensor):
            key += (name, value.spec)
        elif isinstance(value, np.ndarray):
            # The class too: a masked array is no plain one.
            key += (name, type(value), value.shape, value.dtype)
        elif isinstance(value, np.generic):
            key += (name, (), value.dtype)
        elif value is None:
            key += (name, None)
        else:
            return None
    if attributes:
        for name, value in attributes.items():
            # Bits tell 0.0 from -0.0 and know a NaN again; the type tells 1 from True.
            key += (name, type(value), float(value).hex() if isinstance(value, (float, np.floating)) else value)
    try:
        hash(result := tuple(key))
    except TypeError:
        return None
    return result


def _specs(op: Op, inputs: Mapping[str, object], *, data: bool = True) -> dict[str, TensorSpec]:
    """The spec of each input; without `data` a TensorSpec will do in its place."""
    specs = {}
    for name, value in inputs.items():
        port = op.input(name)  # before its value: an attribute's is no array, and None would hide a wrong name
        if value is None:
            continue
        if isinstance(value, TensorSpec) and not data:
            specs[name] = value
        elif isinstance(value, Tensor):
            specs[name] = value.spec
        elif _is_array(value):
            specs[name] = TensorSpec.of(value)
        else:
            kinds = "neither a numpy array nor a tensor" if data else "none of a numpy array, a tensor and a TensorSpec"
            advice = "pass one such as oplet.TensorSpec((64, 32), 'float32')"
            if data:
                advice = _conversion(name, value, f"np.{op.manifest.dtypes(port)[0]}")
            raise InputError(f"{op.id}: {name}: {type(value).__name__} is {kinds}\n{advice}", op=op.id, argument=name)
    return specs


def _is_array(value: object) -> TypeGuard[np.ndarray | np.generic]:
    # By its method: numpy.ma takes a while to import. np.asarray would drop the mask without a word.
    return isinstance(value, np.ndarray | np.generic) and not hasattr(value, "filled")


def _host_array(value: Any) -> np.ndarray:
    """Any array in host memory as numpy's, without a cast."""
    if _is_array(value):
        return np.asarray(value)
    fault = f"{type(value).__name__} is not an array"
    if not hasattr(value, "filled"):
        try:
            if hasattr(value, "__array_interface__"):
                return np.asarray(value)
            if hasattr(value, "__dlpack__"):
                return np.from_dlpack(value)
        except Exception as error:  # torch raises a RuntimeError for a tensor that needs gradients, others others
            fault = f"{type(value).__name__} does not give its data to numpy: {error}"
    raise InputError(f"array: {fault}\n{_conversion('array', value, _nearest(value))}", argument="array")


def _conversion(name: str, value: object, dtype: str) -> str:
    call = f"{name}.filled(…)" if hasattr(value, "filled") else f"np.asarray({name}, {dtype})"
    return f"convert with {call}"


def _nearest(value: object) -> str:
    """The dtype to convert numbers to that devices do not have."""
    try:
        kind = np.asarray(value).dtype.kind
    except Exception:  # whatever it is, it becomes no array
        kind = "f"
    return "np.int32" if kind in "biu" else "np.float32"


def _keyword(op: Op, name: str, inputs: Mapping[str, object]) -> str:
    """The caller's keyword for an input: its manifest name or its ONNX name."""
    port = op.manifest.input(name)
    return next(word for word in (port.names if port else ()) if inputs.get(word) is not None)


def _out_names(op: Op, out: Mapping[str, Tensor] | None) -> Collection[str]:
    """The outputs that `out` has tensors for."""
    if out is not None and not isinstance(out, Mapping):
        raise InputError(
            f"{op.id}: out: {type(out).__name__} is not a mapping\n"
            f"pass out={{'{op.manifest.outputs[0].name}': tensor}}",
            op=op.id,
            argument="out",
        )
    return out or ()


def _bind_out(call: _Call, device: Device, out: Mapping[str, Tensor]) -> dict[str, Tensor]:
    specs = {name: spec for name, spec, _ in call.outputs}
    given = {}
    for word, tensor in out.items():
        port = call.op.manifest.output(word)
        name = port.name if port else word
        if not isinstance(tensor, Tensor) or tensor.on_host:
            fault, advice = (
                f"{type(tensor).__name__} is not a device tensor",
                "make one with registry.empty(shape, dtype)",
            )
        elif tensor.device is not device:
            raise _foreign(call.op.id, word)
        elif tensor.spec != specs[name]:
            fault, advice = (
                f"it is {tensor.spec}, and the call makes {specs[name]}",
                "pass a tensor of that shape and dtype",
            )
        else:
            given[name] = tensor
            continue
        raise InputError(f"{call.op.id}: out: {word}: {fault}\n{advice}", op=call.op.id, argument=word)
    return given


def _refuse_aliases(call: _Call, given: Mapping[str, Tensor], inputs: Sequence[Buffer | None]) -> None:
    """One buffer both read and written in a dispatch: WebGPU refuses it, naming nothing but a label."""
    owners = {buffer.gpu: word for (_, word), buffer in zip(call.inputs, inputs, strict=False) if buffer is not None}
    for name, tensor in given.items():
        if tensor.buffer is None:
            continue
        word = call.request.names.get(name, name)
        other = owners.setdefault(tensor.buffer.gpu, word)
        if other != word:
            raise InputError(
                f"{call.op.id}: {word}: it is on the same buffer as {other}\n"
                f"pass a tensor of its own for {word}, made with registry.empty",
                op=call.op.id,
                argument=word,
            )


def _foreign(op: str, name: str) -> InputError:
    return InputError(
        f"{op}: {name}: the tensor is on another device\nupload it here: registry.tensor({name}.numpy())",
        op=op,
        argument=name,
    )


@lru_cache(maxsize=256)
def _result_type(manifest: Manifest, names: tuple[str, ...]) -> Any:
    """A namedtuple by the manifest's names, which ONNX's names read too."""
    name = manifest.id.rpartition(".")[2] + "Outputs"
    ports = [port for port in manifest.outputs if port.name in names]
    onnx_names = {
        alias: property(attrgetter(port.name)) for port in ports for alias in port.names if alias != port.name
    }
    return type(name, (namedtuple(name, names),), {"__slots__": (), **onnx_names})  # the names are data


# The default registry --------------------------------------------------------------------------------

_default_lock = threading.Lock()
_default: list[Registry] = []


def default_registry() -> Registry:
    """The registry behind `oplet.run`, made on first use, and anew once its device is lost."""
    with _default_lock:
        if _default and _default[0].lost:
            _default.clear()
        if not _default:
            _default.append(Registry())
        return _default[0]
