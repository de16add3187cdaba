"""metadata.json: which files an op folder holds, by their digests, and where they come from.

    {
      "schema": 1,
      "id": "com.acme.Foo",
      "version": "1.0.0",
      "files": {"__init__.py": "9f86d081…", "wgsl/foo.wgsl.jinja": "…"},
      "variants": {"vec4": ["foo.wgsl.jinja"]},
      "provenance": {"license": "Apache-2.0", "source": "…"}
    }

`files` has the sha256 of every file in the folder but metadata.json itself, compiled Python and hidden files. A
folder below with a metadata.json of its own is another op, and accounts for itself.
`write` makes the file, `verify` compares an installed plugin with it and imports nothing of the plugin. `provenance`
is the author's: text by name, kept when the file is written again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from oplet import strict
from oplet.capabilities import FEATURES, FLOOR, Adapter, Capabilities, SubgroupMatrixConfig
from oplet.discovery import Offer
from oplet.errors import OpletError, PluginContractError
from oplet.op import Op

NAME = "metadata.json"

#: what `provenance` says where the distribution does not
NO_LICENSE = "not stated"


@attrs.frozen
class Metadata:
    """The contents of a metadata.json.

    Attributes:
        schema: version of this file format: 1.
        id: the op id.
        version: the distribution's version.
        files: sha256 of each file, by its path in the op folder.
        variants: the templates that each variant may launch, in alphabetical order.
        provenance: where the files come from; nothing that depends on the machine.
    """

    schema: int
    id: str
    version: str
    files: Mapping[str, str]
    variants: Mapping[str, tuple[str, ...]]
    provenance: Mapping[str, str]


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


def save(metadata: Metadata, folder: Path) -> Path:
    """Writes metadata.json into an op folder."""
    path = folder / NAME
    path.write_text(json.dumps(attrs.asdict(metadata), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def verify(offer: Offer) -> tuple[str, ...]:
    """Compares what is installed with its metadata.json. Imports nothing of the plugin.

    Returns:
        One line for each difference; nothing where all is as it should be.
    """
    folder = locate(offer)
    if folder is None:
        return (f"{offer.entry}: the folder is not to be found",)
    try:
        metadata = strict.parse((folder / NAME).read_text(encoding="utf-8"), Metadata)
    except (OSError, UnicodeDecodeError) as error:
        return (f"{NAME}: cannot be read: {error}",)
    except strict.Invalid as error:
        return tuple(f"{NAME}: {problem}" for problem in error.problems)
    return tuple(_differences(metadata, offer, dict(digests(folder))))


def _differences(metadata: Metadata, offer: Offer, found: Mapping[str, str]) -> Iterator[str]:
    if metadata.schema != 1:
        yield f"{NAME}: $.schema: {metadata.schema} is not a schema that this oplet reads (1)"
    for field, told, installed in (("id", metadata.id, offer.op), ("version", metadata.version, offer.version)):
        if told != installed:
            yield f"{NAME}: $.{field}: {told!r}, and {installed!r} is installed"
    for path in sorted(metadata.files.keys() | found):
        if path not in found:
            yield f"{path}: missing"
        elif path not in metadata.files:
            yield f"{path}: not in {NAME}"
        elif found[path] != metadata.files[path]:
            yield f"{path}: changed, sha256 {found[path][:12]}… instead of {metadata.files[path][:12]}…"
    for variant, templates in metadata.variants.items():
        for template in templates:
            if not any(path == template or path.endswith(f"/{template}") for path in found):
                yield f"{NAME}: $.variants.{variant}: there is no {template}"


def locate(offer: Offer) -> Path | None:
    """The op folder on disk, without importing it; None where there is none."""
    top, *rest = offer.entry.split(".")
    # find_spec of a dotted name would import its parents.
    spec = importlib.util.find_spec(top)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place, *rest)
        if (folder / "__init__.py").is_file():
            return folder
    return None


def digests(folder: Path) -> Iterator[tuple[str, str]]:
    """Path and sha256 of every file in an op folder, in alphabetical order: the author's, not what tools leave.

    An op folder inside it is left out: it has a metadata.json of its own.
    """
    others = [path.parent for path in folder.glob(f"*/**/{NAME}")]
    paths = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_file() and not any(path.is_relative_to(other) for other in others)
    }
    for name in sorted(paths):
        left = any(part == "__pycache__" or part.startswith(".") for part in name.split("/")) or name.endswith(".pyc")
        if name != NAME and not left:
            yield name, hashlib.sha256(paths[name].read_bytes()).hexdigest()


def _license(offer: Offer) -> str:
    from importlib.metadata import metadata

    fields = metadata(offer.dist)
    return fields["License-Expression"] or fields["License"] or NO_LICENSE


def _templates(op: Op, offer: Offer) -> dict[str, tuple[str, ...]]:
    """The templates of each variant in the offer's folder, from planning the op's cases for every kind of device.

    For the sake of the list only, which must not depend on the machine that writes it: nothing runs.
    """
    from oplet.testing.kit import Kit

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
    poor = Capabilities(frozenset(), FLOOR, 0, (), "naga", Adapter("floor", "", "Vulkan", True))
    configs = tuple(
        SubgroupMatrixConfig("f16", result, *shape)
        for result in ("f16", "f32")
        for shape in ((16, 16, 16), (16, 8, 16), (16, 8, 8), (8, 8, 8))
    )
    limits = {name: value if name.startswith("min") else value * 4 for name, value in FLOOR.items()}
    return [
        poor,
        *(
            Capabilities(frozenset(FEATURES), limits, size, configs, dialect, Adapter("rich", "", "Vulkan", is_cpu))
            for size in (8, 32)
            for dialect in ("naga", "tint")
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
