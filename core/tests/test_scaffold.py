"""`oplet new`: what it makes, and what it refuses. That the package works is shown where it can be installed."""

import importlib.resources
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from string import Template

import oplet
import pytest
from click.testing import CliRunner, Result
from oplet import metadata, scaffold
from oplet.cli import main
from oplet.discovery import OPS, Offer
from oplet.scaffold import create

OP = "com.acme.RMSNorm"


def command(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments, prog_name="oplet")
    assert result.exit_code == status, f"{result.output}\n{result.exception!r}"
    return result


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_complete_package(tmp_path: Path) -> None:
    folder = create(OP, tmp_path / "some" / "where")
    assert folder == tmp_path / "some/where/oplet-acme-rms-norm"
    src = "src/oplet_acme_rms_norm"
    assert files(folder) == {
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
        ".gitignore",
        ".github/workflows/test.yml",
        "tests/test_conformance.py",
        f"{src}/__init__.py",
        f"{src}/py.typed",
        f"{src}/manifest.json",
        f"{src}/metadata.json",
        f"{src}/test.json",
        f"{src}/bench.json",
        f"{src}/cases.py",
        f"{src}/reference.py",
        f"{src}/shapes.py",
        f"{src}/variants.py",
        f"{src}/wgsl/elementwise.wgsl.jinja",
    }
    assert list(folder.parent.iterdir()) == [folder], "no draft is left"


def test_every_field_is_filled_in(tmp_path: Path) -> None:
    folder = create(OP, tmp_path)
    for name in files(folder):
        text = (folder / name).read_text()
        assert "$" not in text.replace("${{ matrix.python }}", ""), name
        assert "PACKAGE" not in text, name


def test_every_field_is_explained() -> None:
    files = scaffold._files(importlib.resources.files(scaffold) / "package")
    used = {name for _, text in files for name in Template(text).get_identifiers()}
    assert used == set(re.findall(r"^    \$(\w+) ", str(scaffold.__doc__), re.MULTILINE))


def test_its_requirement_admits_this_oplet(tmp_path: Path) -> None:
    project = tomllib.loads((create(OP, tmp_path) / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["oplet.ops"] == {OP: "oplet_acme_rms_norm"}
    offer = Offer(OP, OPS, project["name"], project["version"], "oplet_acme_rms_norm", tuple(project["dependencies"]))
    assert any(text.startswith("oplet>=") for text in offer.requires)
    assert oplet.discovery.unmet_requirement(offer) is None


@pytest.mark.parametrize(
    ("own", "bound"),
    [
        ("0.1.0", "oplet>=0.1,<0.2"),
        ("0.9.3", "oplet>=0.9,<0.10"),
        ("1.4.2", "oplet>=1.4,<2"),
        ("0.2.0.dev1", "oplet>=0.2,<0.3"),
    ],
)
def test_bounds(own: str, bound: str) -> None:
    assert scaffold._bound(own) == bound


def test_its_manifest_and_its_metadata_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    src = create(OP, tmp_path) / "src"
    monkeypatch.syspath_prepend(src)
    assert oplet.Manifest.parse((src / "oplet_acme_rms_norm/manifest.json").read_text(), "test").id == OP
    offer = Offer(OP, OPS, "oplet-acme-rms-norm", "1.0.0", "oplet_acme_rms_norm")
    assert metadata.verify(offer) == ()


@pytest.mark.parametrize(
    "op",
    [
        *(
            "Foo",
            "com.acme.foo",
            "com.acme.",
            ".Foo",
            "com.acme.Foo!",
            "com.acme.Foo_Bar",
            "com acme.Foo",
            "com.acmé.Foo",
        ),
        *("", "com/acme.Foo"),
    ],
)
def test_what_is_no_op_id_is_refused(tmp_path: Path, op: str) -> None:
    with pytest.raises(oplet.InputError, match="is not an op id") as caught:
        create(op, tmp_path)
    assert caught.value.argument == "op"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("op", "fault"),
    [
        ("com.acme.Affine", "com.acme.Affine is offered by oplet-acme-affine 1.2.0, which is installed"),
        (
            "com.microsoft.AcmeAffine",
            "the distribution of .* would be oplet-acme-affine, and oplet-acme-affine 1.2.0 is",
        ),
    ],
    ids=["op", "distribution"],
)
def test_what_is_installed_is_not_made_again(
    install: Callable[[str], Path], tmp_path: Path, op: str, fault: str
) -> None:
    install("acme_affine")
    with pytest.raises(oplet.InputError, match=f"^op: {fault}"):
        create(op, tmp_path / "into")
    assert not (tmp_path / "into").exists()


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_nothing_is_overwritten(tmp_path: Path, kind: str) -> None:
    there = tmp_path / "oplet-acme-rms-norm"
    if kind == "folder":
        there.mkdir()
    else:
        there.write_text("mine")
    with pytest.raises(oplet.InputError, match=f"{there} is there already"):
        create(OP, tmp_path)
    assert files(tmp_path) == ({"oplet-acme-rms-norm"} if kind == "file" else set())


def test_a_place_where_no_folder_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(oplet.InputError, match="cannot be made: "):
        create(OP, tmp_path / "file")


class TestCommand:
    def test_new_prints_the_two_next_commands(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "a b").mkdir()
        assert command("new", OP).stdout.splitlines() == [
            f"oplet-acme-rms-norm offers {OP}, a product of two tensors for now. Next:",
            "",
            "  pip install pytest --editable ./oplet-acme-rms-norm",
            "  pytest oplet-acme-rms-norm",
        ]
        assert "--editable './a b/oplet-acme-rms-norm'" in command("new", OP, "--into", "a b").stdout
        assert f"--editable {tmp_path}/c/oplet" in command("new", OP, "--into", str(tmp_path / "c")).stdout

    def test_new_refuses_without_a_traceback(self, tmp_path: Path) -> None:
        assert command("new", "foo", "--into", str(tmp_path), status=1).stderr.startswith("InputError: op: 'foo' is")

    def test_verify_names_what_differs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        src = create(OP, tmp_path) / "src"
        monkeypatch.syspath_prepend(src)
        info = src / "oplet_acme_rms_norm-1.0.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.4\nName: oplet-acme-rms-norm\nVersion: 1.0.0\n")
        (info / "entry_points.txt").write_text(f"[oplet.ops]\n{OP} = oplet_acme_rms_norm\n")
        # Nothing of the plugin may be imported.
        changed = src / "oplet_acme_rms_norm/__init__.py"
        assert command("verify", OP).stdout == f"as made  {OP}: oplet-acme-rms-norm 1.0.0\n"
        changed.write_text("raise RuntimeError\n")
        differing = [f"differs  {OP}: oplet-acme-rms-norm 1.0.0", "  __init__.py: changed, sha256 "]
        first, second = command("verify", OP, status=1).stdout.splitlines()
        assert first == differing[0]
        assert re.match(r"  __init__\.py: changed, sha256 \w{12}… instead of \w{12}…", second)
        assert differing[0] in command("verify", status=1).stdout.splitlines(), "among all that is installed"
        assert "did you mean" in command("verify", "com.acme.RMSNorn", status=1).stderr
