"""Opening a device: which adapter, with which features and limits, and what came of it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal
from weakref import WeakValueDictionary

from oplet import capabilities
from oplet.capabilities import Adapter, Capabilities, Dialect, SubgroupMatrixConfig
from oplet.device import Device
from oplet.errors import DeviceError, InputError
from oplet.webgpu import (
    FEATURE_NAMES,
    Implementation,
    api,
    enumerate_adapters,
    implementation_of,
    request_device,
    subgroup_matrix_configs,
)

_BACKENDS = {"Vulkan": "Vulkan", "Metal": "Metal", "D3D12": "D3D12", "DX12": "D3D12"}
#: by its GPUDevice: whoever gives one again gets what has its pool, its pipelines and the tensors on it
_devices: WeakValueDictionary[Any, Device] = WeakValueDictionary()
_devices_lock = threading.Lock()

_RANK = {"DiscreteGPU": 0, "IntegratedGPU": 1, "VirtualGPU": 2, "Unknown": 3, "CPU": 4}


def open_device(
    *,
    power: Literal["high", "low"] | None = None,
    adapter: str | None = None,
    webgpu: Implementation | None = None,
    features: Collection[str] | None = None,
    limits: Literal["floor"] | Mapping[str, int] | None = None,
    experimental: bool = False,
    unchecked: bool = False,
    max_bytes: int | None = None,
) -> Device:
    """Opens a device on a Vulkan, Metal or D3D12 adapter. An OpenGL adapter is never used.

    Args:
        power: "high" prefers a discrete GPU, "low" an integrated one; None is "high". A software driver
            comes last either way.
        adapter: part of the adapter's name, in any case; default `OPLET_ADAPTER`, else any.
        webgpu: "wgpu" (default) or "dawn" (needs the extra `oplet[dawn]`); default `OPLET_WEBGPU`.
        features: optional features to have, of `oplet.capabilities.FEATURES`; None takes all that the adapter
            has, [] none.
        limits: None takes all that the adapter allows; "floor" what every WebGPU device allows; or limits
            by WebGPU's names, the rest as the adapter allows.
        experimental: also request features that no WebGPU standard has: subgroup matrices, on Dawn.
        unchecked: compile shaders without bounds checks and loop limits. Faster, and an out-of-bounds access
            in a shader then does what it does: only for ops whose every access you trust.
        max_bytes: most device memory that tensors and idle buffers may hold together, in bytes.

    Raises:
        DeviceError: no adapter (with what to install), or one that lacks what was asked for.
        InputError: an argument that is not one of those above.
    """
    implementation = chosen_implementation(webgpu)
    check_max_bytes(max_bytes)
    _one_of("power", power, ("high", "low", None))
    if adapter is not None and not isinstance(adapter, str):
        raise InputError(f"adapter: {adapter!r} is not a part of an adapter's name\npass a string", argument="adapter")
    if features is not None and (isinstance(features, str) or not isinstance(features, Collection)):
        raise InputError(
            f"features: {features!r} is not a list of features\npass one such as ['shader-f16']", argument="features"
        )
    for name in features or ():
        _one_of("features", name, capabilities.FEATURES)
    if "subgroup-matrix" in (features or ()) and not experimental:
        raise InputError("features: 'subgroup-matrix' is experimental\npass experimental=True too", argument="features")
    found = _choose_adapter(implementation, power, adapter or os.environ.get("OPLET_ADAPTER"))
    info = _adapter_of(found)
    names = FEATURE_NAMES[implementation]
    offered = [
        name
        for name in capabilities.FEATURES
        if names.get(name) in found.features and (experimental or name != "subgroup-matrix")
    ]
    if features is not None:
        if missing := [name for name in features if name not in offered]:
            raise DeviceError(
                f"{info.name} on {implementation} does not have the feature {missing[0]}\n"
                f"it has: {', '.join(offered) or 'none'}\nopen it with fewer features, or another adapter"
            )
        offered = list(features)
    granted = _limits(found, info, limits)
    try:
        gpu = request_device(
            implementation,
            found,
            features=[names[name] for name in offered],
            limits={capabilities.kebab(name): value for name, value in granted.items()},
            unchecked=unchecked,
        )
    except DeviceError:
        raise
    except Exception as error:  # RuntimeError from one implementation, GPUError from the other
        raise DeviceError(
            f"{info.name} on {implementation} refused a device\n{error}\n`oplet doctor` shows adapters and drivers"
        ) from error
    device = Device(
        gpu,
        _capabilities(gpu, implementation, info, offered),
        implementation=implementation,
        unchecked=unchecked,
        max_bytes=max_bytes,
    )
    with _devices_lock:
        _devices[gpu] = device
    return device


def check_max_bytes(max_bytes: object) -> None:
    """Raises InputError for what is no limit of memory."""
    if max_bytes is not None and (isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0):
        raise InputError(
            f"max_bytes: {max_bytes!r} is not a number of bytes\npass an int, or None", argument="max_bytes"
        )


def wrap_device(gpu: Any) -> Device:
    """A device of yours, a wgpu or wgpudawn GPUDevice: oplet uses it and never destroys it.

    Returns:
        The same device for the same GPUDevice, as long as anything uses it.

    Raises:
        InputError: it is not such a device.
    """
    implementation = implementation_of(gpu)
    if implementation is None:
        raise InputError(
            f"device: {type(gpu).__name__} is neither an oplet Device nor a wgpu or wgpudawn GPUDevice\n"
            "pass oplet.open_device(…), or nothing for the default",
            argument="device",
        )
    with _devices_lock:
        device = _devices.get(gpu)
        if device is None:
            granted = [name for name, own in FEATURE_NAMES[implementation].items() if own in gpu.features]
            caps = _capabilities(gpu, implementation, _adapter_of(gpu.adapter), granted)
            device = _devices[gpu] = Device(gpu, caps, implementation=implementation, unchecked=False)
    return device


def adapters(webgpu: Implementation | None = None) -> list[tuple[Adapter, frozenset[str]]]:
    """The usable adapters and the optional features that each offers, the preferred one first."""
    implementation = chosen_implementation(webgpu)
    names = FEATURE_NAMES[implementation]
    return [
        (_adapter_of(found), frozenset(name for name, own in names.items() if own in found.features))
        for found in _usable_adapters(implementation)
    ]


def chosen_implementation(webgpu: str | None = None) -> Implementation:
    """The WebGPU implementation of that name; by default the one of `OPLET_WEBGPU`, else wgpu.

    Raises:
        InputError: there is none of that name.
    """
    name = webgpu or os.environ.get("OPLET_WEBGPU") or "wgpu"
    _one_of("webgpu" if webgpu else "OPLET_WEBGPU", name, ("wgpu", "dawn"))
    return "dawn" if name == "dawn" else "wgpu"


def _one_of(argument: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        raise InputError(
            f"{argument}: {value!r} is not one of {', '.join(map(repr, allowed))}\ntake one of these", argument=argument
        )


def _usable_adapters(implementation: Implementation) -> list[Any]:
    try:
        found = enumerate_adapters(implementation)
    except DeviceError:
        raise
    except Exception as error:  # whatever a missing or broken driver makes of it
        raise DeviceError(f"{implementation} cannot list adapters\n{error}\n{_install_hint(implementation)}") from error
    # Without a Vulkan driver wgpu offers an OpenGL adapter and makes a device from it, which lacks much.
    usable = [one for one in found if one.info["backend_type"] in _BACKENDS]
    return sorted(usable, key=lambda one: _RANK.get(one.info["adapter_type"], 3))


def _choose_adapter(implementation: Implementation, power: str | None, name: str | None) -> Any:
    usable = _usable_adapters(implementation)
    if not usable:
        raise _no_adapter(implementation)
    if power == "low":
        usable.sort(key=lambda one: {"IntegratedGPU": -1}.get(one.info["adapter_type"], _RANK["DiscreteGPU"]))
        usable.sort(key=lambda one: one.info["adapter_type"] == "CPU")
    if not name:
        return usable[0]
    for one in usable:
        if name.casefold() in _name_of(one).casefold():
            return one
    known = ", ".join(repr(_name_of(one)) for one in usable)
    raise DeviceError(f"adapter: no adapter's name contains {name!r}\nthere are: {known}\nname one of them")


def _no_adapter(implementation: Implementation) -> DeviceError:
    others: list[Any] = []
    if implementation == "dawn":
        with contextlib.suppress(DeviceError):
            others = _usable_adapters("wgpu")
    if not others:
        return DeviceError(f"{implementation} finds no Vulkan, Metal or D3D12 adapter\n{_install_hint(implementation)}")
    # Dawn leaves out a driver that lacks anything it asks for, and tells why on stderr only.
    found = [f"  {one.name}{f', {one.driver}' if one.driver else ''}" for one in map(_adapter_of, others)]
    return DeviceError(
        "\n".join(
            [
                "dawn takes none of the adapters that wgpu finds, as it asks more of their drivers",
                *found,
                "update the driver: Mesa's software one of Debian 13 will do, that of Debian 12, Mesa 22.3, will not; "
                "or use wgpu",
            ]
        )
    )


def _install_hint(implementation: Implementation) -> str:
    if sys.platform == "linux":
        hint = (
            "install the Vulkan driver of your GPU, or a software one: apt-get install mesa-vulkan-drivers "
            "(Debian, Ubuntu), dnf install mesa-vulkan-drivers (Fedora), pacman -S vulkan-swrast (Arch)"
        )
    elif sys.platform == "darwin":
        hint = "oplet needs Metal: macOS 11 or later, and not a virtual machine without a GPU"
    else:
        hint = "oplet needs D3D12 or Vulkan: update Windows and the driver of your GPU"
    return f"{hint}; or use wgpu, which takes more drivers" if implementation == "dawn" else hint


def _name_of(found: Any) -> str:
    return found.info["device"] or found.info["description"]  # type: ignore[no-any-return]  # text in both


def _adapter_of(found: Any) -> Adapter:
    """What an implementation's adapter says of itself."""
    info = found.info
    return Adapter(
        name=_name_of(found),
        vendor=info["vendor"],
        backend=_BACKENDS.get(info["backend_type"], info["backend_type"]),
        is_cpu=info["adapter_type"] == "CPU",
        driver=info["description"],
        is_discrete=info["adapter_type"] == "DiscreteGPU",
    )


def _limits(found: Any, info: Adapter, limits: object) -> dict[str, int]:
    most = capabilities.webgpu_limits(found.limits)
    if limits is None:
        return most
    if limits == "floor":
        # A minimum alignment is better the smaller it is, so the floor is the largest.
        wanted = dict(capabilities.FLOOR)
    elif isinstance(limits, Mapping):
        for name, value in limits.items():
            _one_of("limits", name, tuple(capabilities.FLOOR))
            if isinstance(value, bool) or not isinstance(value, int) or _poorer(name, value, capabilities.FLOOR[name]):
                raise InputError(
                    f"limits: {name} {value!r} is not an int as good as {capabilities.FLOOR[name]}\n"
                    "every device has that; ask for more, or leave it out",
                    argument="limits",
                )
        wanted = {**most, **limits}
    else:
        raise InputError(
            f"limits: {limits!r} is neither None, 'floor' nor a mapping\npass one such as {{'maxBufferSize': 1 << 30}}",
            argument="limits",
        )
    for name, value in wanted.items():
        if _poorer(name, most[name], value):
            raise DeviceError(
                f"{info.name}: {name} {value} was asked for, and {most[name]} is what the adapter allows\n"
                "open it with limits that it has, or another adapter"
            )
    return wanted


def _poorer(limit: str, value: int, other: int) -> bool:
    return value > other if limit.startswith("min") else value < other


def _capabilities(gpu: Any, implementation: Implementation, info: Adapter, granted: Sequence[str]) -> Capabilities:
    dialect: Dialect = "tint" if implementation == "dawn" else "naga"
    features = set(granted)
    try:
        size = capabilities.measure_subgroup_size(gpu, dialect) if "subgroups" in features else 0
    except api(implementation).GPUError as error:
        raise DeviceError(
            f"{info.name} on {implementation}: the device does not work\n{error}\n"
            "`oplet doctor` shows adapters and drivers"
        ) from error
    if not size:
        features.discard("subgroups")
    configs: tuple[SubgroupMatrixConfig, ...] = ()
    if "subgroup-matrix" in features:
        configs = tuple(
            SubgroupMatrixConfig(
                config["component_type"], config["result_component_type"], config["m"], config["n"], config["k"]
            )
            for config in subgroup_matrix_configs(gpu)
        )
        if not configs or not size:
            features.discard("subgroup-matrix")
            configs = ()
    limits = capabilities.webgpu_limits(gpu.limits)
    return Capabilities(frozenset(features), limits, size, configs, dialect, info)
