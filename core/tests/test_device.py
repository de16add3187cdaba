"""Opening devices, rich and poor; what they refuse; and what is left when one is lost."""

import asyncio
import importlib
import math
import signal
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import acme_scale
import numpy as np
import oplet
import pytest
from oplet import Binding, DeviceError, InputError, Launch, TensorSpec, Variant
from oplet.capabilities import FEATURES, FLOOR
from oplet.opening import adapters
from oplet.webgpu import COPY_DST

SCALE = acme_scale.ID
ONES = np.ones((3, 5), np.float32)
MIB = 1 << 20


def scale(device: oplet.Device, plugin: Any = acme_scale) -> oplet.Registry:
    registry = oplet.Registry(device=device, discover=False)
    registry.register(SCALE, plugin)
    return registry


@pytest.fixture
def opened() -> Iterator[Callable[..., oplet.Device]]:
    """Opens devices that go when the test ends."""
    devices = []

    def open_device(**arguments: Any) -> oplet.Device:
        devices.append(oplet.open_device(**arguments))
        return devices[-1]

    yield open_device
    for device in devices:
        device.gpu.destroy()


@pytest.fixture(scope="module")
def floor() -> Iterator[oplet.Device]:
    device = oplet.open_device(features=[], limits="floor")
    yield device
    device.gpu.destroy()


# Opening ----------------------------------------------------------------------------------------------


def test_a_device_at_the_floor_has_nothing_more_and_works(floor: oplet.Device) -> None:
    caps = floor.capabilities
    assert (caps.features, caps.subgroup_size, caps.subgroup_matrix_configs) == (frozenset(), 0, ())
    assert caps.limits == FLOOR
    registry = scale(floor)
    np.testing.assert_array_equal(registry.run(SCALE, X=ONES, bias=ONES).numpy(), 3 * ONES)
    with pytest.raises(oplet.NoVariantError) as caught:
        registry.run(SCALE, X=ONES.astype(np.float16))
    assert str(caught.value).splitlines() == [
        f'com.acme.Scale: no variant can serve this call on "{caps.adapter.name}" (opened with features=[])',
        "  X float16 (3, 5)",
        "  scalar   float16 needs the device feature shader-f16",
        'change what the reasons name, open another device, or pass variant="reference" for numpy',
    ]


def test_features_are_granted_one_by_one(device: oplet.Device, opened: Callable[..., oplet.Device]) -> None:
    for feature in sorted(device.capabilities.features - {"subgroup-matrix"}):
        assert opened(features=(feature,)).capabilities.features == {feature}
    for feature in sorted(set(FEATURES) - device.capabilities.features - {"subgroup-matrix"}):
        with pytest.raises(DeviceError, match=f"does not have the feature {feature}\nit has: .*\nopen it with fewer"):
            opened(features=[feature])


def test_limits_one_by_one(device: oplet.Device, opened: Callable[..., oplet.Device]) -> None:
    at_floor = "maxComputeWorkgroupStorageSize"
    granted = opened(limits={at_floor: FLOOR[at_floor]}).capabilities.limits
    assert granted == {**device.capabilities.limits, at_floor: FLOOR[at_floor]}


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("power", "fast", "'fast' is not one of 'high', 'low', None"),
        ("power", [], r"\[\] is not one of 'high', 'low', None"),
        ("adapter", 5, "5 is not a part of an adapter's name"),
        ("webgpu", "vulkan", "'vulkan' is not one of 'wgpu', 'dawn'"),
        ("webgpu", 5, "5 is not one of 'wgpu', 'dawn'"),
        ("features", "shader-f16", "'shader-f16' is not a list of features"),
        ("features", 5, "5 is not a list of features"),
        ("features", ["f16"], "'f16' is not one of 'subgroups', 'shader-f16', 'timestamp-query', 'subgroup-matrix'"),
        ("features", [None], "None is not one of 'subgroups'"),
        ("features", ["subgroup-matrix"], "'subgroup-matrix' is experimental\npass experimental=True too"),
        ("limits", "low", "'low' is neither None, 'floor' nor a mapping"),
        ("limits", 5, "5 is neither None, 'floor' nor a mapping"),
        ("limits", {"maxBuffersize": 1}, "'maxBuffersize' is not one of 'maxBufferSize'"),
        ("limits", {"maxBufferSize": 1000}, "maxBufferSize 1000 is not an int as good as 268435456"),
        ("limits", {"maxBufferSize": -1}, "maxBufferSize -1 is not an int as good as 268435456"),
        ("limits", {"maxBufferSize": "1"}, "maxBufferSize '1' is not an int"),
        ("limits", {"maxBufferSize": True}, "maxBufferSize True is not an int"),
        ("limits", {"maxBufferSize": 3e8}, "maxBufferSize 300000000.0 is not an int"),
        (
            "limits",
            {"minStorageBufferOffsetAlignment": 512},
            "minStorageBufferOffsetAlignment 512 is not an int as good as 256",
        ),
        ("max_bytes", -1, "-1 is not a number of bytes"),
        ("max_bytes", 1.5, "1.5 is not a number of bytes"),
    ],
)
def test_what_open_device_refuses(argument: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"{argument}: {message}") as caught:
        oplet.open_device(**{argument: value})
    assert caught.value.argument == argument
    assert len(str(caught.value).splitlines()) == 2, "what to do"


def test_limits_beyond_the_adapter() -> None:
    with pytest.raises(
        DeviceError, match=r"maxBufferSize 1152921504606846976 was asked for, and \d+ is what the adapter"
    ):
        oplet.open_device(limits={"maxBufferSize": 1 << 60})


def test_an_adapter_by_a_part_of_its_name(
    device: oplet.Device, opened: Callable[..., oplet.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = device.capabilities.adapter.name
    assert opened(adapter=name[2:6].upper()).capabilities.adapter == device.capabilities.adapter
    monkeypatch.setenv("OPLET_ADAPTER", "no such card")
    for call in (oplet.open_device, lambda: oplet.Registry(discover=False).device):
        with pytest.raises(DeviceError) as caught:
            call()
        assert str(caught.value).splitlines()[0] == "adapter: no adapter's name contains 'no such card'"
        assert repr(name) in str(caught.value)
    assert opened(adapter=name).capabilities.adapter.name == name, "the argument comes before the environment"


@pytest.mark.parametrize("name", ["vulkan", "WGPU", " dawn"])
def test_an_unknown_implementation_in_the_environment(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("OPLET_WEBGPU", name)
    with pytest.raises(InputError, match=f"OPLET_WEBGPU: '{name}' is not one of 'wgpu', 'dawn'"):
        oplet.open_device()


@pytest.mark.parametrize(("implementation", "extra"), [("wgpu", "oplet"), ("dawn", "oplet[dawn]")])
def test_an_implementation_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, implementation: Any, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, {"wgpu": "wgpu", "dawn": "wgpudawn"}[implementation], None)
    with pytest.raises(DeviceError) as caught:
        oplet.open_device(webgpu=implementation)
    assert str(caught.value).splitlines()[-1] == f"pip install '{extra}'"


class Adapters:
    """Stands for an implementation with these adapters."""

    def __init__(self, *found: tuple[str, str, str]) -> None:
        self.gpu = self
        self._found = [
            SimpleNamespace(
                info={"device": name, "vendor": "", "backend_type": backend, "adapter_type": kind, "description": ""},
                features=set(),
            )
            for name, backend, kind in found
        ]

    def enumerate_adapters_sync(self) -> list[Any]:
        return list(self._found)


def test_the_order_of_adapters_and_none_of_opengl(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Adapters(
        ("software", "Vulkan", "CPU"),
        ("GL", "OpenGL", "DiscreteGPU"),
        ("GLES", "OpenGLES", "DiscreteGPU"),
        ("small", "Metal", "IntegratedGPU"),
        ("virtual", "D3D12", "VirtualGPU"),
        ("large", "DX12", "DiscreteGPU"),
    )
    monkeypatch.setattr("oplet.webgpu.api", lambda implementation: found)
    assert [adapter.name for adapter, _ in adapters("wgpu")] == ["large", "small", "virtual", "software"]
    assert [adapter.backend for adapter, _ in adapters("wgpu")] == ["D3D12", "Metal", "D3D12", "Vulkan"]
    chosen = importlib.import_module("oplet.opening")._choose_adapter
    assert chosen("wgpu", None, None).info["device"] == "large"
    assert chosen("wgpu", "low", None).info["device"] == "small"
    assert chosen("wgpu", "low", "SOFT").info["device"] == "software"
    with pytest.raises(DeviceError, match="there are: 'large', 'small', 'virtual', 'software'\nname one of them"):
        chosen("wgpu", None, "GL")


def test_low_power_is_still_no_software_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Adapters(("software", "Vulkan", "CPU"), ("large", "Vulkan", "DiscreteGPU"))
    monkeypatch.setattr("oplet.webgpu.api", lambda implementation: found)
    chosen = importlib.import_module("oplet.opening")._choose_adapter
    assert chosen("wgpu", "low", None).info["device"] == "large"


def test_an_adapter_without_a_name_is_chosen_by_what_is_shown_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Adapters(("named", "Vulkan", "DiscreteGPU"), ("", "Vulkan", "CPU"))
    found.enumerate_adapters_sync()[1].info["description"] = "a driver's words"
    monkeypatch.setattr("oplet.webgpu.api", lambda implementation: found)
    assert [adapter.name for adapter, _ in adapters("wgpu")] == ["named", "a driver's words"]
    chosen = importlib.import_module("oplet.opening")._choose_adapter
    assert chosen("wgpu", None, "DRIVER").info["description"] == "a driver's words"
    with pytest.raises(DeviceError, match="there are: 'named', \"a driver's words\"\n"):
        chosen("wgpu", None, "GL")


@pytest.mark.parametrize("found", [Adapters(), Adapters(("llvmpipe", "OpenGL", "CPU"))])
@pytest.mark.parametrize(
    ("platform", "advice"),
    [("linux", "apt-get install mesa-vulkan-drivers"), ("darwin", "macOS 11 or later"), ("win32", "update Windows")],
)
def test_no_adapter_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, found: Adapters, platform: str, advice: str
) -> None:
    monkeypatch.setattr("oplet.webgpu.api", lambda implementation: found)
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(DeviceError) as caught:
        oplet.open_device(webgpu="wgpu")
    first, last = str(caught.value).splitlines()
    assert first == "wgpu finds no Vulkan, Metal or D3D12 adapter"
    assert advice in last


def test_drivers_that_dawn_does_not_take_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Adapters(("llvmpipe", "Vulkan", "CPU"))
    old.enumerate_adapters_sync()[0].info["description"] = "Mesa 22.3.6"
    monkeypatch.setattr("oplet.webgpu.api", lambda implementation: old if implementation == "wgpu" else Adapters())
    with pytest.raises(DeviceError) as caught:
        oplet.open_device(webgpu="dawn")
    first, found, last = str(caught.value).splitlines()
    assert first.startswith("dawn takes none of the adapters that wgpu finds")
    assert found == "  llvmpipe, Mesa 22.3.6"
    assert last.startswith("update the driver: ")
    assert last.endswith("or use wgpu")
    monkeypatch.setattr("oplet.webgpu.api", lambda implementation: Adapters())
    with pytest.raises(DeviceError, match=r"dawn finds no Vulkan, Metal or D3D12 adapter\n.*or use wgpu"):
        oplet.open_device(webgpu="dawn")


def test_no_driver_is_found_out_by_the_real_thing(child: Callable[..., Any]) -> None:
    """wgpu offers an OpenGL adapter where Vulkan has no driver; it must not be taken."""
    result = child(
        "import oplet\n"
        "for call in (oplet.open_device, lambda: oplet.Registry().device, lambda: oplet.Registry().empty(3)):\n"
        "    try:\n"
        "        print('opened', call())\n"
        "    except oplet.DeviceError as error:\n"
        "        print(error)\n",
        VK_DRIVER_FILES="/nonexistent",
        VK_ICD_FILENAMES="/nonexistent",
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 6, result.stdout
    assert all("finds no Vulkan, Metal or D3D12 adapter" in line for line in lines[::2])
    assert all("apt-get install mesa-vulkan-drivers" in line for line in lines[1::2])


def test_unchecked_and_experimental_devices_work(opened: Callable[..., oplet.Device]) -> None:
    registry = scale(opened(unchecked=True, experimental=True))
    np.testing.assert_array_equal(registry.run(SCALE, X=ONES).numpy(), 2 * ONES)


def test_a_device_of_yours_is_used_and_left_alone(device: oplet.Device) -> None:
    api = importlib.import_module({"wgpu": "wgpu", "dawn": "wgpudawn"}[device.implementation])
    (adapter, *_) = [
        one for one in api.gpu.enumerate_adapters_sync() if one.info["device"] == device.capabilities.adapter.name
    ]
    gpu = adapter.request_device_sync()
    registry = scale(gpu)
    assert registry.device.implementation == device.implementation
    assert registry.device.gpu is gpu
    assert registry.device.capabilities.features == frozenset(), "what was granted, not what the adapter offers"
    np.testing.assert_array_equal(registry.run(SCALE, X=ONES).numpy(), 2 * ONES)
    other = scale(gpu)
    assert other.device is registry.device, "one pool, and each takes the other's tensors"
    np.testing.assert_array_equal(other.run(SCALE, X=registry.run(SCALE, X=ONES)).numpy(), 4 * ONES)
    del registry, other
    np.testing.assert_array_equal(scale(gpu).run(SCALE, X=ONES).numpy(), 2 * ONES)
    gpu.destroy()
    with pytest.raises(DeviceError):
        scale(gpu).run(SCALE, X=ONES)


def test_the_device_behind_a_device_is_no_other(device: oplet.Device) -> None:
    assert scale(device.gpu).device is device


@pytest.mark.parametrize("device", [5, "gpu", ..., [], SimpleNamespace(create_compute_pipeline=None)], ids=repr)
def test_what_is_no_device(device: Any) -> None:
    with pytest.raises(InputError, match=r"device: .* is neither an oplet Device nor a wgpu or wgpudawn GPUDevice"):
        oplet.Registry(device=device)


def test_two_devices_in_one_process(opened: Callable[..., oplet.Device]) -> None:
    one, two = scale(opened()), scale(opened())
    for _ in range(3):
        y1, y2 = (registry.run(SCALE, X=ONES, attrs={"shift": shift}) for registry, shift in ((one, 1), (two, 2)))
        with one.batch(), two.batch():
            z2, z1 = two.run(SCALE, X=y2), one.run(SCALE, X=y1)
        np.testing.assert_array_equal(z1.numpy(), 6 * ONES)
        np.testing.assert_array_equal(z2.numpy(), 8 * ONES)


def test_two_registries_on_one_device(device: oplet.Device) -> None:
    one, two = scale(device), scale(device)
    y = one.run(SCALE, X=ONES)
    compiled = device.pipelines.compiled
    np.testing.assert_array_equal(two.run(SCALE, X=y).numpy(), 4 * ONES)
    with one.batch():
        z = two.run(SCALE, X=two.run(SCALE, X=y))
    np.testing.assert_array_equal(z.numpy(), 8 * ONES)
    assert device.pipelines.compiled == compiled


# Limits -----------------------------------------------------------------------------------------------


def both(registry: oplet.Registry, x: Any) -> Iterator[Callable[[], Any]]:
    """A call, run and explained."""
    yield lambda: registry.run(SCALE, X=x)
    yield lambda: registry.explain(SCALE, X=x)


def test_a_binding_past_the_limit_says_needed_and_allowed(floor: oplet.Device) -> None:
    huge = np.broadcast_to(np.float32(1), (32 * MIB + 1,))  # 4 bytes of memory
    registry = scale(floor)
    registry.run(SCALE, X=ONES)
    floor.pool.settle()
    held = floor.pool.live_bytes + floor.pool.idle_bytes
    for call in both(registry, huge):
        with pytest.raises(DeviceError) as caught:
            call()
        assert str(caught.value).splitlines() == [
            f"com.acme.Scale: X: {128 * MIB + 4} bytes are needed in one binding, and this device allows {128 * MIB} "
            "(maxStorageBufferBindingSize)",
            "split the work into smaller tensors",
        ]
    assert floor.pool.live_bytes + floor.pool.idle_bytes == held
    assert registry.explain(SCALE, X=TensorSpec((32 * MIB,), "float32")).variant == "scalar"


@pytest.mark.parametrize("nbytes", [256 * MIB + 4, 1 << 50])
def test_a_buffer_past_the_limit_says_needed_and_allowed(floor: oplet.Device, nbytes: int) -> None:
    with pytest.raises(
        DeviceError, match=rf"a buffer of {nbytes} bytes is needed, .* allows {256 * MIB} \(maxBufferSize\)"
    ):
        scale(floor).empty(nbytes // 4)


def test_an_array_of_one_repeated_element_is_refused_before_it_is_copied(floor: oplet.Device) -> None:
    vast = np.broadcast_to(np.float32(1), (1 << 30, 1))  # 4 bytes of memory
    registry = scale(floor)
    for call in both(registry, vast):
        with pytest.raises(
            DeviceError, match=rf"Scale: X: {4 << 30} bytes are needed in one buffer, .* allows {256 * MIB} "
        ):
            call()
    with pytest.raises(DeviceError, match=rf"{4 << 40} bytes is needed, .* allows {256 * MIB} "):
        registry.tensor(np.broadcast_to(np.float32(1), (1 << 40,)))


def test_too_many_storage_buffers_say_needed_and_allowed(floor: oplet.Device) -> None:
    def plan(request: oplet.Request, caps: oplet.Capabilities) -> list[Launch]:
        scratch = {f"s{i}": TensorSpec((1,), "float32") for i in range(8)}
        bindings = [Binding(name, name, "read_write", "f32") for name in scratch]
        return [
            Launch("error.wgsl.jinja", 1, bindings=[Binding("y", "Y", "read_write", "f32"), *bindings], scratch=scratch)
        ]

    registry = scale(floor, acme_scale.with_variants(Variant("greedy", plan)))
    for call in both(registry, ONES):
        with pytest.raises(
            DeviceError, match=r"com.acme.Scale/greedy: 9 storage buffers are needed, .* allows 8 "
        ) as caught:
            call()
        assert "maxStorageBuffersPerShaderStage" in str(caught.value)


def counting(workgroups: int, operations: int = 0) -> Any:
    def plan(request: oplet.Request, caps: oplet.Capabilities) -> list[Launch]:
        return [
            Launch(
                "count.wgsl.jinja",
                workgroups,
                params={"size": np.uint32(request.inputs["X"].size)},
                bindings=[Binding("y", "Y", "read_write", "atomic<u32>")],
                operations=operations,
            )
        ]

    return acme_scale.with_variants(Variant("count", plan))


@pytest.mark.parametrize("workgroups", [1, 65535, 65536, 70001])
def test_every_workgroup_runs_once_and_a_surplus_one_never(device: oplet.Device, workgroups: int) -> None:
    registry = scale(device, counting(workgroups))
    zeros = np.zeros(workgroups, np.uint32)
    counts = registry.run(SCALE, X=zeros, out={"Y": registry.tensor(zeros)}).numpy()
    np.testing.assert_array_equal(counts, 1)


@pytest.mark.parametrize(("workgroups", "dispatches"), [(1, 1), (7, 7), (1000, 8), (65536, 2), (200_000, 4)])
def test_a_long_launch_is_several_dispatches(
    device: oplet.Device, monkeypatch: pytest.MonkeyPatch, workgroups: int, dispatches: int
) -> None:
    """The bound is an eighth of the launch, or a half where that is of more workgroups than a dimension takes."""
    monkeypatch.setattr(device, "max_operations", 125 if workgroups <= 1000 else 501)
    registry = scale(device, counting(workgroups, operations=1000))
    zeros = np.zeros(workgroups, np.uint32)
    y = registry.tensor(zeros)
    with registry.profile() as profile:
        registry.run(SCALE, X=zeros, out={"Y": y})
    assert [one.template for one in profile.dispatches] == ["count.wgsl.jinja"] * dispatches
    assert sum(math.prod(one.grid) for one in profile.dispatches) >= workgroups
    with registry.batch():
        registry.run(SCALE, X=zeros, out={"Y": y})
    np.testing.assert_array_equal(y.numpy(), 2)


@pytest.mark.parametrize("workgroups", [65535 * 65535 + 1, 1 << 32, 1 << 40, 1 << 80])
def test_more_workgroups_than_can_be_counted(device: oplet.Device, workgroups: int) -> None:
    registry = scale(device, counting(workgroups))
    for call in both(registry, np.zeros(1, np.uint32)):
        with pytest.raises(
            DeviceError, match=f"com.acme.Scale/count: {workgroups} workgroups are needed, .* allows 65535"
        ):
            call()


# A lost device ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["run", "compile", "upload", "empty", "read", "batch", "read in batch"])
def test_a_lost_device_says_so_and_a_new_registry_works(opened: Callable[..., oplet.Device], use: str) -> None:
    registry = scale(opened())
    device = registry.device
    x = registry.tensor(ONES)
    registry.run(SCALE, X=x)

    def in_batch(read: bool) -> None:
        with registry.batch():
            y = registry.run(SCALE, X=x)
            device.gpu.destroy()
            if read:
                y.numpy()

    uses: dict[str, Callable[[], Any]] = {
        "run": lambda: registry.run(SCALE, X=x),
        "compile": lambda: registry.run(SCALE, X=x, attrs={"mode": "absolute"}),
        "upload": lambda: registry.tensor(ONES),
        "empty": lambda: registry.empty(1 << 20),
        "read": x.numpy,
        "batch": lambda: in_batch(read=False),
        "read in batch": lambda: in_batch(read=True),
    }
    if "batch" not in use:
        device.gpu.destroy()
    for call in (uses[use], uses["run"], uses["compile"], uses["read"]):
        with pytest.raises(DeviceError) as caught:
            call()
        lines = str(caught.value).splitlines()
        assert lines[0] == f"{device.capabilities.adapter.name}: the device is lost"
        assert lines[-1] == "its tensors are gone; go on with a new oplet.Registry()"
    np.testing.assert_array_equal(scale(opened()).run(SCALE, X=ONES).numpy(), 2 * ONES)


@pytest.mark.parametrize("fault", ["of the mapping", "of its own"])
@pytest.mark.parametrize("use", ["read", "coroutine", "wait", "profile"])
def test_what_waits_for_a_device_that_goes_is_told(
    opened: Callable[..., oplet.Device], monkeypatch: pytest.MonkeyPatch, use: str, fault: str
) -> None:
    """The implementations tell of a mapping that failed, or fail in code of their own: not that the device is lost."""
    registry = scale(opened())
    device = registry.device
    y = registry.run(SCALE, X=ONES)

    async def read() -> None:
        await y.numpy_async()

    def profile() -> None:
        with registry.profile():
            registry.run(SCALE, X=y)

    buffers = type(device.gpu.create_buffer(size=4, usage=COPY_DST))
    map_async = buffers.map_async

    def lose_and_map(*arguments: Any) -> Any:
        device.gpu.destroy()
        if fault == "of its own":  # as wgpu does where the device goes while it waits
            raise AttributeError("'NoneType' object has no attribute 'get_token'")
        return map_async(*arguments)

    monkeypatch.setattr(buffers, "map_async", lose_and_map)
    uses: dict[str, Callable[[], Any]] = {
        "read": y.numpy,
        "coroutine": lambda: asyncio.run(read()),
        "wait": device.wait,
        "profile": profile,
    }
    with pytest.raises(DeviceError, match=r": the device is lost\n[^$]*go on with a new oplet.Registry\(\)$"):
        uses[use]()
    assert registry.lost
    monkeypatch.undo()
    np.testing.assert_array_equal(scale(opened()).run(SCALE, X=ONES).numpy(), 2 * ONES)


def test_a_fault_of_the_implementations_own_is_not_taken_for_a_lost_device(
    device: oplet.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = scale(device).run(SCALE, X=ONES)
    with monkeypatch.context() as patch:
        patch.setattr(device.gpu.queue, "read_buffer", lambda *arguments: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            y.numpy()
    np.testing.assert_array_equal(y.numpy(), 2 * ONES)


SUBMIT = """
import acme_scale, numpy as np, oplet
registry = oplet.Registry(discover=False)
registry.register(acme_scale.ID, acme_scale)
x = registry.tensor(np.ones(5, np.float32))
registry.run(acme_scale.ID, X=x)
queue = registry.device.gpu.queue
submit = queue.submit

def lose(*arguments):
    registry.device.gpu.destroy()
    submit(*arguments)

queue.submit = lose
try:
    with registry.batch():
        y = registry.run(acme_scale.ID, X=x)
except oplet.DeviceError as error:
    print(str(error).splitlines()[-1])
else:
    print("submitted")
for use in (y.numpy, lambda: registry.run(acme_scale.ID, X=x)):
    try:
        use()
    except oplet.DeviceError as error:
        print(str(error).splitlines()[-1])
registry = oplet.Registry(discover=False)
registry.register(acme_scale.ID, acme_scale)
print(registry.run(acme_scale.ID, X=np.ones(5, np.float32)).numpy())
"""


def test_a_device_lost_between_finish_and_submit(device: oplet.Device, child: Callable[..., Any]) -> None:
    """In a child process, which wgpu ends there; oplet leaves it as little time for that as it can."""
    done = child(SUBMIT)
    advice = "its tensors are gone; go on with a new oplet.Registry()"
    if device.implementation == "wgpu":
        assert done.returncode == -signal.SIGABRT
        assert "is lost" in done.stderr
    else:
        discarded = "run the batch again"
        assert (done.returncode, done.stdout.splitlines()) == (0, [advice, discarded, advice, "[2. 2. 2. 2. 2.]"])


def test_a_host_tensor_outlives_the_device(opened: Callable[..., oplet.Device]) -> None:
    registry = scale(opened())
    host = registry.run(SCALE, X=registry.tensor(ONES), variant="reference")
    registry.device.gpu.destroy()
    np.testing.assert_array_equal(registry.run(SCALE, X=host, variant="reference").numpy(), 4 * ONES)


def test_the_default_registry_is_made_anew_once_its_device_is_lost() -> None:
    lost = oplet.default_registry()
    lost.device.gpu.destroy()
    with pytest.raises(DeviceError, match="is lost"):
        lost.empty(1 << 20)
    new = oplet.default_registry()
    assert new is not lost
    np.testing.assert_array_equal(new.tensor(ONES).numpy(), ONES)
