"""What a spec may be, and when two requests ask for the same."""

import math
from typing import Any

import attrs
import numpy as np
import pytest
from oplet import InputError
from oplet.manifest import Manifest, Port
from oplet.request import DTYPES, AttributeValue, Request, TensorSpec, shape_text

MANIFEST = Manifest(1, "com.acme.Foo", 1, "", (Port("X", "float32", "any"),), (Port("Y", "float32", "as X"),))


def request(value: AttributeValue = 1.0, shape: tuple[int, ...] = (2, 3)) -> Request:
    return Request(MANIFEST, {"X": TensorSpec(shape, "float32")}, {"alpha": value}, {"T": "float32"}, ("Y",))


@pytest.mark.parametrize(
    ("spec", "rank", "size", "nbytes"),
    [
        (TensorSpec((2, 3), "float32"), 2, 6, 24),
        (TensorSpec((3,), "float16"), 1, 3, 6),
        (TensorSpec((), "int32"), 0, 1, 4),
        (TensorSpec((4, 0), "uint32"), 2, 0, 0),
    ],
)
def test_sizes(spec: TensorSpec, rank: int, size: int, nbytes: int) -> None:
    assert (spec.rank, spec.size, spec.nbytes) == (rank, size, nbytes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_spec_of_an_array(dtype: str) -> None:
    array = np.zeros((2, 5), dtype)
    spec = TensorSpec.of(array)
    assert spec == TensorSpec((2, 5), dtype)
    assert spec.nbytes == array.nbytes
    assert str(spec) == f"{dtype} (2, 5)"


def test_big_endian_arrays_have_the_same_spec() -> None:
    assert TensorSpec.of(np.zeros(2, ">f4")) == TensorSpec((2,), "float32")


def test_shape_text_prints_numpy_integers_as_integers() -> None:
    assert shape_text((np.int64(2), 3)) == "(2, 3)"  # type: ignore[arg-type]
    assert shape_text((4,)) == "(4,)"


@pytest.mark.parametrize("shape", [[2, 3], (np.int64(2), np.uint8(3)), (2, 3)], ids=repr)
def test_a_shape_becomes_a_tuple_of_ints(shape: Any) -> None:
    spec = TensorSpec(shape, "float32")
    assert (spec.shape, {type(n) for n in spec.shape}) == ((2, 3), {int})
    assert spec == TensorSpec((2, 3), "float32")
    hash(spec)


@pytest.mark.parametrize("shape", [(-1,), (1.5,), (4 / 2,), (None,), (True,), "23", 3, None, {2: 3}], ids=repr)
def test_what_is_no_shape(shape: Any) -> None:
    with pytest.raises(InputError, match=r"shape: .* is not a tuple of dimensions.*\npass one such as") as caught:
        TensorSpec(shape, "float32")
    assert caught.value.argument == "shape"


@pytest.mark.parametrize("dtype", [np.float32, np.dtype("float32"), None, 4], ids=repr)
def test_what_is_no_dtypes_name(dtype: Any) -> None:
    with pytest.raises(InputError, match=r"dtype: .* is not a dtype's name\npass one such as 'float32'") as caught:
        TensorSpec((2,), dtype)
    assert caught.value.argument == "dtype"
    with pytest.raises(InputError, match="dtype: 'f16' is WGSL's name of it\npass 'float16'"):
        TensorSpec((2,), "f16")


def test_equal_requests() -> None:
    assert request() == request()


@pytest.mark.parametrize("other", [request(2.0), request(shape=(3, 2)), request("1.0"), request(None), request(1)])
def test_different_requests(other: Request) -> None:
    assert request() != other


def test_signed_zeros_differ_and_nan_equals_itself() -> None:
    assert request(0.0) != request(-0.0)
    assert request(math.nan) == request(math.nan)


def test_outputs_and_types_count() -> None:
    assert request() != attrs.evolve(request(), outputs=())
    assert request() != attrs.evolve(request(), types={"T": "float16"})


def test_the_manifest_does_not() -> None:
    assert request() == attrs.evolve(request(), manifest=attrs.evolve(MANIFEST, summary="reworded"))


def test_a_request_equals_nothing_else() -> None:
    assert request() != request().inputs


def test_a_refusal_names_the_op_and_the_argument() -> None:
    error = request().refusal("X", "its shape is odd", "X float32 (2, 3)", "Y float32 (2, 2)", do="pass an even one")
    assert str(error).splitlines() == [
        "com.acme.Foo: X: its shape is odd",
        "  X float32 (2, 3)",
        "  Y float32 (2, 2)",
        "pass an even one",
    ]
    assert (error.op, error.argument) == ("com.acme.Foo", "X")
