"""The GGUF format: metadata and tensors of a file, memory-mapped.

The format and its quantisations are the `gguf` package's. Its reader is not used: it believes the counts in a file,
so that a damaged one can keep it busy for hours or fill the memory, and it makes an object of every vocabulary entry.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import attrs
import gguf
import numpy as np
import oplet

Scalar = int | float | bool

_SCALARS = {
    gguf.GGUFValueType.UINT8: "<B",
    gguf.GGUFValueType.INT8: "<b",
    gguf.GGUFValueType.UINT16: "<H",
    gguf.GGUFValueType.INT16: "<h",
    gguf.GGUFValueType.UINT32: "<I",
    gguf.GGUFValueType.INT32: "<i",
    gguf.GGUFValueType.UINT64: "<Q",
    gguf.GGUFValueType.INT64: "<q",
    gguf.GGUFValueType.FLOAT32: "<f",
    gguf.GGUFValueType.FLOAT64: "<d",
    gguf.GGUFValueType.BOOL: "<?",
}
_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4  # GGML's
_LONGEST_NAME = 65535  # the format's, for keys
_LONGEST_TEXT = 1 << 20  # longer ones, which only templates of chats are, are skipped


@attrs.frozen
class TensorInfo:
    """What a file says of a tensor.

    Attributes:
        name: its name.
        shape: outermost dimension first, as numpy has it; GGUF stores it the other way round.
        type: number of its type, such as that of F16 or Q8_0.
        start: its first byte in the file.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    start: int

    @property
    def type_name(self) -> str:
        """The name of its type."""
        try:
            return gguf.GGMLQuantizationType(self.type).name
        except ValueError:
            return f"type {self.type}"

    @property
    def nbytes(self) -> int | None:
        """Bytes in the file; None where the type is unknown to the gguf package."""
        if self.type not in gguf.GGML_QUANT_SIZES:
            return None
        elements, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(self.type)]
        return math.prod(self.shape) // elements * nbytes


class GgufFile:
    """A file's metadata and tensors. Opening it reads no tensor.

    Attributes:
        path: where it is.
        metadata: numbers, booleans and texts by key. Arrays are left out.
        tensors: by name.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens a file.

        Raises:
            InputError: it cannot be read, is not a GGUF file, or is damaged; with the place in it.
        """
        try:
            self.path = Path(path)
            # An empty file cannot be mapped; it is told as one that is too short.
            empty = self.path.stat().st_size == 0
            self._data = np.zeros(0, np.uint8) if empty else np.memmap(self.path, np.uint8, mode="r")
        except (OSError, TypeError, ValueError) as error:
            raise oplet.InputError(
                f"path: {path} cannot be read: {error}\npass the path of a GGUF file", argument="path"
            ) from error
        cursor = _Cursor(self.path, self._data.data)
        tensors, keys = _header(cursor)
        self.metadata: Mapping[str, Scalar | str] = MappingProxyType(_metadata(cursor, keys))
        alignment = self.metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise cursor.fault(f"general.alignment is {alignment}, not a power of 2")
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(_tensors(cursor, tensors, alignment))

    def __repr__(self) -> str:
        return f"GgufFile({str(self.path)!r}, {len(self.tensors)} tensors)"

    def read(self, name: str) -> np.ndarray:
        """A tensor in float32, dequantised where it is quantised; F32 ones are views of the file.

        Raises:
            InputError: there is no such tensor, or its type is not known.
        """
        if name not in self.tensors:
            raise oplet.InputError(f"name: {self.path} has no tensor {name!r}\npass one of tensors", argument="name")
        info = self.tensors[name]
        nbytes = info.nbytes
        if nbytes is not None:
            rows = self._data[info.start : info.start + nbytes]
            if info.shape and nbytes:
                rows = rows.reshape(*info.shape[:-1], -1)
            try:
                array: np.ndarray = gguf.dequantize(rows, gguf.GGMLQuantizationType(info.type))
            except NotImplementedError:
                pass
            else:
                return array.reshape(info.shape)
        raise oplet.InputError(
            f"{self.path}: {name}: it is {info.type_name}, which this gguf package cannot dequantise\n"
            "take a newer gguf package, or a file that is quantised otherwise",
            argument="name",
        )


class _Cursor:
    """A place in a file, and the reading that moves it on."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self._path = path
        self._data = data
        self.at = 0

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._data)

    def fault(self, what: str) -> oplet.InputError:
        """The error for a damaged file, found here."""
        return oplet.InputError(
            f"path: {self._path}: {what}\n  at byte {self.at} of {self.size}\n"
            "the file is damaged or no GGUF file: download or convert it again",
            argument="path",
        )

    def skip(self, nbytes: int, what: str) -> int:
        """Moves on, and returns where it was."""
        if nbytes > self.size - self.at:
            raise self.fault(f"truncated: {what} needs {nbytes} bytes more, and there are {self.size - self.at}")
        self.at += nbytes
        return self.at - nbytes

    def number(self, layout: str, what: str) -> Scalar:
        """A number, by its layout in struct's terms."""
        (value,) = struct.unpack_from(layout, self._data, self.skip(struct.calcsize(layout), what))
        return value  # type: ignore[no-any-return]

    def count(self, layout: str, what: str) -> int:
        """A number that is a whole one by its layout."""
        return int(self.number(layout, what))

    def text(self, what: str, longest: int) -> str:
        """A text, as its length and its bytes."""
        length = self.count("<Q", f"the length of {what}")
        if length > longest:
            raise self.fault(f"{what} has {length} bytes, and {longest} are the most")
        start = self.skip(length, what)
        try:
            return str(self._data[start : self.at], "utf-8")
        except UnicodeDecodeError as error:
            raise self.fault(f"{what} is not UTF-8") from error


def _header(cursor: _Cursor) -> tuple[int, int]:
    """How many tensors and how many metadata there are."""
    if cursor.count("<I", "the magic number") != gguf.GGUF_MAGIC:
        cursor.at = 0
        raise cursor.fault("does not begin with GGUF")
    version = cursor.count("<I", "the version")
    if version & 0xFFFF == 0:
        raise cursor.fault("is big-endian, which is not supported")
    if version not in _VERSIONS:
        raise cursor.fault(f"is GGUF version {version}, and {' and '.join(map(str, _VERSIONS))} are supported")
    return cursor.count("<Q", "the number of tensors"), cursor.count("<Q", "the number of metadata")


def _metadata(cursor: _Cursor, count: int) -> dict[str, Scalar | str]:
    found: dict[str, Scalar | str] = {}
    seen = set()
    for _ in range(count):
        key = cursor.text("a metadata key", _LONGEST_NAME)
        if key in seen:
            raise cursor.fault(f"{key} is there twice")
        seen.add(key)
        kind = cursor.count("<I", f"the type of {key}")
        if kind in _SCALARS:
            found[key] = cursor.number(_SCALARS[gguf.GGUFValueType(kind)], key)
        elif kind == gguf.GGUFValueType.STRING:
            start = cursor.at
            length = cursor.count("<Q", f"the length of {key}")
            cursor.skip(length, key)
            if length <= _LONGEST_TEXT:
                cursor.at = start
                found[key] = cursor.text(key, _LONGEST_TEXT)
        elif kind == gguf.GGUFValueType.ARRAY:
            _skip_array(cursor, key)
        else:
            raise cursor.fault(f"{key} has the unknown type {kind}")
    return found


def _skip_array(cursor: _Cursor, key: str) -> None:
    kind = cursor.count("<I", f"the type of {key}")
    count = cursor.count("<Q", f"the length of {key}")
    if kind in _SCALARS:
        cursor.skip(count * struct.calcsize(_SCALARS[gguf.GGUFValueType(kind)]), key)
    elif kind == gguf.GGUFValueType.STRING:
        for _ in range(count):  # a vocabulary; each takes 8 bytes at least, so a false count ends with the file
            cursor.skip(cursor.count("<Q", f"a length in {key}"), key)
    else:
        raise cursor.fault(f"{key} is an array of the unknown type {kind}")


def _tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    stored: dict[str, TensorInfo] = {}
    for _ in range(count):
        name = cursor.text("a tensor's name", _LONGEST_NAME)
        if name in stored:
            raise cursor.fault(f"the tensor {name} is there twice")
        dimensions = cursor.count("<I", f"the number of dimensions of {name}")
        if dimensions > _MOST_DIMENSIONS:
            raise cursor.fault(f"{name} has {dimensions} dimensions, and {_MOST_DIMENSIONS} are the most")
        shape = tuple(cursor.count("<Q", f"the shape of {name}") for _ in range(dimensions))[::-1]
        kind = cursor.count("<I", f"the type of {name}")
        offset = cursor.count("<Q", f"the offset of {name}")
        if offset % alignment:
            raise cursor.fault(f"{name} begins at {offset}, which is no multiple of {alignment}")
        stored[name] = TensorInfo(name, shape, kind, offset)
    # The data begin behind the header, padded.
    data = -(-cursor.at // alignment) * alignment
    tensors = {}
    for name, info in stored.items():
        placed = attrs.evolve(info, start=data + info.start)
        if placed.nbytes is not None:
            cursor.at = min(placed.start, cursor.size)
            block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(info.type)][0]
            if info.shape and info.shape[-1] % block:
                raise cursor.fault(f"{name} has rows of {info.shape[-1]}, and {info.type_name} has blocks of {block}")
            missing = placed.start + placed.nbytes - cursor.size
            if missing > 0:
                raise cursor.fault(f"truncated: {name} ends {missing} bytes past the end")
        tensors[name] = placed
    return tensors
