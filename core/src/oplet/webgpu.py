"""The two implementations of WebGPU: wgpu, and Dawn through wgpudawn. One Python API; here is where they differ.

No other module imports either.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from oplet.errors import DeviceError

Implementation = Literal["wgpu", "dawn"]

#: import names
PACKAGES: Mapping[Implementation, str] = {"wgpu": "wgpu", "dawn": "wgpudawn"}

# WebGPU's GPUBufferUsage and GPUShaderStage flags, which both implementations take as integers.
COPY_SRC, COPY_DST, UNIFORM, STORAGE, QUERY_RESOLVE = 0x4, 0x8, 0x40, 0x80, 0x200
COMPUTE = 0x4

#: each one's spelling of the features that oplet knows
FEATURE_NAMES: Mapping[Implementation, Mapping[str, str]] = {
    # wgpu lists `subgroup`; asking it for WebGPU's `subgroups` succeeds and grants nothing. Its
    # cooperative-matrix is listed, but refused by request_device.
    "wgpu": {"subgroups": "subgroup", "shader-f16": "shader-f16", "timestamp-query": "timestamp-query"},
    "dawn": {
        "subgroups": "subgroups",
        "shader-f16": "shader-f16",
        "timestamp-query": "timestamp-query",
        "subgroup-matrix": "chromium-experimental-subgroup-matrix",
    },
}

#: device toggles of Dawn that `unchecked=True` enables
DAWN_UNCHECKED = ("disable_robustness", "disable_workgroup_init")

_set_up: set[Implementation] = set()


def api(implementation: Implementation) -> Any:
    """The implementation's module.

    Raises:
        DeviceError: it is not installed.
    """
    package = PACKAGES[implementation]
    try:
        return importlib.import_module(package)
    except ImportError as error:
        extra = "oplet[dawn]" if implementation == "dawn" else "oplet"
        raise DeviceError(f"{package} cannot be imported: {error}\npip install '{extra}'") from error


def implementation_of(gpu: object) -> Implementation | None:
    """Whose device an object is, if it is one at all."""
    package = type(gpu).__module__.partition(".")[0]
    if not hasattr(gpu, "create_compute_pipeline"):
        return None
    return next((name for name, own in PACKAGES.items() if own == package), None)


def device_of(buffer: object) -> object:
    """The GPUDevice that made a GPUBuffer; None where it is no such buffer.

    Raises:
        DeviceError: this version of the implementation does not tell.
    """
    if not hasattr(buffer, "map_state"):
        return None
    try:
        return buffer._device  # type: ignore[attr-defined]  # private in both, and the only way
    except AttributeError:
        package = type(buffer).__module__.partition(".")[0]
        raise DeviceError(
            f"buffer: this version of {package} does not tell which device a GPUBuffer is of\n"
            f"install a version of {package} that oplet allows; `pip check` names it"
        ) from None


def enumerate_adapters(implementation: Implementation) -> list[Any]:
    """Every adapter that the implementation finds. Raises whatever a missing or broken driver makes of it."""
    module = api(implementation)
    if implementation not in _set_up:
        {"wgpu": _set_up_wgpu, "dawn": _set_up_dawn}[implementation]()
        _set_up.add(implementation)
    with _a_runtime_folder():
        found: list[Any] = module.gpu.enumerate_adapters_sync()
    return found


@contextlib.contextmanager
def _a_runtime_folder() -> Iterator[None]:
    """Sets XDG_RUNTIME_DIR for a while: without it Vulkan's drivers complain on stderr, though no window is opened."""
    if sys.platform != "linux" or "XDG_RUNTIME_DIR" in os.environ:
        yield
        return
    import tempfile  # 5 ms, which importing oplet need not take

    os.environ["XDG_RUNTIME_DIR"] = tempfile.gettempdir()
    try:
        yield
    finally:
        os.environ.pop("XDG_RUNTIME_DIR", None)


# An instance is set up once in a process, before its first adapter: it cannot be changed later.


def _set_up_wgpu() -> None:
    """Leaves OpenGL out, no adapter of which is ever used: looking for one takes longer than opening a device."""
    with _a_runtime_folder():
        _quicken_types(importlib.import_module("wgpu.backends.wgpu_native._ffi").ffi)
        with contextlib.suppress(RuntimeError):  # the user's own instance exists already
            importlib.import_module("wgpu.backends.wgpu_native.extras").set_instance_extras(
                backends=["Vulkan", "Metal", "DX12"]
            )


def _quicken_types(ffi: Any) -> None:
    """Makes the first use of a C type fast in a cffi binding that is made at run time, as wgpu's is.

    cffi parses the name of a type behind a declaration of each of the header's types: 13 ms every time, and a first run
    uses 43 types. Declarations of those that the name mentions will do. This is cffi's inside; another cffi, that has
    another one, is left alone.
    """
    parser = getattr(ffi, "_parser", None)
    declarations = getattr(parser, "_declarations", None)
    parse_behind_all = getattr(parser, "_parse", None)
    if parser is None or parse_behind_all is None or not isinstance(declarations, dict):
        return

    def parse(name: str) -> Any:
        mentioned = {f"typedef {word}" for word in re.findall(r"\w+", name)}
        parser._declarations = {key: declarations[key] for key in mentioned & declarations.keys()}
        try:
            return parse_behind_all(name)
        finally:
            parser._declarations = declarations

    parser._parse = parse


def _set_up_dawn() -> None:
    """Sets the instance's toggles."""
    with contextlib.suppress(RuntimeError):  # the user's own instance exists already, with the user's toggles
        _dawn_extras().set_instance_extras(
            # f16 on NVIDIA is refused for drivers before 615.71 without the second; the first is needed for
            # subgroup matrices and changes nothing where they are not requested.
            enable_toggles=["allow_unsafe_apis", "vulkan_enable_f16_on_nvidia"],
            # Quantised, a timestamp moves in steps of 65.5 µs.
            disable_toggles=["timestamp_quantization"],
        )


def _dawn_extras() -> Any:
    return importlib.import_module("wgpudawn.backends.dawn.extras")


def _wgpu_native() -> Any:
    return importlib.import_module("wgpu.backends.wgpu_native._api")


def request_device(
    implementation: Implementation,
    adapter: Any,
    *,
    features: Sequence[str],
    limits: Mapping[str, int],
    unchecked: bool,
) -> Any:
    """A device of an adapter. Raises what the implementation raises where it refuses one.

    Args:
        implementation: the adapter's.
        adapter: one of `enumerate_adapters`.
        features: in the implementation's spelling.
        limits: in the implementation's spelling.
        unchecked: see `oplet.open_device`.

    Raises:
        DeviceError: shaders cannot be compiled unchecked.
    """
    wanted = {"label": "oplet", "required_features": list(features), "required_limits": dict(limits)}
    if unchecked and implementation == "dawn":
        return _dawn_extras().request_device_sync(adapter, **wanted, enable_toggles=DAWN_UNCHECKED)
    if unchecked:
        native = _wgpu_native()
        needed = ("GPUShaderModule", "new_struct_p", "to_c_string_view", "ffi", "lib", "libf")
        if not all(hasattr(native, name) for name in needed) or not hasattr(
            native.lib, "wgpuDeviceCreateShaderModuleTrusted"
        ):
            raise DeviceError("this wgpu cannot compile unchecked shaders\nopen the device without unchecked=True")
    return adapter.request_device_sync(**wanted)


def trusted_module(gpu: Any, label: str, wgsl: str) -> Any:
    """A shader module of wgpu without naga's bounds checks and loop limits, which wgpu-py does not expose.

    Its private API is the only way; `request_device(unchecked=True)` has made sure that it is there.
    """
    native = _wgpu_native()
    source = native.new_struct_p("WGPUShaderSourceWGSL *", code=native.to_c_string_view(wgsl))
    source[0].chain.next = native.ffi.NULL
    source[0].chain.sType = native.lib.WGPUSType_ShaderSourceWGSL
    descriptor = native.new_struct_p(
        "WGPUShaderModuleDescriptor *",
        nextInChain=native.ffi.cast("WGPUChainedStruct *", source),
        label=native.to_c_string_view(label),
    )
    checks = 0
    # Through libf: called through lib, bad WGSL gives an invalid module instead of an exception.
    handle = native.libf.wgpuDeviceCreateShaderModuleTrusted(gpu._internal, descriptor, checks)
    return native.GPUShaderModule(label, handle, gpu)


def subgroup_matrix_configs(gpu: Any) -> Sequence[Mapping[str, Any]]:
    """The shapes of subgroup matrix products that the adapter of a device of Dawn has, as Dawn tells them."""
    return _dawn_extras().get_adapter_properties(gpu.adapter).get("subgroup_matrix_configs") or ()


def tick_ns(implementation: Implementation, gpu: Any) -> float:
    """Nanoseconds of a timestamp's tick: WebGPU's unit is the nanosecond, wgpu-native hands on the driver's."""
    if implementation == "dawn":
        return 1.0
    return float(_wgpu_native().lib.wgpuQueueGetTimestampPeriod(gpu.queue._internal))
