"""One op: its plugin and extensions together, from arguments to a plan."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from oplet import tables
from oplet.capabilities import Capabilities
from oplet.discovery import Offer
from oplet.errors import InputError, NoVariantError, OpletError, OutOfMemoryError, PluginContractError
from oplet.loading import (
    REFERENCE,
    Source,
    import_plugin,
    load_extension,
    load_op,
    raised,
)
from oplet.manifest import RESERVED_NAMES, Attribute, Manifest, Port
from oplet.request import AttributeValue, Request, SpecError, TensorSpec
from oplet.variant import Launch, Plan, Rejection, Variant

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from oplet.templates import Templates

#: from here on a finite number rounds to an infinite float32
_FLOAT_END = 2.0**128 - 2.0**103


@attrs.define(eq=False, slots=False)
class Op:
    """An op that is loaded.

    Attributes:
        id: the op id.
        manifest: its contract.
        dist, version: the distribution, or the module, that provides it.
        module: the op folder's import name.
        variants: in order of preference, extensions' first.
        problems: extensions that were left out, and why.
    """

    id: str
    manifest: Manifest
    dist: str
    version: str
    module: str
    variants: tuple[Variant, ...]
    problems: tuple[OpletError, ...]
    _hook: Any = attrs.field(repr=False)
    _owners: Mapping[str, Source] = attrs.field(repr=False)
    _folders: Mapping[str, Traversable] = attrs.field(repr=False)
    _source: Source = attrs.field(repr=False)

    # Loading

    @classmethod
    def load(cls, offer: Offer, extensions: Sequence[Offer] = ()) -> Op:
        """Imports an installed plugin and its extensions.

        Raises:
            PluginLoadError: the plugin cannot be imported, or wants another oplet.
            PluginContractError: it does not follow the hook specifications.
            ManifestError: its manifest is not valid.
        """
        return cls._assemble(Source.of(offer), import_plugin(offer), extensions)

    @classmethod
    def of_module(cls, op: str, module: object, extensions: Sequence[Offer] = ()) -> Op:
        """Takes a plugin that is at hand: a module, or any object whose attributes are hook implementations."""
        name = module.__name__ if isinstance(module, ModuleType) else type(module).__name__
        return cls._assemble(Source(op, name, "", name), module, extensions)

    @classmethod
    def _assemble(cls, source: Source, plugin: object, extensions: Sequence[Offer]) -> Op:
        manifest, own = load_op(source, plugin)
        folders = {source.module: own.templates}
        owners = {variant.name: source for variant in own.variants}
        added: list[Variant] = []
        problems: list[OpletError] = []
        for offer in extensions:
            try:
                extension = load_extension(offer, owners)
            except OpletError as error:
                problems.append(error)
                warnings.warn(f"left out: {error}", RuntimeWarning, stacklevel=4)
                continue
            folders[extension.source.module] = extension.templates
            owners.update({variant.name: extension.source for variant in extension.variants})
            added += extension.variants
        return cls(
            id=source.op,
            manifest=manifest,
            dist=source.dist,
            version=source.version,
            module=source.module,
            variants=(*added, *own.variants),
            problems=tuple(problems),
            hook=own.hook,
            owners=owners,
            folders=folders,
            source=source,
        )

    @cached_property
    def templates(self) -> Templates:
        """The WGSL templates of the plugin and its extensions."""
        from oplet.templates import Templates  # jinja2 takes 27 ms to import; only compiling needs it

        return Templates(self._folders)

    def module_of(self, variant: str) -> str:
        """As `module`, of the plugin that a variant came from: the op's own, or an extension."""
        return self._owners[variant].module

    @property
    def extensions(self) -> tuple[str, ...]:
        """Import names of the package folders of its extensions."""
        return tuple(module for module in self._folders if module != self.module)

    # A call, step by step

    def bind(
        self,
        inputs: Mapping[str, TensorSpec],
        attributes: Mapping[str, object] | None = None,
        outputs: Sequence[str] | None = None,
        out: Collection[str] = (),
    ) -> Request:
        """Validates arguments against the manifest.

        Args:
            inputs: by manifest or ONNX name.
            attributes: by ONNX name.
            outputs: names of the outputs to make; None for the required ones.
            out: names of outputs to make besides.

        Raises:
            InputError: naming the argument, as the caller does.
        """
        specs = self._bind_inputs(inputs)
        asked = {*self.bind_outputs(outputs), *(self.bind_outputs(tuple(out)) if out else ())}
        names = self._names(inputs, {*(outputs or ()), *out})
        try:
            self.require_inputs(specs)
            types = self._bind_types(specs)
        except InputError as error:
            error.rename(names)
            raise
        return Request(
            manifest=self.manifest,
            inputs=specs,
            attrs=self.bind_attributes(attributes),
            types=types,
            outputs=tuple(port.name for port in self.manifest.outputs if port.name in asked),
            names=names,
        )

    @cached_property
    def onnx_names(self) -> Mapping[str, str]:
        """ONNX's names of inputs and outputs, by the manifest's, where they differ."""
        # One that an attribute has too is left alone: which of them a message means cannot be told.
        attributes = {attribute.name for attribute in self.manifest.attributes}
        ports = (*self.manifest.inputs, *self.manifest.outputs)
        return {port.name: port.names[-1] for port in ports if len(port.names) > 1 and port.name not in attributes}

    def _names(self, inputs: Collection[str], outputs: Collection[str]) -> Mapping[str, str]:
        """`Request.names` of a call in which these are named.

        What is not named, such as an input that is missing, goes by ONNX's name where the inputs do.
        """
        names = self.onnx_names
        by_onnx = any(word in inputs for word in names.values()) and not any(name in inputs for name in names)
        written = {*inputs, *outputs}
        return {name: word for name, word in names.items() if word in written or (by_onnx and name not in written)}

    def input(self, name: str) -> Port:
        """The input of that name.

        Raises:
            InputError: no input has it.
        """
        port = self.manifest.input(name)
        if port is not None:
            return port
        if any(attribute.name == name for attribute in self.manifest.attributes):
            raise self._refusal(name, "is an attribute, and was given as an input", f"pass attrs={{{name!r}: value}}")
        import difflib

        if near := difflib.get_close_matches(name, sorted(RESERVED_NAMES), 1, cutoff=0.8):
            raise self._refusal(name, "no such input", f"did you mean {near[0]}=?")
        raise self._unknown("input", name, [name for port in self.manifest.inputs for name in port.names])

    def require_inputs(self, given: Collection[str]) -> None:
        """Refuses a call without an input that is not optional.

        Raises:
            InputError: naming the input.
        """
        for port in self.manifest.inputs:
            if not port.optional and port.name not in given:
                raise self._refusal(port.name, "is required and was not given", f"pass {port.name}=, {port.shape}")

    def _bind_inputs(self, inputs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        given: dict[str, TensorSpec] = {}
        for name, spec in inputs.items():
            port = self.input(name)
            if port.name in given:
                raise self._refusal(
                    name, f"{port.names[1]} and {port.name} are two names of one input", "give one of them"
                )
            if port.rank is not None and spec.rank != port.rank:
                raise self._refusal(
                    name,
                    f"has rank {spec.rank}, shape {spec.shape}; {port.shape} is of rank {port.rank}",
                    f"pass {name} of rank {port.rank}; reshape makes a view",
                )
            given[port.name] = spec
        return {port.name: given[port.name] for port in self.manifest.inputs if port.name in given}

    def _bind_types(self, specs: Mapping[str, TensorSpec]) -> dict[str, str]:
        types: dict[str, str] = {}
        first: dict[str, str] = {}
        for port in self.manifest.inputs:
            spec = specs.get(port.name)
            if spec is None:
                continue
            allowed = self.manifest.dtypes(port)
            if spec.dtype not in allowed:
                raise self._refusal(
                    port.name,
                    f"{spec.dtype} is not one of {', '.join(allowed)}",
                    f"convert with {port.name}.astype(np.{allowed[0]})",
                )
            if port.type in self.manifest.types:
                if types.setdefault(port.type, spec.dtype) != spec.dtype:
                    raise self._refusal(
                        port.name,
                        f"is {spec.dtype}, and {first[port.type]} is {types[port.type]}; both are of type {port.type}",
                        f"convert with {port.name}.astype(np.{types[port.type]})",
                    )
                first.setdefault(port.type, port.name)
        return types

    def bind_attributes(self, attributes: Mapping[str, object] | None) -> dict[str, AttributeValue]:
        """Every attribute of the manifest: the values given, and defaults.

        Raises:
            InputError: naming the attribute.
        """
        if attributes is not None and not isinstance(attributes, Mapping):
            raise self._refusal(
                "attrs",
                f"{type(attributes).__name__} is not a mapping of attribute names to values",
                "pass attrs={'name': value}",
            )
        known = {attribute.name: attribute for attribute in self.manifest.attributes}
        for name in attributes or {}:
            if name not in known:
                raise self._unknown("attribute", str(name), list(known))
        return {name: self._attribute(attribute, attributes or {}) for name, attribute in known.items()}

    def _attribute(self, attribute: Attribute, given: Mapping[str, object]) -> AttributeValue:
        value = given.get(attribute.name)
        if value is None:
            if attribute.required:
                raise self._refusal(attribute.name, "is a required attribute and was not given", "pass it in attrs={…}")
            default = attribute.default
            return float(default) if attribute.type == "float" and isinstance(default, int) else default
        if isinstance(value, np.generic) and not isinstance(value, np.bool_):
            value = value.item()
        kinds: dict[str, tuple[type, ...]] = {"float": (int, float), "int": (int,), "string": (str,)}
        if isinstance(value, bool | np.bool_) or not isinstance(value, kinds[attribute.type]):
            raise self._refusal(
                attribute.name,
                f"{value!r} is of type {type(value).__name__}; the attribute is of type {attribute.type}",
                {"float": "pass a float or an int", "int": "pass an int", "string": "pass a string"}[attribute.type],
            )
        if attribute.choices is not None and value not in attribute.choices:
            choices = [str(choice) for choice in attribute.choices]
            raise self._unknown("value", str(value), choices, argument=attribute.name)
        if attribute.type == "int" and not -(1 << 63) <= value < 1 << 63:  # type: ignore[operator]
            raise self._refusal(attribute.name, "it does not fit in the 64 bits of an ONNX int", "pass a smaller one")
        if attribute.type == "float":
            if abs(value) >= _FLOAT_END and value not in (math.inf, -math.inf):  # type: ignore[arg-type]
                raise self._refusal(
                    attribute.name, "it does not fit in the 32 bits of an ONNX float", "pass a smaller one"
                )
            return float(value)  # type: ignore[arg-type]  # the kind was checked above
        return value  # type: ignore[return-value]  # the kind was checked above

    def bind_outputs(self, outputs: Sequence[str] | None) -> tuple[str, ...]:
        """Names of the outputs to make, in the manifest's order.

        Raises:
            InputError: a name that no output has, or one given twice.
        """
        if outputs is None:
            return tuple(port.name for port in self.manifest.outputs if not port.optional)
        if isinstance(outputs, str) or not isinstance(outputs, Sequence):
            raise self._refusal("outputs", f"{outputs!r} is not a tuple of output names", "pass outputs=(…,)")
        names: list[str] = []
        for name in outputs:
            port = self.manifest.output(name) if isinstance(name, str) else None
            if port is None:
                known = [name for port in self.manifest.outputs for name in port.names]
                raise self._unknown("output", str(name), known, argument="outputs")
            if port.name in names:
                raise self._refusal("outputs", f"{name} is named twice", "name each output once")
            names.append(port.name)
        if not names:
            raise self._refusal("outputs", "is empty", "name at least one output, or leave it out")
        return tuple(port.name for port in self.manifest.outputs if port.name in names)

    def infer(self, request: Request) -> dict[str, TensorSpec]:
        """The specs of the requested outputs, from the plugin.

        Raises:
            InputError: from the plugin, for shapes that do not fit.
            PluginContractError: the plugin answers something else than those outputs.
        """
        specs = self._call("infer", request)
        if not isinstance(specs, Mapping) or set(specs) != set(request.outputs):
            raise self.breach(
                f"infer returned {specs!r:.200} for the outputs {request.outputs}; "
                "a mapping from each to its TensorSpec is wanted"
            )
        for name, spec in specs.items():
            port = self.manifest.output(name)
            if not isinstance(spec, TensorSpec):
                raise self.breach(f"infer returned {spec!r} for {name}; a TensorSpec is wanted")
            wanted = request.types.get(port.type, port.type) if port else ""
            if spec.dtype != wanted:
                raise self.breach(f"infer returned {spec} for {name}, which the manifest makes {wanted}")
            if port and port.rank is not None and spec.rank != port.rank:
                raise self.breach(f"infer returned {spec} for {name}, which the manifest makes of rank {port.rank}")
        return {name: specs[name] for name in request.outputs}

    def check(self, request: Request, arrays: Mapping[str, np.ndarray]) -> None:
        """Lets the plugin look at the values of host inputs.

        Raises:
            InputError: from the plugin.
        """
        self._call("check", request, arrays=arrays)

    @property
    def checks_values(self) -> bool:
        """Whether the plugin looks at values at all."""
        return bool(self._hook.check.get_hookimpls())

    def reference(self, request: Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The op in numpy, as the plugin computes it: perhaps in a wider dtype than inferred.

        Raises:
            PluginContractError: the plugin does not return the requested outputs.
        """
        results = self._call("reference", request, arrays=arrays)
        if not isinstance(results, Mapping) or not set(request.outputs) <= set(results):
            told = (
                f"arrays for {', '.join(map(str, results)) or 'none'}"
                if isinstance(results, Mapping)
                else repr(results)
            )
            raise self.breach(
                f"reference returned {told:.60} for the outputs {request.outputs}; "
                "a mapping from each to its array is wanted"
            )
        arrays = {name: results[name] for name in request.outputs}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray | np.generic) or array.dtype.kind not in "biuf":
                raise self.breach(f"reference returned {array!r:.60} for {name}; an array of real numbers is wanted")
        return {name: np.asarray(array) for name, array in arrays.items()}

    def choose(
        self, request: Request, caps: Capabilities, variant: str | None = None
    ) -> tuple[Variant, tuple[Rejection, ...]]:
        """The variant that runs, and one reason for each of the others.

        Args:
            variant: the name of the one to take whether or not it yields.

        Raises:
            InputError: no variant has that name.
            NoVariantError: every variant, or the one named, rejects.
        """
        if variant is not None:
            self.require_variant(variant, REFERENCE)  # a call's other choice, which is not made here
        faults: dict[str, Rejection] = {}
        for candidate in self.variants:
            for kind in ("rejects", "yields"):
                reason = self._predicate(candidate, kind, request, caps)
                if reason is not None:
                    faults[candidate.name] = Rejection(candidate.name, kind, reason)
                    break
        able = [one for one in self.variants if one.name not in faults or faults[one.name].kind == "yields"]
        if variant is not None:
            able = [one for one in able if one.name == variant]
        if not able:
            rejections = [faults[one.name] for one in self.variants if variant in (None, one.name)]
            raise self._no_variant(request, caps, rejections)
        chosen = next((one for one in able if one.name not in faults), able[0])
        later = f"{chosen.name} was asked for" if variant else f"{chosen.name} is preferred"
        rejections = [
            faults.get(one.name) or Rejection(one.name, "later", later)
            for one in self.variants
            if one.name != chosen.name
        ]
        return chosen, tuple(rejections)

    def plan(self, request: Request, caps: Capabilities, variant: str | None = None) -> Plan:
        """How the request is computed on a device with these capabilities.

        Raises:
            InputError, NoVariantError: as `infer` and `choose`.
            PluginContractError: the variant's plan fails or binds what is not there.
        """
        outputs = self.infer(request)
        for name, spec in {**request.inputs, **outputs}.items():
            if spec.size >= 1 << 32:
                word = request.names.get(name, name)
                raise self._refusal(word, f"{spec.size} elements; shaders count to 2³² − 1", "split the work")
        chosen, rejections = self.choose(request, caps, variant)
        try:
            launches: object = chosen.plan(request, caps)
            if isinstance(launches, Iterable):
                launches = tuple(launches)
        except Exception as error:
            raise self._broken("plan", error, chosen.name) from error
        if not isinstance(launches, tuple):
            raise self.breach(f"plan returned {launches!r:.60}; a list of Launch is wanted", chosen.name)
        plan = Plan(
            op=self.id,
            variant=chosen.name,
            module=self.module_of(chosen.name),
            inputs=dict(request.inputs),
            outputs=outputs,
            launches=launches,
            rejections=rejections,
            source=str(self._owners[chosen.name]),
        )
        self._check_launches(plan)
        return plan

    def _check_launches(self, plan: Plan) -> None:
        breach = partial(self.breach, variant=plan.variant)

        scratch: dict[str, TensorSpec] = {}
        written: set[str] = set()
        for launch in plan.launches:
            if not isinstance(launch, Launch):
                raise breach(f"plan returned {launch!r}, which is not a Launch")
            for name, spec in launch.scratch.items():
                if name in plan.inputs or name in plan.outputs or scratch.setdefault(name, spec) != spec:
                    raise breach(f"scratch {name} is also another tensor")
            tensors = [binding.tensor for binding in launch.bindings]
            for binding in launch.bindings:
                if not any(binding.tensor in known for known in (plan.inputs, plan.outputs, scratch)):
                    known = ", ".join([*plan.inputs, *plan.outputs, *scratch])
                    raise breach(
                        f"{launch.template} binds {binding.tensor!r}, which the call does not have\n  it has {known}"
                    )
                if binding.tensor in plan.inputs and binding.access != "read":
                    raise breach(f"{launch.template} binds the input {binding.tensor} for writing")
                if binding.access == "read_write":
                    written.add(binding.tensor)
                    # WebGPU binds a buffer that is only read any number of times, one that is written once.
                    if tensors.count(binding.tensor) > 1:
                        raise breach(f"{launch.template} binds {binding.tensor} twice")
        for name, spec in plan.outputs.items():
            # Left alone it would show what its memory held before.
            if spec.size and name not in written:
                raise breach(f'no launch writes the output {name}\n  none binds it with the access "read_write"')

    # Faults

    def _predicate(self, variant: Variant, kind: str, request: Request, caps: Capabilities) -> str | None:
        try:
            reason = getattr(variant, kind)(request, caps)
        except Exception as error:
            raise self._broken(kind, error, variant.name) from error
        if reason is not None and not isinstance(reason, str):
            raise self.breach(f"{kind} returned {reason!r}; a reason or None is wanted", variant.name)
        return reason

    def _call(self, hook: str, request: Request, **arguments: object) -> Any:
        try:
            return getattr(self._hook, hook)(request=request, **arguments)
        except SpecError as error:  # the caller's shapes are in the request already
            raise self._broken(hook, error) from error
        except InputError as error:
            error.op = error.op or self.id
            error.rename(request.names)
            raise
        except OpletError:
            raise
        except MemoryError as error:  # for arrays that are larger than they look, no fault of the plugin
            raise OutOfMemoryError(
                f"{self.id}: {hook}: the host has no memory for it: {error}\nsplit the work into smaller tensors"
            ) from error
        except Exception as error:
            raise self._broken(hook, error) from error

    def require_variant(self, name: str, *others: str) -> None:
        """Refuses a name that no variant has.

        Args:
            name: the name.
            others: what the caller could have asked for besides.

        Raises:
            InputError: naming the near one.
        """
        names = [variant.name for variant in self.variants]
        if name not in names:
            raise self._unknown("variant", str(name), [*names, *others], argument="variant")

    def breach(self, fault: str, variant: str = "") -> PluginContractError:
        """The error for a plugin that breaks its contract: the op's own, or the one that a variant came from."""
        source = self._owners[variant] if variant else self._source
        where = f"{source}: {variant}" if variant else f"{source}"
        return PluginContractError(
            f"{self.id}: {where}: {fault}\nthe plugin is at fault; report it to its author",
            **source.fields,
        )

    def _broken(self, function: str, error: Exception, variant: str = "") -> PluginContractError:
        module = (self._owners[variant] if variant else self._source).module
        return self.breach(f"{function} raised {raised(error, module)}", variant)

    def _refusal(self, argument: str, fault: str, advice: str) -> InputError:
        return InputError(f"{self.id}: {argument}: {fault}\n{advice}", op=self.id, argument=argument)

    def _unknown(self, kind: str, name: str, known: Sequence[str], *, argument: str = "") -> InputError:
        folded = {one.casefold(): one for one in known}
        import difflib

        near = [folded[one] for one in difflib.get_close_matches(name.casefold(), folded, 1, cutoff=0.5)]
        fault = f"{name!r} is not a known {kind}" if argument else f"no such {kind}"
        listed = ", ".join(one or '""' for one in known)
        evidence = f"{kind}s: {listed}" if known else f"the op has no {kind}s"
        advice = f"did you mean {near[0]!r}?" if near else f"take one of these {kind}s" if known else "leave it out"
        return self._refusal(argument or name, f"{fault}\n{evidence}", advice)

    def _no_variant(self, request: Request, caps: Capabilities, rejections: Sequence[Rejection]) -> NoVariantError:
        features = ", ".join(sorted(caps.features))
        lines = [
            f'{self.id}: no variant can serve this call on "{caps.adapter.name}" (opened with features=[{features}])'
            if len(rejections) == len(self.variants)
            else f'{self.id}: {rejections[0].variant} cannot serve this call on "{caps.adapter.name}" '
            f"(opened with features=[{features}])",
            *(f"  {name} {spec}" for name, spec in request.inputs.items()),
        ]
        if rejections:
            lines.append(tables.text([(f"  {rejection.variant}", rejection.reason) for rejection in rejections]))
        advice = 'change what the reasons name, open another device, or pass variant="reference" for numpy'
        if len(rejections) < len(self.variants):
            advice = "leave variant out, or take another"
        return NoVariantError("\n".join([*lines, advice]), rejections=rejections)
