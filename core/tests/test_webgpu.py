"""What oplet changes in the implementations for a quick start changes nothing else."""

import subprocess
from collections.abc import Callable

import pytest


def test_types_of_wgpu_are_the_same_as_cffi_finds_them_alone(
    child: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """In a child process, since a type is parsed once: arrays, pointers, callbacks, and names that do not exist."""
    code = """
import oplet
from wgpu.backends.wgpu_native._ffi import ffi
names = ["WGPULimits *", "WGPUFeatureName[]", "char const * const *", "uint64_t[3]", "WGPUStringView",
         "void(*)(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", "WGPUBindGroupEntry[2]"]
if {quick}:
    oplet.open_device(webgpu="wgpu")
    assert ffi._parser._parse.__module__ == "oplet.webgpu"
for name in names:
    kind = ffi.typeof(name)
    print(kind, getattr(kind, "fields", "") and [(field, str(of.type), of.offset) for field, of in kind.fields])
for name in ("WGPUNoSuchThing *", "1 +", "int; int"):
    try:
        print(ffi.typeof(name))
    except Exception as error:
        print(type(error).__name__, error)
"""
    quick, plain = (child(code.replace("{quick}", str(quick))) for quick in (True, False))
    assert (plain.returncode, plain.stderr) == (0, "")
    assert (quick.returncode, quick.stderr, quick.stdout) == (0, "", plain.stdout)


def test_no_opengl_adapter_is_looked_for(child: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    code = """
import oplet.opening
found = oplet.opening.adapters("wgpu")
import wgpu
print({one.info["backend_type"] for one in wgpu.gpu.enumerate_adapters_sync()} - {"Vulkan", "Metal", "D3D12"})
"""
    done = child(code)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


@pytest.mark.parametrize(
    "first", ["wgpu.gpu.enumerate_adapters_sync()", "import oplet; oplet.open_device(webgpu='wgpu')"]
)
def test_an_instance_that_is_there_already_is_taken_as_it_is(
    child: Callable[..., subprocess.CompletedProcess[str]], first: str
) -> None:
    code = f"import wgpu; {first}; import oplet; print(oplet.open_device(webgpu='wgpu').implementation)"
    done = child(code)
    assert (done.returncode, done.stdout) == (0, "wgpu\n"), done.stderr
