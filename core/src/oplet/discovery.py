"""What is installed: entry points as `Offer`s, read from metadata. Nothing is imported."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import attrs

from oplet.errors import InputError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: entry-point groups, and what they offer
OPS, EXTENSIONS = "oplet.ops", "oplet.extensions"


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
    """Every offer of every installed distribution, ordered by op and distribution."""
    from importlib.metadata import entry_points

    # Not pluggy's load_setuptools_entrypoints: it raises at one broken plugin, and silently skips a second
    # offer of a name.
    found = {_offer(entry) for group in (OPS, EXTENSIONS) for entry in entry_points(group=group)}
    return sorted(found, key=lambda offer: (offer.op, offer.group, offer.dist))


def _offer(entry: EntryPoint) -> Offer:
    dist = entry.dist
    return Offer(
        op=entry.name,
        group=entry.group,
        dist=dist.name if dist else "?",
        version=dist.version if dist else "",
        entry=entry.value,
        requires=tuple(dist.requires or ()) if dist else (),
    )


def canonical(dist: str) -> str:
    """A distribution's name as packaging compares names: `Oplet_Fused.GEMM` is `oplet-fused-gemm`."""
    from packaging.utils import canonicalize_name

    return canonicalize_name(dist)


def unmet_requirement(offer: Offer) -> str | None:
    """The offer's requirement on oplet if this oplet does not meet it. pip checks this; an editable install may not."""
    from importlib.metadata import PackageNotFoundError, version

    from packaging.requirements import Requirement

    try:
        own = version("oplet")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return None
    for text in offer.requires:
        requirement = Requirement(text)
        if canonical(requirement.name) == "oplet" and not requirement.specifier.contains(own, prereleases=True):
            return text
    return None


def preferences(prefer: Mapping[str, str] | None) -> dict[str, str]:
    """Which distribution to take for an op: the argument, over `OPLET_PREFER=op=dist,op=dist`.

    Raises:
        InputError: `OPLET_PREFER` is not of that form.
    """
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
    return {**chosen, **(prefer or {})}


def blocked(block: Iterable[str] | None) -> frozenset[str]:
    """Op ids and distributions (canonical names) to ignore: the argument and `OPLET_BLOCK=a,b`."""
    names = [*_items("OPLET_BLOCK"), *(block or ())]
    return frozenset(names) | frozenset(canonical(name) for name in names)


def _items(variable: str) -> list[str]:
    return [item.strip() for item in os.environ.get(variable, "").split(",") if item.strip()]
