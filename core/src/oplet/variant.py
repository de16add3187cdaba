"""What a plugin gives for each way of computing its op: a `Variant`, and the `Launch`es it plans."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import attrs
import numpy as np

from oplet.request import DTYPES

if TYPE_CHECKING:
    from oplet.capabilities import Capabilities
    from oplet.request import Request, TensorSpec

#: A value that may enter a template. Choices only: a size belongs in `Launch.params`.
ContextValue = str | int | float | bool | None | tuple["ContextValue", ...]
Param = np.uint32 | np.int32 | np.float32
Access = Literal["read", "read_write"]

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_ELEMENT = re.compile(r"(?:f32|f16|u32|i32|vec[24]<(?:f32|f16|u32|i32)>|atomic<(?:u32|i32)>)\Z")
#: fields that core itself writes into the params struct (`oplet.shader`)
RESERVED_PARAMS = frozenset({"workgroups", "fold_x", "fold_y", "fold_start"})


def _identifier(_: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not _IDENTIFIER.match(value):
        raise ValueError(f"{attribute.name} {value!r} is not a WGSL identifier")


def _element(_: object, __: attrs.Attribute[str], value: str) -> None:
    if not _ELEMENT.match(value):
        raise ValueError(
            f"element {value!r} is not one of f32, f16, u32, i32, vec2<…>, vec4<…>, atomic<u32>, atomic<i32>"
        )


def _access(_: object, __: attrs.Attribute[Access], value: Access) -> None:
    if value not in ("read", "read_write"):
        raise ValueError(f'access {value!r} is not "read" or "read_write"')


def _count(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    least = 1 if attribute.name == "workgroups" else 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{attribute.name} must be an int, not {type(value).__name__} {value!r}")
    if value < least:
        raise ValueError(f"{attribute.name} must be at least {least}, not {value}")


def _bindings(_: object, __: attrs.Attribute[Sequence[Binding]], value: Sequence[Binding]) -> None:
    for binding in value:
        if not isinstance(binding, Binding):
            raise TypeError(f"bindings must be of oplet.Binding, not {binding!r:.60}")


def _params(_: object, __: attrs.Attribute[Mapping[str, Param]], value: Mapping[str, Param]) -> None:
    for name, number in value.items():
        if not _IDENTIFIER.match(name) or name in RESERVED_PARAMS:
            raise ValueError(f"params: {name!r} is not a free WGSL identifier (taken: {sorted(RESERVED_PARAMS)})")
        if not isinstance(number, np.uint32 | np.int32 | np.float32):
            raise TypeError(f"params[{name!r}] must be np.uint32, np.int32 or np.float32, not {type(number).__name__}")


def _context(_: object, __: attrs.Attribute[Mapping[str, ContextValue]], value: Mapping[str, ContextValue]) -> None:
    # Also what makes it part of a cache key.
    for name, choice in value.items():
        if not _is_choice(choice):
            raise TypeError(
                f"context[{name!r}] must be a string, number, bool, None or a tuple of these, not {choice!r:.60}"
            )


def _is_choice(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_choice, value))
    return value is None or isinstance(value, str | int | float)


def _scratch(_: object, __: attrs.Attribute[Mapping[str, TensorSpec]], value: Mapping[str, TensorSpec]) -> None:
    for name, spec in value.items():
        if spec.dtype not in DTYPES:
            raise ValueError(f"scratch[{name!r}]: {spec.dtype} is not one of {', '.join(DTYPES)}")


@attrs.frozen
class Binding:
    """One storage buffer of a launch.

    Attributes:
        name: the WGSL variable that the template uses.
        tensor: an input or output port that the request has, or a name in the launch's `scratch`.
        access: "read" or "read_write".
        element: the element type of the WGSL array: "f32", "vec4<f16>", "atomic<u32>" …
    """

    name: str = attrs.field(validator=_identifier)
    tensor: str
    access: Access = attrs.field(validator=_access)
    element: str = attrs.field(validator=_element)


@attrs.frozen
class Launch:
    """One run of one template over its workgroups: a dispatch, or several where one would take too long.

    Attributes:
        template: a file in the `templates()` folder of the plugin that the variant came from.
        workgroups: how many, linear, at least 1; core folds them over x, y and z above 65535.
        context: the choices that the template sees: they decide the code, so keep sizes out of it.
        params: the numbers that the shader reads at run time as `params.<name>`; the scalar's numpy
            type is the field's WGSL type.
        bindings: the storage buffers, in any order; core numbers them.
        scratch: buffers that live for this call only. The same name in a later launch of the same
            call is the same buffer. Their contents are undefined at first.
        operations: about how many multiply-adds it takes in all, at most, where they are more than a few dozen
            for each element that it binds. Core splits by workgroups what would keep a device for too long
            (`oplet.device.Device.max_operations`), in which they see no difference.
    """

    template: str
    workgroups: int = attrs.field(validator=_count)
    context: Mapping[str, ContextValue] = attrs.field(factory=dict, validator=_context)
    params: Mapping[str, Param] = attrs.field(factory=dict, validator=_params)
    bindings: Sequence[Binding] = attrs.field(default=(), validator=_bindings)
    scratch: Mapping[str, TensorSpec] = attrs.field(factory=dict, validator=_scratch)
    operations: int = attrs.field(default=0, validator=_count)


def _never(request: Request, caps: Capabilities) -> str | None:
    return None


@attrs.frozen
class Variant:
    """One way of computing an op.

    Attributes:
        name: unique within the op; what `variant=` takes and `explain` prints.
        plan: `(request, caps) -> Sequence[Launch]`, pure; no launch at all is fine (an empty output).
        rejects: `(request, caps) -> str | None`, why this variant cannot serve the call, or None.
        yields: the same, why another variant is expected to be faster although this one could serve; asked only
            where it does not reject.
        doc: one sentence for `oplet info`.
    """

    name: str = attrs.field(validator=_identifier)
    plan: Callable[[Request, Capabilities], Sequence[Launch]] = attrs.field(repr=False)
    rejects: Callable[[Request, Capabilities], str | None] = attrs.field(default=_never, repr=False)
    yields: Callable[[Request, Capabilities], str | None] = attrs.field(default=_never, repr=False)
    doc: str = ""


@attrs.frozen
class Rejection:
    """Why a variant does not run.

    Attributes:
        variant: its name.
        kind: "rejects": it cannot serve the call. "yields": it could, another is expected to be
            faster. "later": it could, but comes after the chosen one in the order of preference.
        reason: one line.
    """

    variant: str
    kind: Literal["rejects", "yields", "later"]
    reason: str


@attrs.frozen(eq=False)
class Plan:
    """How one request is computed on one device.

    Attributes:
        op: the op id.
        variant: name of the chosen variant.
        module: import name of the package folder whose templates the launches name.
        inputs, outputs: spec of each port of the request.
        launches: in order.
        rejections: one for each of the other variants.
        source: the distribution, and its version, that the variant came from; for errors.
    """

    op: str
    variant: str
    module: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    launches: tuple[Launch, ...]
    rejections: tuple[Rejection, ...]
    source: str = "oplet"

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """Every tensor: inputs, then outputs, then scratch buffers."""
        return {**self.inputs, **self.outputs, **self.scratch}

    @property
    def scratch(self) -> dict[str, TensorSpec]:
        """The scratch buffers of all launches."""
        return {name: spec for launch in self.launches for name, spec in launch.scratch.items()}
