"""Peers: other implementations of an op, timed beside it."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs as records
import numpy as np

from oplet.bench.meter import copies_past_caches, runs_to_time
from oplet.errors import InputError, PluginContractError
from oplet.loading import raised
from oplet.op import Op
from oplet.request import Request


@records.frozen(eq=False)
class Timed:
    """A peer that takes its own time, where it can better than a clock around the call: by CUDA events, say.

    Attributes:
        run: runs the case, and returns how many seconds that took.
    """

    run: Callable[[], float]


#: what runs a case once: a function that returns when it is done, with whatever result; or one that takes its own time
Peer = Callable[[], object] | Timed


@records.frozen(eq=False)
class PeerCase:
    """What a peer's builder gets.

    Attributes:
        op: the loaded op.
        request: the bound request.
        arrays: the inputs, by manifest name.
        attrs: every attribute, defaults filled in.
    """

    op: Op
    request: Request
    arrays: Mapping[str, np.ndarray]
    attrs: Mapping[str, Any]


#: makes a peer for a case; may raise anything where the peer does not have it
Build = Callable[[PeerCase], Peer]


def known_to(op: Op) -> Mapping[str, Build]:
    """Every peer of an op: those of core, and those of the op folder's peers.py (`PEERS = {name: build}`).

    Raises:
        PluginContractError: peers.py cannot be imported, or has no such mapping.
    """
    known: dict[str, Build] = {"numpy": _numpy_peer, "onnxruntime": _onnxruntime_peer}
    package = f"{op.module}.peers"
    try:
        return {**known, **importlib.import_module(package).PEERS}
    except Exception as error:  # a plugin's module may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name in (package, op.module):
            return known
        raise PluginContractError(
            f"{op.id}: peers.py cannot be used: {raised(error, op.module)}\n"
            "it has to have PEERS = {name: function}; what only a peer needs is imported in its function",
            op=op.id,
            dist=op.dist,
            version=op.version,
        ) from error


def builders_of(op: Op, names: Sequence[str]) -> dict[str, Build]:
    """The builders of the named peers.

    Raises:
        InputError: there is no such peer.
    """
    if not names:
        return {}
    known = known_to(op)
    for name in names:
        if name not in known:
            raise InputError(
                f"peers: {name!r} is not one of {', '.join(known)}\nname one of these", op=op.id, argument="peers"
            )
    return {name: known[name] for name in names}


class Field:
    """The peers of one case. One that fails, whenever that is, is out of it.

    Attributes:
        samples: seconds of each run that was timed, by peer.
        faults: why a peer is out, in words.
    """

    def __init__(self, builders: Mapping[str, Build], case: PeerCase) -> None:
        """Makes the peers, and runs each once: what it compiles and loads is then in place."""
        self.samples: dict[str, list[float]] = {}
        self.faults: dict[str, str] = {}
        self._peers: dict[str, Peer] = {}
        for name, build in builders.items():
            with self._unless_it_fails(name):
                peer = build(case)
                if not isinstance(peer, Timed) and not callable(peer):
                    raise TypeError(f"its builder returned {peer!r:.60}, not a function to time or a Timed")
                _seconds(peer)
                self._peers[name], self.samples[name] = peer, []

    def sample(self, count: int) -> None:
        """Takes up to `count` samples of each peer, fewer where they take long."""
        for name, peer in list(self._peers.items()):
            with self._unless_it_fails(name):
                deadline = time.perf_counter() + 2.0
                for _ in range(count):
                    self.samples[name].append(_seconds(peer))
                    if time.perf_counter() > deadline:
                        break

    @contextlib.contextmanager
    def _unless_it_fails(self, name: str) -> Iterator[None]:
        try:
            yield
        except ModuleNotFoundError as error:
            self.faults[name] = f"{error.name or error} is not installed"
        except Exception as error:  # a peer may raise anything, also over a case that it does not have
            self.faults[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            return
        self._peers.pop(name, None)
        self.samples.pop(name, None)


def _seconds(peer: Peer) -> float:
    """Runs a peer, and tells how long that took."""
    if isinstance(peer, Timed):
        told: object = peer.run()
        # Not whatever float() takes: True would be a second.
        if not isinstance(told, float | np.floating) or not math.isfinite(told):
            raise TypeError(f"its Timed returned {told!r:.60}, not seconds as a float")
        return float(told)
    start = time.perf_counter()
    peer()
    return time.perf_counter() - start


def timed_on_cuda(case: PeerCase, prepare: Callable[[], Callable[[], object]]) -> Timed:
    """A peer on PyTorch's current CUDA stream, timed by events, on inputs that no cache holds.

    Args:
        case: what is timed.
        prepare: uploads the inputs once more, and returns what enqueues one run on them.
    """
    import torch

    nbytes = sum(array.nbytes for array in case.arrays.values())
    runs = itertools.cycle([prepare() for _ in range(copies_past_caches(nbytes))])

    def seconds_of(count: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for run in itertools.islice(runs, count):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / count

    seconds_of(1)  # loads code, which takes far longer than a run
    # Short ones back to back, as the op's own: else each would be charged its launch, which the stream hides.
    count = runs_to_time(min(seconds_of(1) for _ in range(3)))
    return Timed(lambda: seconds_of(count))


#: nodes that the longer of two graphs has more than the shorter
_MORE_NODES = 32


def timed_on_onnxruntime_webgpu(
    constants: Mapping[str, np.ndarray], nodes: Callable[[str, str], Sequence[Any]]
) -> Timed:
    """A peer on onnxruntime's WebGPU execution provider, timed by what a call more costs in a graph of many.

    A session takes and gives arrays of the host, and tells no device time. So two graphs are run, one call in the first
    and a chain of them in the second: transfers and all else that both have drop out of the difference.

    Args:
        constants: arrays that nodes read, uploaded once; the first call's first input is the first of them.
        nodes: makes one call's ONNX nodes from the name of the first input and of the output. The output has the shape
            and dtype of the first input, since the next call takes it.
    """
    import onnxruntime

    provider = "WebGpuExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise RuntimeError(f"this onnxruntime has no {provider}: install onnxruntime-webgpu in its place")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    first = next(iter(constants.values()))
    feeds = {"zero": np.zeros([1] * first.ndim, first.dtype)}
    sessions = [
        onnxruntime.InferenceSession(_chain(constants, nodes, count), options, providers=[provider])
        for count in (1, 1 + _MORE_NODES)
    ]

    def seconds_of(session: Any) -> float:
        start = time.perf_counter()
        session.run(None, feeds)
        return time.perf_counter() - start

    for session in sessions:
        seconds_of(session)  # compiles, and uploads the constants

    def run() -> float:
        one, many = (seconds_of(session) for session in sessions)
        return (many - one) / _MORE_NODES

    return Timed(run)


def _chain(constants: Mapping[str, np.ndarray], nodes: Callable[[str, str], Sequence[Any]], count: int) -> bytes:
    from onnx import helper, numpy_helper

    first, array = next(iter(constants.items()))
    element = helper.np_dtype_to_tensor_dtype(array.dtype)
    # Without an input all of the graph would be a constant, computed ahead.
    chain = [helper.make_node("Add", [first, "zero"], ["chain0"])]
    for index in range(count):
        chain += nodes(f"chain{index}", f"chain{index + 1}")
    # One element is enough to bring back.
    chain.append(helper.make_node("Slice", [f"chain{count}", "begin", "end"], ["corner"]))
    ends = {"begin": np.zeros(array.ndim, np.int64), "end": np.ones(array.ndim, np.int64)}
    graph = helper.make_graph(
        chain,
        "chain",
        [helper.make_tensor_value_info("zero", element, [1] * array.ndim)],
        [helper.make_tensor_value_info("corner", element, [1] * array.ndim)],
        [numpy_helper.from_array(value, name) for name, value in {**constants, **ends}.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


def _numpy_peer(case: PeerCase) -> Peer:
    return lambda: case.op.reference(case.request, case.arrays)


def _onnxruntime_peer(case: PeerCase) -> Peer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # it would print what it raises too
    try:
        session = onnxruntime.InferenceSession(one_node_model(case), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of classes of its own
        # Behind the place in its source and the kind of error, several times over, is the reason.
        reason = str(error).strip().rpartition(" : ")[2]
        raise RuntimeError(f"its CPU provider does not take such a call: {reason}") from error
    feeds = {name: case.arrays[name] for name in case.request.inputs}
    return lambda: session.run(None, feeds)


def one_node_model(case: PeerCase) -> bytes:
    """An ONNX model of the case's call, with the manifest's order of inputs and outputs."""
    from onnx import TensorProto, helper

    manifest, request = case.op.manifest, case.request
    element = {
        "float32": TensorProto.FLOAT,
        "float16": TensorProto.FLOAT16,
        "int32": TensorProto.INT32,
        "uint32": TensorProto.UINT32,
    }
    specs = case.op.infer(request)
    domain, _, kind = manifest.id.rpartition(".")
    node = helper.make_node(
        kind,
        [port.name if port.name in request.inputs else "" for port in manifest.inputs],
        [port.name if port.name in specs else "" for port in manifest.outputs],
        domain=domain,
        **{name: value for name, value in request.attrs.items() if value is not None},
    )
    graph = helper.make_graph(
        [node],
        kind,
        [helper.make_tensor_value_info(n, element[s.dtype], s.shape) for n, s in request.inputs.items()],
        [helper.make_tensor_value_info(n, element[s.dtype], s.shape) for n, s in specs.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(domain, manifest.since_version)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return bytes(model.SerializeToString())
