"""A Sphinx extension that writes a page for each installed op, from its manifest, its variants and its README.

That is the README of the op's folder, or where there is none the distribution's.

What a variant needs of a device is found by asking: each test case of the op is shown to it with one feature after
the other taken away.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import oplet
from oplet.capabilities import FEATURES, FLOOR
from oplet.manifest import Attribute, Manifest, Port
from oplet.op import Op
from oplet.testing.pretended import LARGE, SUBGROUP_SIZES, pretended
from oplet.testing.suite import Suite

HERE = Path(__file__).parent
PLUGINS = HERE.parent / "plugins"


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("builder-inited", lambda _: write(HERE / "ops"))
    return {"parallel_read_safe": True}


def write(folder: Path) -> list[Path]:
    """Writes the pages of this repository's ops, and an index of them."""
    for old in folder.glob("*.md"):
        old.unlink()
    registry = oplet.Registry()
    readmes = _readmes()
    ops = [registry[op] for op in registry.ids if registry[op].dist in readmes]
    for op in ops:
        own = resources.files(op.module) / "README.md"
        readme = own.read_text("utf-8") if own.is_file() else readmes[op.dist]
        _page(folder, _file(op)).write_text(page(op, readme), encoding="utf-8")
    _page(folder, "index").write_text(index(ops), encoding="utf-8")
    return sorted(folder.glob("*.md"))


def _page(folder: Path, name: str) -> Path:
    return folder / f"{name}.md"


def _file(op: Op) -> str:
    return op.id.rpartition(".")[2]


def _readmes() -> dict[str, str]:
    """The README of each plugin of this repository, by distribution."""
    names = {}
    for folder in PLUGINS.iterdir():
        readme, project = folder / "README.md", folder / "pyproject.toml"
        if readme.exists() and (name := re.search(r'^name = "(.+)"$', project.read_text("utf-8"), re.MULTILINE)):
            names[name[1]] = readme.read_text("utf-8")
    return names


def index(ops: Sequence[Op]) -> str:
    """The page that lists the ops."""
    rows = [(f"[{op.id}]({_file(op)}.md)", op.manifest.summary, f"`{op.dist}`") for op in ops]
    names = "\n".join(f"{_file(op)} <{_file(op)}>" for op in ops)  # the domain would not fit beside the page
    return (
        "# Ops\n\nEach comes with the package beside it; [install](../install.md) says how to get them. Its page is\n"
        "made from its manifest, which is also what calls are checked against; `oplet info OP` prints the same in a\n"
        "terminal.\n\n"
        f"{_table(('op', 'what it computes', 'package'), rows)}\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    )


def page(op: Op, readme: str) -> str:
    """The page of an op: the README's beginning, the contract, the variants, the rest of the README."""
    manifest = op.manifest
    begin, *rest = re.split(r"(?m)^(?=## )", re.sub(r"\A# .*\n", "", readme))
    about = [
        ("distribution", f"`{op.dist}` {op.version}"),
        ("ONNX", f"domain `{op.id.rpartition('.')[0]}`, since version {manifest.since_version}"),
    ]
    port = ("name, and ONNX's", "type and shape", "")
    parts = [
        f"# {op.id}\n",
        (begin.strip() or manifest.summary) + "\n",
        "## Contract\n\nFrom the manifest.\n",
        _table(("", ""), about),
        "### Inputs\n",
        _table(port, (_port(manifest, one) for one in manifest.inputs)),
        "### Outputs\n",
        _table(port, (_port(manifest, one) for one in manifest.outputs)),
    ]
    if manifest.attributes:
        parts += [
            "### Attributes\n",
            _table(("name", "type", "default", ""), (_attribute(one) for one in manifest.attributes)),
        ]
    parts += [
        "### Variants\n",
        "In order of preference: the first one runs that neither rejects the call nor leaves it to another.\n"
        f"`oplet explain {op.id} …` says which, and why. Where the second column is empty, any device will do.\n",
        _table(("name", "needs of the device", ""), variants(op)),
        *(_outside_of_a_page(section) for section in rest),
    ]
    return "\n".join(parts)


def _outside_of_a_page(section: str) -> str:
    return section.strip() + "\n"


def _port(manifest: Manifest, port: Port) -> tuple[str, ...]:
    dtypes = ", ".join(manifest.dtypes(port))
    kind = f"{port.type}: {dtypes}" if port.type in manifest.types else dtypes
    optional = "Optional. " if port.optional else ""
    return "<br>".join(f"`{name}`" for name in port.names), f"{kind}<br>{port.shape}", optional + port.doc


def _attribute(attribute: Attribute) -> tuple[str, ...]:
    default = "required" if attribute.required else "" if attribute.default is None else f"`{attribute.default}`"
    choices = ", ".join(f"`{choice}`" if choice != "" else "empty" for choice in attribute.choices or ())
    doc = f"{attribute.doc} One of {choices}." if choices else attribute.doc
    return f"`{attribute.name}`", attribute.type, default, doc


# What variants need ----------------------------------------------------------------------------------


def variants(op: Op) -> Iterator[tuple[str, str, str]]:
    """A row for each variant.

    Raises:
        RuntimeError: no test case is for a variant, so that nothing can be said of it.
    """
    requests = list(_requests(op))
    for variant in op.variants:
        whole = [request for request in requests if _serves(variant, request)]
        if not whole:
            raise RuntimeError(f"{op.id}: {variant.name} rejects every test case on every device thought of")
        calls = random.Random(0).sample(whole, min(len(whole), 60))
        needs = []
        for feature in FEATURES:
            kept = [request for request in calls if _serves(variant, request, without=feature)]
            if not kept:
                needs.append(f"`{feature}`")
            elif len(kept) < len(calls):
                dtypes = _dtypes(request for request in calls if request not in kept) - _dtypes(kept)
                needs.append(f"`{feature}` for {', '.join(sorted(dtypes)) or 'some calls'}")
        floor = sum(_serves(variant, request, limits=FLOOR) for request in calls)
        if floor < len(calls):
            needs.append("more than WebGPU's lowest limits" + (" for some calls" if floor else ""))
        yield f"`{variant.name}`", ", ".join(needs), variant.doc


def _requests(op: Op) -> Iterator[oplet.Request]:
    """The op's test cases in every dtype, as requests."""
    seen = set()
    for case in Suite.read(op.module, op.extensions).cases(seed=0):
        specs = {name: oplet.TensorSpec.of(array) for name, array in case.inputs.items()}
        types = {name: one.type for name in specs if (one := op.manifest.input(name))}
        for dtype in ("", "float32", "float16"):
            changed = {
                name: oplet.TensorSpec(spec.shape, dtype) if dtype in op.manifest.types.get(types[name], ()) else spec
                for name, spec in specs.items()
            }
            key = str((changed, case.attrs, tuple(case.outputs or ())))
            if key not in seen:
                seen.add(key)
                yield op.bind(changed, case.attrs, tuple(case.outputs) if case.outputs else None)


def _serves(
    variant: oplet.Variant, request: oplet.Request, without: str = "", limits: Mapping[str, int] = LARGE
) -> bool:
    """Whether it does on a device of any kind that lacks no feature but one."""
    features = frozenset(FEATURES) - {without}
    devices = (pretended(features, size, limits=limits) for size in SUBGROUP_SIZES)
    return any(variant.rejects(request, device) is None for device in devices)


def _dtypes(requests: Iterable[oplet.Request]) -> set[str]:
    return {spec.dtype for request in requests for spec in request.inputs.values()}


# Markdown --------------------------------------------------------------------------------------------


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
