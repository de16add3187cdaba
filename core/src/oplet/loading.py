"""Plugins: imported, and held to the contract so far as can be told before a call. A fault is told with whose it is."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import pluggy

from oplet import hookspecs
from oplet.discovery import Offer, unmet_requirement
from oplet.errors import ManifestError, PluginContractError, PluginLoadError
from oplet.manifest import Manifest
from oplet.variant import Variant

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

#: hooks that an op's plugin has to implement; `check` is optional
REQUIRED_HOOKS = ("manifest", "infer", "reference", "variants", "templates")

#: hooks that an extension may implement
EXTENSION_HOOKS = frozenset({"variants", "templates"})

#: the name of the numpy implementation, which `variant=` takes
REFERENCE = "reference"


@attrs.frozen
class Source:
    """Where a plugin came from: what errors name, and the package folder that its templates are in."""

    op: str
    dist: str
    version: str
    module: str

    def __str__(self) -> str:
        return f"{self.dist} {self.version}".strip()

    @classmethod
    def of(cls, offer: Offer) -> Source:
        """That of an offer."""
        return cls(offer.op, offer.dist, offer.version, offer.entry)

    @property
    def fields(self) -> dict[str, str]:
        """What a PluginError takes beside its message."""
        return {"op": self.op, "dist": self.dist, "version": self.version}


@attrs.frozen(eq=False)
class Plugin:
    """A plugin, of an op or an extension, that keeps the contract so far as can be told before a call.

    Attributes:
        source: where it came from.
        hook: its hooks, to be called by pluggy.
        variants: in its order.
        templates: the folder of its templates.
    """

    source: Source
    hook: Any
    variants: tuple[Variant, ...]
    templates: Traversable


def raised(error: BaseException, module: str) -> str:
    """What a plugin raised, and, on a line of its own, where in its code.

    Args:
        error: as it was caught.
        module: import name of the plugin's package folder.
    """
    import traceback

    package = module.partition(".")[0]
    place = ""
    # The innermost frame of its own: an error in numpy or oplet.variant began with a line of the plugin's.
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").partition(".")[0] == package:
            place = f"\n  {frame.f_code.co_filename}:{line}, in {frame.f_code.co_name}"
    if isinstance(error, SyntaxError) and error.filename:  # no frame is in a module that cannot be parsed
        place = f"\n  {error.filename}:{error.lineno}"
    return f"{type(error).__name__}: {error}{place}"


def import_plugin(offer: Offer) -> object:
    """Imports the op folder that an offer names.

    Raises:
        PluginLoadError: it cannot be imported, or its distribution wants another oplet.
    """
    source = Source.of(offer)
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
            f"{source.op}: {source} failed to load: {raised(error, offer.entry)}\n"
            f"its entry point names {offer.entry!r}\nreinstall it, or block it: OPLET_BLOCK={source.dist}",
            **source.fields,
        ) from error


def load_op(source: Source, plugin: object) -> tuple[Manifest, Plugin]:
    """Takes the plugin of an op.

    Raises:
        PluginContractError: it does not follow the hook specifications.
        ManifestError: its manifest is not valid.
    """
    manager = _manager(source, plugin)
    if missing := [name for name in REQUIRED_HOOKS if not getattr(manager.hook, name).get_hookimpls()]:
        raise PluginContractError(
            f"{source.op}: {source} does not implement the hook {missing[0]}\n"
            "every hook of oplet.hookspecs but check has to be there, marked with @oplet.hookimpl",
            **source.fields,
        )
    manifest = _manifest(source, manager)
    return manifest, Plugin(source, manager.hook, _variants(source, manager), _templates(source, manager))


def load_extension(offer: Offer, owners: Mapping[str, Source]) -> Plugin:
    """Imports an extension, in a manager of its own: pluggy is last-in-first, so its `infer` would replace the op's.

    Args:
        offer: the distribution's.
        owners: whose each variant is that the op has already.

    Raises:
        PluginLoadError, PluginContractError: as `import_plugin` and `load_op`; or it implements more than an extension
            may, or takes a variant's name.
    """
    source = Source.of(offer)
    plugin = import_plugin(offer)
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
    return Plugin(source, manager.hook, variants, _templates(source, manager))


def _manager(source: Source, plugin: object) -> pluggy.PluginManager:
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


def _unfitting_hook(source: Source, manager: pluggy.PluginManager, plugin: object) -> str:
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
            import difflib

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


def _manifest(source: Source, manager: pluggy.PluginManager) -> Manifest:
    try:
        manifest = manager.hook.manifest()
    except ManifestError as error:
        error.op, error.dist, error.version = source.op, source.dist, source.version
        raise
    except Exception as error:
        raise PluginContractError(
            f"{source.op}: {source}: manifest raised {raised(error, source.module)}\nreport it to its author",
            **source.fields,
        ) from error
    if not isinstance(manifest, Manifest) or manifest.id != source.op:
        told = manifest.id if isinstance(manifest, Manifest) else repr(manifest)
        raise PluginContractError(
            f"{source.op}: the manifest of {source} is of {told}\nthe entry point's name is the manifest's id",
            **source.fields,
        )
    return manifest


def _variants(source: Source, manager: pluggy.PluginManager) -> tuple[Variant, ...]:
    try:
        variants = tuple(variant for offered in manager.hook.variants() for variant in offered)
    except Exception as error:
        raise PluginContractError(
            f"{source.op}: {source}: variants raised {raised(error, source.module)}\nreport it to its author",
            **source.fields,
        ) from error
    names = [getattr(variant, "name", None) for variant in variants]
    for variant, name in zip(variants, names, strict=True):
        if not isinstance(variant, Variant):
            fault = f"variants returned {variant!r}, which is not a Variant"
        elif names.count(name) > 1:
            fault = f"two variants are named {name}"
        elif name == REFERENCE:
            fault = f"a variant is named {name}, which is the numpy implementation's name"
        else:
            continue
        raise PluginContractError(f"{source.op}: {source}: {fault}\nreport it to its author", **source.fields)
    return variants


def _templates(source: Source, manager: pluggy.PluginManager) -> Traversable:
    advice = 'return importlib.resources.files(__package__) / "wgsl"'
    try:
        folders = manager.hook.templates()
    except Exception as error:
        raise PluginContractError(
            f"{source.op}: {source}: templates raised {raised(error, source.module)}\n{advice}", **source.fields
        ) from error
    import importlib.resources.abc  # 9 ms with what it imports

    if len(folders) != 1 or not isinstance(folders[0], importlib.resources.abc.Traversable):
        raise PluginContractError(
            f"{source.op}: {source}: templates returned {folders}, not one Traversable\n{advice}", **source.fields
        )
    return folders[0]
