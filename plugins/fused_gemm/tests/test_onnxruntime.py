"""onnxruntime's CPU kernel as the oracle: 500 random calls on every variant that accepts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import attrs
import numpy as np
import onnxruntime
import oplet
import pytest
from onnx import TensorProto, helper
from oplet.testing.compare import Tolerance, compare
from oplet_fused_gemm.activations import ACTIVATIONS
from oplet_fused_gemm.cases import scale

OP = "com.microsoft.FusedGemm"
CASES = 500
VARIANTS = (
    "skinny",
    "skinny_nosg",
    "subgroup_matrix_split_k",
    "subgroup_matrix",
    "split_k_vec4",
    "tiled_vec4",
    "split_k_scalar",
    "tiled_scalar",
)

TOLERANCE = Tolerance(
    rtol=2e-6,
    atol=3e-7,
    why="twice test.json's, since the oracle rounds too; its Sigmoid and Tanh are approximations good to 3e-7",
)


@attrs.frozen(eq=False)
class Answered:
    """A call, and what onnxruntime makes of it."""

    arrays: dict[str, np.ndarray]
    attrs: dict[str, float | int | str]
    request: oplet.Request
    want: np.ndarray


@pytest.fixture(scope="module")
def registry() -> oplet.Registry:
    return oplet.Registry()


@pytest.fixture(scope="module")
def answered(registry: oplet.Registry) -> list[Answered]:
    return list(answers(registry, np.random.default_rng(20260130)))


def answers(registry: oplet.Registry, rng: np.random.Generator) -> Iterator[Answered]:
    names = list(ACTIVATIONS)
    for number in range(CASES):
        m, n, k = (int(size) for size in rng.integers(1, 131, 3))
        if number % 3 == 0:  # rows of whole vectors, which half of the variants need
            m, n, k = (4 * -(-size // 4) for size in (m, n, k))
        ta, tb = (int(flag) for flag in rng.integers(0, 2, 2))
        # Few combinations of dtype, activation and C, so that not every call compiles shaders of its own.
        name = names[number % len(names)]
        if number % 5 == 0:
            m, name = int(rng.integers(1, 17)), "Sigmoid"
        dtype = np.float16 if number % len(names) < 6 and number % 2 else np.float32
        arrays = {
            "A": rng.standard_normal((k, m) if ta else (m, k)).astype(dtype),
            "B": rng.standard_normal((n, k) if tb else (k, n)).astype(dtype),
        }
        shapes = [None, (), (1,), (n,), (1, 1), (1, n), (m, 1), (m, n)]
        shape = shapes[rng.integers(len(shapes))] if name in ("", "Relu", "Sigmoid") else None
        if shape is not None:
            arrays["C"] = rng.standard_normal(shape).astype(dtype)
        attributes: dict[str, float | int | str] = {"transA": ta, "transB": tb, "alpha": 0.5, "beta": -1.25}
        if name:
            attributes["activation"] = name
            # onnxruntime wants every parameter spelled out.
            for parameter, default in ACTIVATIONS[name].defaults.items():
                attributes[f"activation_{parameter}"] = 0.75 if default is None else default
        request = registry[OP].bind({key: oplet.TensorSpec.of(array) for key, array in arrays.items()}, attributes)
        yield Answered(arrays, attributes, request, onnxruntime_says(arrays, attributes))


def onnxruntime_says(arrays: dict[str, np.ndarray], attributes: dict[str, float | int | str]) -> np.ndarray:
    """The op in float32: its CPU kernel for float16 is not the oracle for rounding that this one is."""
    feeds = {name: array.astype(np.float32) for name, array in arrays.items()}
    # Without an activation its FusedGemm refuses, and Gemm is the same op.
    kind, domain = ("FusedGemm", "com.microsoft") if "activation" in attributes else ("Gemm", "")
    node = helper.make_node(kind, list(feeds), ["Y"], domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "call",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in feeds.items()],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, (None, None))],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["Y"], feeds)[0])


def differences(registry: oplet.Registry, answered: list[Answered], variant: str) -> Iterator[str]:
    for one in answered:
        got = registry.run(OP, attrs=one.attrs, variant=variant, **one.arrays).numpy()
        worst = compare(got, one.want.astype(np.float64), TOLERANCE, scale(one.request, one.arrays)["Y"])
        if worst is not None:
            shapes = {name: array.shape for name, array in one.arrays.items()}
            yield f"{variant} {got.dtype} {shapes} {one.attrs}: {worst.describe('Y', TOLERANCE)}"


def test_reference_agrees_with_onnxruntime(registry: oplet.Registry, answered: list[Answered]) -> None:
    assert list(differences(registry, answered, "reference")) == []


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_agrees_with_onnxruntime(name: str, registry: oplet.Registry, answered: list[Answered]) -> None:
    caps = registry.device.capabilities
    variant = next(one for one in registry[OP].variants if one.name == name)
    reasons = Counter(variant.rejects(one.request, caps) for one in answered)
    if not reasons[None]:
        pytest.skip(f"{name}: {', '.join(map(str, reasons))}")
    assert reasons[None] > CASES // 16
    accepted = [one for one in answered if variant.rejects(one.request, caps) is None]
    assert list(differences(registry, accepted, name)) == []


def test_no_variant_is_forgotten(registry: oplet.Registry) -> None:
    assert tuple(variant.name for variant in registry[OP].variants) == VARIANTS
