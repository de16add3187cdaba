"""A WebGPU device: opening one, moving data, and submitting work."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

import attrs
import numpy as np

from oplet import capabilities
from oplet.buffers import COPY_DST, COPY_SRC, QUERY_RESOLVE, TENSOR_USAGE, UNIFORM, Buffer, Pool, host_array, padded
from oplet.capabilities import Adapter, Capabilities, Dialect, SubgroupMatrixConfig
from oplet.errors import DeviceError, InputError, OpletError, ShaderError
from oplet.pipelines import COMPUTE, Pipeline, Pipelines
from oplet.profile import Profile, Stamps, current_profile, open_profiles
from oplet.shader import fold, param_bytes
from oplet.variant import Launch, Plan

if TYPE_CHECKING:
    from oplet.templates import Templates

Implementation = Literal["wgpu", "dawn"]

#: bind groups that a device keeps; past it the longest unused is let go of
MAX_BIND_GROUPS = 4096

#: device toggles of Dawn that `unchecked=True` enables
DAWN_UNCHECKED = ("disable_robustness", "disable_workgroup_init")

_BACKENDS = {"Vulkan": "Vulkan", "Metal": "Metal", "D3D12": "D3D12", "DX12": "D3D12"}
_RANK = {"DiscreteGPU": 0, "IntegratedGPU": 1, "VirtualGPU": 2, "Unknown": 3, "CPU": 4}
_FEATURE_NAMES: Mapping[Implementation, Mapping[str, str]] = {
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

_serials = itertools.count(1)


# Opening ---------------------------------------------------------------------------------------------


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
    implementation = _implementation(webgpu)
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
    info = adapter_of(found)
    names = _FEATURE_NAMES[implementation]
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
        gpu = _request_device(
            implementation,
            found,
            required_features=[names[name] for name in offered],
            required_limits={capabilities.kebab(name): value for name, value in granted.items()},
            unchecked=unchecked,
        )
    except DeviceError:
        raise
    except Exception as error:  # RuntimeError from one implementation, GPUError from the other
        raise DeviceError(
            f"{info.name} on {implementation} refused a device\n{error}\n`oplet doctor` shows adapters and drivers"
        ) from error
    return Device(
        gpu,
        _capabilities(gpu, implementation, info, offered),
        implementation=implementation,
        unchecked=unchecked,
        max_bytes=max_bytes,
    )


def check_max_bytes(max_bytes: object) -> None:
    """Raises InputError for what is no limit of memory."""
    if max_bytes is not None and (isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0):
        raise InputError(
            f"max_bytes: {max_bytes!r} is not a number of bytes\npass an int, or None", argument="max_bytes"
        )


def wrap_device(gpu: Any, *, max_bytes: int | None = None) -> Device:
    """A device of yours, a wgpu or wgpudawn GPUDevice: oplet uses it and never destroys it.

    Raises:
        InputError: it is not such a device.
    """
    package = type(gpu).__module__.partition(".")[0]
    implementations: dict[str, Implementation] = {"wgpu": "wgpu", "wgpudawn": "dawn"}
    implementation = implementations.get(package)
    if implementation is None or not hasattr(gpu, "create_compute_pipeline"):
        raise InputError(
            f"device: {type(gpu).__name__} is neither an oplet Device nor a wgpu or wgpudawn GPUDevice\n"
            "pass oplet.open_device(…), or nothing for the default",
            argument="device",
        )
    granted = [name for name, own in _FEATURE_NAMES[implementation].items() if own in gpu.features]
    caps = _capabilities(gpu, implementation, adapter_of(gpu.adapter), granted)
    return Device(gpu, caps, implementation=implementation, unchecked=False, max_bytes=max_bytes)


def adapters(webgpu: Implementation | None = None) -> list[tuple[Adapter, frozenset[str]]]:
    """The usable adapters and the optional features that each offers, the preferred one first."""
    implementation = _implementation(webgpu)
    names = _FEATURE_NAMES[implementation]
    return [
        (adapter_of(found), frozenset(name for name, own in names.items() if own in found.features))
        for found in _usable_adapters(implementation)
    ]


def _implementation(webgpu: str | None) -> Implementation:
    name = webgpu or os.environ.get("OPLET_WEBGPU") or "wgpu"
    _one_of("webgpu" if webgpu else "OPLET_WEBGPU", name, ("wgpu", "dawn"))
    return "dawn" if name == "dawn" else "wgpu"


def _one_of(argument: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        raise InputError(
            f"{argument}: {value!r} is not one of {', '.join(map(repr, allowed))}\ntake one of these", argument=argument
        )


def _api(implementation: Implementation) -> Any:
    package = {"wgpu": "wgpu", "dawn": "wgpudawn"}[implementation]
    try:
        return importlib.import_module(package)
    except ImportError as error:
        extra = "oplet[dawn]" if implementation == "dawn" else "oplet"
        raise DeviceError(f"{package} cannot be imported: {error}\npip install '{extra}'") from error


def _usable_adapters(implementation: Implementation) -> list[Any]:
    api = _api(implementation)
    if implementation == "dawn":
        _set_dawn_toggles()
    # Vulkan's loader complains on stderr without it; no window is ever opened.
    if sys.platform == "linux":
        os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")
    try:
        found = api.gpu.enumerate_adapters_sync()
    except Exception as error:  # whatever a missing or broken driver makes of it
        raise DeviceError(f"{implementation} cannot list adapters\n{error}\n{_install_hint(implementation)}") from error
    # Without a Vulkan driver wgpu offers an OpenGL adapter and makes a device from it, which lacks much.
    usable = [one for one in found if one.info["backend_type"] in _BACKENDS]
    return sorted(usable, key=lambda one: _RANK.get(one.info["adapter_type"], 3))


def _set_dawn_toggles() -> None:
    """Once in a process, before its first adapter, always the same: they cannot be changed later."""
    if getattr(_set_dawn_toggles, "done", False):
        return
    extras = importlib.import_module("wgpudawn.backends.dawn.extras")
    with contextlib.suppress(RuntimeError):  # the user's own instance exists already, with the user's toggles
        extras.set_instance_extras(
            # f16 on NVIDIA is refused for drivers before 615.71 without the second; the first is needed for
            # subgroup matrices and changes nothing where they are not requested.
            enable_toggles=["allow_unsafe_apis", "vulkan_enable_f16_on_nvidia"],
            # Quantised, a timestamp moves in steps of 65.5 µs.
            disable_toggles=["timestamp_quantization"],
        )
    _set_dawn_toggles.done = True  # type: ignore[attr-defined]


def _choose_adapter(implementation: Implementation, power: str | None, name: str | None) -> Any:
    usable = _usable_adapters(implementation)
    if not usable:
        raise DeviceError(f"{implementation} finds no Vulkan, Metal or D3D12 adapter\n{_install_hint(implementation)}")
    if power == "low":
        usable.sort(key=lambda one: {"IntegratedGPU": -1}.get(one.info["adapter_type"], _RANK["DiscreteGPU"]))
        usable.sort(key=lambda one: one.info["adapter_type"] == "CPU")
    if not name:
        return usable[0]
    for one in usable:
        if name.casefold() in one.info["device"].casefold():
            return one
    known = ", ".join(repr(one.info["device"]) for one in usable)
    raise DeviceError(f"adapter: no adapter's name contains {name!r}\nthere are: {known}\nname one of them")


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
    # Dawn refuses old drivers, Debian 12's Mesa among them.
    return f"{hint}; or use wgpu, which takes more drivers" if implementation == "dawn" else hint


def adapter_of(found: Any) -> Adapter:
    """What an implementation's adapter says of itself."""
    info = found.info
    return Adapter(
        name=info["device"] or info["description"],
        vendor=info["vendor"],
        backend=_BACKENDS.get(info["backend_type"], info["backend_type"]),
        is_cpu=info["adapter_type"] == "CPU",
        driver=info["description"],
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


def _request_device(
    implementation: Implementation,
    found: Any,
    *,
    required_features: Sequence[str],
    required_limits: Mapping[str, int],
    unchecked: bool,
) -> Any:
    if not unchecked:
        return found.request_device_sync(
            label="oplet", required_features=list(required_features), required_limits=dict(required_limits)
        )
    if implementation == "dawn":
        extras = importlib.import_module("wgpudawn.backends.dawn.extras")
        return extras.request_device_sync(
            found,
            label="oplet",
            required_features=list(required_features),
            required_limits=dict(required_limits),
            enable_toggles=DAWN_UNCHECKED,
        )
    native = importlib.import_module("wgpu.backends.wgpu_native._api")
    needed = ("GPUShaderModule", "new_struct_p", "to_c_string_view", "ffi", "lib", "libf")
    if not all(hasattr(native, name) for name in needed) or not hasattr(
        native.lib, "wgpuDeviceCreateShaderModuleTrusted"
    ):
        raise DeviceError("this wgpu cannot compile unchecked shaders\nopen the device without unchecked=True")
    return found.request_device_sync(
        label="oplet", required_features=list(required_features), required_limits=dict(required_limits)
    )


def _capabilities(gpu: Any, implementation: Implementation, info: Adapter, granted: Sequence[str]) -> Capabilities:
    dialect: Dialect = "tint" if implementation == "dawn" else "naga"
    features = set(granted)
    try:
        size = capabilities.measure_subgroup_size(gpu, dialect) if "subgroups" in features else 0
    except _api(implementation).GPUError as error:
        raise DeviceError(
            f"{info.name} on {implementation}: the device does not work\n{error}\n"
            "`oplet doctor` shows adapters and drivers"
        ) from error
    if not size:
        features.discard("subgroups")
    configs: tuple[SubgroupMatrixConfig, ...] = ()
    if "subgroup-matrix" in features:
        extras = importlib.import_module("wgpudawn.backends.dawn.extras")
        configs = tuple(
            SubgroupMatrixConfig(
                config["component_type"], config["result_component_type"], config["m"], config["n"], config["k"]
            )
            for config in extras.get_adapter_properties(gpu.adapter).get("subgroup_matrix_configs") or ()
        )
        if not configs or not size:
            features.discard("subgroup-matrix")
            configs = ()
    limits = capabilities.webgpu_limits(gpu.limits)
    return Capabilities(frozenset(features), limits, size, configs, dialect, info)


# Running ---------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Step:
    """One dispatch of a program: a pipeline, its grid, and which of the call's buffers it binds."""

    serial: int
    pipeline: Pipeline
    grid: tuple[int, int, int]
    params_offset: int
    params_size: int
    slots: tuple[tuple[int, int], ...]  # (index into the program's names, bytes bound)


@attrs.frozen(eq=False)
class Program:
    """A plan made ready for a device: pipelines compiled, params uploaded.

    Attributes:
        names: the tensors it works on, as `Device.run` takes them: inputs, then outputs, then scratch.
        scratch: bytes of each scratch buffer.
        writes: positions in `names` of the outputs.
    """

    plan: Plan
    names: tuple[str, ...]
    scratch: tuple[int, ...]
    writes: range
    params: Any
    steps: tuple[Step, ...]


class Recording:
    """Commands that will be submitted together, and the buffers that they use."""

    __slots__ = ("encoder", "keep", "owner", "pass_", "stamps", "state")

    def __init__(self, owner: Batch) -> None:
        self.owner = owner
        self.state: Literal["open", "submitted", "discarded"] = "open"
        self.keep: list[Buffer] = []
        self.encoder: Any = None
        self.pass_: Any = None
        self.stamps: dict[Profile, Stamps] = {}

    def end_pass(self) -> None:
        """Ends the compute pass, if one is open."""
        if self.pass_ is not None:
            self.pass_.end()
            self.pass_ = None

    def close(self, state: Literal["submitted", "discarded"]) -> None:
        """Lets go of all but the outcome, which the tensors it was to fill ask for."""
        self.state = state
        self.keep.clear()
        self.stamps.clear()
        self.encoder = self.pass_ = None


class Batch:
    """Runs recorded for one submit. See `Registry.batch`."""

    __slots__ = ("device", "recording")

    def __init__(self, device: Device) -> None:
        self.device = device
        self.recording: Recording = Recording(self)


# Batches open in this context, innermost last. A thread starts with none.
_open_batches: ContextVar[tuple[Batch, ...]] = ContextVar("oplet_open_batches", default=())


class Device:
    """An open device. Made by `open_device`, shared by any number of registries.

    Attributes:
        capabilities: what it was granted.
        implementation: "wgpu" or "dawn".
        gpu: the WebGPU device itself.
        pool: its tensor memory.
        pipelines: its compiled templates.
    """

    def __init__(
        self,
        gpu: Any,
        caps: Capabilities,
        *,
        implementation: Implementation,
        unchecked: bool,
        max_bytes: int | None = None,
    ) -> None:
        self.gpu = gpu
        self.capabilities = caps
        self.implementation = implementation
        self.unchecked = unchecked
        self._gpu_error: type[Exception] = _api(implementation).GPUError
        self.pool = Pool(self._create_buffer, caps.limits["maxBufferSize"], max_bytes)
        self.pipelines = Pipelines(gpu, caps, self._gpu_error, unchecked=unchecked)
        self._bind_groups: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self._lock = threading.RLock()
        self._lost = ""
        self._fence: Buffer | None = None
        self._probe_layout: Any = None

    def __repr__(self) -> str:
        return f"Device({self.capabilities.adapter.name!r}, {self.implementation})"

    def _repr_html_(self) -> str:
        from oplet import notebook

        caps = self.capabilities
        kind = "software" if caps.adapter.is_cpu else "GPU"
        shaders = "unchecked" if self.unchecked else "checked"
        rows = [
            ("implementation", f"{self.implementation} on {caps.adapter.backend}, {shaders} shaders"),
            ("adapter", f"{kind}, {caps.adapter.driver}"),
            ("features", ", ".join(sorted(caps.features)) or "none"),
            ("subgroup size", str(caps.subgroup_size or "no subgroups")),
            ("largest buffer", f"{caps.limits['maxBufferSize']:,} bytes"),
            ("tensors", f"{self.pool.live_count} buffers, {self.pool.live_bytes:,} bytes"),
        ]
        return notebook.table(caps.adapter.name, rows)

    @property
    def lost(self) -> bool:
        """Whether it is known to be lost."""
        return bool(self._lost)

    @property
    def bind_group_count(self) -> int:
        """Bind groups in the cache."""
        return len(self._bind_groups)

    # Memory

    def _create_buffer(self, nbytes: int) -> Any:
        with self._errors():
            return self.gpu.create_buffer(label=f"oplet {nbytes} bytes", size=nbytes, usage=TENSOR_USAGE)

    def take(self, nbytes: int) -> Buffer:
        """Memory from the pool, with undefined contents."""
        with self._lock:
            return self.pool.take(nbytes)

    def upload(self, array: np.ndarray) -> Buffer | None:
        """Copies an array into a buffer; None for an empty one."""
        if not array.size:
            return None
        data = host_array(array)
        with self._lock:
            buffer = self.pool.take(data.nbytes)
            self.write(buffer, data)
        return buffer

    def write(self, buffer: Buffer, data: np.ndarray) -> None:
        """Fills the front of a buffer, before anything submitted later."""
        if data.nbytes % 4:
            # An odd number of float16: a write's size is a multiple of 4.
            whole = np.zeros(padded(data.nbytes), np.uint8)
            whole[: data.nbytes] = np.frombuffer(data.tobytes(), np.uint8)
            data = whole
        with self._lock, self._errors():
            self.gpu.queue.write_buffer(buffer.gpu, 0, data)

    def read(self, buffer: Buffer, nbytes: int) -> Any:
        """The first bytes of a buffer, once everything submitted so far is done."""
        with self._lock:
            self.settle(buffer, flush=True)
            with self._errors():
                self._refuse_unusable(buffer)
                return bytearray(self.gpu.queue.read_buffer(buffer.gpu, 0, nbytes))

    def settle(self, buffer: Buffer, *, flush: bool) -> None:
        """Refuses a buffer that a batch was to fill and never will, or that only another thread's batch can.

        Args:
            flush: whether to submit this context's batch if it is the one.
        """
        recording = buffer.pending
        if recording is None:
            return
        if recording.state == "open":
            if current_batch(self) is not recording.owner:
                raise DeviceError(
                    "the tensor belongs to a batch that is still open in another thread or task\n"
                    "read it there, or after that batch"
                )
            if flush:
                self._flush(recording.owner)
            else:
                return
        if recording.state == "discarded":
            raise DeviceError("the tensor was to be filled by a batch that an exception discarded\nrun the batch again")
        buffer.pending = None

    # Programs

    def check(self, plan: Plan) -> None:
        """Holds a plan against the limits of the device.

        Raises:
            DeviceError: one is exceeded; with what is needed and what is allowed.
        """
        limits = self.capabilities.limits
        specs = plan.specs
        for launch in plan.launches:
            for binding in launch.bindings:
                nbytes = specs[binding.tensor].nbytes
                if nbytes > limits["maxStorageBufferBindingSize"]:
                    raise DeviceError(
                        f"{plan.op}: {binding.tensor}: {nbytes} bytes are needed in one binding, and this device "
                        f"allows {limits['maxStorageBufferBindingSize']} (maxStorageBufferBindingSize)\n"
                        "split the work into smaller tensors"
                    )
            if len(launch.bindings) > limits["maxStorageBuffersPerShaderStage"]:
                raise DeviceError(
                    f"{plan.op}/{plan.variant}: {len(launch.bindings)} storage buffers are needed, and this device "
                    f"allows {limits['maxStorageBuffersPerShaderStage']} (maxStorageBuffersPerShaderStage)\n"
                    "the variant should reject such a device; report it to its author"
                )
            grid = self._grid(launch)
            if math.prod(grid) >= 1 << 32:  # workgroup_index() is a u32, also of surplus workgroups
                raise DeviceError(
                    f"{plan.op}/{plan.variant}: {launch.workgroups} workgroups are needed, and this device allows "
                    f"{grid[0]} in each of three dimensions, fewer than 2³² in all\n"
                    "split the work into smaller tensors"
                )

    def prepare(self, plan: Plan, templates: Templates) -> Program:
        """Compiles what a plan needs and uploads its params.

        Raises:
            ShaderError: a template is at fault.
            DeviceError: a limit of the device is exceeded.
        """
        self.check(plan)
        specs = plan.specs
        names = tuple(specs)
        alignment = self.capabilities.limits["minUniformBufferOffsetAlignment"]
        params = bytearray()
        steps = []
        with self._lock, self._errors():
            for launch in plan.launches:
                grid = self._grid(launch)
                data = param_bytes(launch.params, launch.workgroups, grid)
                try:
                    pipeline = self.pipelines.get(plan.op, plan.variant, plan.folder, templates, launch)
                except ShaderError as error:
                    error.blame(plan.variant, plan.source)
                    raise
                steps.append(
                    Step(
                        serial=next(_serials),
                        pipeline=pipeline,
                        grid=grid,
                        params_offset=len(params),
                        params_size=len(data),
                        slots=tuple(
                            # Of an empty tensor as much as one element of any type: WebGPU wants that of a binding.
                            (names.index(binding.tensor), padded(specs[binding.tensor].nbytes or 16))
                            for binding in launch.bindings
                        ),
                    )
                )
                params += data + bytes(-len(data) % alignment)
            uniforms = None
            if steps:
                uniforms = self.gpu.create_buffer(label=f"{plan.op} params", size=len(params), usage=UNIFORM | COPY_DST)
                self.gpu.queue.write_buffer(uniforms, 0, bytes(params))
        first = len(plan.inputs)
        return Program(
            plan=plan,
            names=names,
            scratch=tuple(spec.nbytes for spec in plan.scratch.values()),
            writes=range(first, first + len(plan.outputs)),
            params=uniforms,
            steps=tuple(steps),
        )

    def _grid(self, launch: Launch) -> tuple[int, int, int]:
        return fold(launch.workgroups, self.capabilities.limits["maxComputeWorkgroupsPerDimension"])

    def run(self, program: Program, buffers: Sequence[Buffer | None]) -> None:
        """Submits a program, or records it where this context has a batch open.

        Args:
            program: made by `prepare`.
            buffers: of inputs and outputs, in the order of `program.names`; None for an empty tensor.

        Raises:
            DeviceError: memory was refused, or the device is lost.
        """
        if not program.steps:
            return
        with self._lock:
            if self._lost:
                raise self._lost_error()
            for index, buffer in enumerate(buffers):
                if buffer is None or buffer.pending is None:
                    continue
                if index in program.writes and buffer.pending.state == "discarded":
                    buffer.pending = None  # filled after all
                else:
                    self.settle(buffer, flush=False)
            held = self._hold(program, buffers)
            try:
                groups = [self._bind_group(program, step, held) for step in program.steps]
                batch = current_batch(self)
                if batch is None:
                    self._submit(program, groups)
                    return
                self._record(batch.recording, program, groups)
            except self._gpu_error as error:
                users = [name for name, buffer in zip(program.names, held, strict=True) if buffer.external]
                raise self._fault(error, f"{program.plan.op}: {', '.join(users)}") from error
            batch.recording.keep += held
            for index in program.writes:
                held[index].pending = batch.recording

    def _hold(self, program: Program, buffers: Sequence[Buffer | None]) -> list[Buffer]:
        take = self.pool.take
        # A WebGPU binding is never empty: an empty tensor gets a few bytes that no shader should use.
        held = [take(16) if buffer is None else buffer for buffer in buffers]
        held += [take(nbytes) for nbytes in program.scratch]
        return held

    def time(self, runs: Sequence[tuple[Program, Sequence[Buffer | None]]]) -> list[float]:
        """Submits runs, each in a compute pass of its own, and waits.

        Returns:
            Device time of each run in seconds, from the timestamps around its pass.

        Raises:
            DeviceError: the device lacks `timestamp-query`, or as `run`.
        """
        if "timestamp-query" not in self.capabilities.features:
            raise DeviceError(
                f"{self.capabilities.adapter.name}: the device has no timestamps (timestamp-query)\n"
                "open it with that feature, or measure wall time"
            )
        stamps = 2 * len(runs)
        with self._lock, self._errors():
            queries = self.gpu.create_query_set(type="timestamp", count=stamps)
            resolved = self.gpu.create_buffer(size=8 * stamps, usage=QUERY_RESOLVE | COPY_SRC)
            encoder = self.gpu.create_command_encoder()
            keep = []
            for number, (program, buffers) in enumerate(runs):
                held = self._hold(program, buffers)
                keep.append(held)
                groups = [self._bind_group(program, step, held) for step in program.steps]
                compute = encoder.begin_compute_pass(
                    timestamp_writes={
                        "query_set": queries,
                        "beginning_of_pass_write_index": 2 * number,
                        "end_of_pass_write_index": 2 * number + 1,
                    }
                )
                _dispatch(compute, program, groups)
                compute.end()
            encoder.resolve_query_set(queries, 0, stamps, resolved, 0)
            self.gpu.queue.submit([encoder.finish()])
            ticks = np.frombuffer(self.gpu.queue.read_buffer(resolved), np.uint64).reshape(-1, 2)
            resolved.destroy()
            queries.destroy()
        return [float(seconds) for seconds in (ticks[:, 1] - ticks[:, 0]) * (self.tick_ns * 1e-9)]

    def wait(self) -> None:
        """Returns once everything submitted so far is done."""
        # Not on_submitted_work_done_sync, which raises a TypeError in wgpu 0.32.
        with self._lock:
            if self._fence is None:
                self._fence = self.pool.take(4)
            with self._errors():
                self.gpu.queue.read_buffer(self._fence.gpu, 0, 4)

    @property
    def tick_ns(self) -> float:
        """Nanoseconds of a timestamp's tick: WebGPU's unit is the nanosecond, wgpu-native hands on the driver's."""
        if self.implementation == "dawn":
            return 1.0
        native = importlib.import_module("wgpu.backends.wgpu_native._api")
        return float(native.lib.wgpuQueueGetTimestampPeriod(self.gpu.queue._internal))

    def _bind_group(self, program: Program, step: Step, held: list[Buffer]) -> Any:
        key = (step.serial, *[held[index].serial for index, _ in step.slots])
        group = self._bind_groups.get(key)
        if group is not None:
            self._bind_groups.move_to_end(key)
            return group
        entries = [
            {
                "binding": 0,
                "resource": {"buffer": program.params, "offset": step.params_offset, "size": step.params_size},
            }
        ]
        cacheable = True
        for number, (index, nbytes) in enumerate(step.slots, 1):
            buffer = held[index]
            if buffer.external:
                # Not cached: creating the group is what tells a destroyed one.
                cacheable = False
                _refuse_mapped(buffer, f"{program.plan.op}: {program.names[index]}")
            resource = {"buffer": buffer.gpu, "offset": 0, "size": buffer.span or nbytes}
            entries.append({"binding": number, "resource": resource})
        group = self.gpu.create_bind_group(layout=step.pipeline.layout, entries=entries)
        if cacheable:
            self._bind_groups[key] = group
            if len(self._bind_groups) > MAX_BIND_GROUPS:
                self._bind_groups.popitem(last=False)
        return group

    def _submit(self, program: Program, groups: list[Any]) -> None:
        encoder = self.gpu.create_command_encoder()
        profile = current_profile(self)
        if profile is not None:
            stamps = Stamps(profile)
            stamps.dispatch(encoder, program, groups)
            stamps.resolve(encoder)
            self.gpu.queue.submit([encoder.finish()])
            profile.submitted(stamps)
            return
        compute = encoder.begin_compute_pass()
        _dispatch(compute, program, groups)
        compute.end()
        # Nothing between finish, which raises for a lost device, and submit, where wgpu would end the process.
        self.gpu.queue.submit([encoder.finish()])

    def _record(self, recording: Recording, program: Program, groups: list[Any]) -> None:
        if recording.encoder is None:
            recording.encoder = self.gpu.create_command_encoder()
        profile = current_profile(self)
        if profile is not None:
            recording.end_pass()
            recording.stamps.setdefault(profile, Stamps(profile)).dispatch(recording.encoder, program, groups)
            return
        if recording.pass_ is None:
            recording.pass_ = recording.encoder.begin_compute_pass()
        _dispatch(recording.pass_, program, groups)

    def _flush(self, batch: Batch) -> None:
        """Submits what a batch holds; it goes on with a new recording."""
        recording, batch.recording = batch.recording, Recording(batch)
        outcome: Literal["submitted", "discarded"] = "discarded"
        try:
            if recording.encoder is not None:
                with self._errors():
                    for buffer in recording.keep:
                        self._refuse_unusable(buffer)
                    recording.end_pass()
                    for stamps in recording.stamps.values():
                        stamps.resolve(recording.encoder)
                    self.gpu.queue.submit([recording.encoder.finish()])
                    for stamps in recording.stamps.values():
                        stamps.profile.submitted(stamps)
            outcome = "submitted"
        finally:
            recording.close(outcome)

    def _refuse_unusable(self, buffer: Buffer) -> None:
        """Raises for a user's buffer that is destroyed or mapped; wgpu ends the process when submit meets one."""
        if not buffer.external:
            return
        _refuse_mapped(buffer, self.capabilities.adapter.name)
        if self._probe_layout is None:
            entry = {"binding": 0, "visibility": COMPUTE, "buffer": {"type": "read-only-storage"}}
            self._probe_layout = self.gpu.create_bind_group_layout(entries=[entry])
        resource = {"buffer": buffer.gpu, "offset": 0, "size": 4}
        self.gpu.create_bind_group(layout=self._probe_layout, entries=[{"binding": 0, "resource": resource}])

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """See `Registry.batch`."""
        if current_batch(self) is not None:
            yield
            return
        batch = Batch(self)
        _open_batches.set((*_open_batches.get(), batch))
        try:
            yield
            with self._lock:
                self._flush(batch)
        finally:
            # Not reset(token), which raises in another context: a generator may be closed in one.
            _open_batches.set(tuple(other for other in _open_batches.get() if other is not batch))
            batch.recording.close("discarded")

    @contextlib.contextmanager
    def profile(self) -> Iterator[Profile]:
        """See `Registry.profile`."""
        profile = Profile(self)
        open_profiles.set((*open_profiles.get(), profile))
        try:
            yield profile
        finally:
            open_profiles.set(tuple(other for other in open_profiles.get() if other is not profile))
        with self._lock, self._errors():
            batch = current_batch(self)
            if batch is not None:
                self._flush(batch)
            profile.close()

    # Faults

    def _lost_error(self) -> DeviceError:
        return DeviceError(
            f"{self.capabilities.adapter.name}: the device is lost\n{self._lost}\n"
            "its tensors are gone; go on with a new oplet.Registry()"
        )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns an implementation's exceptions into DeviceError."""
        try:
            yield
        except OpletError:
            raise
        except (self._gpu_error, RuntimeError) as error:  # both implementations raise the latter where mapping fails
            raise self._fault(error, self.capabilities.adapter.name) from error

    def _fault(self, error: Exception, where: str) -> DeviceError:
        # Its traceback makes a cycle with the implementation's frames, and a memoryview that they have lent out
        # crashes CPython when the collector clears it.
        error.__traceback__ = None
        message = str(error).strip()
        if "is lost" in message:
            self._lost = message
            return self._lost_error()
        if "destroyed" in message:
            return DeviceError(f"{where}: the GPUBuffer has been destroyed\n{message}\npass a tensor that is alive")
        return DeviceError(
            f"{where}: {message}\nif memory ran out, let go of tensors; "
            "otherwise report it, with the output of `oplet doctor`"
        )


def _refuse_mapped(buffer: Buffer, where: str) -> None:
    if buffer.gpu.map_state != "unmapped":
        raise DeviceError(f"{where}: the GPUBuffer is mapped\nunmap it before it is used")


def _dispatch(compute: Any, program: Program, groups: list[Any]) -> None:
    for step, group in zip(program.steps, groups, strict=True):
        compute.set_pipeline(step.pipeline.gpu)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(*step.grid)


def current_batch(device: Device) -> Batch | None:
    """The batch of a device that is open in this context."""
    for batch in reversed(_open_batches.get()):
        if batch.device is device and batch.recording.state == "open":
            return batch
    return None
