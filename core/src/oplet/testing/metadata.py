"""What an op's metadata.json should say. `oplet.metadata` compares with it, and imports nothing of the op."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from oplet import strict
from oplet.capabilities import FLOOR, Capabilities, Dialect
from oplet.discovery import Offer
from oplet.errors import OpletError, PluginContractError
from oplet.metadata import NAME, NO_LICENSE, Metadata, digests, locate, save
from oplet.op import Op
from oplet.testing.kit import Kit
from oplet.testing.pretended import pretended


def build(op: Op, offer: Offer) -> Metadata:
    """What metadata.json of an installed op, or of an extension to it, should say.

    Args:
        op: the op, loaded.
        offer: the distribution's offer of it, or of the extension.

    Raises:
        PluginContractError: a variant accepts none of the op's cases, so its templates cannot be told; or the
            folder is not a folder of files.
    """
    folder = locate(offer)
    if folder is None:
        raise _error(offer, f"its folder {offer.entry} is not to be found on disk", "install it as files, not as a zip")
    try:
        provenance = strict.parse((folder / NAME).read_text(encoding="utf-8"), Metadata).provenance
    except (OSError, UnicodeDecodeError, strict.Invalid):
        provenance = {}
    return Metadata(
        schema=1,
        id=offer.op,
        version=offer.version,
        files=dict(digests(folder)),
        variants=_templates(op, offer),
        provenance={"license": _license(offer), **provenance},
    )


def write(op: Op, offer: Offer) -> Path:
    """Writes metadata.json of an installed op, or of an extension to it, into its folder.

    Raises:
        PluginContractError: as `build`.
    """
    metadata = build(op, offer)
    folder = locate(offer)
    assert folder is not None  # build has found it
    return save(metadata, folder)


def _license(offer: Offer) -> str:
    from importlib.metadata import metadata

    fields = metadata(offer.dist)
    # Only where it is there: of a field that is missing, later Pythons raise KeyError.
    given = (fields[name] for name in ("License-Expression", "License") if name in fields)
    return next(filter(None, given), NO_LICENSE)


def _templates(op: Op, offer: Offer) -> dict[str, tuple[str, ...]]:
    """The templates of each variant in the offer's folder, from planning the op's cases for every kind of device.

    For the sake of the list only, which must not depend on the machine that writes it: nothing runs.
    """
    kit = Kit(op.id, seed=0)
    calls = kit.calls
    if kit.faults:
        raise _error(offer, f"its cases have faults\n{kit.faults[0]}", f"mend them; oplet check {op.id} names them all")
    found: dict[str, set[str]] = {}
    for variant in op.variants:
        if op.module_of(variant.name) != offer.entry:
            continue
        templates = found.setdefault(variant.name, set())
        accepted = False
        for caps in _every_device():
            for call in calls:
                try:
                    plan = op.plan(call.request, caps, variant.name)
                except OpletError:
                    continue
                accepted = True
                templates.update(launch.template for launch in plan.launches)
        if not accepted:
            raise _error(
                offer,
                f"{variant.name} accepts no case of test.json and cases.py, so its templates are not known",
                "add a case that it serves",
            )
    return {name: tuple(sorted(templates)) for name, templates in found.items()}


def _every_device() -> list[Capabilities]:
    """Descriptions of devices that between them bring out every variant."""
    return [
        pretended(features=(), limits=FLOOR, dialect="naga", is_cpu=True),
        *(
            pretended(subgroup_size=size, dialect=dialect, is_cpu=is_cpu)
            for size in (8, 32)
            for dialect in get_args(Dialect)
            for is_cpu in (False, True)
        ),
    ]


def _error(offer: Offer, fault: str, advice: str) -> PluginContractError:
    return PluginContractError(
        f"{offer.op}: {offer.dist} {offer.version}: {fault}\n{advice}",
        op=offer.op,
        dist=offer.dist,
        version=offer.version,
    )
