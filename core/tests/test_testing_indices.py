"""Integers on the device that lead out of the tensors are found, whether the shader writes there or only looks."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import oplet
import pytest
from oplet.testing.compare import Tolerance
from oplet.testing.indices import indices
from oplet.testing.kit import Devices, Finding, Kit, NotRun
from oplet.testing.suite import Suite

OP = "com.acme.Take"
MANIFEST = {
    "schema": 1,
    "id": OP,
    "since_version": 1,
    "summary": "Elements by their numbers.",
    "inputs": [
        {"name": "X", "type": "float32", "rank": 1, "shape": "(n,)"},
        {"name": "which", "type": "int32", "rank": 1, "shape": "(m,)"},
    ],
    "outputs": [{"name": "Y", "type": "float32", "rank": 1, "shape": "(m,)"}],
}
TEMPLATE = """
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) workgroup_id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let group = workgroup_index(workgroup_id);
  if (group >= params.workgroups) { return; }
  let i = group * 64u + lane;
  if (i >= params.size) { return; }
  let at = u32(clamp(which[i], 0, i32(params.limit) - 1));
  Y[i] = X[at];
}
"""

SAFE = "let at = u32(clamp(which[i], 0, i32(params.limit) - 1));\n  Y[i] = X[at];"
LOOKS = "Y[i] = X[which[i]];"
WRITES = "Y[i] = 0.0;\n  Y[u32(which[i])] = X[min(i, params.limit - 1u)];"


@pytest.fixture(scope="module")
def devices() -> Devices:
    return Devices()


@pytest.fixture
def take(devices: Devices, tmp_path: Path) -> Callable[..., list[Finding | NotRun]]:
    """What is found of the op with other code for an element."""

    def found(code: str, numbers: Sequence[float] = range(9)) -> list[Finding | NotRun]:
        assert TEMPLATE.count(SAFE) == 1
        (tmp_path / "take.wgsl.jinja").write_text(TEMPLATE.replace(SAFE, code))

        def plan(request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
            limit, size = request.inputs["X"].size, request.inputs["which"].size
            bindings = [
                oplet.Binding("X", "X", "read", "f32"),
                oplet.Binding("which", "which", "read", "i32"),
                oplet.Binding("Y", "Y", "read_write", "f32"),
            ]
            params = {"limit": np.uint32(limit), "size": np.uint32(size)}
            return [oplet.Launch("take.wgsl.jinja", -(-size // 64), {}, params, bindings)]

        plugin = SimpleNamespace(
            manifest=oplet.hookimpl(lambda: oplet.Manifest.parse(json.dumps(MANIFEST), "take")),
            infer=oplet.hookimpl(lambda request: {"Y": oplet.TensorSpec(request.inputs["which"].shape, "float32")}),
            reference=oplet.hookimpl(lambda request, arrays: {"Y": arrays["X"][arrays["which"]]}),
            variants=oplet.hookimpl(lambda: [oplet.Variant("scalar", plan)]),
            templates=oplet.hookimpl(lambda: tmp_path),
        )

        def registry(device: oplet.Device | None) -> oplet.Registry:
            made = oplet.Registry(device=device, discover=False)
            made.register(OP, plugin)
            return made

        inputs = {"X": np.array(numbers, np.float32), "which": np.arange(70, dtype=np.int32) % len(numbers)}
        suite = Suite({"float32": Tolerance(0, 0, "copies")}, generate=lambda rng: [(inputs, {})])
        kit = Kit(OP, devices=devices, registry=registry, suite=suite, seed=1)
        return list(indices(kit, variant="scalar", setup="best"))

    return found


def test_a_shader_that_clamps_is_safe(take: Callable[..., list[Finding | NotRun]]) -> None:
    assert take(SAFE) == []


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (LOOKS, r"Y\(\d+\) depends on what lies behind a tensor; with these words on the device: which \["),
        (WRITES, r"the word \d+ bytes behind Y was overwritten; with these words on the device: which \["),
    ],
)
def test_a_shader_that_trusts_its_integers_is_not(
    take: Callable[..., list[Finding | NotRun]], code: str, fault: str
) -> None:
    (finding,) = take(code)
    assert isinstance(finding, Finding)
    assert (finding.check, finding.variant, finding.setup, finding.case) == ("indices", "scalar", "best", "cases.py 0")
    assert re.match(fault, finding.message)


def test_a_check_without_a_call_says_so(take: Callable[..., list[Finding | NotRun]]) -> None:
    (told,) = take(SAFE, [math.inf])
    assert str(told) == "variant scalar with any integers: it accepts no case with integers and finite numbers"
