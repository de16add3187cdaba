"""Every shader that an op may compile: each template with each variant's every choice, for many kinds of devices."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from oplet import Request, TensorSpec
from oplet.bench import read_cases
from oplet.capabilities import FLOOR, Capabilities, SubgroupMatrixConfig
from oplet.errors import InputError
from oplet.op import Op
from oplet.shader import FOLD_PARAMS, PARAM_TYPES, Shader
from oplet.testing.suite import Suite
from oplet.variant import Launch

#: sizes of subgroups that GPUs have: llvmpipe 8, Intel 16, NVIDIA 32, AMD 64
SUBGROUPS = (8, 16, 32, 64)

#: what GPUs multiply at once
CONFIGS = tuple(
    SubgroupMatrixConfig("f16", result, *shape)
    for result in ("f16", "f32")
    for shape in ((16, 16, 16), (16, 8, 16), (16, 8, 8), (8, 8, 8))
)


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


def shaders(op: Op, caps: Capabilities) -> Iterator[Choice]:
    """Each distinct WGSL of an op on devices that have the features of this one, and other sizes.

    Args:
        op: the op.
        caps: of the device that is to compile them.
    """
    seen: set[str] = set()
    known: set[object] = set()
    asked = list(dict.fromkeys(_requests(op)))
    for kind in _kinds(caps):
        for variant in op.variants:
            for request in asked:
                if variant.rejects(request, kind) is not None:
                    continue
                for launch in variant.plan(request, kind):
                    params = {name: PARAM_TYPES[value.dtype.name] for name, value in launch.params.items()}
                    context = tuple(sorted(launch.context.items()))
                    key = (variant.name, launch.template, context, tuple(launch.bindings), *params, kind.subgroup_size)
                    if key in known:
                        continue
                    known.add(key)
                    shader = op.templates.render(
                        op.folder_of(variant.name),
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


def _kinds(caps: Capabilities) -> Iterator[Capabilities]:
    """The device as it is and without features, and GPUs with its features."""
    yield caps
    plain = attrs.evolve(caps, features=frozenset(), subgroup_size=0, subgroup_matrix_configs=())
    large = {name: value if name.startswith("min") else value * 4 for name, value in FLOOR.items()}
    kinds = [plain]
    if "subgroups" in caps.features:
        configs = CONFIGS if "subgroup-matrix" in caps.features else ()
        kinds += [attrs.evolve(caps, subgroup_size=size, subgroup_matrix_configs=configs) for size in SUBGROUPS]
    elif caps.features:
        kinds.append(caps)
    for kind in kinds:
        for limits in (FLOOR, large):
            for is_cpu in (True, False):
                yield attrs.evolve(kind, limits=limits, adapter=attrs.evolve(caps.adapter, is_cpu=is_cpu))
