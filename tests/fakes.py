"""Distributions made up for a test and put on sys.path: real discovery and real imports, no pip."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PLUGIN = """
import importlib.resources
import numpy as np
import oplet

@oplet.hookimpl
def manifest():
    return oplet.Manifest.read(__package__)

@oplet.hookimpl
def infer(request):
    return {"Y": request.inputs["X"]}

@oplet.hookimpl
def reference(request, arrays):
    return {"Y": arrays["X"] * VALUE}

def plan(request, caps):
    size = request.inputs["X"].size
    bindings = [oplet.Binding("x", "X", "read", "f32"), oplet.Binding("y", "Y", "read_write", "f32")]
    return [oplet.Launch("multiply.wgsl.jinja", size, bindings=bindings)]

@oplet.hookimpl
def variants():
    return [oplet.Variant("scalar", plan)]

@oplet.hookimpl
def templates():
    return importlib.resources.files(__package__) / "wgsl"
"""

EXTENSION = """
import importlib.resources
import oplet

def plan(request, caps):
    size = request.inputs["X"].size
    bindings = [oplet.Binding("x", "X", "read", "f32"), oplet.Binding("y", "Y", "read_write", "f32")]
    return [oplet.Launch("multiply.wgsl.jinja", size, bindings=bindings)]

@oplet.hookimpl
def variants():
    return [oplet.Variant("NAME", plan)]

@oplet.hookimpl
def templates():
    return importlib.resources.files(__package__) / "wgsl"
"""


def _template(value: float) -> bytes:
    main = f"fn main(@builtin(workgroup_id) id: vec3<u32>) {{ y[id.x] = {value} * x[id.x]; }}"
    return f"@compute @workgroup_size(1)\n{main}\n".encode()


def op_files(op: str, value: float = 2.0) -> dict[str, bytes]:
    """The folder of an op that multiplies by a value."""
    manifest = {
        "schema": 1,
        "id": op,
        "since_version": 1,
        "summary": f"Y = {value} X",
        "inputs": [{"name": "X", "type": "float32", "shape": "any"}],
        "outputs": [{"name": "Y", "type": "float32", "shape": "as X"}],
    }
    return {
        "__init__.py": PLUGIN.replace("VALUE", str(value)).encode(),
        "manifest.json": json.dumps(manifest).encode(),
        "wgsl/multiply.wgsl.jinja": _template(value),
    }


def extension_files(variant: str, value: float) -> dict[str, bytes]:
    """The folder of an extension with one variant, whose template has the same name as the op's."""
    return {"__init__.py": EXTENSION.replace("NAME", variant).encode(), "wgsl/multiply.wgsl.jinja": _template(value)}


class Site:
    """A folder on sys.path.

    Attributes:
        folder: its path.
        packages: import names of what it holds.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packages: set[str] = set()

    def package(self, name: str, files: Mapping[str, bytes]) -> None:
        """Adds the files of an import package."""
        for path, data in files.items():
            file = self.folder / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        self.packages.add(name)

    def distribution(
        self,
        name: str,
        *,
        version: str = "1.0.0",
        ops: Mapping[str, str] | None = None,
        extensions: Mapping[str, str] | None = None,
        requires: Sequence[str] = ("oplet",),
    ) -> None:
        """Adds a distribution: its metadata, and entry points by op id."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        needs = "".join(f"Requires-Dist: {text}\n" for text in requires)
        (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{needs}")
        groups = {"oplet.ops": ops or {}, "oplet.extensions": extensions or {}}
        lines = [
            [f"[{group}]", *(f"{op} = {entry}" for op, entry in offers.items())] for group, offers in groups.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(line for group in lines for line in group) + "\n")

    def op(self, op: str, package: str, *, dist: str = "", value: float = 2.0, version: str = "1.0.0") -> None:
        """Adds a distribution of one op that works."""
        self.package(package, op_files(op, value))
        self.distribution(dist or package.replace("_", "-"), version=version, ops={op: package})

    def extension(self, op: str, package: str, variant: str, *, dist: str = "", value: float = 3.0) -> None:
        """Adds a distribution of one extension that works."""
        self.package(package, extension_files(variant, value))
        self.distribution(dist or package.replace("_", "-"), extensions={op: package})

    @property
    def imported(self) -> set[str]:
        """Those of its packages that are imported."""
        return self.packages & set(sys.modules)
