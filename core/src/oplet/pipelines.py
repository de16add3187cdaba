"""Compute pipelines: compiled once for each choice that changes the code, however many shapes use it."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import attrs

from oplet.capabilities import Capabilities
from oplet.errors import InputError, ShaderError
from oplet.shader import FOLD_PARAMS, PARAM_TYPES, Shader, dump
from oplet.variant import Access, Launch
from oplet.webgpu import COMPUTE, trusted_module

if TYPE_CHECKING:
    from oplet.templates import Templates

#: pipelines that a device keeps; past it the longest unused is let go of
MAX_PIPELINES = 512


@attrs.frozen(eq=False)
class Pipeline:
    """A compiled template.

    Attributes:
        gpu: the WebGPU compute pipeline.
        layout: its bind group layout; explicit, since an automatic one is exclusive to its pipeline.
        shader: what was compiled.
    """

    gpu: Any
    layout: Any
    shader: Shader


class Pipelines:
    """The pipelines of one device.

    Attributes:
        compiled: how many it has compiled so far.
    """

    def __init__(self, gpu: Any, caps: Capabilities, gpu_error: type[Exception], *, unchecked: bool) -> None:
        self._gpu = gpu
        self._caps = caps
        self._gpu_error = gpu_error
        self._unchecked = unchecked
        self._pipelines: OrderedDict[object, Pipeline] = OrderedDict()
        # By WGSL: what ops of two registries, or two plugins, have in common is compiled once.
        self._shared: WeakValueDictionary[str, Pipeline] = WeakValueDictionary()
        self._layouts: dict[tuple[Access, ...], Any] = {}
        self.compiled = 0

    def __len__(self) -> int:
        return len(self._pipelines)

    def __iter__(self) -> Iterator[Pipeline]:
        return iter(self._pipelines.values())

    def get(self, op: str, variant: str, module: str, templates: Templates, launch: Launch) -> Pipeline:
        """The pipeline of a launch, from the cache or compiled.

        The key is what decides the WGSL, so a hit renders nothing: the op's templates, plugin, template,
        context, and the declarations of bindings and params. Not the op's id: another registry may have
        another plugin for it.

        Raises:
            ShaderError: at the template's file and line.
        """
        params = {**{name: PARAM_TYPES[value.dtype.name] for name, value in launch.params.items()}, **FOLD_PARAMS}
        declared = tuple((binding.name, binding.access, binding.element) for binding in launch.bindings)
        # Types too: 1, 1.0 and True are one key to Python and three texts to jinja.
        context = frozenset((name, type(value), value) for name, value in launch.context.items())
        key = (templates, module, launch.template, context, declared, tuple(params.items()))
        pipeline = self._pipelines.get(key)
        if pipeline is not None:
            self._pipelines.move_to_end(key)
            return pipeline
        pipeline = self._compile(f"{op}/{variant}", module, templates, launch, params)
        self._pipelines[key] = pipeline
        if len(self._pipelines) > MAX_PIPELINES:
            self._pipelines.popitem(last=False)
        return pipeline

    def _compile(
        self, label: str, module: str, templates: Templates, launch: Launch, params: Mapping[str, str]
    ) -> Pipeline:
        shader = templates.render(
            module,
            launch.template,
            context=launch.context,
            bindings=launch.bindings,
            params=params,
            caps=self._caps,
        )
        if directory := os.environ.get("OPLET_DUMP_WGSL"):
            _dump(directory, label, shader)
        if shared := self._shared.get(shader.wgsl):
            return shared
        layout = self._layout(tuple(binding.access for binding in launch.bindings))
        try:
            gpu = self._gpu.create_compute_pipeline(
                label=label,
                layout=self._gpu.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": self._module(label, shader.wgsl), "entry_point": "main"},
            )
        except self._gpu_error as error:
            if "is lost" in str(error):
                raise  # no fault of the template; the device tells what is
            raise _shader_error(label, launch.template, shader, str(error)) from error
        self.compiled += 1
        pipeline = self._shared[shader.wgsl] = Pipeline(gpu, layout, shader)
        return pipeline

    def _module(self, label: str, wgsl: str) -> Any:
        if self._unchecked and self._caps.dialect == "naga":
            return trusted_module(self._gpu, label, wgsl)
        return self._gpu.create_shader_module(label=label, code=wgsl)

    def _layout(self, accesses: tuple[Access, ...]) -> Any:
        layout = self._layouts.get(accesses)
        if layout is None:
            types = ["uniform"] + ["read-only-storage" if access == "read" else "storage" for access in accesses]
            layout = self._layouts[accesses] = self._gpu.create_bind_group_layout(
                entries=[
                    {"binding": number, "visibility": COMPUTE, "buffer": {"type": kind}}
                    for number, kind in enumerate(types)
                ]
            )
        return layout


def _dump(directory: str, label: str, shader: Shader) -> None:
    try:
        dump(directory, label, shader)
    except OSError as error:
        raise InputError(
            f"OPLET_DUMP_WGSL: {directory!r} cannot be written to: {error}\nname a folder that can",
            argument="OPLET_DUMP_WGSL",
        ) from error


def _shader_error(label: str, template: str, shader: Shader, message: str) -> ShaderError:
    place = shader.locate(message)
    path, line = place or (template, 0)
    where = f"{path}:{line}" if line else path
    return ShaderError(
        f"{label}: {where}: the WGSL does not compile\n{message.strip()}\n"
        "mend the template; OPLET_DUMP_WGSL=dir writes the WGSL that was compiled",
        template=path,
        line=line,
        wgsl=shader.wgsl,
    )
