"""manifest.json: the contract of an op, as data. Strict: no unknown key, nothing coerced, every problem listed."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import attrs

from oplet import strict
from oplet.errors import ManifestError
from oplet.request import DTYPES

#: keywords of `run`, which no input or output can take; an attribute may, as it travels in `attrs`
RESERVED_NAMES = frozenset({"attrs", "out", "outputs", "variant"})

#: an op id: a domain, and a name that begins with a capital
OP_ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z][A-Za-z0-9_-]*)*\.[A-Z][A-Za-z0-9_]*\Z")
_PORT = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")


@attrs.frozen
class Port:
    """An input or an output.

    Attributes:
        name: the manifest's name, which Python keywords and WGSL variables use.
        type: a type variable of `Manifest.types`, or a dtype.
        shape: the shape in words, such as "(M, K)"; `infer` is what checks it.
        upstream: the ONNX schema's name where it differs; "" where it does not.
        rank: number of dimensions, or None where several are allowed.
        optional: for an input: may be absent. For an output: is made only when asked for.
        doc: one or two sentences.
    """

    name: str
    type: str
    shape: str
    upstream: str = ""
    rank: int | None = None
    optional: bool = False
    doc: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that it answers to."""
        return (self.name, self.upstream) if self.upstream and self.upstream != self.name else (self.name,)


@attrs.frozen
class Attribute:
    """An attribute, by ONNX's name.

    Attributes:
        type: "float", "int" or "string".
        default: used when it is not given; None where absence has a meaning of its own.
        required: whether a call has to give it.
        choices: the values allowed, or None for any.
        doc: one or two sentences.
    """

    name: str
    type: Literal["float", "int", "string"]
    default: float | int | str | None = None
    required: bool = False
    choices: tuple[float | int | str, ...] | None = None
    doc: str = ""


@attrs.frozen
class Manifest:
    """The contract of an op.

    Attributes:
        schema: version of this file format: 1.
        id: the op id, ONNX domain and operator name: "com.microsoft.FusedGemm".
        since_version: version of the ONNX domain's opset that introduced the schema.
        summary: one sentence.
        inputs, outputs, attributes: in ONNX's order.
        types: the dtypes that each type variable may be.
    """

    schema: int
    id: str
    since_version: int
    summary: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    attributes: tuple[Attribute, ...] = ()
    types: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)

    def input(self, name: str) -> Port | None:
        """The input that answers to a name, manifest's or ONNX's."""
        return _find(self.inputs, name)

    def output(self, name: str) -> Port | None:
        """The output that answers to a name, manifest's or ONNX's."""
        return _find(self.outputs, name)

    def dtypes(self, port: Port) -> tuple[str, ...]:
        """The dtypes that a port may have."""
        return self.types.get(port.type, (port.type,))

    @classmethod
    def read(cls, package: str) -> Manifest:
        """Reads the manifest.json of an op folder.

        Args:
            package: the folder's import name, `__package__` inside it.

        Raises:
            ManifestError: with every problem and its JSON path.
        """
        import importlib.resources

        file = importlib.resources.files(package) / "manifest.json"
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise _error(package, [f"cannot be read: {error}"]) from error
        return cls.parse(text, package)

    @classmethod
    def parse(cls, text: str, source: str) -> Manifest:
        """Reads a manifest from JSON text; `source` names it in errors.

        Raises:
            ManifestError: with every problem and its JSON path.
        """
        try:
            manifest = strict.parse(text, cls)
        except strict.Invalid as error:
            raise _error(source, error.problems) from error
        if problems := list(_inconsistencies(manifest)):
            raise _error(source, problems)
        return manifest


def _find(ports: Sequence[Port], name: str) -> Port | None:
    return next((port for port in ports if name in port.names), None)


def _error(source: str, problems: Sequence[str]) -> ManifestError:
    lines = "\n".join(f"  {problem}" for problem in problems)
    return ManifestError(
        f"{source}: manifest.json is not a valid op manifest\n{lines}\n"
        "mend the manifest; its keys are the fields of oplet.Manifest",
        problems=problems,
        op="",
        dist=source,
    )


def _inconsistencies(manifest: Manifest) -> Iterator[str]:
    """What single fields cannot tell: names that clash, types that do not exist."""
    if manifest.schema != 1:
        yield f"$.schema: {manifest.schema} is not a schema that this oplet reads (1)"
    if not OP_ID.match(manifest.id):
        yield f"$.id: {manifest.id!r} is not a domain and an operator name, such as com.acme.Foo"
    if not manifest.outputs:
        yield "$.outputs: an op has at least one output"
    elif all(port.optional for port in manifest.outputs):
        yield "$.outputs: at least one output must not be optional"
    for name, dtypes in manifest.types.items():
        for dtype in dtypes:
            if dtype not in DTYPES:
                yield f"$.types.{name}: {dtype!r} is not one of {', '.join(DTYPES)}"
        if not dtypes:
            yield f"$.types.{name}: no dtype"
    ports = [
        (f"$.{kind}[{i}]", port) for kind in ("inputs", "outputs") for i, port in enumerate(getattr(manifest, kind))
    ]
    owners: dict[str, str] = {}
    for path, port in ports:
        if keyword.iskeyword(port.name):  # it could be neither an argument of run nor a field of the results
            yield f"{path}.name: {port.name!r} is a keyword of Python"
        for name in port.names:
            if not _PORT.match(name):
                yield f"{path}.name: {name!r} is not an identifier"
            if name in RESERVED_NAMES:
                yield f"{path}.name: {name!r} is a keyword of run()"
            if name in owners:
                yield f"{path}.name: {name!r} is already the name of {owners[name]}"
            owners[name] = path
        if port.type not in manifest.types and port.type not in DTYPES:
            yield f"{path}.type: {port.type!r} is neither in $.types nor one of {', '.join(DTYPES)}"
    output_only = {p.type for p in manifest.outputs if p.type in manifest.types} - {p.type for p in manifest.inputs}
    for name in sorted(output_only):
        yield f"$.types.{name}: no input has it, so an output's dtype cannot be told"
    seen: set[str] = set()
    for i, attribute in enumerate(manifest.attributes):
        path = f"$.attributes[{i}]"
        if attribute.name in seen:
            yield f"{path}.name: {attribute.name!r} is given twice"
        seen.add(attribute.name)
        if not _PORT.match(attribute.name):
            yield f"{path}.name: {attribute.name!r} is not an identifier"
        if attribute.required and attribute.default is not None:
            yield f"{path}.default: a required attribute has none"
        kinds: tuple[type, ...] = {"float": (float, int), "int": (int,), "string": (str,)}[attribute.type]
        for field, values in (("default", (attribute.default,)), ("choices", attribute.choices or ())):
            for value in values:
                if value is not None and type(value) not in kinds:
                    yield f"{path}.{field}: {value!r} is not of type {attribute.type}"
        if attribute.choices and attribute.default is not None and attribute.default not in attribute.choices:
            yield f"{path}.default: {attribute.default!r} is not one of the choices"
