"""Arrays of other libraries, to a device and back, and what notebooks show."""

from __future__ import annotations

import contextlib
from typing import Any

import acme_scale
import ml_dtypes
import numpy as np
import oplet
import pytest
from oplet import InputError

SCALE = acme_scale.ID
X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Interface:
    """An array of a library that only has `__array_interface__`."""

    def __init__(self, array: Any) -> None:
        self._array = array

    @property
    def __array_interface__(self) -> Any:
        return self._array.__array_interface__


class Exporter:
    """An array of a library that only has `__dlpack__`, as torch has it."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class NeedsGradient(Exporter):
    """What torch does with a tensor that is part of a graph."""

    def __dlpack__(self, **arguments: Any) -> Any:
        raise RuntimeError("Can't export tensors that require gradient, use tensor.detach()")


@pytest.mark.parametrize("wrap", [Interface, Exporter])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint32"])
def test_arrays_of_other_libraries_are_uploaded(wrap: type, dtype: str, registry: oplet.Registry) -> None:
    for array in (X.astype(dtype), X.astype(dtype).T, X.astype(dtype)[:, ::2], np.array(7, dtype), X[:0].astype(dtype)):
        tensor = registry.tensor(wrap(array))
        assert (tensor.shape, tensor.dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("wrap", [Interface, Exporter, np.asarray])
def test_a_dtype_that_no_shader_has_is_refused(wrap: Any, registry: oplet.Registry) -> None:
    for dtype in ("float64", "int64", "uint8"):
        with pytest.raises(InputError, match=f"^array: {dtype} is not one of float32, float16, int32, uint32"):
            registry.tensor(wrap(X.astype(dtype)))


def test_dtypes_of_ml_dtypes_are_refused_by_name(registry: oplet.Registry) -> None:
    for name in ("bfloat16", "float8_e4m3fn"):
        with pytest.raises(InputError, match=f"^array: {name} is not one of"):
            registry.tensor(X.astype(getattr(ml_dtypes, name)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (NeedsGradient(X), "NeedsGradient does not give its data to numpy: .*detach"),
        (Interface(np.ma.masked_array(X)), None),
        (np.ma.masked_array(X), "MaskedArray is not an array\nconvert with array.filled"),
        (X.tolist(), r"list is not an array\nconvert with np.asarray\(array, np.float32\)"),
        ([0, 9, 20], r"list is not an array\nconvert with np.asarray\(array, np.int32\)"),
        (np.array([0, 9]), r"int64 is not one of .*\nconvert with array.astype\(np.int32\)"),
        (1.0, "float is not an array"),
        (None, "NoneType is not an array"),
    ],
)
def test_what_is_no_array_of_host_memory(value: Any, message: str | None, registry: oplet.Registry) -> None:
    if message is None:  # no mask is lost: the interface itself has none
        np.testing.assert_array_equal(registry.tensor(value).numpy(), X)
        return
    with pytest.raises(InputError, match=f"^array: {message}"):
        registry.tensor(value)


def test_a_tensor_is_an_array_and_a_dlpack_exporter(registry: oplet.Registry) -> None:
    for array in (X, X.astype(np.float16), X.astype(np.int32), X[:0], np.float32(3)):
        tensor = registry.tensor(array)
        assert tensor.__dlpack_device__() == (1, 0)
        for got in (np.from_dlpack(tensor), np.asarray(tensor)):
            assert got.dtype == array.dtype
            np.testing.assert_array_equal(got, array)
    host = registry.run(SCALE, X=X, variant="reference")
    np.testing.assert_array_equal(np.from_dlpack(host), 2 * X)
    np.testing.assert_array_equal(np.asarray(registry.tensor(X), np.float64), X.astype(np.float64))


def test_an_export_is_a_copy(registry: oplet.Registry) -> None:
    tensor = registry.tensor(X)
    exported = np.from_dlpack(tensor)
    again = np.from_dlpack(registry.tensor(tensor))  # a tensor of another device could be taken over like this
    np.testing.assert_array_equal(again, X)
    assert not np.shares_memory(exported, np.from_dlpack(tensor))
    for arguments in ({"copy": False}, {"stream": 1}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError):
            tensor.__dlpack__(**arguments)
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(tensor, copy=False)
    tensor.__dlpack__(max_version=(1, 0), dl_device=(1, 0), copy=True)
    tensor.__dlpack__(stream=None)


# Notebooks --------------------------------------------------------------------------------------------


def test_a_tensor_is_shown_without_waiting(registry: oplet.Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.device, "read", lambda *arguments: pytest.fail("it was read"))
    shown = registry.tensor(X)._repr_html_()
    for text in ("<table>", "(2, 3)", "float32", "24 bytes", registry.device.capabilities.adapter.name):
        assert text in shown
    assert "state" not in shown
    assert '<td style="text-align: left">host</td>' in registry.run(SCALE, X=X, variant="reference")._repr_html_()
    with contextlib.suppress(ZeroDivisionError), registry.batch():
        y = registry.run(SCALE, X=X)
        assert "in a batch that is open" in y._repr_html_()
        raise ZeroDivisionError
    assert "in a batch that was discarded" in y._repr_html_()
    assert registry.empty(0)._repr_html_()


def test_an_explanation_is_a_table_of_variants(device: oplet.Device) -> None:
    registry = oplet.Registry(device=device, discover=False)
    never = oplet.Variant("wide", acme_scale.plan, rejects=lambda request, caps: "needs <4> & more")
    registry.register(SCALE, acme_scale.with_variants(never, oplet.Variant("scalar", acme_scale.plan)))
    shown = registry.explain(SCALE, X=X)._repr_html_()
    for text in (SCALE, "float32 (2, 3)", "→ Y", "scalar", "runs", "wide", "rejects", "needs &lt;4&gt; &amp; more"):
        assert text in shown
    assert "<4>" not in shown


def test_a_device_is_a_table(device: oplet.Device) -> None:
    shown = device._repr_html_()
    for text in (device.capabilities.adapter.name, device.implementation, *device.capabilities.features, "checked"):
        assert text in shown
