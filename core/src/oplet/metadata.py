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
folder below with a metadata.json of its own is another op, and accounts for itself. `provenance` is the author's: text
by name, kept when the file is written again.

`oplet.testing.metadata` makes the file; `verify` compares an installed plugin with it, and imports nothing of that.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from oplet import strict
from oplet.discovery import Offer

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
