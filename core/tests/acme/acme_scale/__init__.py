"""com.acme.Scale: an op on tensors of any shape, which the tests of the runtime run whole or with a part replaced.

Small whole numbers and a factor that is a power of two come out exact in every dtype, so the tests compare with ==.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Mapping, Sequence
from importlib.resources.abc import Traversable
from types import ModuleType
from typing import Any

import numpy as np
import oplet

ID = "com.acme.Scale"

_SCALARS = {"float32": "f32", "float16": "f16", "int32": "i32", "uint32": "u32"}


@oplet.hookimpl
def manifest() -> oplet.Manifest:
    return oplet.Manifest.read("acme_scale")


@oplet.hookimpl
def infer(request: oplet.Request) -> dict[str, oplet.TensorSpec]:
    x = request.inputs["X"]
    if request.inputs.get("biasT", x).shape != x.shape:
        raise oplet.InputError(f"{ID}: biasT: {request.inputs['biasT'].shape} is not X's {x.shape}", argument="biasT")
    return dict.fromkeys(request.outputs, x)


@oplet.hookimpl
def reference(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    y = arrays["X"].astype(np.float64) * request.attrs["factor"] + request.attrs["shift"]
    if "biasT" in arrays:
        y = y + arrays["biasT"]
    if request.attrs["mode"] == "absolute":
        y = abs(y)
    return {"Y": y, "negatedY": -y}


def rejects(request: oplet.Request, caps: oplet.Capabilities) -> str | None:
    if request.types["T"] == "float16" and "shader-f16" not in caps.features:
        return "float16 needs the device feature shader-f16"
    return None


def plan(request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
    x = request.inputs["X"]
    if not x.size:
        return []
    scalar = _SCALARS[x.dtype]
    bindings = [oplet.Binding("x", "X", "read", scalar)]
    if "biasT" in request.inputs:
        bindings.append(oplet.Binding("bias", "biasT", "read", scalar))
    bindings += [
        oplet.Binding(name, port, "read_write", scalar)
        for name, port in (("y", "Y"), ("negated", "negatedY"))
        if port in request.outputs
    ]
    return [
        oplet.Launch(
            "scale.wgsl.jinja",
            -(-x.size // 64),
            context={
                "scalar": scalar,
                "names": tuple(binding.name for binding in bindings),
                "absolute": request.attrs["mode"] == "absolute",
            },
            params={
                "size": np.uint32(x.size),
                "factor": np.float32(request.attrs["factor"]),
                "shift": np.int32(request.attrs["shift"]),
            },
            bindings=bindings,
        )
    ]


@oplet.hookimpl
def variants() -> Sequence[oplet.Variant]:
    return [oplet.Variant("scalar", plan, rejects=rejects)]


@oplet.hookimpl
def templates() -> Traversable:
    return importlib.resources.files("acme_scale") / "wgsl"


def changed(name: str = "acme_changed", **hooks: Callable[..., Any] | None) -> ModuleType:
    """The plugin with some hooks replaced, and those that are None left out."""
    own = {one.__name__: one for one in (manifest, infer, reference, variants, templates)}
    module = ModuleType(name)
    for hook, function in (own | hooks).items():
        if function is not None:
            setattr(module, hook, oplet.hookimpl(function))
    return module


def with_variants(*offered: oplet.Variant, **hooks: Callable[..., Any] | None) -> ModuleType:
    """The plugin with other variants."""
    return changed(variants=lambda: offered, **hooks)
