"""JSON into attrs records, strictly: no unknown key, nothing coerced, every problem listed with its JSON path."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import attrs

Record = TypeVar("Record")


class Invalid(ValueError):  # noqa: N818  # never reaches a user: each reader raises an error of its own
    """The text is not the JSON of such a record.

    Attributes:
        problems: one line each, with its JSON path.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def parse(text: str, cls: type[Record]) -> Record:
    """Reads a record whose fields are scalars, records, tuples of them and mappings from text to them.

    Where a record is expected, its type may also allow text or null.

    Raises:
        Invalid: with every problem.
    """
    import json

    try:
        document = json.loads(text, object_pairs_hook=_no_duplicate_keys, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # the latter for what is nested too deeply
        raise Invalid([f"not JSON: {error}"]) from error
    from cattrs.errors import BaseValidationError

    try:
        return typing.cast("Record", _converter().structure(document, cls))
    except BaseValidationError as error:
        raise Invalid(list(_problems(error, "$"))) from error
    except (TypeError, ValueError) as error:
        raise Invalid([f"$: {error}"]) from error


def _no_duplicate_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"duplicate key {next(key for key in keys if keys.count(key) > 1)!r}")
    return document


def _no_constant(text: str) -> float:
    # Python reads these; JSON has none of them.
    raise ValueError(f"{text} is not a JSON number")


@cache
def _converter() -> Any:
    # cattrs takes 45 ms to import; only reading a file needs it.
    import cattrs.gen

    converter: Any = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True)

    def record(cls: type) -> Any:
        fields: Any = cattrs.gen.make_dict_structure_fn(cls, converter)
        return lambda value, _: fields(_expect(value, dict, "an object"), cls)

    def sequence(cls: Any) -> Any:
        # Without the check a JSON string would pass as a tuple of its letters.
        element = types.GenericAlias(list, typing.get_args(cls)[:1])
        return lambda value, _: tuple(converter.structure(_expect(value, list, "a list"), element))

    def mapping(cls: Any) -> Any:
        element = types.GenericAlias(dict, typing.get_args(cls))
        return lambda value, _: converter.structure(_expect(value, dict, "an object"), element)

    def union(cls: Any) -> Any:
        kinds = typing.get_args(cls)
        if all(kind in (str, int, float, bool, type(None)) for kind in kinds):
            return _exactly(*kinds)
        (kind,) = (kind for kind in kinds if kind not in (str, type(None)))
        return lambda value, _: value if type(value) in kinds else converter.structure(value, kind)

    for kind in (str, int, float, bool):
        converter.register_structure_hook(kind, _exactly(kind))
    converter.register_structure_hook_factory(attrs.has, record)
    for origin, hook in (
        (tuple, sequence),
        (Mapping, mapping),
        (typing.Union, union),
        (types.UnionType, union),
    ):
        converter.register_structure_hook_factory(partial(_comes_of, origin), hook)
    return converter


def _comes_of(origin: object, cls: Any) -> bool:
    return typing.get_origin(cls) is origin


def _expect(value: object, kind: type, words: str) -> object:
    if isinstance(value, kind):
        return value
    raise TypeError(f"expected {words}, not {type(value).__name__} {value!r:.60}")


def _exactly(*kinds: type) -> Any:
    expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)

    def structure(value: object, _: object) -> object:
        # `type(…) in`, not isinstance: a bool is no int here. An integer is a valid float.
        if type(value) in kinds or (float in kinds and type(value) is int):
            return value
        raise TypeError(f"expected {expected}, not {type(value).__name__} {value!r:.60}")

    return structure


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
