"""A launch that could not be dispatched is refused when it is made, not when it is run."""

from typing import Any

import numpy as np
import pytest
from oplet.request import TensorSpec
from oplet.variant import Binding, Launch, Variant


def test_a_launch() -> None:
    launch = Launch(
        "scale.wgsl.jinja",
        2,
        context={"vec4": True},
        params={"rows": np.uint32(3), "shift": np.int32(-1), "factor": np.float32(0.5)},
        bindings=[Binding("x", "X", "read", "vec4<f32>"), Binding("y", "Y", "read_write", "f32")],
    )
    assert launch.workgroups == 2
    assert launch.scratch == {}


@pytest.mark.parametrize("workgroups", [0, -1])
def test_at_least_one_workgroup(workgroups: int) -> None:
    with pytest.raises(ValueError, match=f"^workgroups must be at least 1, not {workgroups}$"):
        Launch("a.wgsl.jinja", workgroups)


def test_workgroups_are_counted_in_integers() -> None:
    with pytest.raises(TypeError, match=r"^workgroups must be an int, not float 1\.0$"):
        Launch("a.wgsl.jinja", 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1, 1.0, True, np.int64(1), np.float64(1)])
def test_params_say_their_wgsl_type(value: Any) -> None:
    with pytest.raises(TypeError, match=r"params\['rows'\] must be np\.uint32, np\.int32 or np\.float32"):
        Launch("a.wgsl.jinja", 1, params={"rows": value})


@pytest.mark.parametrize("value", ["f32", 8, 0.5, True, None, (8, ("a", 1))])
def test_choices_enter_the_context(value: Any) -> None:
    assert Launch("a.wgsl.jinja", 1, context={"choice": value}).context == {"choice": value}


@pytest.mark.parametrize("value", [[8, 8], {"a": 1}, np.float32(1), np.zeros(2), (8, [8]), object()])
def test_nothing_else_does(value: Any) -> None:
    with pytest.raises(TypeError, match=r"context\['choice'\] must be"):
        Launch("a.wgsl.jinja", 1, context={"choice": value})


@pytest.mark.parametrize("name", ["workgroups", "fold_x", "a-b", "_", "1st", ""])
def test_param_names(name: str) -> None:
    with pytest.raises(ValueError, match="is not a free WGSL identifier"):
        Launch("a.wgsl.jinja", 1, params={name: np.uint32(1)})


@pytest.mark.parametrize(
    "element", ["f32", "f16", "u32", "i32", "vec2<f16>", "vec4<u32>", "atomic<u32>", "atomic<i32>"]
)
def test_elements(element: str) -> None:
    assert Binding("x", "X", "read", element).element == element


@pytest.mark.parametrize(
    "element", ["f64", "float", "vec3<f32>", "vec4f", "atomic<f32>", "bool", "f32\n", "vec4<f32", "f32>"]
)
def test_elements_refused(element: str) -> None:
    with pytest.raises(ValueError, match="is not one of f32"):
        Binding("x", "X", "read", element)


def test_access() -> None:
    with pytest.raises(ValueError, match=r"""^access 'write' is not "read" or "read_write"$"""):
        Binding("x", "X", "write", "f32")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a-b", "2d", "", "x\n", "_x"])
def test_names_are_wgsl_identifiers(name: str) -> None:
    with pytest.raises(ValueError, match="is not a WGSL identifier"):
        Binding(name, "X", "read", "f32")
    with pytest.raises(ValueError, match="is not a WGSL identifier"):
        Variant(name, plan=lambda request, caps: [])


def test_a_variant_without_predicates_serves_everything() -> None:
    variant: Any = Variant("plain", plan=lambda request, caps: [])
    assert variant.rejects(None, None) is None
    assert variant.yields(None, None) is None


def test_a_launch_holds_bindings_and_specs() -> None:
    with pytest.raises(TypeError, match="Binding"):
        Launch("a.wgsl.jinja", 1, bindings=[("x", "X", "read", "f32")])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"scratch\['s'\]: float64 is not one of float32"):
        Launch("a.wgsl.jinja", 1, scratch={"s": TensorSpec((2,), "float64")})
