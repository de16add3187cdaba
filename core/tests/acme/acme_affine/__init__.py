"""com.acme.Affine: a small, correct op, which the tests of the conformance kit break one thing at a time."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from importlib.resources.abc import Traversable

import numpy as np
import oplet


@oplet.hookimpl
def manifest() -> oplet.Manifest:
    return oplet.Manifest.read(__package__)


@oplet.hookimpl
def infer(request: oplet.Request) -> dict[str, oplet.TensorSpec]:
    x, bias = request.inputs["X"], request.inputs.get("biasT")
    if bias is not None and bias.shape != x.shape[1:]:
        raise oplet.InputError(
            f"com.acme.Affine: biasT: {bias.shape} is not one number for each column of X {x.shape}", argument="biasT"
        )
    specs = {"Y": x, "sums": oplet.TensorSpec(x.shape[:1], "float32")}
    return {name: specs[name] for name in request.outputs}


@oplet.hookimpl
def reference(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    y = arrays["X"].astype(np.float64) * request.attrs["factor"]
    if "biasT" in arrays:
        y = y + arrays["biasT"].astype(np.float64)
    if request.attrs["activation"] == "Relu":
        y = np.where(y < 0, 0, y)
    return {"Y": y, "sums": y.sum(axis=1)}


def needs_vec4(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
    columns = request.inputs["X"].shape[1]
    if columns % 4:
        return "the number of columns is not a multiple of 4"
    return needs_f16(request, caps)


def needs_f16(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
    if request.types["T"] == "float16" and "shader-f16" not in caps.features:
        return "float16 needs the device feature shader-f16"
    return None


def needs_matrix(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
    if "subgroup-matrix" not in caps.features:
        return "needs the device feature subgroup-matrix"
    return needs_f16(request, caps)


def plan(request: oplet.Request, caps: oplet.Capabilities, *, vec4: bool = False) -> list[oplet.Launch]:
    """One launch scales and adds; a second one sums rows, from scratch, where the sums are asked for."""
    x = request.inputs["X"]
    if not x.size:
        return []
    rows, columns = x.shape
    wgsl = "f16" if x.dtype == "float16" else "f32"
    element = f"vec4<{wgsl}>" if vec4 else wgsl
    width = 4 if vec4 else 1
    bias = "biasT" in request.inputs
    wide = oplet.TensorSpec(x.shape, "float32")
    launch = oplet.Launch(
        "affine.wgsl.jinja",
        -(-x.size // (64 * width)),
        context={
            "element": element,
            "wide": "vec4<f32>" if vec4 else "f32",
            "bias": bias,
            "relu": request.attrs["activation"] == "Relu",
        },
        params={
            "size": np.uint32(x.size // width),
            "columns": np.uint32(columns // width),
            "factor": np.float32(request.attrs["factor"]),
            "zero": np.float32(0),
        },
        bindings=[
            oplet.Binding("x", "X", "read", element),
            *([oplet.Binding("bias", "biasT", "read", element)] if bias else []),
            oplet.Binding("y", "Y" if "Y" in request.outputs else "unused", "read_write", element),
            oplet.Binding("z", "wide", "read_write", "vec4<f32>" if vec4 else "f32"),
        ],
        scratch={"wide": wide, **({} if "Y" in request.outputs else {"unused": x})},
    )
    if "sums" not in request.outputs:
        return [launch]
    total = oplet.Launch(
        "sums.wgsl.jinja",
        rows,
        params={"columns": np.uint32(columns)},
        bindings=[oplet.Binding("z", "wide", "read", "f32"), oplet.Binding("sums", "sums", "read_write", "f32")],
        scratch={"wide": wide},
    )
    return [launch, total]


def plan_vec4(request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
    return plan(request, caps, vec4=True)


@oplet.hookimpl
def variants() -> list[oplet.Variant]:
    return [
        oplet.Variant("matrix", plan, rejects=needs_matrix),
        oplet.Variant("vec4", plan_vec4, rejects=needs_vec4),
        oplet.Variant("scalar", plan, rejects=needs_f16),
    ]


@oplet.hookimpl
def templates() -> Traversable:
    return importlib.resources.files(__package__) / "wgsl"
