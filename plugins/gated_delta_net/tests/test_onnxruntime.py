"""onnxruntime's CPU kernel as the oracle: of the reference, and of every variant."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import oplet
import pytest
from oplet_gated_delta_net.cases import random_call, scale
from oplet.testing.compare import Tolerance, compare

OP = "com.microsoft.GatedDeltaNet"
CASES = 400

ELEMENTS = {"float32": 1, "float16": 10, "int32": 6}  # TensorProto.DataType


def onnxruntime_run(
    manifest: oplet.Manifest, inputs: Mapping[str, np.ndarray], attrs: Mapping[str, Any], outputs: tuple[str, ...]
) -> dict[str, np.ndarray]:
    ports = [port.upstream if port.name in inputs else "" for port in manifest.inputs]
    names = [port.upstream if port.name in outputs else "" for port in manifest.outputs]
    node = onnx.helper.make_node("GatedDeltaNet", ports, names, domain="com.microsoft", **attrs)
    types = {"outputT": inputs["queryT"].dtype.name, "finalStateT": "float32", "stateUpdateT": "float32"}
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [
            onnx.helper.make_tensor_value_info(port.upstream, ELEMENTS[inputs[port.name].dtype.name], None)
            for port in manifest.inputs
            if port.name in inputs
        ],
        [
            onnx.helper.make_tensor_value_info(port.upstream, ELEMENTS[types[port.name]], None)
            for port in manifest.outputs
            if port.name in outputs
        ],
    )
    imports = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {port.upstream: inputs[port.name] for port in manifest.inputs if port.name in inputs}
    return dict(zip(outputs, session.run(None, feeds), strict=True))
