"""Every shader that an op may compile: each template with each variant's every choice, for many kinds of devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

import attrs
from oplet import Registry, Request, TensorSpec, open_device
from oplet.bench import read_cases
from oplet.capabilities import FLOOR, Capabilities
from oplet.errors import InputError
from oplet.op import Op
from oplet.shader import FOLD_PARAMS, PARAM_TYPES, Shader
from oplet.testing.pretended import LARGE, SUBGROUP_SIZES, pretended
from oplet.testing.suite import Suite
from oplet.variant import Launch

from fuzzing.child import Now, Report


@attrs.frozen(eq=False)
class Choice:
    """What one shader was made for."""

    variant: str
    launch: Launch
    caps: Capabilities
    shader: Shader

    def __str__(self) -> str:
        context = ", ".join(f"{name}={value!r}" for name, value in self.launch.context.items())
        kind = f"{self.caps.dialect}, subgroups of {self.caps.subgroup_size}"
        return f"{self.variant}: {self.launch.template}({context}) for {kind}"


def compile_shaders(op: str, now: Now, pipelines: bool = False, few: bool = False) -> Report:
    """Compiles every shader of an op that this device's features allow.

    Args:
        op: the op id.
        now: is told each shader.
        pipelines: whether to make pipelines too, of those that its limits allow, which is what its driver compiles.
        few: see `shaders`.
    """
    device = open_device(experimental=True)
    counts, findings = Counter[str](), []
    for choice in shaders(Registry()[op], device.capabilities, few=few):
        now(choice)
        try:
            module = device.gpu.create_shader_module(code=choice.shader.wgsl)
            if pipelines and choice.caps is device.capabilities:
                compute = {"module": module, "entry_point": "main"}
                device.gpu.create_compute_pipeline(layout="auto", compute=compute)
                counts["pipelines"] += 1
        except Exception as error:  # each implementation has its own
            findings.append(f"{choice}\n  {error}")
        counts["shaders"] += 1
    return Report(dict(counts), findings)


def shaders(op: Op, caps: Capabilities, *, few: bool = False) -> Iterator[Choice]:
    """Each distinct WGSL of an op on devices that have the features of this one, and other sizes.

    Args:
        op: the op.
        caps: of the device that is to compile them.
        few: only this device, one without features and a large GPU.
    """
    seen: set[str] = set()
    known: set[object] = set()
    asked: list[Request] = []
    for request in _requests(op):
        if request not in asked:
            asked.append(request)
    for kind in _few_kinds(caps) if few else _kinds(caps):
        for variant in op.variants:
            for request in asked:
                if variant.rejects(request, kind) is not None:
                    continue
                for launch in variant.plan(request, kind):
                    params = {name: PARAM_TYPES[value.dtype.name] for name, value in launch.params.items()}
                    context = tuple(sorted(launch.context.items()))
                    code = (variant.name, launch.template, context, tuple(launch.bindings), *params)
                    key = (code, kind.features, kind.subgroup_size)
                    if key in known:
                        continue
                    known.add(key)
                    shader = op.templates.render(
                        op.module_of(variant.name),
                        launch.template,
                        context=launch.context,
                        bindings=launch.bindings,
                        params={**params, **FOLD_PARAMS},
                        caps=kind,
                    )
                    if shader.wgsl not in seen:
                        seen.add(shader.wgsl)
                        yield Choice(variant.name, launch, kind, shader)


def _requests(op: Op) -> Iterator[Request]:
    """What the op is tested and timed with, for its required outputs and for all."""
    calls = [
        ({name: TensorSpec.of(array) for name, array in case.inputs.items()}, case.attrs)
        for case in Suite.read(op.module, op.extensions).cases(seed=0)
    ]
    calls += [
        ({name: TensorSpec.parse(text) for name, text in case.inputs.items()}, case.attrs) for case in read_cases(op)
    ]
    for inputs, attributes in calls:
        for outputs in (None, [port.name for port in op.manifest.outputs]):
            try:
                request = op.bind(inputs, attributes, outputs)
                op.infer(request)
            except InputError:
                continue  # not all outputs at once
            yield request


def _few_kinds(caps: Capabilities) -> list[Capabilities]:
    bare = pretended(features=(), limits=FLOOR, dialect=caps.dialect, is_cpu=True)
    return [caps, bare, pretended(caps.features, dialect=caps.dialect)]


def _kinds(caps: Capabilities) -> Iterator[Capabilities]:
    yield caps
    for limits in (FLOOR, LARGE):
        for is_cpu in (True, False):
            kind = partial(pretended, limits=limits, dialect=caps.dialect, is_cpu=is_cpu)
            yield kind(features=())
            yield from (kind(caps.features, size) for size in SUBGROUP_SIZES)
