"""What may come of a call: the right numbers, or an error of oplet's that says which argument is wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from oplet import Registry, TensorSpec
from oplet.errors import DeviceError, InputError, NoVariantError, OpletError, UnknownOpError
from oplet.loading import REFERENCE
from oplet.testing.compare import compare
from oplet.testing.kit import Devices, Kit

from fuzzing.calls import MOST, Call, calls
from fuzzing.child import Now, Report, limit_memory, told

#: memory that calls may take, on the device and beside it, in bytes
MEMORY = 1 << 30

#: numbers from here on have squares past float32
LARGE = 2.0**63


def make_calls(op: str, count: int, seed: int, now: Now, pipelines: int | None = None) -> Report:
    """Makes random calls of an op, on memory that is poisoned.

    Args:
        op: the op id.
        count: how many, before any that make a finding smaller.
        seed: of the calls, and of the cases that they begin with.
        now: is told each call.
        pipelines: compiled at most, or a few more; from then on calls are explained instead of run. None for any
            number.
    """
    kit = Kit(op, devices=Devices(), seed=seed)
    registry = kit.registry("best")
    registry.device.pool.max_bytes = MEMORY
    counts = Counter[str]()

    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(calls(kit))
    def check(call: Call) -> None:
        if pipelines is not None and registry.device.pipelines.compiled >= pipelines:
            call.door = "specs"
        now(call)
        try:
            counts[judge(kit, registry, call)] += 1
        except Exception as error:
            error.add_note(str(call))  # hypothesis adds its own, with every number in it
            raise

    limit_memory(MEMORY)
    try:
        check()
    except BaseExceptionGroup as group:
        faults: list[BaseException] = [*group.exceptions]
    except Exception as error:
        faults = [error]
    else:
        faults = []
    return Report(dict(counts), list(map(told, faults)))


def judge(kit: Kit, registry: Registry, call: Call) -> str:
    """Makes a call.

    Returns:
        What came of it, in a few words.

    Raises:
        AssertionError: a wrong number, an error that does not name the argument, or one without advice.
        Exception: whatever else the call raised, a PluginError included: no caller should see it.
    """
    try:
        result = call.make(registry)
    except (InputError, NoVariantError, UnknownOpError, DeviceError) as error:
        return _judge_error(error, kit, call)
    if call.door == "specs":
        assert result.variant in {*(variant.name for variant in kit.op.variants), REFERENCE}, result
        return "explained"
    return _judge_numbers(kit, call, result)


def _judge_error(error: OpletError, kit: Kit, call: Call) -> str:
    lines = str(error).split("\n")
    assert len(lines) > 1, f"no advice: {error}"
    assert lines[-1].strip(), f"no advice: {error}"
    match error:
        case InputError():
            assert error.argument in _names(kit, call), f"InputError.argument is {error.argument!r}: {error}"
            first = lines[0].removeprefix(f"{kit.id}: ")
            # A name of the caller's own may be no word, and have lines of its own.
            named = first.startswith(error.argument.split("\n")[0]) or error.argument in re.findall(r"\w+", first)
            assert named, f"the first line does not name {error.argument!r}: {error}"
            return "refused"
        case NoVariantError():
            assert error.rejections, f"no reasons: {error}"
            assert all(one.reason for one in error.rejections), f"a reason is empty: {error}"
            return "served by no variant"
        case UnknownOpError():
            assert call.op != kit.id, f"the op is installed: {error}"
            return "of an unknown op"
        case _:
            # What no check has foreseen ends so.
            assert "report it" not in lines[-1], str(error)
            return "past a limit of the device"


def _names(kit: Kit, call: Call) -> set[str]:
    """What an InputError may name."""
    manifest = kit.op.manifest
    names = {"attrs", "outputs", "out", "variant", "array", "shape", "dtype", *call.inputs, *(call.out or ())}
    names |= {name for port in (*manifest.inputs, *manifest.outputs) for name in port.names}
    names |= {attribute.name for attribute in manifest.attributes}
    return names | ({str(name) for name in call.attrs} if isinstance(call.attrs, dict) else set())


def _judge_numbers(kit: Kit, call: Call, result: Any) -> str:
    op = kit.op
    given = {name: np.asarray(value) for name, value in call.inputs.items() if value is not None}
    outputs = list(op.bind_outputs(call.outputs))
    outputs += [name for name in (op.bind_outputs(tuple(call.out)) if call.out else ()) if name not in outputs]
    request = op.bind({name: TensorSpec.of(value) for name, value in given.items()}, call.attrs, outputs)
    arrays = {port.name: array for name, array in given.items() if (port := op.manifest.input(name))}
    specs = op.infer(request)
    made = result if isinstance(result, tuple) else (result,)
    if any(array.size > MOST for array in arrays.values()):
        return "run, too large to compare"
    try:
        op.check(request, arrays)
    except InputError:
        assert call.door == "tensors", "values that the op refuses were accepted"
        return "unspecified, by values on the device"
    numbers = [*arrays.values(), *(np.asarray(value) for value in request.attrs.values() if isinstance(value, float))]
    want = op.reference(request, arrays)
    scale = dict(kit.suite.scale(request, arrays)) if kit.suite.scale else {}
    for name, tensor in zip(request.outputs, made, strict=True):
        got = tensor.numpy()
        assert (got.shape, got.dtype) == (specs[name].shape, specs[name].dtype), f"{name}: {tensor}"
        got = np.where(_is_open(want[name], got, scale.get(name), numbers), want[name], got).astype(got.dtype)
        mismatch = compare(got, want[name], kit.tolerance(specs[name]), scale.get(name))
        assert mismatch is None, mismatch.describe(name, kit.tolerance(specs[name]))
    return "right"


def _is_open(
    want: np.ndarray, got: np.ndarray, scale: np.ndarray | None, numbers: Sequence[np.ndarray]
) -> np.ndarray | Literal[False]:
    """Where no contract tells the result.

    Whether a sum of infinities is infinite or no number depends on its order, and of what rounds to a share of an
    infinity nothing can be asked. Where numbers are so large that their products are past float32, what is finite in
    the end may not have been on the way.
    """
    if all((np.abs(one) < LARGE).all() for one in numbers):  # false of NaN
        return False
    where: np.ndarray = ~np.isfinite(got)
    if not any((np.isfinite(one) & (np.abs(one) >= LARGE)).any() for one in numbers):
        where = where & ~np.isfinite(want)
    if scale is not None:
        where = where | ~np.isfinite(scale)
    return where
