"""What an op is tested with: the literal cases and tolerances of test.json, and the generator in cases.py.

test.json lies in the op folder. Its outputs are computed by somebody else, an oracle or a person, never by
the op's own reference:

    {
      "schema": 1,
      "tolerance": {"float32": {"rtol": 1e-6, "atol": 0, "why": "one sum of at most 130 products in float32"}},
      "cases": [
        {
          "name": "two rows",
          "inputs": {"X": {"shape": [2, 2], "dtype": "float32", "data": [1, -2, "NaN", "-Infinity"]}},
          "attrs": {"activation": "Relu"},
          "outputs": {"Y": {"shape": [2, 2], "dtype": "float32", "data": [1, 0, "NaN", 0]}},
          "source": "by hand"
        }
      ]
    }

`data` is flat, in C order. Inputs are rounded to their dtype. Outputs are not: write them as exactly as they
are known, in float64, since a result that is already rounded says less than the tolerance asks.

cases.py, also in the op folder and optional, is imported by tests only:

    def cases(rng):                 # numpy.random.Generator -> Iterator[tuple[inputs, attrs]], numpy scalars too
        for rows in (1, 3, 130):
            yield {"X": rng.standard_normal((rows, 8), np.float32)}, {"activation": "Relu"}

    def scale(request, arrays):     # optional: {output: what `rtol` is relative to}, see `oplet.testing.compare`
        return {"Y": np.abs(arrays["A"]).astype(np.float64) @ np.abs(arrays["B"])}

The folder of an extension may hold a cases.py with `cases` too, for calls that its variants are for: every variant
of the op has to get these right as well.
"""

from __future__ import annotations

import importlib
import importlib.resources
import importlib.util
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from attrs import evolve, field, frozen  # not `attrs`: a case has a field of that name

from oplet import strict
from oplet.errors import PluginContractError
from oplet.loading import raised
from oplet.request import DTYPES, AttributeValue, Request
from oplet.testing.compare import Tolerance

Arrays = Mapping[str, np.ndarray]
Generate = Callable[[np.random.Generator], Iterable[tuple[Arrays, Mapping[str, AttributeValue]]]]
Scale = Callable[[Request, Arrays], Arrays]

#: cases that one `cases(rng)` may give; a generator that goes on is taken for an endless one
MOST_CASES = 2000

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@frozen(eq=False)
class Case:
    """One call, and what has to come out of it.

    Attributes:
        name: as findings print it.
        inputs: arrays by manifest name.
        attrs: the attributes that are given.
        outputs: the results to expect, floats in float64; None where the op's reference tells.
        dtypes: of `outputs`.
        source: where the expected results come from.
    """

    name: str
    inputs: Arrays
    attrs: Mapping[str, AttributeValue] = field(factory=dict)
    outputs: Arrays | None = None
    dtypes: Mapping[str, str] = field(factory=dict)
    source: str = ""


@frozen(eq=False)
class Suite:
    """Everything that an op is tested with.

    Attributes:
        tolerance: by dtype of the output.
        literal: the cases of test.json.
        generate: `cases` of cases.py.
        extensions: `cases` of the cases.py of extensions, by their module.
        scale: `scale` of cases.py.
    """

    tolerance: Mapping[str, Tolerance]
    literal: tuple[Case, ...] = ()
    generate: Generate | None = None
    extensions: Mapping[str, Generate] = field(factory=dict)
    scale: Scale | None = None

    @classmethod
    def read(cls, module: str, extensions: Sequence[str] = ()) -> Suite:
        """Reads test.json of an op folder, and imports its cases.py, and those of its extensions, where there is one.

        Args:
            module: the folder's import name.
            extensions: import names of extensions' folders.

        Raises:
            PluginContractError: with every problem and its JSON path.
        """
        try:
            text = (importlib.resources.files(module) / "test.json").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise _error(module, "test.json", [f"cannot be read: {error}"]) from error
        suite = cls.parse(text, module)
        own = _cases_of(module)
        others = {one: cases for one in extensions if (cases := _cases_of(one))}
        return evolve(
            suite,
            generate=own.cases if own else None,
            extensions={one: cases.cases for one, cases in others.items()},
            scale=getattr(own, "scale", None),
        )

    @classmethod
    def parse(cls, text: str, source: str) -> Suite:
        """Reads test.json from its text; `source` names it in errors.

        Raises:
            PluginContractError: with every problem and its JSON path.
        """
        try:
            file = strict.parse(text, _File)
        except strict.Invalid as error:
            raise _error(source, "test.json", error.problems) from error
        if problems := list(_inconsistencies(file)):
            raise _error(source, "test.json", problems)
        return cls(
            tolerance=file.tolerance,
            literal=tuple(
                Case(
                    name=case.name,
                    inputs={name: _array(tensor, tensor.dtype) for name, tensor in case.inputs.items()},
                    attrs=case.attrs,
                    outputs={name: _array(tensor, _wide(tensor.dtype)) for name, tensor in case.outputs.items()},
                    dtypes={name: tensor.dtype for name, tensor in case.outputs.items()},
                    source=case.source,
                )
                for case in file.cases
            ),
        )

    def cases(self, seed: int) -> Iterator[Case]:
        """Every case: the literal ones, then those that a seed gives.

        Raises:
            PluginContractError: `cases(rng)` does not give what it should.
        """
        yield from self.literal
        if self.generate is not None:
            yield from _generated(self.generate, "cases.py", seed)
        for module, generate in self.extensions.items():
            yield from _generated(generate, f"cases.py of {module}", seed)


def _generated(generate: Generate, name: str, seed: int) -> Iterator[Case]:
    source = getattr(generate, "__module__", "cases")
    for number, case in enumerate(_running(generate, source, seed)):
        if number == MOST_CASES:
            raise _error(source, "cases.py", [f"cases(rng) gives more than {MOST_CASES} cases"])
        match case:
            case (Mapping() as inputs, Mapping() as attributes) if all(
                isinstance(array, np.ndarray | np.generic) for array in inputs.values()
            ):
                arrays = {port: np.asarray(array) for port, array in inputs.items()}
                yield Case(f"{name} {number}", arrays, attributes)
            case _:
                raise _error(
                    source, "cases.py", [f"case {number} is not (inputs, attrs), two dicts, the first one of arrays"]
                )


def _running(generate: Generate, source: str, seed: int) -> Iterator[object]:
    """What `cases(rng)` yields, with what it raises told as its fault."""
    try:
        yield from generate(np.random.default_rng(seed))
    except Exception as error:  # a plugin's function may raise anything
        raise _error(source, "cases.py", [f"cases(rng) raised {raised(error, source)}"]) from error


def _cases_of(module: str) -> ModuleType | None:
    """The cases.py of an op folder, imported; None where there is none."""
    name = f"{module}.cases"
    if importlib.util.find_spec(name) is None:
        return None
    try:
        cases = importlib.import_module(name)
    except Exception as error:  # a plugin's module may raise anything
        raise _error(module, "cases.py", [f"import raised {raised(error, module)}"]) from error
    if not callable(getattr(cases, "cases", None)):
        raise _error(module, "cases.py", ["no function `cases(rng)`"])
    return cases


@frozen
class _Tensor:
    shape: tuple[int, ...]
    dtype: str
    data: tuple[float | int | str, ...]


@frozen
class _Case:
    name: str
    inputs: Mapping[str, _Tensor]
    outputs: Mapping[str, _Tensor]
    attrs: Mapping[str, float | int | str] = field(factory=dict)
    source: str = ""


@frozen
class _File:
    schema: int
    tolerance: Mapping[str, Tolerance]
    cases: tuple[_Case, ...]


def _wide(dtype: str) -> str:
    return "float64" if dtype.startswith("float") else dtype


def _array(tensor: _Tensor, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):  # 1e5 as float16 is infinity
        values = [_SPECIAL[value] if isinstance(value, str) else value for value in tensor.data]
        return np.array(values, _wide(tensor.dtype)).astype(dtype).reshape(tensor.shape)


def _error(module: str, file: str, problems: Sequence[str]) -> PluginContractError:
    lines = "\n".join(f"  {problem}" for problem in problems)
    return PluginContractError(
        f"{module}: {file} is not what the conformance kit reads\n{lines}\nmend it; oplet.testing.suite shows its form",
        op="",
        dist=module,
    )


def _inconsistencies(file: _File) -> Iterator[str]:
    if file.schema != 1:
        yield f"$.schema: {file.schema} is not a schema that this oplet reads (1)"
    if not file.cases:
        yield "$.cases: no case"
    for dtype, tolerance in file.tolerance.items():
        path = f"$.tolerance.{dtype}"
        if dtype not in ("float32", "float16"):
            yield f"{path}: only float32 and float16 have a tolerance; integers are exact"
        for name, value in (("rtol", tolerance.rtol), ("atol", tolerance.atol)):
            if not 0 <= value < math.inf:
                yield f"{path}.{name}: {value} is not a finite number of at least 0"
        if not tolerance.why.strip():
            yield f"{path}.why: says nothing; derive the tolerance from the arithmetic here"
    names: set[str] = set()
    for number, case in enumerate(file.cases):
        path = f"$.cases[{number}]"
        if case.name in names:
            yield f"{path}.name: {case.name!r} is given twice"
        names.add(case.name)
        if not case.outputs:
            yield f"{path}.outputs: no output"
        for kind, tensors in (("inputs", case.inputs), ("outputs", case.outputs)):
            for name, tensor in tensors.items():
                yield from _tensor_problems(tensor, f"{path}.{kind}.{name}")
        for name, tensor in case.outputs.items():
            if tensor.dtype.startswith("float") and tensor.dtype not in file.tolerance:
                yield f"{path}.outputs.{name}: $.tolerance has no {tensor.dtype}"


def _tensor_problems(tensor: _Tensor, path: str) -> Iterator[str]:
    if tensor.dtype not in DTYPES:
        yield f"{path}.dtype: {tensor.dtype!r} is not one of {', '.join(DTYPES)}"
        return
    if any(n < 0 for n in tensor.shape):
        yield f"{path}.shape: a dimension is negative"
    elif len(tensor.data) != math.prod(tensor.shape):
        yield f"{path}.data: {len(tensor.data)} numbers, and the shape holds {math.prod(tensor.shape)}"
    floats = tensor.dtype.startswith("float")
    for number, value in enumerate(tensor.data):
        if isinstance(value, str) and not (floats and value in _SPECIAL):
            allowed = f"a number or one of {', '.join(_SPECIAL)}" if floats else "an integer"
            yield f"{path}.data[{number}]: {value!r} is not {allowed}"
            return
        if not floats and not (isinstance(value, int) and _fits(value, tensor.dtype)):
            yield f"{path}.data[{number}]: {value!r} is not {'an' if tensor.dtype[0] == 'i' else 'a'} {tensor.dtype}"
            return


def _fits(value: int, dtype: str) -> bool:
    limits: Any = np.iinfo(dtype)
    return bool(limits.min <= value <= limits.max)
