"""Arrays in .npy files, from anywhere: no pickles, and no memory for more than the file holds."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np

from oplet.errors import InputError


def read(path: Path) -> np.ndarray:
    """What numpy.save wrote.

    Returns:
        A read-only array of any dtype but object.

    Raises:
        InputError: the file cannot be read, or is none of these; its argument is the path.
    """
    try:
        return _parse(path.read_bytes())
    except Exception as error:  # numpy evaluates the header, which may raise anything
        raise InputError(
            f"{path} cannot be read as an .npy file: {error}\npass a file that numpy.save has written",
            argument=str(path),
        ) from error


def _parse(data: bytes) -> np.ndarray:
    # Not numpy.load, which takes archives and, if asked, pickles. Nor numpy.lib.format.read_array, which makes room
    # for as much as a header claims.
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"it is of the format's version {version[0]}.{version[1]}, and 1.0 and 2.0 are read")
    if version == (1, 0):
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, fortran_order, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded: they are pickles, which may run code")
    size, left = math.prod(shape), len(data) - file.tell()
    if any(n < 0 for n in shape) or size * dtype.itemsize > left:
        raise ValueError(f"its header tells of {dtype} {shape}, and {left} bytes of data follow")
    flat = np.frombuffer(data, dtype, count=size, offset=file.tell())
    return flat.reshape(shape[::-1]).T if fortran_order else flat.reshape(shape)
