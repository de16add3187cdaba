"""What is asked of an op: the shapes and dtypes of tensors, and the values of attributes. No data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs as records  # `attrs` is a field of Request
import numpy as np

from oplet.errors import InputError

if TYPE_CHECKING:
    from oplet.manifest import Manifest

#: dtypes that a device tensor can have, and their size in bytes. WGSL has no other storable scalars.
DTYPES: Mapping[str, int] = {"float32": 4, "float16": 2, "int32": 4, "uint32": 4}

#: WGSL's names of them, for text that people write
SHORT_DTYPES: Mapping[str, str] = {"f32": "float32", "f16": "float16", "i32": "int32", "u32": "uint32"}

#: an attribute's value once bound; None where it is optional, has no default and was not given
AttributeValue = float | int | str | None


class SpecError(InputError):
    """A shape or dtype that no `TensorSpec` has: a caller's fault, or a plugin's in its `infer`."""


def _shape(value: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(value, tuple | list) or any(
        isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0 for n in value
    ):
        raise SpecError(
            f"shape: {value!r} is not a tuple of dimensions, each an int of at least 0\npass one such as (2, 3)",
            argument="shape",
        )
    return tuple(int(n) for n in value)


def _dtype(value: str) -> str:
    if not isinstance(value, str):
        raise SpecError(f"dtype: {value!r} is not a dtype's name\npass one such as 'float32'", argument="dtype")
    if value in SHORT_DTYPES:
        raise SpecError(f"dtype: {value!r} is WGSL's name of it\npass {SHORT_DTYPES[value]!r}", argument="dtype")
    return value


@records.frozen(cache_hash=True)
class TensorSpec:
    """A tensor without its data.

    Attributes:
        shape: dimensions, outermost first; () for a scalar, 0 allowed.
        dtype: numpy's name. One of `DTYPES`, but for an array that is yet to be refused.

    Raises:
        InputError: the shape is no sequence of dimensions, or the dtype no name.
    """

    shape: tuple[int, ...] = records.field(converter=_shape)
    dtype: str = records.field(converter=_dtype)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without padding."""
        return self.size * DTYPES[self.dtype]

    @classmethod
    def of(cls, array: np.ndarray | np.generic) -> TensorSpec:
        """The spec of a numpy array."""
        return cls(array.shape, array.dtype.name)

    @classmethod
    def parse(cls, text: str) -> TensorSpec:
        """Reads `1024x1024:f16`; `:f32` is a scalar. The dtype is WGSL's name or numpy's.

        Raises:
            ValueError: the text is not of that form.
        """
        dims, colon, dtype = text.partition(":")
        dtype = SHORT_DTYPES.get(dtype, dtype)
        shape = dims.split("x") if dims else []
        if not colon or dtype not in DTYPES or not all(n.isascii() and n.isdigit() for n in shape):
            raise ValueError(
                f"{text!r} is not a shape and a dtype such as 1024x1024:f16, 7:i32, or :f32 for a scalar "
                f"(dtypes: {', '.join(SHORT_DTYPES)})"
            )
        return cls(tuple(int(n) for n in shape), dtype)

    def __str__(self) -> str:
        return f"{self.dtype} {shape_text(self.shape)}"


def shape_text(shape: tuple[int, ...]) -> str:
    """`(2, 3)`, `(2,)`, `()`: as numpy prints a shape."""
    return str(tuple(int(n) for n in shape))


@records.frozen(eq=False)
class Request:
    """One call of an op, validated against its manifest, without data.

    Equal where all but the manifest and `names` is, bit for bit: a NaN to itself, and 0.0 not to -0.0.

    Attributes:
        manifest: the op's contract.
        inputs: the inputs that were given, by manifest name.
        attrs: every attribute of the manifest, defaults filled in.
        types: the dtype of each type variable that an input fixes.
        outputs: names of the outputs asked for, in the manifest's order.
        names: what the caller calls inputs and outputs, by manifest name, where it is something else. oplet puts them
            into the errors of hooks, which write the manifest's.
    """

    manifest: Manifest = records.field(repr=False)
    inputs: Mapping[str, TensorSpec]
    attrs: Mapping[str, AttributeValue]
    types: Mapping[str, str]
    outputs: tuple[str, ...]
    names: Mapping[str, str] = records.field(factory=dict, repr=False)

    def refusal(self, argument: str, fault: str, *evidence: str, do: str) -> InputError:
        """The error to raise where the op does not accept the call.

        Args:
            argument: name of the input, attribute or output at fault.
            fault: what is wrong with it, as the rest of the first line.
            evidence: what shows it, a line each.
            do: what to do, the last line.
        """
        op = self.manifest.id
        lines = [f"{op}: {argument}: {fault}", *(f"  {line}" for line in evidence), do]
        return InputError("\n".join(lines), op=op, argument=argument)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and self._told == other._told

    __hash__ = None  # type: ignore[assignment]  # its mappings may be changed

    @property
    def _told(self) -> tuple[object, ...]:
        values = [(name, value.hex() if isinstance(value, float) else value) for name, value in self.attrs.items()]
        return dict(self.inputs), sorted(values), dict(self.types), self.outputs
