"""`oplet new`: a package of its own around a working elementwise op, from which an author goes on.

The folder `package` beside this module holds its files, each with `.in` after its name. They are
`string.Template`s, since `{{ }}` is jinja's in WGSL templates. The fields:

    $op        the op id, com.acme.RowNorm
    $dist      the distribution, oplet-acme-row-norm
    $package   the import name, oplet_acme_row_norm; PACKAGE in a path
    $version   the package's first version
    $bound     the requirement on this oplet, oplet>=0.1,<0.2
"""

from __future__ import annotations

import importlib.resources
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from oplet import metadata
from oplet.discovery import OPS, conventional_name, installed
from oplet.errors import InputError
from oplet.manifest import OP_ID

#: of the package that is made: the major version is that of the op's contract
_VERSION = "1.0.0"

_WGSL = "elementwise.wgsl.jinja"


def create(op: str, into: Path) -> Path:
    """Makes a package.

    Args:
        op: the id of the op that it offers.
        into: the folder to make it in, itself made if need be.

    Returns:
        The package's folder.

    Raises:
        InputError: no such op id can be, the op or a distribution of that name is installed, or the folder is there
            already. Nothing has been written.
    """
    # Of Foo_Bar and FooBar the distributions would have one name.
    if not OP_ID.match(op) or "_" in op.rpartition(".")[2]:
        raise InputError(
            f"op: {op!r} is not an op id\n"
            "an op id is a domain of yours and a name that begins with a capital, in letters and digits\n"
            "take one such as com.acme.Foo",
            argument="op",
        )
    dist = conventional_name(op)
    _refuse_installed(op, dist)
    folder = into / dist
    if folder.exists():
        raise InputError(
            f"into: {folder} is there already, and nothing is overwritten\n"
            "choose another folder, or remove that one if you do not need it",
            argument="into",
        )
    package = dist.replace("-", "_")
    fields = {
        "op": op,
        "dist": dist,
        "package": package,
        "version": _VERSION,
        "bound": _bound(version("oplet")),
    }
    try:
        into.mkdir(parents=True, exist_ok=True)
        # Beside its place and then renamed: nobody finds half a package.
        with tempfile.TemporaryDirectory(dir=into, prefix=".oplet-new-") as draft:
            _write(Path(draft, dist), fields)
            Path(draft, dist).rename(folder)
    except OSError as error:
        raise InputError(
            f"into: {folder} cannot be made: {error.strerror}\nchoose another folder", argument="into"
        ) from error
    return folder


def _refuse_installed(op: str, dist: str) -> None:
    for offer in installed():
        if offer.op == op and offer.group == OPS:
            raise InputError(
                f"op: {op} is offered by {offer.dist} {offer.version}, which is installed\n"
                "two distributions that offer one op conflict\n"
                "take an id of a domain of yours; to add kernels to that op, write an extension of it",
                op=op,
                argument="op",
            )
    try:
        there = version(dist)
    except PackageNotFoundError:
        return
    raise InputError(
        f"op: the distribution of {op} would be {dist}, and {dist} {there} is installed\n"
        "take an id that gives another name",
        op=op,
        argument="op",
    )


def _write(folder: Path, fields: Mapping[str, str]) -> None:
    for name, text in _files(importlib.resources.files(__package__) / "package"):
        path = folder / name.replace("PACKAGE", fields["package"]).removesuffix(".in")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template(text).substitute(fields), encoding="utf-8")
    op_folder = folder / "src" / fields["package"]
    metadata.save(
        metadata.Metadata(
            schema=1,
            id=fields["op"],
            version=_VERSION,
            files=dict(metadata.digests(op_folder)),
            variants={"vec4": (_WGSL,), "scalar": (_WGSL,)},
            provenance={"license": metadata.NO_LICENSE},
        ),
        op_folder,
    )


def _files(folder: Traversable, path: str = "") -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{path}{entry.name}/")
        elif entry.name.endswith(".in"):
            yield path + entry.name, entry.read_text(encoding="utf-8")


def _bound(own: str) -> str:
    """What a plugin made today requires: this oplet, and none with another contract."""
    major, minor = map(int, own.split(".")[:2])
    after = f"0.{minor + 1}" if major == 0 else str(major + 1)
    return f"oplet>={major}.{minor},<{after}"
