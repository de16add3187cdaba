"""What is installed runs nothing before it is asked for, and what a caller writes reaches neither WGSL nor a path."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import oplet
import pytest
from environments import PACKAGES, ROOT
from oplet.shader import Shader, dump

OFFERS = oplet.Registry().offers
OPS = oplet.Registry().ids


def imported_by(*arguments: str) -> set[str]:
    """The op folders that a command imports."""
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from oplet.cli import main\n"
        f"result = CliRunner().invoke(main, {list(arguments)})\n"
        "assert result.exception is None or isinstance(result.exception, SystemExit), result.exception\n"
        "assert 'com.microsoft.FusedGemm' in result.output, result.output\n"
        "print(*sys.modules)\n"
    )
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    return {offer.entry for offer in OFFERS if offer.entry in modules or offer.entry.split(".")[0] in modules}


@pytest.mark.parametrize("command", [["list"], ["verify"], ["run", "--help"], ["explain", "--help"]], ids=" ".join)
def test_no_plugin_is_imported(command: list[str]) -> None:
    assert imported_by(*command) == set()


def test_info_imports_its_op_alone() -> None:
    assert imported_by("info", "com.microsoft.FusedGemm") == {"oplet_fused_gemm"}


@pytest.mark.parametrize("op", OPS)
def test_text_of_a_caller_is_one_of_an_ops_choices(op: str) -> None:
    # Attributes are the only text of a call that plans see, and so the only one that could enter a template.
    texts = [one for one in oplet.Registry()[op].manifest.attributes if one.type == "string"]
    assert all(one.choices for one in texts), texts


@pytest.mark.parametrize("label", ["../../etc/passwd", "/etc/passwd", "..", "a\0b", "a\nb"])
def test_a_dumped_shader_stays_in_its_folder(tmp_path: Path, label: str) -> None:
    path = dump(str(tmp_path / "dump"), label, Shader("// text", (None,)))
    assert [one.resolve() for one in tmp_path.rglob("*.wgsl")] == [path.resolve()]
    assert path.parent.resolve() == (tmp_path / "dump").resolve()


def sources() -> Iterator[Path]:
    for folder in (*(package / "src" for package in PACKAGES), ROOT / "examples", ROOT / "setup", ROOT / "docs"):
        yield from folder.rglob("*.py")


def test_nothing_is_unpickled() -> None:
    found = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import(names=names):
                    modules = [alias.name for alias in names]
                case ast.ImportFrom(module=str(module)):
                    modules = [module]
                case ast.keyword(arg="allow_pickle", value=ast.Constant(False)):
                    continue
                case ast.keyword(arg="allow_pickle"):
                    modules = ["pickle"]
                case _:
                    continue
            found += [
                f"{path}: {name}" for name in modules if name in ("pickle", "marshal", "shelve", "dill", "joblib")
            ]
    assert found == []
