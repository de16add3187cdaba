"""What is installed: entry points as `Offer`s, read from metadata. Nothing is imported."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import attrs

from oplet.errors import InputError
from oplet.manifest import OP_ID

if TYPE_CHECKING:
    from importlib.metadata import Distribution

#: entry-point groups, and what they offer
OPS, EXTENSIONS = "oplet.ops", "oplet.extensions"

#: oplet's own distributions, by op
_OWN = {
    "com.microsoft.EngramGate": "oplet-engram-gate",
    "com.microsoft.FusedGemm": "oplet-fused-gemm",
    "com.microsoft.GatedDeltaNet": "oplet-gated-delta-net",
    "com.microsoft.GatedRMSNorm": "oplet-gated-delta-net",
    "com.microsoft.PackedMultiHeadAttention": "oplet-packed-mha",
    "com.microsoft.VarlenCausalConvWithState": "oplet-gated-delta-net",
}


@attrs.frozen
class Offer:
    """One entry point: a distribution's offer of an op, or of an extension to one.

    Attributes:
        op: the op id.
        group: `oplet.ops` or `oplet.extensions`.
        dist: the distribution's name.
        version: the distribution's version.
        entry: the import name of the op's package folder.
        requires: the distribution's requirements, as it declares them.
    """

    op: str
    group: str
    dist: str
    version: str
    entry: str
    requires: tuple[str, ...] = attrs.field(repr=False, default=())


def installed() -> list[Offer]:
    """Every offer of every installed distribution, ordered by op and distribution.

    A distribution whose metadata cannot be read is left out with a warning.
    """
    from importlib.metadata import distributions

    # Not pluggy's load_setuptools_entrypoints: it raises at one broken plugin, and silently skips a second
    # offer of a name. Nor importlib's entry_points: one entry_points.txt that is not well-formed makes it raise.
    found: dict[str, set[Offer]] = {}
    for dist in distributions():
        try:
            if offers := _offers(dist):
                # Of one distribution that is installed twice the first on sys.path counts, as in an import.
                found.setdefault(canonical(dist.name), offers)
        except Exception as error:  # whatever importlib makes of damaged metadata
            warnings.warn(
                f"left out: the metadata of {getattr(dist, '_path', dist)} cannot be read: "
                f"{type(error).__name__}: {error}\nreinstall or remove that distribution",
                RuntimeWarning,
                stacklevel=3,
            )
    offers = set[Offer]().union(*found.values())
    return sorted(offers, key=lambda offer: (offer.op, offer.group, canonical(offer.dist), offer.entry))


def _offers(dist: Distribution) -> set[Offer]:
    entries = [entry for entry in dist.entry_points if entry.group in (OPS, EXTENSIONS)]
    if not entries:
        return set()
    # Not dist.name and dist.version: where a field is missing, later Pythons raise KeyError. `get` is typed later.
    metadata = dist.metadata
    name, version = (metadata[field] if field in metadata else "" for field in ("Name", "Version"))  # noqa: SIM401
    if not name:
        raise ValueError("it has no name")
    requires = tuple(dist.requires or ())
    return {Offer(entry.name, entry.group, name, version, entry.value, requires) for entry in entries}


def canonical(dist: str) -> str:
    """A distribution's name as packaging compares names: `Oplet_Fused.GEMM` is `oplet-fused-gemm`."""
    from packaging.utils import canonicalize_name

    return canonicalize_name(dist)


def conventional_name(op: str) -> str:
    """The name that a distribution of an op has by convention: `oplet-acme-foo` for com.acme.Foo."""
    import re

    domain, _, name = op.rpartition(".")
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name or op)
    vendor = "" if domain in ("com.microsoft", "") else domain.rpartition(".")[2] + "-"
    return canonical(f"oplet-{vendor}{words}")


def advice_to_install(op: str) -> str:
    """What to do about an op that no plugin offers.

    A command only for oplet's own: an id may come from a model file, and anyone may own the package of that name.
    """
    if dist := _OWN.get(op):
        return f"pip install {dist}"
    if not OP_ID.match(op):
        return "an op id is a domain and a name, such as com.microsoft.FusedGemm"
    return f"look for a package that offers it, by convention {conventional_name(op)}"


def unmet_requirement(offer: Offer) -> str | None:
    """The offer's requirement on oplet if this oplet does not meet it. pip checks this; an editable install may not."""
    from importlib.metadata import PackageNotFoundError, version

    from packaging.requirements import InvalidRequirement, Requirement

    try:
        own = version("oplet")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return None
    for text in offer.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # pip refuses it; what was meant is not told
            continue
        applies = canonical(requirement.name) == "oplet" and (
            requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        )
        if applies and not requirement.specifier.contains(own, prereleases=True):
            return text
    return None


def preferences(prefer: Mapping[str, str] | None) -> dict[str, str]:
    """Which distribution to take for an op: the argument, over `OPLET_PREFER=op=dist,op=dist`.

    Raises:
        InputError: either is not of that form.
    """
    if prefer is not None and not (isinstance(prefer, Mapping) and _all_text([*prefer, *prefer.values()])):
        raise InputError(
            f"prefer: {prefer!r} is not a mapping from op ids to distributions\n"
            "pass prefer={'com.acme.Foo': 'oplet-acme-foo'}",
            argument="prefer",
        )
    chosen = {}
    for item in _items("OPLET_PREFER"):
        op, equals, dist = item.partition("=")
        if not (op and equals and dist):
            raise InputError(
                f"OPLET_PREFER: {item!r} is not of the form op=distribution\n"
                "write OPLET_PREFER=com.acme.Foo=oplet-acme-foo, several with commas",
                argument="OPLET_PREFER",
            )
        chosen[op.strip()] = dist.strip()
    for argument, ops in (("OPLET_PREFER", chosen), ("prefer", prefer or {})):
        if bare := [op for op in ops if "." not in op]:
            raise InputError(
                f"{argument}: {bare[0]!r} is not an op id\nop ids have a domain, such as com.microsoft.FusedGemm",
                argument=argument,
            )
    return {**chosen, **(prefer or {})}


def blocked(block: Iterable[str] | None) -> frozenset[str]:
    """Op ids and distributions (canonical names) to ignore: the argument and `OPLET_BLOCK=a,b`.

    Raises:
        InputError: the argument is not a list of names.
    """
    given = list(block) if isinstance(block, Iterable) and not isinstance(block, str) else block
    if given is not None and not (isinstance(given, list) and _all_text(given)):
        raise InputError(
            f"block: {block!r} is not a list of op ids and distributions\npass block=['oplet-acme-foo']",
            argument="block",
        )
    names = [*_items("OPLET_BLOCK"), *(given or ())]
    return frozenset(names) | frozenset(canonical(name) for name in names)


def _all_text(names: Iterable[object]) -> bool:
    return all(isinstance(name, str) for name in names)


def _items(variable: str) -> list[str]:
    return [item.strip() for item in os.environ.get(variable, "").split(",") if item.strip()]
