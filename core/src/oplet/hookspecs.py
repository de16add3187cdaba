"""The contract between oplet and a plugin: six hooks, and this page is all of it.

A plugin is a package folder, one for each op, whose `__init__` implements these hooks with
`@oplet.hookimpl`. An entry point in the group `oplet.ops` names it: the entry point's name is the op
id, its value the folder's import name.

    [project.entry-points."oplet.ops"]
    "com.acme.Foo" = "oplet_acme_foo"

An extension adds variants to an op of somebody else's. Its entry point is in the group
`oplet.extensions` under the same op id, and it implements `variants` and `templates` only.

A hook may leave out arguments that it does not need. Hooks take no op argument: one plugin manager
serves one op.

A plugin may rely on the names of `oplet`, on the public ones of `oplet.capabilities`, `oplet.manifest`,
`oplet.request` and `oplet.variant`, for its tests on `oplet.testing` with `compare` and `suite`, and for its peers
on `oplet.bench.peers`: they change no more often than the hooks. Every other module may, with any version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pluggy

from oplet.manifest import Manifest
from oplet.request import Request, TensorSpec
from oplet.variant import Variant

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

hookspec = pluggy.HookspecMarker("oplet")
hookimpl = pluggy.HookimplMarker("oplet")


@hookspec(firstresult=True)
def manifest() -> Manifest:  # type: ignore[empty-body]  # a specification has no body
    """The op's contract, read from the manifest.json beside the module.

    Example:
        @oplet.hookimpl
        def manifest() -> oplet.Manifest:
            return oplet.Manifest.read(__package__)
    """


@hookspec(firstresult=True)
def infer(request: Request) -> Mapping[str, TensorSpec]:  # type: ignore[empty-body]
    """The spec of each output in `request.outputs`. Pure: it sees shapes, never data.

    Names, ranks, dtypes, presence and attribute types are already checked against the manifest.
    Raises an `oplet.InputError`, which `request.refusal` makes, for shapes and values that the op does not accept.

    Example:
        @oplet.hookimpl
        def infer(request: oplet.Request) -> dict[str, oplet.TensorSpec]:
            return {"Y": request.inputs["X"]}
    """


@hookspec(firstresult=True)
def check(request: Request, arrays: Mapping[str, np.ndarray]) -> None:
    """Optional: looks at the values of those inputs that are numpy arrays, on every run, before upload.

    For what shapes cannot tell, such as a schedule that must not decrease. A tensor on the device is
    not in `arrays`: a shader has to be safe with whatever it holds. Raises `request.refusal(…)`.

    Example:
        @oplet.hookimpl
        def check(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> None:
            if "lengths" in arrays and (arrays["lengths"] < 0).any():
                raise request.refusal("lengths", "an entry is negative", do="pass 0 or more")
    """


@hookspec(firstresult=True)
def reference(request: Request, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:  # type: ignore[empty-body]
    """The op in numpy, clear rather than fast: what `variant="reference"` runs and tests compare with.

    It may compute in a wider dtype; each array it returns is cast to the inferred dtype.

    Example:
        @oplet.hookimpl
        def reference(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {"Y": np.maximum(arrays["X"], 0)}
    """


@hookspec
def variants() -> Sequence[Variant]:  # type: ignore[empty-body]
    """Every way of computing the op, the preferred one first.

    The first variant that neither rejects nor yields runs; else the first that does not reject.

    Example:
        @oplet.hookimpl
        def variants() -> list[oplet.Variant]:
            return [oplet.Variant("vec4", plan_vec4, rejects=not_a_multiple_of_4), oplet.Variant("scalar", plan_scalar)]
    """


@hookspec
def templates() -> Traversable:  # type: ignore[empty-body]
    """The folder of WGSL jinja templates that this plugin's launches name.

    Example:
        @oplet.hookimpl
        def templates() -> Traversable:
            return importlib.resources.files(__package__) / "wgsl"
    """
