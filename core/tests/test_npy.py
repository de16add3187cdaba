"""Arrays in .npy files: those of numpy.save as they are, all others refused, and no memory for what they claim."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from oplet import InputError, npy

SQUARE = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    "array",
    [SQUARE, SQUARE.T, SQUARE.astype(">f4"), np.float16(7), np.zeros((2, 0), np.int32), np.zeros((0, 1 << 40), "u4")],
    ids=["c", "fortran", "big-endian", "scalar", "empty", "empty and wide"],
)
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_an_array_comes_back_as_it_was(tmp_path: Path, array: np.ndarray, version: tuple[int, int]) -> None:
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, np.asarray(array), version=version)
    found = npy.read(tmp_path / "x.npy")
    assert (found.shape, found.dtype) == (array.shape, array.dtype)
    np.testing.assert_array_equal(found, array)


def saved(path: Path, array: np.ndarray) -> bytes:
    np.save(path, array)
    return path.read_bytes()


def with_shape(data: bytes, shape: str) -> bytes:
    # The header is padded with spaces, which make room.
    assert b"(3, 4), }" in data
    return data.replace(b"(3, 4), }" + b" " * (len(shape) - 6), shape.encode() + b", }")


@pytest.mark.parametrize("shape", ["(3, 5)", "(1099511627776, 1)", "(4611686018427387904, 4)", "(-3, 4)", "(3, -1)"])
def test_a_header_that_claims_what_is_not_there(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(with_shape(saved(path, SQUARE), shape))
    tracemalloc.start()
    with pytest.raises(InputError) as caught:
        npy.read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(caught.value).splitlines() == [
        f"{path} cannot be read as an .npy file: its header tells of float32 {shape}, and 48 bytes of data follow",
        "pass a file that numpy.save has written",
    ]
    assert peak < 1 << 20


def test_a_header_whose_length_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{'descr': '<f4'}")
    tracemalloc.start()
    with pytest.raises(InputError, match=r"x\.npy cannot be read as an \.npy file: EOF"):
        npy.read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="they are pickles"):
        npy.read(tmp_path / "x.npy")


def test_what_is_no_such_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=SQUARE)
    (tmp_path / "3.npy").write_bytes(b"\x93NUMPY\x03\x00\x02\x00{}")
    for name, fault in (("x.npz", "magic string"), ("3.npy", "version 3.0"), ("absent.npy", "No such file")):
        with pytest.raises(InputError, match=fault) as caught:
            npy.read(tmp_path / name)
        assert caught.value.argument == str(tmp_path / name)
