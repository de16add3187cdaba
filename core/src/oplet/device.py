"""A WebGPU device: moving data, compiling plans and submitting work. `oplet.opening` makes one."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs
import numpy as np

from oplet import tables
from oplet.batch import Batch, Recording, current_batch, current_profile, open_batches, open_profiles
from oplet.buffers import TENSOR_USAGE, Buffer, Pool, host_array, padded
from oplet.capabilities import Capabilities
from oplet.errors import DeviceError, OpletError, OutOfMemoryError, ShaderError
from oplet.pipelines import Pipeline, Pipelines
from oplet.shader import fold, param_bytes, ranges
from oplet.timestamps import Timestamps
from oplet.variant import Plan
from oplet.webgpu import COMPUTE, COPY_DST, UNIFORM, Implementation, api, tick_ns

if TYPE_CHECKING:
    from oplet.profile import Profile
    from oplet.templates import Templates

#: bind groups that a device keeps; past it the longest unused is let go of
MAX_BIND_GROUPS = 4096

#: most multiply-adds of a dispatch. Drivers reset a device that is kept from everything else for about 2 s, so this
#: is what takes less where a shader reaches a third of what a slow integrated GPU, or a slow card, is capable of: of
#: 0.3 and 1.1 TFLOP/s. A fast card takes a few milliseconds, so it does not notice where dispatches end.
MAX_OPERATIONS = 1 << 36
MAX_OPERATIONS_DISCRETE = 1 << 38

_serials = itertools.count(1)


@attrs.frozen(eq=False)
class Step:
    """One dispatch of a program: a pipeline, its grid, and which of the call's buffers it binds."""

    serial: int
    template: str
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


class Device:
    """An open device. Made by `open_device`, shared by any number of registries.

    Attributes:
        capabilities: what it was granted.
        implementation: "wgpu" or "dawn".
        unchecked: whether its shaders are compiled without bounds checks.
        gpu: the WebGPU device itself.
        pool: its tensor memory.
        pipelines: its compiled templates.
        max_operations: most multiply-adds of a dispatch. A launch of more, by its own account, is several, each of
            a range of its workgroups; one workgroup is never split.
        max_row: most workgroups in a dimension. A launch of more is folded into rows, and those into layers.
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
        self.max_operations = MAX_OPERATIONS_DISCRETE if caps.adapter.is_discrete else MAX_OPERATIONS
        self.max_row = caps.limits["maxComputeWorkgroupsPerDimension"]
        self._gpu_error: type[Exception] = api(implementation).GPUError
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
        return tables.html(caps.adapter.name, rows)

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

    def _create_params(self, op: str, data: bytes) -> Any:
        with self._errors():
            buffer = self.gpu.create_buffer(label=f"{op} params", size=len(data), usage=UNIFORM | COPY_DST)
            self.gpu.queue.write_buffer(buffer, 0, data)
            return buffer

    def take(self, nbytes: int) -> Buffer:
        """Memory from the pool, with undefined contents."""
        with self._lock:
            return self.pool.take(nbytes)

    def upload(self, array: np.ndarray) -> Buffer | None:
        """Copies an array into a buffer; None for an empty one."""
        if not array.size:
            return None
        # Before the copy: an array that repeats one element may be larger than any memory.
        buffer = self.take(array.nbytes)
        self.write(buffer, host_array(array))
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
        for name, spec in specs.items():
            if spec.nbytes > limits["maxBufferSize"]:
                raise DeviceError(
                    f"{plan.op}: {name}: {spec.nbytes} bytes are needed in one buffer, and this device allows "
                    f"{limits['maxBufferSize']} (maxBufferSize)\nsplit the work into smaller tensors"
                )
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
            grid = fold(launch.workgroups, self.max_row)
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
                try:
                    pipeline = self.pipelines.get(plan.op, plan.variant, plan.module, templates, launch)
                except ShaderError as error:
                    error.blame(plan.variant, plan.source)
                    raise
                slots = tuple(
                    # Of an empty tensor as much as one element of any type: WebGPU wants that of a binding.
                    (names.index(binding.tensor), padded(specs[binding.tensor].nbytes or 16))
                    for binding in launch.bindings
                )
                split = ranges(launch.workgroups, launch.operations, self.max_operations, self.max_row)
                for first, workgroups in split:
                    grid = fold(workgroups, self.max_row)
                    data = param_bytes(launch.params, launch.workgroups, grid, first)
                    steps.append(
                        Step(
                            serial=next(_serials),
                            template=launch.template,
                            pipeline=pipeline,
                            grid=grid,
                            params_offset=len(params),
                            params_size=len(data),
                            slots=slots,
                        )
                    )
                    params += data + bytes(-len(data) % alignment)
            uniforms = self.pool.making_room(lambda: self._create_params(plan.op, bytes(params))) if steps else None
        first = len(plan.inputs)
        return Program(
            plan=plan,
            names=names,
            scratch=tuple(spec.nbytes for spec in plan.scratch.values()),
            writes=range(first, first + len(plan.outputs)),
            params=uniforms,
            steps=tuple(steps),
        )

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
                # What a discarded batch was to fill may be an output: this run fills it.
                if index not in program.writes or buffer.pending.state != "discarded":
                    self.settle(buffer, flush=False)
            held = self._hold(program, buffers)
            try:
                groups = [self._bind_group(program, step, held) for step in program.steps]
                batch = current_batch(self)
                recording = None if batch is None else batch.recording
                if recording is None:
                    self._submit(program, groups)
                else:
                    self._record(recording, program, groups)
            except self._gpu_error as error:
                users = [name for name, buffer in zip(program.names, held, strict=True) if buffer.external]
                raise self._fault(error, f"{program.plan.op}: {', '.join(users)}") from error
            if recording is not None:
                recording.keep += held
            # Not before: of a run that is refused, an output that no batch has filled still is not.
            for index in program.writes:
                held[index].pending = recording

    def _hold(self, program: Program, buffers: Sequence[Buffer | None]) -> list[Buffer]:
        take = self.pool.take
        # A WebGPU binding is never empty: an empty tensor gets a few bytes that no shader should use.
        held = [take(16) if buffer is None else buffer for buffer in buffers]
        held += [take(nbytes) for nbytes in program.scratch]
        return held

    def require_timestamps(self) -> None:
        """Refuses a device that cannot time itself.

        Raises:
            DeviceError: it lacks `timestamp-query`.
        """
        if "timestamp-query" not in self.capabilities.features:
            raise DeviceError(
                f"{self.capabilities.adapter.name}: the device has no timestamps (timestamp-query)\n"
                "open it with that feature, or measure wall time around Tensor.numpy"
            )

    def time(self, passes: Sequence[Sequence[tuple[Program, Sequence[Buffer | None]]]]) -> list[float]:
        """Submits compute passes of one run or several each, and waits.

        Returns:
            Device time of each pass in seconds, from the timestamps around it.

        Raises:
            DeviceError: the device lacks `timestamp-query`, or as `run`.
        """
        self.require_timestamps()
        with self._lock, self._errors():
            timestamps = Timestamps(self.gpu, len(passes))
            encoder = self.gpu.create_command_encoder()
            keep = []
            for runs in passes:
                compute = encoder.begin_compute_pass(timestamp_writes=timestamps.of_next_pass())
                for program, buffers in runs:
                    held = self._hold(program, buffers)
                    keep.append(held)
                    _dispatch(compute, program, [self._bind_group(program, step, held) for step in program.steps])
                compute.end()
            timestamps.resolve(encoder)
            self.gpu.queue.submit([encoder.finish()])
            return [seconds for _, seconds in timestamps.read(self.tick_ns)]

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
        """Nanoseconds of a timestamp's tick."""
        return tick_ns(self.implementation, self.gpu)

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
            stamps = profile.stamps()
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
            recording.stamps.setdefault(profile, profile.stamps()).dispatch(recording.encoder, program, groups)
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
        open_batches.set((*open_batches.get(), batch))
        try:
            yield
            with self._lock:
                self._flush(batch)
        finally:
            # Not reset(token), which raises in another context: a generator may be closed in one.
            open_batches.set(tuple(other for other in open_batches.get() if other is not batch))
            batch.recording.close("discarded")

    @contextlib.contextmanager
    def profile(self) -> Iterator[Profile]:
        """See `Registry.profile`."""
        from oplet.profile import Profile

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
            profile.close(current_profile(self))

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
        except Exception as error:
            # Whatever wgpu comes upon where the device goes while it waits for it, an AttributeError for one.
            if not self._find_loss():
                raise
            raise self._fault(error, self.capabilities.adapter.name) from error

    def _find_loss(self) -> bool:
        """Looks whether the device is lost: what fails for that reason may give another one."""
        try:
            self.gpu.create_command_encoder().finish()
        except self._gpu_error as error:
            if "is lost" in str(error):
                self._lost = str(error).strip()
        return self.lost

    def _fault(self, error: Exception, where: str) -> DeviceError:
        # Its traceback makes a cycle with the implementation's frames, and a memoryview that they have lent out
        # crashes CPython when the collector clears it.
        error.__traceback__ = None
        message = str(error).strip()
        if self._find_loss():
            return self._lost_error()
        # Both implementations' GPUOutOfMemoryError is a MemoryError. But wgpu calls a full H200 a validation error.
        if isinstance(error, MemoryError) or "Not enough memory left" in message:
            return OutOfMemoryError(
                f"{where}: the device refuses memory, with {self.pool.live_bytes} bytes in use\n{message}\n"
                "let go of tensors, or work on smaller ones"
            )
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
