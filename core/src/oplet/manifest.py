"""manifest.json: the contract of an op, as data. Strict: no unknown key, nothing coerced, every problem listed."""

from __future__ import annotations

import importlib.resources
import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal

import attrs

from oplet.errors import ManifestError
from oplet.request import DTYPES

#: keywords of `run`, which no input, output or attribute can take
RESERVED_NAMES = frozenset({"attrs", "out", "outputs", "variant"})

_OP_ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z][A-Za-z0-9_-]*)*\.[A-Z][A-Za-z0-9_]*\Z")
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
        file = importlib.resources.files(package) / "manifest.json"
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            raise _error(package, [f"cannot be read: {error}"]) from error
        return cls.parse(text, package)

    @classmethod
    def parse(cls, text: str, source: str) -> Manifest:
        """Reads a manifest from JSON text; `source` names it in errors.

        Raises:
            ManifestError: with every problem and its JSON path.
        """
        try:
            document = json.loads(text, object_pairs_hook=_no_duplicate_keys)
        except ValueError as error:
            raise _error(source, [f"not JSON: {error}"]) from error
        from cattrs.errors import BaseValidationError

        try:
            manifest: Manifest = _converter().structure(document, cls)
        except BaseValidationError as error:
            raise _error(source, list(_problems(error, "$"))) from error
        except (TypeError, ValueError) as error:
            raise _error(source, [f"$: {error}"]) from error
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


def _no_duplicate_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"duplicate key {next(key for key in keys if keys.count(key) > 1)!r}")
    return document


@cache
def _converter() -> Any:
    # cattrs takes 45 ms to import; only reading a manifest needs it.
    import cattrs.gen

    converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True)

    def exactly(*kinds: type) -> Any:
        expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)

        def structure(value: object, _: object) -> object:
            # `type(…) in`, not isinstance: a bool is no int here. An integer is a valid float.
            if type(value) in kinds or (float in kinds and type(value) is int):
                return value
            raise TypeError(f"expected {expected}, not {type(value).__name__} {value!r:.60}")

        return structure

    def record(cls: type) -> Any:
        fields: Any = cattrs.gen.make_dict_structure_fn(cls, converter)

        def structure(value: object, _: object) -> object:
            if not isinstance(value, dict):
                raise TypeError(f"expected an object, not {type(value).__name__} {value!r:.60}")
            return fields(value, cls)

        return structure

    for kind in (str, int, bool):
        converter.register_structure_hook(kind, exactly(kind))
    none = type(None)
    for union, kinds in (
        (int | None, (int, none)),
        (float | int | str | None, (float, int, str, none)),
        (float | int | str, (float, int, str)),
    ):
        converter.register_structure_hook_func(partial(operator.eq, union), exactly(*kinds))

    def sequence_of(element: Any) -> Any:
        def structure(value: object, _: object) -> object:
            # Without this a JSON string would pass as a tuple of its letters.
            if not isinstance(value, list):
                raise TypeError(f"expected a list, not {type(value).__name__} {value!r:.60}")
            return tuple(converter.structure(value, list[element]))

        return structure

    for element in (Port, Attribute, str, float | int | str):
        sequence: Any = tuple[element, ...]  # type: ignore[valid-type]
        converter.register_structure_hook_func(partial(operator.eq, sequence), sequence_of(element))
    choices: Any = tuple[float | int | str, ...]
    converter.register_structure_hook_func(
        partial(operator.eq, choices | None),
        lambda value, _: None if value is None else converter.structure(value, choices),
    )
    for cls in (Attribute, Port, Manifest):
        converter.register_structure_hook(cls, record(cls))
    return converter


def _problems(error: BaseException, path: str) -> Iterator[str]:
    """Flattens cattrs' exception groups into one line for each problem, with its JSON path."""
    import difflib

    from cattrs.errors import AttributeValidationNote, ForbiddenExtraKeysError, IterableValidationNote

    if isinstance(error, ForbiddenExtraKeysError):
        known = [field.name for field in attrs.fields(error.cl)]
        for key in sorted(error.extra_fields):
            near = difflib.get_close_matches(key, known, 1)
            yield f"{path}.{key}: unknown key" + (
                f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
            )
        return
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            step = ""
            for note in getattr(inner, "__notes__", ()):
                if isinstance(note, AttributeValidationNote):
                    step = f".{note.name}"
                elif isinstance(note, IterableValidationNote):
                    step = f"[{note.index!r}]" if isinstance(note.index, int) else f".{note.index}"
            yield from _problems(inner, path + step)
        return
    if isinstance(error, KeyError):
        yield f"{path}: missing"
        return
    yield f"{path}: {error}"


def _inconsistencies(manifest: Manifest) -> Iterator[str]:
    """What single fields cannot tell: names that clash, types that do not exist."""
    if manifest.schema != 1:
        yield f"$.schema: {manifest.schema} is not a schema that this oplet reads (1)"
    if not _OP_ID.match(manifest.id):
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
                    yield f"{path}.{field}: {value!r} is not a {attribute.type}"
        if attribute.choices and attribute.default is not None and attribute.default not in attribute.choices:
            yield f"{path}.default: {attribute.default!r} is not one of the choices"
