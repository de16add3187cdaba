"""bench.json: the calls that an op is timed on."""

from __future__ import annotations

import importlib.resources
import unicodedata
from collections.abc import Mapping

import attrs as records  # `attrs` is a field of Case, by ONNX's and run's name
import numpy as np

from oplet import strict
from oplet.errors import PluginContractError
from oplet.op import Op
from oplet.request import Request, TensorSpec


@records.frozen
class Case:
    """One case of an op folder's bench.json.

    Attributes:
        name: what the table calls it.
        inputs: shape and dtype of each, as `4096x4096:f16`.
        attrs, outputs: as for `Registry.run`.
        values: the data of an input, where it matters (a schedule of lengths); else normally distributed.
        uniform: lower and upper bound of an input, where a normal distribution does not suit it.
        flops: useful floating-point operations; 0 where a rate of them says nothing.
        bytes: least traffic; None for every input read and every output written once.
    """

    name: str
    inputs: Mapping[str, str]
    attrs: Mapping[str, float | int | str] = records.field(factory=dict)
    outputs: tuple[str, ...] | None = None
    values: Mapping[str, tuple[float | int, ...]] = records.field(factory=dict)
    uniform: Mapping[str, tuple[float | int, ...]] = records.field(factory=dict)
    flops: int = 0
    bytes: int | None = None

    def is_named(self, text: str) -> bool:
        """Whether its name has a text in it, as one types it: small or capital letters, × or x, ³ or 3."""
        return _folded(text) in _folded(self.name)

    def request(self, op: Op) -> Request:
        """What it asks of its op.

        Raises:
            InputError: the op takes no such call.
        """
        specs = {name: TensorSpec.parse(text) for name, text in self.inputs.items()}
        return op.bind(specs, self.attrs, self.outputs)

    def arrays(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Data for the inputs: random, since zeros are known to run faster than real data."""
        return {name: self._array(name, TensorSpec.parse(text), rng) for name, text in self.inputs.items()}

    def _array(self, name: str, spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
        if name in self.values:
            return np.array(self.values[name], spec.dtype).reshape(spec.shape)
        # A block repeated: a billion normal deviates would take longer than every measurement.
        count = min(spec.size, 1 << 20)
        if name in self.uniform:
            low, high = self.uniform[name]
            block = rng.uniform(low, high, count)
        else:
            block = rng.standard_normal(count)
        return np.resize(block.astype(spec.dtype), spec.shape)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold().replace("×", "x")


@records.frozen
class _CaseFile:
    schema: int
    cases: tuple[Case, ...]


def read_cases(op: Op) -> tuple[Case, ...]:
    """The cases of an op's bench.json.

    Raises:
        PluginContractError: the file is missing or not of that form, or has a case that the op refuses.
    """
    file = importlib.resources.files(op.module) / "bench.json"
    if not file.is_file():
        raise PluginContractError(
            f"{op.id}: {op.dist} {op.version} has no bench.json, so there are no cases to time\n"
            f"  {file}\nwrite one, as the author's guide shows, or time a call of your own: oplet bench {op.id} --help",
            op=op.id,
            dist=op.dist,
            version=op.version,
        )
    try:
        document = strict.parse(file.read_text(encoding="utf-8"), _CaseFile)
        if document.schema != 1:
            raise ValueError(f"$.schema: {document.schema} is not a schema that this oplet reads (1)")
        for case in document.cases:
            try:
                op.infer(case.request(op))
            except ValueError as error:
                raise ValueError(f"case {case.name!r}: {error}") from error
    except (OSError, ValueError, ModuleNotFoundError) as error:
        raise PluginContractError(
            f"{op.id}: bench.json cannot be used\n{error}\nits keys are the fields of oplet.bench.Case",
            op=op.id,
            dist=op.dist,
            version=op.version,
        ) from error
    return document.cases
