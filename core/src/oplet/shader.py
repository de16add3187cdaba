"""The WGSL that core writes: the prologue before every template, the params struct, and the way back from
a compiler's message to a template's line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from oplet.capabilities import Capabilities
from oplet.variant import Binding

if TYPE_CHECKING:
    from pathlib import Path

#: WGSL type of a param, by the numpy scalar's dtype name
PARAM_TYPES: Mapping[str, str] = {"uint32": "u32", "int32": "i32", "float32": "f32"}

#: fields that core adds to every params struct; see `fold` and `ranges`
FOLD_PARAMS: Mapping[str, str] = {"workgroups": "u32", "fold_x": "u32", "fold_y": "u32", "fold_start": "u32"}

#: a line of code with a mark below it; naga's validator heads its message with the function's first line
_NAGA_MARK = re.compile(r"^ *(\d+) │.*\n +│.* \^", re.MULTILINE)
_NAGA_LINE = re.compile(r"┌─ .*:(\d+):\d+")
_TINT_LINE = re.compile(r"(?<!\w):(\d+):\d+ (?:error|warning|note)")


@attrs.frozen
class Shader:
    """WGSL, and where each of its lines came from.

    Attributes:
        wgsl: what the compiler gets.
        origins: for each line of `wgsl` the template's path and line, or None for the prologue.
    """

    wgsl: str = attrs.field(repr=False)
    origins: tuple[tuple[str, int] | None, ...] = attrs.field(repr=False)

    def locate(self, message: str) -> tuple[str, int] | None:
        """The template line that a compiler's message points at, if it points anywhere."""
        match = next(filter(None, (pattern.search(message) for pattern in (_NAGA_MARK, _NAGA_LINE, _TINT_LINE))), None)
        if not match or not 1 <= int(match[1]) <= len(self.origins):
            return None
        return self.origins[int(match[1]) - 1]


def fold(workgroups: int, limit: int) -> tuple[int, int, int]:
    """Workgroups over x, y and z so that no dimension exceeds `limit`; the product may exceed `workgroups`."""
    x = min(workgroups, limit)
    y = min(-(-workgroups // x), limit)
    return x, y, -(-workgroups // (x * y))


def ranges(workgroups: int, operations: int, most: int, limit: int) -> Iterator[tuple[int, int]]:
    """Splits a launch into dispatches of at most `most` operations, but of a workgroup at least, all about equal.

    One that has to be folded is filled to the last row, unless it is the last one: no surplus workgroup of a
    dispatch has the number of a workgroup of the next.

    Args:
        workgroups: of the launch.
        operations: of the launch.
        most: operations of a dispatch.
        limit: of a dimension, as for `fold`.

    Yields:
        The first workgroup of each dispatch, and how many it has.
    """
    count = workgroups
    if operations > most:
        count = max(workgroups * most // operations, 1)
        count = -(-workgroups // -(-workgroups // count))
    for row in (limit * limit, limit):
        if row < count < workgroups:
            count -= count % row
            break
    for first in range(0, workgroups, count):
        yield first, min(count, workgroups - first)


def prologue(caps: Capabilities, bindings: Sequence[Binding], params: Mapping[str, str]) -> list[str]:
    """The lines before every template: language extensions, params and bindings."""
    lines = []
    if "shader-f16" in caps.features:
        lines.append("enable f16;")
    if caps.dialect == "tint":
        # naga has subgroup operations once the feature is on, and rejects this line.
        if "subgroups" in caps.features:
            lines.append("enable subgroups;")
        if "subgroup-matrix" in caps.features:
            lines.append("enable chromium_experimental_subgroup_matrix;")
    lines.append("struct Params {")
    lines += [f"  {name}: {kind}," for name, kind in params.items()]
    lines.append("}")
    lines.append("@group(0) @binding(0) var<uniform> params: Params;")
    lines += [
        f"@group(0) @binding({number}) var<storage, {binding.access}> {binding.name}: array<{binding.element}>;"
        for number, binding in enumerate(bindings, 1)
    ]
    # A function of builtins and uniforms, so that Tint sees uniform control flow where a barrier follows.
    lines.append("fn workgroup_index(workgroup_id: vec3<u32>) -> u32 {")
    lines.append("  let rows = workgroup_id.y + params.fold_y * workgroup_id.z;")
    lines.append("  return params.fold_start + workgroup_id.x + params.fold_x * rows;")
    lines.append("}")
    return lines


def param_bytes(
    params: Mapping[str, np.uint32 | np.int32 | np.float32], workgroups: int, folded: tuple[int, int, int], start: int
) -> bytes:
    """The params struct as the uniform buffer holds it: 4 bytes a field, in order, padded to 16.

    Args:
        params: the launch's own.
        workgroups: of the whole launch.
        folded: the grid of one of its dispatches.
        start: the first workgroup of that.
    """
    fields = [value.tobytes() for value in params.values()]
    fields += [np.uint32(value).tobytes() for value in (workgroups, folded[0], folded[1], start)]
    data = b"".join(fields)
    return data + bytes(-len(data) % 16)


def dump(directory: str, label: str, shader: Shader) -> Path:
    """Writes a shader for `OPLET_DUMP_WGSL`; the name tells op, variant and contents."""
    import hashlib
    from pathlib import Path

    digest = hashlib.sha256(shader.wgsl.encode()).hexdigest()[:10]
    path = Path(directory) / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', label)}-{digest}.wgsl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(shader.wgsl, encoding="utf-8")
    return path
