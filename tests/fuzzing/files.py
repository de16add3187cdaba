"""Files that lie: valid ones of every kind that oplet reads, cut off, overwritten and swollen."""

from __future__ import annotations

import io
import json
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import attrs
import gguf
import numpy as np
import onnx
import oplet.onnx
from oplet import Manifest, OpletError, bench, metadata, npy
from oplet.bench import compare, read_cases
from oplet.discovery import OPS, Offer
from oplet.testing.suite import Suite
from oplet_gated_delta_net.gdn import GdnConfig
from oplet_gated_delta_net.gdn.gguf import GgufModel

from fuzzing.child import Now, Report, limit_memory, place, told

#: the op whose files are the valid ones
OP, PACKAGE = "com.microsoft.FusedGemm", "oplet_fused_gemm"

#: the package that its files are put into, each after a lie
COPY = "fuzzed_op"

#: what a size may claim to be
CLAIMS = tuple(
    value.to_bytes(width, order)
    for width in (2, 4, 8)
    for value in (0, 1, (1 << 8 * width - 1) - 1, 1 << 8 * width - 1, (1 << 8 * width) - 1, 1 << 8 * width - 4)
    for order in ("little", "big")
)

#: the same in a protobuf's variable length, and in text
VARINTS = (
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
)
NUMBERS = (b"-1", b"4294967296", b"9223372036854775807", b"1e999", b"9" * 5000, b"NaN", b"null", b"\x00")


#: memory that reading a file may take, of a few kilobytes as each of them is, in bytes
MEMORY = 64 << 20

#: makes a file wrong
Lie = Callable[[random.Random, bytes], bytes]


@attrs.frozen
class Kind:
    """A kind of file.

    Attributes:
        valid: files of it that are read without an error.
        read: reads one, given its bytes.
        tamper: makes one wrong that stays well-formed, where bytes hardly ever do.
    """

    valid: tuple[bytes, ...]
    read: Callable[[bytes], object]
    tamper: Lie | None = None

    def lie(self, rng: random.Random) -> bytes:
        """A file of this kind made wrong in one to three places, or nothing but noise."""
        data = rng.choice(self.valid)
        if rng.random() < 0.05:
            return rng.randbytes(rng.randrange(2000))
        if self.tamper and rng.random() < 0.7:
            return self.tamper(rng, data)
        for _ in range(rng.choice((1, 1, 2, 3))):
            data = rng.choice(LIES)(rng, data)
        return data


def _cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _flip(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 4, 64)) if data else 0):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _claim(rng: random.Random, data: bytes) -> bytes:
    place, claim = rng.randrange(len(data) + 1), rng.choice(CLAIMS + VARINTS)
    return data[:place] + claim + data[place + len(claim) * rng.randrange(2) :]


def _renumber(rng: random.Random, data: bytes) -> bytes:
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?(e-?\d+)?", data))
    if not numbers:
        return data
    number = rng.choice(numbers)
    return data[: number.start()] + rng.choice(NUMBERS) + data[number.end() :]


def _slice(rng: random.Random, data: bytes) -> tuple[int, int]:
    first = rng.randrange(len(data) + 1)
    return first, min(len(data), first + rng.choice((1, 4, 30, 300)))


def _repeat(rng: random.Random, data: bytes) -> bytes:
    first, last = _slice(rng, data)
    return data[:last] + data[first:last] * rng.choice((1, 3, 1000)) + data[last:]


def _remove(rng: random.Random, data: bytes) -> bytes:
    first, last = _slice(rng, data)
    return data[:first] + data[last:]


def _nest(rng: random.Random, data: bytes) -> bytes:
    place, opening = rng.randrange(len(data) + 1), rng.choice((b"[", b'{"a":', b"(", b"\x0a\xff\x01"))
    return data[:place] + opening * rng.choice((1, 100, 100_000)) + data[place:]


LIES: tuple[Lie, ...] = (_cut, _flip, _claim, _claim, _renumber, _renumber, _repeat, _remove, _nest)


def _tamper(rng: random.Random, data: bytes) -> bytes:
    """A model in which some fields have other values of their types."""
    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        message = _some_message(rng, model)
        field = rng.choice(message.DESCRIPTOR.fields)
        _set_field(rng, message, field)
    return bytes(model.SerializeToString())


def _some_message(rng: random.Random, message: Any) -> Any:
    """A message inside another, each as likely as any."""
    found = [message]
    for one in found:  # grows as it goes
        for field, value in one.ListFields():
            if field.type == field.TYPE_MESSAGE:
                found += [value] if hasattr(value, "ListFields") else value
    return rng.choice(found)


def _set_field(rng: random.Random, message: Any, field: Any) -> None:
    if field.type == field.TYPE_MESSAGE or rng.random() < 0.2:
        message.ClearField(field.name)
        return
    values: Sequence[Any]
    if field.type == field.TYPE_STRING:
        values = ("", "A", "y", "../../etc/passwd", "\x00", "x" * 1000, "com.microsoft", "FusedGemm")
    elif field.type == field.TYPE_BYTES:
        values = (b"", b"\xff", b"\0" * 7, b"x" * 5000)
    elif field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        values = (0.0, -1.0, 1e38, float("nan"), float("inf"))
    elif field.type == field.TYPE_ENUM:
        values = [one.number for one in field.enum_type.values]
    else:
        bits = 31 if field.type == field.TYPE_INT32 else 63
        values = (0, 1, 2, 7, 16, 99, 1 << 20, (1 << bits) - 1)
        if field.type not in (field.TYPE_UINT32, field.TYPE_UINT64):
            values += (-1, -(1 << bits))
    if hasattr(getattr(message, field.name), "extend"):
        getattr(message, field.name).extend(rng.choices(values, k=rng.choice((1, 1, 3))))
    else:
        setattr(message, field.name, rng.choice(values))


# Kinds of files --------------------------------------------------------------------------------------


@contextmanager
def kinds() -> Iterator[Mapping[str, Kind]]:
    """Every kind by name, as long as the context lasts."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, COPY)
        folder.mkdir()
        (folder / "__init__.py").touch()
        sys.path.insert(0, parent)
        try:
            yield {**_op_files(folder), **_others(Path(parent))}
        finally:
            sys.path.remove(parent)


def _op_files(folder: Path) -> dict[str, Kind]:
    """The JSON files of an op folder, read as those of an installed op are."""
    offer = Offer(op=OP, group=OPS, entry=COPY, dist=COPY, version="1.0.0", requires=())
    op = attrs.evolve(oplet.Registry()[OP], module=COPY)

    def kind(name: str, read: Callable[[], object]) -> Kind:
        def read_bytes(data: bytes) -> object:
            (folder / name).write_bytes(data)
            return read()

        return Kind(((files(PACKAGE) / name).read_bytes(),), read_bytes)

    return {
        "manifest.json": kind("manifest.json", lambda: Manifest.read(COPY)),
        "metadata.json": kind("metadata.json", lambda: metadata.verify(offer)),
        "test.json": kind("test.json", lambda: Suite.read(COPY)),
        "bench.json": kind("bench.json", lambda: read_cases(op)),
    }


def _others(folder: Path) -> dict[str, Kind]:
    def from_path(read: Callable[[Path], object]) -> Callable[[bytes], object]:
        def read_bytes(data: bytes) -> object:
            path = folder / "file"
            path.write_bytes(data)
            return read(path)

        return read_bytes

    return {
        "onnx": Kind((_model(),), _open_model, _tamper),
        "gguf": Kind((_gguf(folder),), from_path(_load_gguf), _tamper_with_the_header),
        "npy": Kind(tuple(_npy()), from_path(npy.read)),
        "report": Kind((_report(),), from_path(compare.read_reports)),
    }


def _npy() -> Iterator[bytes]:
    square = np.arange(12, dtype=np.float32).reshape(3, 4)
    for array in (square, square.T, np.array(7, ">i4"), np.zeros((2, 0), np.float16)):
        file = io.BytesIO()
        np.save(file, array)
        yield file.getvalue()
    file = io.BytesIO()
    np.lib.format.write_array(file, square, version=(2, 0))
    yield file.getvalue()


def _gguf(folder: Path) -> bytes:
    """A model with one small layer."""
    config = GdnConfig(hidden_dim=32, num_key_heads=1, num_value_heads=2, key_head_dim=4, value_head_dim=4)
    writer = gguf.GGUFWriter(folder / "model", "qwen3next")
    settings = ("ssm.conv_kernel", 4), ("ssm.state_size", 4), ("ssm.group_count", 1), ("ssm.time_step_rank", 2)
    for name, value in (*settings, ("ssm.inner_size", 8), ("embedding_length", 32)):
        writer.add_uint32(f"qwen3next.{name}", value)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", ""])
    for name, shape in config.weight_shapes.items():
        data, kind = np.full(shape, -0.1, np.float32), None
        if name == "attn_gate":
            kind = gguf.GGMLQuantizationType.Q8_0
            data = gguf.quantize(data, kind)
        suffix = {"ssm_dt": ".bias", "ssm_a": ""}.get(name, ".weight")
        writer.add_tensor(f"blk.0.{name}{suffix}", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return (folder / "model").read_bytes()


def _tamper_with_the_header(rng: random.Random, data: bytes) -> bytes:
    place, claim = rng.randrange(data.rindex(b"blk.0.") + 80), rng.choice(CLAIMS)
    return data[:place] + claim + data[place + len(claim) :]


def _load_gguf(path: Path) -> object:
    model = GgufModel(path)
    return [model.weights(layer) for layer in model.layers]


def _report() -> bytes:
    timing = bench.Timing(1e-3, 0.9e-3, 1.1e-3)
    result = bench.Result(
        "a case", "a variant", timing, timing, 1024, 2048, {"numpy": timing, "torch": "not installed"}
    )
    report = bench.Report(OP, "1.0.0", "an adapter", "wgpu", False, "wall", 1e9, 1e12, {"numpy": "2.0"}, (result,))
    return json.dumps([report.as_json()]).encode()


def _model() -> bytes:
    """A node for the device, some for the host, tensors stored in every way, a subgraph and a function."""
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    weights = np.arange(12, dtype=np.float32).reshape(4, 3)
    initializers = [
        onnx.numpy_helper.from_array(weights, "B"),
        helper.make_tensor("C", floats, (3,), [1.0, 2.0, 3.0]),
        helper.make_tensor("half", onnx.TensorProto.FLOAT16, (2,), [1.0, 2.0]),
        helper.make_tensor("names", onnx.TensorProto.STRING, (2,), [b"a", b"b"]),
        helper.make_tensor("four", onnx.TensorProto.INT4, (3,), [1, 2, 3]),
    ]
    same = helper.make_graph(
        [helper.make_node("Identity", ["y"], ["z"])], "same", [], [helper.make_tensor_value_info("z", floats, (2, 3))]
    )
    nodes = [
        helper.make_node("FusedGemm", ["A", "B", "C"], ["y"], "gemm", domain="com.microsoft", activation="Relu"),
        helper.make_node("Constant", [], ["yes"], value=onnx.numpy_helper.from_array(np.array(True))),
        helper.make_node("If", ["yes"], ["chosen"], then_branch=same, else_branch=same),
        helper.make_node("Twice", ["chosen"], ["Y"], domain="local"),
    ]
    twice = helper.make_function(
        "local", "Twice", ["x"], ["y"], [helper.make_node("Add", ["x", "x"], ["y"])], [helper.make_opsetid("", 17)]
    )
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("A", floats, (2, 4))],
        [helper.make_tensor_value_info("Y", floats, (2, "columns"))],
        initializers,
    )
    opsets = [
        helper.make_opsetid(domain, version) for domain, version in (("", 17), ("com.microsoft", 1), ("local", 1))
    ]
    return bytes(helper.make_model(graph, opset_imports=opsets, functions=[twice]).SerializeToString())


def _open_model(data: bytes) -> object:
    session = oplet.onnx.InferenceSession(data)
    return session.get_inputs(), session.get_outputs(), str(session.report())


# Reading them ----------------------------------------------------------------------------------------


def read_files(kind: str, count: int, seed: int, now: Now) -> Report:
    """Reads files that lie.

    Args:
        kind: of `kinds`.
        count: how many.
        seed: of the lies.
        now: is told each file.
    """
    rng, counts, findings = random.Random(seed), Counter[str](), dict[str, str]()
    with kinds() as known:
        for valid in known[kind].valid:
            known[kind].read(valid)
        limit_memory(MEMORY)
        for number in range(count):
            data = known[kind].lie(rng)
            now(f"{kind} {number} of seed {seed}: {data[:200]!r}")
            try:
                known[kind].read(data)
                counts["read"] += 1
            except OpletError as error:
                if "\n" not in str(error):
                    findings.setdefault("no advice", str(error))
                counts["refused"] += 1
            except Exception as error:
                error.add_note(f"{kind} {number} of seed {seed}, {len(data)} bytes: {data[:200]!r}")
                # One fault has many files.
                findings.setdefault(f"{type(error).__name__} at {place(error)}", told(error))
                counts["worse"] += 1
    return Report(dict(counts), list(findings.values()))
