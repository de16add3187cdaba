"""One op: its plugin and extensions behind one pluggy manager, from arguments to a plan."""

from __future__ import annotations

import difflib
import importlib
import inspect
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.resources.abc import Traversable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pluggy

from oplet import hookspecs
from oplet.capabilities import Capabilities
from oplet.discovery import Offer, unmet_requirement
from oplet.errors import (
    InputError,
    ManifestError,
    NoVariantError,
    OpletError,
    PluginContractError,
    PluginLoadError,
)
from oplet.manifest import Attribute, Manifest
from oplet.request import AttributeValue, Request, TensorSpec
from oplet.variant import Launch, Plan, Rejection, Variant

if TYPE_CHECKING:
    from oplet.templates import Templates

#: hooks that an op's plugin has to implement; `check` is optional
REQUIRED_HOOKS = ("manifest", "infer", "reference", "variants", "templates")

#: hooks that an extension may implement
EXTENSION_HOOKS = frozenset({"variants", "templates"})

#: the name of the numpy implementation, which `variant=` takes
REFERENCE = "reference"


@attrs.frozen
class _Source:
    """Where a plugin came from: what errors name, and the package folder that its templates are in."""

    op: str
    dist: str
    version: str
    module: str

    def __str__(self) -> str:
        return f"{self.dist} {self.version}".strip()

    @property
    def fields(self) -> dict[str, str]:
        return {"op": self.op, "dist": self.dist, "version": self.version}


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
    _owners: Mapping[str, _Source] = attrs.field(repr=False)
    _folders: Mapping[str, Traversable] = attrs.field(repr=False)
    _source: _Source = attrs.field(repr=False)

    # Loading

    @classmethod
    def load(cls, offer: Offer, extensions: Sequence[Offer] = ()) -> Op:
        """Imports an installed plugin and its extensions.

        Raises:
            PluginLoadError: the plugin cannot be imported, or wants another oplet.
            PluginContractError: it does not follow the hook specifications.
            ManifestError: its manifest is not valid.
        """
        source = _source(offer)
        return cls._assemble(source, _import(source, offer), extensions)

    @classmethod
    def of_module(cls, op: str, module: object, extensions: Sequence[Offer] = ()) -> Op:
        """Takes a plugin that is at hand: a module, or any object whose attributes are hook implementations."""
        name = module.__name__ if isinstance(module, ModuleType) else type(module).__name__
        return cls._assemble(_Source(op, name, "", name), module, extensions)

    @classmethod
    def _assemble(cls, source: _Source, plugin: object, extensions: Sequence[Offer]) -> Op:
        manager = _manager(source, plugin)
        if missing := [name for name in REQUIRED_HOOKS if not getattr(manager.hook, name).get_hookimpls()]:
            raise PluginContractError(
                f"{source.op}: {source} does not implement the hook {missing[0]}\n"
                "every hook of oplet.hookspecs but check has to be there, marked with @oplet.hookimpl",
                **source.fields,
            )
        manifest = _manifest(source, manager)
        own = _variants(source, manager)
        folders = {source.module: _templates(source, manager)}
        owners = {variant.name: source for variant in own}
        added: list[Variant] = []
        problems: list[OpletError] = []
        for offer in extensions:
            extra = _source(offer)
            try:
                variants, folder = _extension(extra, offer, owners)
            except OpletError as error:
                problems.append(error)
                warnings.warn(f"left out: {error}", RuntimeWarning, stacklevel=4)
                continue
            folders[extra.module] = folder
            owners.update({variant.name: extra for variant in variants})
            added += variants
        return cls(
            id=source.op,
            manifest=manifest,
            dist=source.dist,
            version=source.version,
            module=source.module,
            variants=(*added, *own),
            problems=tuple(problems),
            hook=manager.hook,
            owners=owners,
            folders=folders,
            source=source,
        )

    @cached_property
    def templates(self) -> Templates:
        """The WGSL templates of the plugin and its extensions."""
        from oplet.templates import Templates  # jinja2 takes 27 ms to import; only compiling needs it

        return Templates(self._folders)

    def folder_of(self, variant: str) -> str:
        """Import name of the package folder that a variant came from: the op's, or an extension's."""
        return self._owners[variant].module

    @property
    def extensions(self) -> tuple[str, ...]:
        """Import names of the package folders of its extensions."""
        return tuple(folder for folder in self._folders if folder != self.module)

    # A call, step by step

    def bind(
        self,
        inputs: Mapping[str, TensorSpec],
        attributes: Mapping[str, object] | None = None,
        outputs: Sequence[str] | None = None,
    ) -> Request:
        """Validates arguments against the manifest.

        Args:
            inputs: by manifest or ONNX name.
            attributes: by ONNX name.
            outputs: names of the outputs to make; None for the required ones.

        Raises:
            InputError: naming the argument.
        """
        specs = self._bind_inputs(inputs)
        types = self._bind_types(specs)
        return Request(
            manifest=self.manifest,
            inputs=specs,
            attrs=self._bind_attributes(attributes),
            types=types,
            outputs=self.bind_outputs(outputs),
        )

    def _bind_inputs(self, inputs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        given: dict[str, TensorSpec] = {}
        for name, spec in inputs.items():
            port = self.manifest.input(name)
            if port is None:
                raise self._unknown("input", name, [name for port in self.manifest.inputs for name in port.names])
            if port.name in given:
                raise self._refuse(
                    name, f"{port.names[1]} and {port.name} are two names of one input", "give one of them"
                )
            if port.rank is not None and spec.rank != port.rank:
                raise self._refuse(
                    name,
                    f"has rank {spec.rank}, shape {spec.shape}; {port.shape} is of rank {port.rank}",
                    f"pass {name} of rank {port.rank}; reshape makes a view",
                )
            given[port.name] = spec
        for port in self.manifest.inputs:
            if not port.optional and port.name not in given:
                raise self._refuse(port.name, "is required and was not given", f"pass {port.name}=, {port.shape}")
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
                raise self._refuse(
                    port.name,
                    f"{spec.dtype} is not one of {', '.join(allowed)}",
                    f"convert with {port.name}.astype(np.{allowed[0]})",
                )
            if port.type in self.manifest.types:
                if types.setdefault(port.type, spec.dtype) != spec.dtype:
                    raise self._refuse(
                        port.name,
                        f"is {spec.dtype}, and {first[port.type]} is {types[port.type]}; both are of type {port.type}",
                        f"convert with {port.name}.astype(np.{types[port.type]})",
                    )
                first.setdefault(port.type, port.name)
        return types

    def _bind_attributes(self, attributes: Mapping[str, object] | None) -> dict[str, AttributeValue]:
        if attributes is not None and not isinstance(attributes, Mapping):
            raise self._refuse(
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
                raise self._refuse(attribute.name, "is a required attribute and was not given", "pass it in attrs={…}")
            default = attribute.default
            return float(default) if attribute.type == "float" and isinstance(default, int) else default
        if isinstance(value, np.generic) and not isinstance(value, np.bool_):
            value = value.item()
        kinds: dict[str, tuple[type, ...]] = {"float": (int, float), "int": (int,), "string": (str,)}
        if isinstance(value, bool | np.bool_) or not isinstance(value, kinds[attribute.type]):
            raise self._refuse(
                attribute.name,
                f"{value!r} is a {type(value).__name__}; the attribute is of type {attribute.type}",
                {"float": "pass a float or an int", "int": "pass an int", "string": "pass a string"}[attribute.type],
            )
        if attribute.choices is not None and value not in attribute.choices:
            choices = [str(choice) for choice in attribute.choices]
            raise self._unknown("value", str(value), choices, argument=attribute.name)
        if attribute.type == "int" and not -(1 << 63) <= value < 1 << 63:  # type: ignore[operator]
            raise self._refuse(
                attribute.name, f"{value} does not fit in the 64 bits of an ONNX int", "pass a smaller one"
            )
        if attribute.type == "float":
            try:
                return float(value)  # type: ignore[arg-type]  # the kind was checked above
            except OverflowError:
                raise self._refuse(attribute.name, "is too large for a float", "pass a smaller one") from None
        return value  # type: ignore[return-value]  # the kind was checked above

    def bind_outputs(self, outputs: Sequence[str] | None) -> tuple[str, ...]:
        """Names of the outputs to make, in the manifest's order.

        Raises:
            InputError: a name that no output has, or one given twice.
        """
        if outputs is None:
            return tuple(port.name for port in self.manifest.outputs if not port.optional)
        if isinstance(outputs, str) or not isinstance(outputs, Sequence):
            raise self._refuse("outputs", f"{outputs!r} is not a tuple of output names", "pass outputs=(…,)")
        names: list[str] = []
        for name in outputs:
            port = self.manifest.output(name) if isinstance(name, str) else None
            if port is None:
                known = [name for port in self.manifest.outputs for name in port.names]
                raise self._unknown("output", str(name), known, argument="outputs")
            if port.name in names:
                raise self._refuse("outputs", f"{name} is named twice", "name each output once")
            names.append(port.name)
        if not names:
            raise self._refuse("outputs", "is empty", "name at least one output, or leave it out")
        return tuple(port.name for port in self.manifest.outputs if port.name in names)

    def infer(self, request: Request) -> dict[str, TensorSpec]:
        """The specs of the requested outputs, from the plugin.

        Raises:
            InputError: from the plugin, for shapes that do not fit.
            PluginContractError: the plugin answers something else than those outputs.
        """
        specs = self._call("infer", request=request)
        if not isinstance(specs, Mapping) or set(specs) != set(request.outputs):
            raise self.contract(f"infer returned {specs!r} for the outputs {request.outputs}")
        for name, spec in specs.items():
            port = self.manifest.output(name)
            if not isinstance(spec, TensorSpec) or not all(
                isinstance(n, int | np.integer) and n >= 0 for n in spec.shape
            ):
                raise self.contract(f"infer returned {spec!r} for {name}; a TensorSpec is wanted")
            wanted = request.types.get(port.type, port.type) if port else ""
            if spec.dtype != wanted:
                raise self.contract(f"infer returned {spec} for {name}, which the manifest makes {wanted}")
            if port and port.rank is not None and spec.rank != port.rank:
                raise self.contract(f"infer returned {spec} for {name}, which the manifest makes of rank {port.rank}")
        return {name: specs[name] for name in request.outputs}

    def check(self, request: Request, arrays: Mapping[str, np.ndarray]) -> None:
        """Lets the plugin look at the values of host inputs.

        Raises:
            InputError: from the plugin.
        """
        self._call("check", request=request, arrays=arrays)

    @property
    def checks_values(self) -> bool:
        """Whether the plugin looks at values at all."""
        return bool(self._hook.check.get_hookimpls())

    def reference(self, request: Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The op in numpy, as the plugin computes it: perhaps in a wider dtype than inferred.

        Raises:
            PluginContractError: the plugin does not return the requested outputs.
        """
        results = self._call("reference", request=request, arrays=arrays)
        if not isinstance(results, Mapping) or not set(request.outputs) <= set(results):
            raise self.contract(f"reference did not return the outputs {request.outputs}")
        arrays = {name: results[name] for name in request.outputs}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray | np.generic) or array.dtype.kind not in "biuf":
                raise self.contract(f"reference returned {array!r:.60} for {name}; an array of real numbers is wanted")
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
            self.known_variant(variant)
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
        for port in self.manifest.inputs:
            if port.name in request.inputs and request.inputs[port.name].size >= 1 << 32:
                raise self._refuse(
                    port.name, f"{request.inputs[port.name].size} elements; shaders count to 2³² − 1", "split the work"
                )
        for name, spec in outputs.items():
            if spec.size >= 1 << 32:
                raise self._refuse(
                    name, f"the output would have {spec.size} elements; shaders count to 2³² − 1", "split the work"
                )
        chosen, rejections = self.choose(request, caps, variant)
        try:
            launches = tuple(chosen.plan(request, caps))
        except Exception as error:
            raise self.contract(f"plan raised {type(error).__name__}: {error}", chosen.name) from error
        plan = Plan(
            op=self.id,
            variant=chosen.name,
            folder=self.folder_of(chosen.name),
            inputs=dict(request.inputs),
            outputs=outputs,
            launches=launches,
            rejections=rejections,
            source=str(self._owners[chosen.name]),
        )
        self._check_launches(plan)
        return plan

    def _check_launches(self, plan: Plan) -> None:
        def refuse(fault: str) -> PluginContractError:
            return self.contract(fault, plan.variant)

        scratch: dict[str, TensorSpec] = {}
        written: set[str] = set()
        for launch in plan.launches:
            if not isinstance(launch, Launch):
                raise refuse(f"plan returned {launch!r}, which is not a Launch")
            for name, spec in launch.scratch.items():
                if name in plan.inputs or name in plan.outputs or scratch.setdefault(name, spec) != spec:
                    raise refuse(f"scratch {name} is also another tensor")
            tensors = [binding.tensor for binding in launch.bindings]
            for binding in launch.bindings:
                if not any(binding.tensor in known for known in (plan.inputs, plan.outputs, scratch)):
                    raise refuse(f"{launch.template} binds {binding.tensor!r}, which the call does not have")
                if binding.tensor in plan.inputs and binding.access != "read":
                    raise refuse(f"{launch.template} binds the input {binding.tensor} for writing")
                if tensors.count(binding.tensor) > 1:
                    raise refuse(f"{launch.template} binds {binding.tensor} twice")
                if binding.access == "read_write":
                    written.add(binding.tensor)
        for name, spec in plan.outputs.items():
            # Left alone it would show what its memory held before.
            if spec.size and name not in written:
                raise refuse(f"no launch writes the output {name}")

    # Faults

    def _predicate(self, variant: Variant, kind: str, request: Request, caps: Capabilities) -> str | None:
        try:
            reason = getattr(variant, kind)(request, caps)
        except Exception as error:
            raise self.contract(f"{kind} raised {type(error).__name__}: {error}", variant.name) from error
        if reason is not None and not isinstance(reason, str):
            raise self.contract(f"{kind} returned {reason!r}; a reason or None is wanted", variant.name)
        return reason

    def _call(self, hook: str, **arguments: object) -> Any:
        try:
            return getattr(self._hook, hook)(**arguments)
        except InputError as error:
            error.op = error.op or self.id
            raise
        except OpletError:
            raise
        except Exception as error:
            raise self.contract(f"{hook} raised {type(error).__name__}: {error}") from error

    def known_variant(self, name: str) -> None:
        """Refuses a name that no variant has.

        Raises:
            InputError: naming the near one.
        """
        names = [variant.name for variant in self.variants]
        if name not in names:
            raise self._unknown("variant", str(name), [*names, REFERENCE], argument="variant")

    def contract(self, fault: str, variant: str = "") -> PluginContractError:
        """The error for a plugin that breaks its contract: the op's own, or the one that a variant came from."""
        source = self._owners[variant] if variant else self._source
        where = f"{source}: {variant}" if variant else f"{source}"
        return PluginContractError(
            f"{self.id}: {where}: {fault}\nthe plugin is at fault; report it to its author",
            **source.fields,
        )

    def _refuse(self, argument: str, fault: str, advice: str = "") -> InputError:
        lines = [f"{self.id}: {argument}: {fault}", *([advice] if advice else [])]
        return InputError("\n".join(lines), op=self.id, argument=argument)

    def _unknown(self, kind: str, name: str, known: Sequence[str], *, argument: str = "") -> InputError:
        near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
        fault = f"{name!r} is not a known {kind}" if argument else f"no such {kind}"
        evidence = f"{kind}s: {', '.join(known)}" if known else f"the op has no {kind}s"
        advice = f"did you mean {near[0]!r}?" if near else f"take one of these {kind}s" if known else "leave it out"
        return self._refuse(argument or name, f"{fault}\n{evidence}", advice)

    def _no_variant(self, request: Request, caps: Capabilities, rejections: Sequence[Rejection]) -> NoVariantError:
        features = ", ".join(sorted(caps.features))
        width = max((len(rejection.variant) for rejection in rejections), default=0)
        lines = [
            f'{self.id}: no variant can serve this call on "{caps.adapter.name}" (opened with features=[{features}])'
            if len(rejections) == len(self.variants)
            else f'{self.id}: {rejections[0].variant} cannot serve this call on "{caps.adapter.name}" '
            f"(opened with features=[{features}])",
            *(f"  {name} {spec}" for name, spec in request.inputs.items()),
            *(f"  {rejection.variant:{width}}   {rejection.reason}" for rejection in rejections),
        ]
        advice = 'change what the reasons name, open another device, or pass variant="reference" for numpy'
        if len(rejections) < len(self.variants):
            advice = "leave variant out, or take another"
        return NoVariantError("\n".join([*lines, advice]), rejections=rejections)


# Loading, in pieces ----------------------------------------------------------------------------------


def _source(offer: Offer) -> _Source:
    return _Source(offer.op, offer.dist, offer.version, offer.entry)


def _import(source: _Source, offer: Offer) -> object:
    if unmet := unmet_requirement(offer):
        raise PluginLoadError(
            f"{source.op}: {source} requires {unmet}, and this is oplet {_own_version()}\n"
            f"pip install --upgrade {source.dist} oplet",
            **source.fields,
        )
    try:
        return importlib.import_module(offer.entry)
    except (Exception, SystemExit) as error:  # a plugin may do anything while it is imported
        raise PluginLoadError(
            f"{source.op}: {source} failed to load: {type(error).__name__}: {error}\n"
            f"its entry point names {offer.entry!r}\nreinstall it, or block it: OPLET_BLOCK={source.dist}",
            **source.fields,
        ) from error


def _manager(source: _Source, plugin: object) -> pluggy.PluginManager:
    manager = pluggy.PluginManager("oplet")
    manager.add_hookspecs(hookspecs)
    try:
        fault = _unfitting_hook(source, manager, plugin)
        if not fault:
            manager.register(plugin, name=source.dist)
    except Exception as error:  # pluggy's own, or what an attribute of the plugin raises when it is looked at
        raise PluginContractError(
            f"{source.op}: {source} does not fit the hooks of this oplet\n{type(error).__name__}: {error}\n"
            "oplet.hookspecs lists the hooks and their arguments; install versions that go together",
            **source.fields,
        ) from error
    if fault:
        raise PluginContractError(fault, **source.fields)
    return manager


def _unfitting_hook(source: _Source, manager: pluggy.PluginManager, plugin: object) -> str:
    """Which hook of the plugin, and which argument of it, this oplet does not have; "" where all fit.

    pluggy looks too, but its message names neither the version of the plugin nor that of oplet.
    """
    for name in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is None:
            continue
        hook = options.get("specname") or name
        takes = inspect.signature(getattr(plugin, name)).parameters
        if manager.parse_hookspec_opts(hookspecs, hook) is None:
            hooks = [spec for spec in vars(hookspecs) if manager.parse_hookspec_opts(hookspecs, spec)]
            near = difflib.get_close_matches(hook, hooks, 1, cutoff=0.5)
            advice = f"did you mean {near[0]}? if not, " if near else ""
            return (
                f"{source.op}: {source} implements the hook {hook}, which oplet {_own_version()} does not have\n"
                f"  {hook}({', '.join(takes)}) in {source.module}\n  hooks: {', '.join(hooks)}\n"
                f"{advice}install versions that go together"
            )
        gives = inspect.signature(getattr(hookspecs, hook)).parameters
        # pluggy leaves arguments with a default alone.
        needed = [argument for argument, parameter in takes.items() if parameter.default is parameter.empty]
        if unknown := [argument for argument in needed if argument not in gives]:
            return (
                f"{source.op}: {source}: the hook {hook} takes the argument {unknown[0]}, "
                f"which oplet {_own_version()} does not give\n"
                f"  {hook}({', '.join(takes)}) in {source.module}\n"
                f"  {hook}({', '.join(gives)}) in oplet.hookspecs\n"
                "install versions that go together, or take the argument out"
            )
    return ""


def _own_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("oplet")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "(not installed)"


def _manifest(source: _Source, manager: pluggy.PluginManager) -> Manifest:
    try:
        manifest = manager.hook.manifest()
    except ManifestError as error:
        error.op, error.dist, error.version = source.op, source.dist, source.version
        raise
    except Exception as error:
        raise PluginContractError(
            f"{source.op}: {source}: manifest raised {type(error).__name__}: {error}\nreport it to its author",
            **source.fields,
        ) from error
    if not isinstance(manifest, Manifest) or manifest.id != source.op:
        told = manifest.id if isinstance(manifest, Manifest) else repr(manifest)
        raise PluginContractError(
            f"{source.op}: the manifest of {source} is of {told}\nthe entry point's name is the manifest's id",
            **source.fields,
        )
    return manifest


def _variants(source: _Source, manager: pluggy.PluginManager) -> list[Variant]:
    try:
        variants = [variant for offered in manager.hook.variants() for variant in offered]
    except Exception as error:
        raise PluginContractError(
            f"{source.op}: {source}: variants raised {type(error).__name__}: {error}\nreport it to its author",
            **source.fields,
        ) from error
    names = [getattr(variant, "name", None) for variant in variants]
    for variant, name in zip(variants, names, strict=True):
        if not isinstance(variant, Variant):
            fault = f"variants returned {variant!r}, which is not a Variant"
        elif names.count(name) > 1 or name == REFERENCE:
            fault = f"the variant name {name} is taken"
        else:
            continue
        raise PluginContractError(f"{source.op}: {source}: {fault}\nreport it to its author", **source.fields)
    return variants


def _templates(source: _Source, manager: pluggy.PluginManager) -> Traversable:
    advice = 'return importlib.resources.files(__package__) / "wgsl"'
    try:
        folders = manager.hook.templates()
    except Exception as error:
        raise PluginContractError(
            f"{source.op}: {source}: templates raised {type(error).__name__}: {error}\n{advice}", **source.fields
        ) from error
    if len(folders) != 1 or not isinstance(folders[0], Traversable):
        raise PluginContractError(
            f"{source.op}: {source}: templates returned {folders}, not one Traversable\n{advice}", **source.fields
        )
    return folders[0]


def _extension(source: _Source, offer: Offer, owners: Mapping[str, _Source]) -> tuple[list[Variant], Traversable]:
    """Loads an extension in a manager of its own: pluggy is last-in-first, so its `infer` would replace the op's."""
    plugin = _import(source, offer)
    manager = _manager(source, plugin)
    for caller in manager.get_hookcallers(plugin) or ():
        if caller.name not in EXTENSION_HOOKS:
            raise PluginContractError(
                f"{source.op}: the extension {source} implements the hook {caller.name}\n"
                "an extension implements variants and templates, nothing else",
                **source.fields,
            )
    variants = _variants(source, manager)
    for variant in variants:
        if variant.name in owners:
            raise PluginContractError(
                f"{source.op}: the extension {source} offers the variant {variant.name}, "
                f"which {owners[variant.name]} has\ngive it a name of its own",
                **source.fields,
            )
    return variants, _templates(source, manager)
