"""metadata.json: written by one command, compared without importing the plugin."""

import email
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any

import attrs
import oplet
import pytest
from oplet import metadata
from oplet.discovery import Offer
from oplet.errors import PluginContractError
from oplet.testing.metadata import build, write

OP = "com.acme.Affine"
Install = Callable[..., Path]


@pytest.fixture
def folder(install: Install) -> Path:
    """The op folder of an installed distribution, with a metadata.json just written."""
    folder = install("acme_signed")
    write(oplet.Registry()[OP], offer())
    return folder


def offer() -> Offer:
    (found,) = (offer for offer in oplet.Registry().offers if offer.op == OP)
    return found


def test_what_is_written(folder: Path) -> None:
    document = json.loads((folder / "metadata.json").read_text())
    assert (document["schema"], document["id"], document["version"]) == (1, OP, "1.2.0")
    files = set(document["files"])
    assert files >= {"__init__.py", "manifest.json", "wgsl/affine.wgsl.jinja", "wgsl/sums.wgsl.jinja"}
    assert "metadata.json" not in files
    assert not [name for name in files if "__pycache__" in name]
    assert document["files"]["cases.py"] == hashlib.sha256((folder / "cases.py").read_bytes()).hexdigest()
    both = ["affine.wgsl.jinja", "sums.wgsl.jinja"]
    assert document["variants"] == {"matrix": both, "vec4": both, "scalar": both}
    assert document["provenance"] == {"license": "Apache-2.0"}


def test_what_was_just_written_is_verified(folder: Path) -> None:
    assert metadata.verify(offer()) == ()


def test_writing_again_changes_nothing(folder: Path) -> None:
    before = (folder / "metadata.json").read_bytes()
    write(oplet.Registry()[OP], offer())
    assert (folder / "metadata.json").read_bytes() == before


def test_the_authors_provenance_is_kept(folder: Path) -> None:
    path = folder / "metadata.json"
    document = json.loads(path.read_text())
    document["provenance"] = {"license": "Apache-2.0", "test.json": "computed by hand"}
    path.write_text(json.dumps(document))
    write(oplet.Registry()[OP], offer())
    assert json.loads(path.read_text())["provenance"]["test.json"] == "computed by hand"


@pytest.mark.parametrize(
    ("fields", "license_"),
    [
        ("License-Expression: MIT\nLicense: Apache\n", "MIT"),
        ("License: Apache\n", "Apache"),
        ("License: \n", metadata.NO_LICENSE),
        ("", metadata.NO_LICENSE),
    ],
)
def test_the_license_is_the_distributions_if_it_has_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fields: str, license_: str
) -> None:
    class Later(Message):
        def __getitem__(self, name: str) -> Any:
            if name not in self:
                raise KeyError(name)  # as later Pythons do
            return super().__getitem__(name)

    read = email.message_from_string(f"Metadata-Version: 2.4\n{fields}", Later)
    monkeypatch.setattr("importlib.metadata.metadata", lambda dist: read)
    (folder / "metadata.json").unlink()  # whose own word would count
    assert build(oplet.Registry()[OP], offer()).provenance["license"] == license_


def test_every_difference_is_named(folder: Path) -> None:
    (folder / "cases.py").write_text("# changed\n")
    (folder / "wgsl" / "sums.wgsl.jinja").unlink()
    (folder / "more.py").touch()
    (folder / "__pycache__").mkdir(exist_ok=True)
    (folder / "__pycache__" / "more.cpython-311.pyc").touch()
    (folder / ".mypy_cache").mkdir()
    (folder / ".mypy_cache" / "CACHEDIR.TAG").touch()
    differences = metadata.verify(offer())
    assert [line.partition(":")[0] for line in differences[:3]] == ["cases.py", "more.py", "wgsl/sums.wgsl.jinja"]
    assert differences[0].startswith("cases.py: changed, sha256 ")
    assert differences[1] == "more.py: not in metadata.json"
    assert differences[2] == "wgsl/sums.wgsl.jinja: missing"
    assert differences[3:] == tuple(
        f"metadata.json: $.variants.{name}: there is no sums.wgsl.jinja" for name in ("matrix", "vec4", "scalar")
    )


def test_an_op_folder_inside_accounts_for_itself(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (inner / "__init__.py").touch()
    assert metadata.verify(offer()) == ("inner/__init__.py: not in metadata.json",)
    (inner / "metadata.json").write_text("{}")
    (inner / "wgsl").mkdir()
    (inner / "wgsl" / "inner.wgsl.jinja").touch()
    assert metadata.verify(offer()) == ()
    assert not [name for name, _ in metadata.digests(folder) if "inner" in name]


def test_another_version_or_op(folder: Path) -> None:
    other = attrs.evolve(offer(), version="1.3.0", op="com.acme.Other")
    assert metadata.verify(other) == (
        "metadata.json: $.id: 'com.acme.Affine', and 'com.acme.Other' is installed",
        "metadata.json: $.version: '1.2.0', and '1.3.0' is installed",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "metadata.json: not JSON"),
        ('{"schema": 1}', "metadata.json: $.files: missing"),
        ('{"schema": "1"}', "metadata.json: $.schema: expected int, not str '1'"),
    ],
)
def test_a_file_that_cannot_be_read_as_metadata(folder: Path, text: str, problem: str) -> None:
    (folder / "metadata.json").write_text(text)
    assert any(line.startswith(problem) for line in metadata.verify(offer()))


def test_no_file_and_no_folder(folder: Path) -> None:
    (folder / "metadata.json").unlink()
    (problem,) = metadata.verify(offer())
    assert problem.startswith("metadata.json: cannot be read")
    (problem,) = metadata.verify(attrs.evolve(offer(), entry="acme_nowhere"))
    assert problem == "acme_nowhere: the folder is not to be found"
    with pytest.raises(PluginContractError, match="is not to be found on disk"):
        build(oplet.Registry()[OP], attrs.evolve(offer(), entry="acme_nowhere"))


def test_a_variant_that_no_case_brings_out(install: Install) -> None:
    init = install("acme_unreached") / "__init__.py"
    source = init.read_text()
    assert source.count("rejects=needs_matrix") == 1
    init.write_text(source.replace("rejects=needs_matrix", "rejects=lambda request, caps: 'never'"))
    with pytest.raises(PluginContractError, match=r"matrix accepts no case .*\nadd a case that it serves"):
        build(oplet.Registry()[OP], offer())


def test_cases_that_have_faults(install: Install) -> None:
    (install("acme_faulty") / "test.json").unlink()
    with pytest.raises(PluginContractError, match=r"its cases have faults\ncases: .*test\.json"):
        build(oplet.Registry()[OP], offer())


def test_verifying_imports_nothing(install: Install) -> None:
    nested = install("acme_nested").rename(install("acme_parent").parent / "acme_parent" / "inner")
    (nested / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (nested.parent / "__init__.py").write_text("raise RuntimeError('imported')\n")
    script = (
        "import sys, oplet\n"
        "from oplet.discovery import Offer\n"
        "from oplet.metadata import verify\n"
        "print(verify(Offer('com.acme.Affine', 'oplet.ops', 'oplet-acme', '1.2.0', 'acme_parent.inner')))\n"
        "assert not [name for name in sys.modules if name.startswith('acme_')]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(nested.parent.parent)!r})\n{script}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "metadata.json: cannot be read" in done.stdout
