"""What a variant makes of integers that nobody has checked: offsets, lengths and counts that are on the device.

The op's `check` sees host arrays only, so a shader has to be safe with any word in an integer input. What comes out
is then not specified, but for this: no word outside the tensors is written, none is looked at, and no input changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from oplet.buffers import host_array
from oplet.errors import OpletError
from oplet.manifest import Manifest
from oplet.registry import Registry
from oplet.request import TensorSpec
from oplet.testing.guard import GuardPool
from oplet.testing.kit import Call, Finding, Kit, NotRun
from oplet.testing.suite import Arrays

#: calls of a variant that are tried, those with the most integers
CALLS = 2

#: how often each is tried, with other words
FILLS = 4

#: how often a NaN has to come with poison behind the tensors, and stay away without, to be no chance
REPEATS = 3


def takes_integers(manifest: Manifest) -> bool:
    """Whether an op has inputs of integers."""
    return any("int" in dtype for port in manifest.inputs for dtype in manifest.dtypes(port))


def indices(kit: Kit, *, variant: str, setup: str, calls: int = CALLS) -> Iterator[Finding | NotRun]:
    """Runs a variant with any words in its integer inputs; of an op that has some, it tells where no case can do.

    Args:
        kit: the op.
        variant: its name.
        setup: the device.
        calls: how many of the cases are tried.
    """
    registry = kit.registry(setup)
    rng = np.random.default_rng(kit.seed)
    tried = _calls(kit, registry, variant)[:calls]
    if not tried and takes_integers(kit.op.manifest):
        yield NotRun(f"variant {variant} with any integers", "it accepts no case with integers and finite numbers")
    for call in tried:
        for number in range(FILLS):
            ordered = number % 2 == 1
            words = {name: _words(rng, call, array, ordered=ordered) for name, array in _integers(call).items()}
            fault = _fault(kit, registry, call, variant, {**call.arrays, **words})
            if fault:
                told = "; ".join(f"{name} {array.ravel()[:8].tolist()}" for name, array in words.items())
                message = f"{fault}; with these words on the device: {told}"
                yield Finding("indices", message, variant, setup, call.case.name, call.describe())
                break


def _integers(call: Call) -> dict[str, np.ndarray]:
    return {name: array for name, array in call.arrays.items() if array.dtype.kind in "iu" and array.size}


def _calls(kit: Kit, registry: Registry, variant: str) -> list[Call]:
    """The accepted calls with integers, those with the most first, of those whose other numbers are finite."""
    found = []
    for call in kit.calls:
        floats = [array for array in call.arrays.values() if array.dtype.kind == "f"]
        if not _integers(call) or not all(np.isfinite(array).all() for array in floats):
            continue
        try:
            registry[kit.id].choose(call.request, registry.device.capabilities, variant)
        except OpletError:
            continue
        found.append(call)
    return sorted(found, key=lambda call: -sum(array.size for array in _integers(call).values()))


def _words(rng: np.random.Generator, call: Call, like: np.ndarray, *, ordered: bool) -> np.ndarray:
    """Any 32-bit words, mixed with numbers just inside and just outside what the call's tensors have."""
    specs = [*call.request.inputs.values(), *call.specs.values()]
    ends = np.array([0, *(n for spec in specs for n in (*spec.shape, spec.size))])
    near = rng.choice(ends, like.shape) + rng.integers(-3, 4, like.shape)
    far = rng.integers(0, 1 << 32, like.shape)
    words = np.where(rng.random(like.shape) < rng.choice([0.1, 0.5, 0.9]), far, near & 0xFFFFFFFF).astype(np.uint32)
    signed = words.view(np.int32)
    return (np.sort(signed, axis=None).reshape(like.shape) if ordered else signed).view(like.dtype)


class _ViolationError(Exception):
    """Something was written that should not have been."""


def _fault(kit: Kit, registry: Registry, call: Call, variant: str, arrays: Arrays) -> str | None:
    def nans(*, beyond: bool) -> dict[str, np.ndarray]:
        return _nans(kit, registry, call, variant, arrays, beyond=beyond)

    try:
        never, always = nans(beyond=True), nans(beyond=False)
        for _ in range(REPEATS):
            if not any((always[name] & ~never[name]).any() for name in always):
                return None
            # Entries that lead to the same element race for it: only what repeats is no chance.
            for name, mask in nans(beyond=False).items():
                always[name] &= mask
            for name, mask in nans(beyond=True).items():
                never[name] |= mask
    except _ViolationError as violation:
        return str(violation)
    except OpletError as error:
        return f"{type(error).__name__}: {error}"
    places = {name: np.argwhere(always[name] & ~never[name]) for name in always}
    told = [f"{name}({', '.join(map(str, place[0]))})" for name, place in places.items() if len(place)]
    return f"{', '.join(told)} depends on what lies behind a tensor" if told else None


def _nans(
    kit: Kit, registry: Registry, call: Call, variant: str, arrays: Arrays, *, beyond: bool
) -> dict[str, np.ndarray]:
    """Runs once, and tells where outputs are NaN.

    Args:
        kit: the op.
        registry: on a device with a `GuardPool`.
        call: what to run.
        variant: with what.
        arrays: the inputs.
        beyond: whether zeros lie behind the tensors, not poison.

    Raises:
        _ViolationError: a word was written that should not have been.
    """
    device, pool, outputs = registry.device, registry.device.pool, call.request.outputs
    assert isinstance(pool, GuardPool)
    with pool.zeroed(contents=True, beyond=beyond), pool.watch() as taken:
        tensors: dict[str, Any] = {name: registry.tensor(array) for name, array in arrays.items()}
        made = registry.run(kit.id, attrs=call.case.attrs, outputs=outputs, variant=variant, **tensors)
        results = dict(zip(outputs, made if len(outputs) > 1 else (made,), strict=True))
        owners = {id(one.buffer): name for name, one in (*tensors.items(), *results.items())}
        for memory in taken:
            seen = memory.look(device, TensorSpec((memory.size // 4,), "uint32"))
            if seen.overwritten is not None:
                owner = owners.get(id(memory.buffer), "scratch")
                raise _ViolationError(f"the word {seen.overwritten} bytes behind {owner} was overwritten")
        for name, array in arrays.items():
            if tensors[name].numpy().tobytes() != host_array(array).tobytes():
                raise _ViolationError(f"the input {name} was overwritten")
        return {name: np.isnan(one.numpy()) for name, one in results.items() if one.dtype.kind == "f"}
