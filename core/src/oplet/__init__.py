"""WebGPU operators for Python, as plugins.

    y = oplet.run("com.microsoft.FusedGemm", A=a, B=b, attrs={"activation": "Relu"})
    y.numpy()

Importing this module loads no plugin and touches no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oplet.buffers import Tensor
from oplet.capabilities import Capabilities
from oplet.device import Device
from oplet.errors import (
    DeviceError,
    InputError,
    ManifestError,
    MissingExtraError,
    NoVariantError,
    OpletError,
    OutOfMemoryError,
    PluginConflictError,
    PluginContractError,
    PluginError,
    PluginLoadError,
    ShaderError,
    UnknownOpError,
)
from oplet.hookspecs import hookimpl
from oplet.manifest import Manifest
from oplet.opening import open_device
from oplet.registry import Explanation, InputValue, Registry, default_registry
from oplet.request import Request, TensorSpec
from oplet.variant import Binding, Launch, Rejection, Variant

__all__ = [
    "Binding",
    "Capabilities",
    "Device",
    "DeviceError",
    "Explanation",
    "InputError",
    "Launch",
    "Manifest",
    "ManifestError",
    "MissingExtraError",
    "NoVariantError",
    "OpletError",
    "OutOfMemoryError",
    "PluginConflictError",
    "PluginContractError",
    "PluginError",
    "PluginLoadError",
    "Registry",
    "Rejection",
    "Request",
    "ShaderError",
    "Tensor",
    "TensorSpec",
    "UnknownOpError",
    "Variant",
    "default_registry",
    "explain",
    "hookimpl",
    "open_device",
    "run",
]


def run(
    op: str,
    /,
    *,
    attrs: Mapping[str, object] | None = None,
    out: Mapping[str, Tensor] | None = None,
    outputs: Sequence[str] | None = None,
    variant: str | None = None,
    **inputs: InputValue | None,
) -> Any:
    """`Registry.run` on the default registry."""
    return default_registry().run(op, attrs=attrs, out=out, outputs=outputs, variant=variant, **inputs)


def explain(
    op: str,
    /,
    *,
    attrs: Mapping[str, object] | None = None,
    outputs: Sequence[str] | None = None,
    variant: str | None = None,
    **inputs: InputValue | TensorSpec | None,
) -> Explanation:
    """`Registry.explain` on the default registry."""
    return default_registry().explain(op, attrs=attrs, outputs=outputs, variant=variant, **inputs)
