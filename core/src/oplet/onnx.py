"""ONNX models, in the shape of onnxruntime: nodes that a plugin offers run on the device, the others in numpy.

    session = oplet.onnx.InferenceSession("model.onnx")
    (y,) = session.run(None, {"x": x})
    print(session.report())

It needs the extra `oplet[onnx]`. The other nodes go through onnx's own `ReferenceEvaluator`, which is right and slow:
this is for models whose weight lies in the nodes that plugins offer.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NoReturn

import attrs
import numpy as np

from oplet import discovery, tables
from oplet.buffers import Tensor
from oplet.errors import InputError, MissingExtraError, OpletError, UnknownOpError
from oplet.manifest import Port
from oplet.op import Op
from oplet.registry import Explanation, Registry, default_registry
from oplet.request import DTYPES, TensorSpec, shape_text

try:
    import onnx
    import onnx.external_data_helper
    import onnx.inliner
    from onnx.reference import ReferenceEvaluator
except ImportError as error:
    raise MissingExtraError(f"oplet.onnx needs the package onnx: {error}\npip install 'oplet[onnx]'") from error

__all__ = ["InferenceSession", "NodeArg", "Placement", "Report"]

#: the domain that ONNX models mostly write as ""
ONNX_DOMAIN = "ai.onnx"


@attrs.frozen
class NodeArg:
    """An input or output of a model.

    Attributes:
        name: as `run` takes it.
        type: such as "tensor(float)".
        shape: dimensions, by name where the model names them, None where it leaves them open; None for any rank.
        dtype: numpy's, or None where it is no tensor.
    """

    name: str
    type: str
    shape: list[int | str | None] | None = attrs.field(hash=False)
    dtype: np.dtype[Any] | None = attrs.field(repr=False)


@attrs.frozen
class Placement:
    """Where a node runs.

    Attributes:
        node: its name, or "#" and its number where it has none.
        op: the op id.
        place: "device", or "host" for onnx's reference evaluator.
        batch: number of the batch that it is recorded in, on the device; nodes of one batch are one submit.
        variant: the variant that ran last; "" before a run, and on the host.
    """

    node: str
    op: str
    place: Literal["device", "host"]
    batch: int | None
    variant: str


@attrs.frozen
class Report:
    """Which node of a model runs where."""

    placements: tuple[Placement, ...]

    def _rows(self) -> Iterator[list[str]]:
        for one in self.placements:
            yield [one.node, one.op, one.place, "" if one.batch is None else str(one.batch), one.variant]

    def _title(self) -> str:
        on_device = [one for one in self.placements if one.place == "device"]
        batches = len({one.batch for one in on_device})
        return f"{len(on_device)} of {len(self.placements)} nodes on the device, in batches: {batches}"

    def __str__(self) -> str:
        return f"{self._title()}\n{tables.text([_HEADER, *self._rows()])}"

    def _repr_html_(self) -> str:
        return tables.html(self._title(), self._rows(), _HEADER)


_HEADER = ["node", "op", "place", "batch", "variant"]


# Nodes -----------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class _DeviceNode:
    """A node that a plugin runs. Its values are by the manifest's names of the ports."""

    label: str
    name: str
    op: Op
    attributes: Mapping[str, object]
    ports: Mapping[str, str]
    results: Mapping[str, str]
    batch: int

    @property
    def reads(self) -> Iterable[str]:
        return self.ports.values()


@attrs.frozen(eq=False)
class _HostNode:
    """A node that onnx's reference evaluator runs."""

    label: str
    name: str
    op: str
    evaluator: Any
    reads: Sequence[str]
    writes: Sequence[str]

    #: what groups consecutive nodes: those of a batch have its number
    batch: None = None


class _Values:
    """The values of one run by name: on the host, on the device, or both."""

    def __init__(self, session: InferenceSession, feeds: Mapping[str, Any]) -> None:
        self._session = session
        self._hosts = {name: value for name, value in feeds.items() if not isinstance(value, Tensor)}
        self._tensors = {name: value for name, value in feeds.items() if isinstance(value, Tensor)}

    def known_host(self, name: str) -> Any:
        """The value if the host has it, else None. Waits for nothing."""
        if name in self._hosts:
            return self._hosts[name]
        return None if name in self._tensors else self._session._constants.get(name)

    def host(self, name: str) -> Any:
        """The value on the host, read from the device where need be."""
        value = self.known_host(name)
        if value is None and name in self._tensors:
            value = self._hosts[name] = self._tensors[name].numpy()
        return value

    def result(self, name: str) -> Any:
        """The value for the caller to keep and to change."""
        if name in self._tensors:
            return self._tensors[name].numpy()
        value = self.host(name)
        # The reference evaluator hands out views, such as a Reshape's, of feeds and initializers.
        return np.array(value) if isinstance(value, np.ndarray | np.generic) else value

    def tensor(self, name: str) -> Tensor:
        """The value on the device, uploaded where need be: a constant once for all runs."""
        if name in self._tensors:
            return self._tensors[name]
        registry = self._session._registry
        if name not in self._hosts:
            uploaded = self._session._uploaded
            if name not in uploaded:
                uploaded[name] = registry.tensor(self._session._constants[name])
            return uploaded[name]
        tensor = self._tensors[name] = registry.tensor(self._hosts[name])
        return tensor

    def put(self, name: str, value: Any) -> None:
        """A node's result."""
        (self._tensors if isinstance(value, Tensor) else self._hosts)[name] = value

    def drop(self, names: Iterable[str]) -> None:
        """Lets go of what no later node reads."""
        for name in names:
            self._hosts.pop(name, None)
            self._tensors.pop(name, None)


# The session -----------------------------------------------------------------------------------------


class InferenceSession:
    """A model that is ready to run. Several threads may use one."""

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | onnx.ModelProto,
        *,
        registry: Registry | None = None,
        providers: None = None,
    ) -> None:
        """Loads a model and decides where each node runs.

        Args:
            path_or_bytes: the model's file, its bytes, or the model as onnx has it.
            registry: whose plugins and device to use; None is the default registry.
            providers: onnxruntime's argument, refused if it is given: here there are none to choose from.

        Raises:
            InputError: it is no ONNX model, or a node uses its op in a way that the plugin does not know.
            UnknownOpError: neither a plugin nor onnx has a node's op.
            PluginError: a node's plugin is at fault.
        """
        if providers is not None:
            raise InputError(
                "providers: there are none to choose from: a node whose op is installed runs on the registry's device, "
                "any other in numpy\nleave it out; registry= chooses the device",
                argument="providers",
            )
        self._registry = default_registry() if registry is None else registry
        model = _load(path_or_bytes)
        for tensor in _messages(model, onnx.TensorProto):
            _check_tensor(tensor)
        offered = set(self._registry.ids)
        if model.functions:
            kept = [(one.domain, one.name) for one in model.functions if _op_id(one.domain, one.name) in offered]
            with _refusing("its functions"):
                model = onnx.inliner.inline_selected_functions(model, kept, exclude=True)
        graph = model.graph
        if graph.sparse_initializer:
            raise InputError(
                f"model: the initializer {graph.sparse_initializer[0].values.name} is sparse\n"
                "store it as a dense tensor",
                argument="model",
            )
        self._opsets = {one.domain: one.version for one in model.opset_import}
        self._constants: dict[str, np.ndarray] = {one.name: _array(one) for one in graph.initializer}
        self._uploaded: dict[str, Tensor] = {}
        self._inputs = tuple(_node_arg(one) for one in graph.input)
        self._outputs = tuple(_node_arg(one) for one in graph.output)
        self._types = _types_of(model)
        self._nodes: list[_DeviceNode | _HostNode] = []
        known = {*self._constants, *(one.name for one in graph.input)}
        for number, node in enumerate(graph.node):
            with _refusing(_label(number, node)):
                self._place(number, node, offered, known)
            known.update(node.output)
        if unmade := [one.name for one in self._outputs if one.name not in known]:
            raise InputError(f"model: nothing makes its output {unmade[0]!r}\nexport it again", argument="model")
        self._releases = self._last_uses()
        self._seen: dict[_DeviceNode, Mapping[str, TensorSpec]] = {}

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that `run` has to be fed: those without an initializer."""
        # Copies, as in get_outputs: what becomes of their shapes is up to the caller.
        return [copy.deepcopy(one) for one in self._inputs if one.name not in self._constants]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in the order of what `run` returns."""
        return copy.deepcopy(list(self._outputs))

    def report(self) -> Report:
        """Which node runs where; after a run also by which variant."""
        placements = []
        for node in self._nodes:
            if isinstance(node, _HostNode):
                placements.append(Placement(node.name, node.op, "host", None, ""))
                continue
            variant = ""
            if node in self._seen:
                variant = self._explain(node, self._seen[node]).variant
            placements.append(Placement(node.name, node.op.id, "device", node.batch, variant))
        return Report(tuple(placements))

    def explain(self, node: str) -> Explanation:
        """Tells which variant runs a node, and why no other one does. Runs nothing.

        It is for the shapes of the last run; before one for those that the model tells, and what follows from them.

        Args:
            node: its name, as `report` has it.

        Raises:
            InputError: no node on the device has that name, or a shape is not known before a run.
            OpletError: as `Registry.explain`; it names the node.
        """
        placed = [one for one in self._nodes if isinstance(one, _DeviceNode)]
        found = next((one for one in placed if one.name == node), None)
        if found is None:
            fault = "runs on the host" if node in [one.name for one in self._nodes] else "is not in the model"
            raise InputError(
                f"node: {node!r:.60} {fault}\n"
                f"on the device: {', '.join(one.name for one in placed) or 'none'}\nname one of these",
                argument="node",
            )
        return self._explain(found, self._seen.get(found) or self._told_specs(found))

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        """Runs the model.

        Args:
            output_names: outputs to return; None or an empty list for all.
            input_feed: numpy arrays by input name, or tensors of the session's registry, which stay on the device.

        Returns:
            Arrays, in the order of the names.

        Raises:
            InputError: a feed that the model does not accept, or values that a node does not; it names the node.
            OpletError: as `Registry.run`; it names the node.
        """
        outputs = [one.name for one in self._outputs]
        if isinstance(output_names, str):
            raise InputError(
                f"output_names: {output_names!r} is not a list of names\npass [{output_names!r}]",
                argument="output_names",
            )
        for name in output_names or ():
            if name not in outputs:
                raise InputError(
                    f"output_names: the model has no output {name!r}\noutputs: {', '.join(outputs)}\ntake one of these",
                    argument="output_names",
                )
        self._check_feeds(input_feed)
        values = _Values(self, input_feed)
        for batch, nodes in groupby(enumerate(self._nodes), key=lambda numbered: numbered[1].batch):
            with contextlib.nullcontext() if batch is None else self._registry.batch():
                for number, node in nodes:
                    if isinstance(node, _HostNode):
                        self._run_host(node, values)
                    else:
                        self._run_device(node, values)
                    values.drop(self._releases[number])
        return [values.result(name) for name in output_names or outputs]

    def _explain(self, node: _DeviceNode, specs: Mapping[str, Any]) -> Explanation:
        with _naming(node.label, node.op):
            return self._registry.explain(node.op.id, attrs=node.attributes, outputs=tuple(node.results), **specs)

    # Placing

    def _place(self, number: int, node: Any, offered: set[str], known: set[str]) -> None:
        op = _op_id(node.domain, node.op_type)
        name = _name(number, node)
        label = _label(number, node)
        for value in (*node.input, *_outer_names(node)):
            if value and value not in known:
                raise InputError(
                    f"{label}: nothing before it makes the value {value!r}\n"
                    "export the model again, with its nodes in topological order",
                    argument="model",
                )
        if node.domain not in self._opsets:
            imports = ", ".join(f"{domain or ONNX_DOMAIN} {version}" for domain, version in self._opsets.items())
            raise InputError(
                f"{label}: the model does not import the domain {node.domain or ONNX_DOMAIN}\n"
                f"it imports {imports or 'none'}\nadd the domain to the model's opset_import, or export it again",
                argument="model",
            )
        if op in offered:
            self._nodes.append(self._device_node(label, name, op, node))
            return
        for inner in _nodes_inside(node):
            if _op_id(inner.domain, inner.op_type) in offered:
                raise InputError(
                    f"{label}: node {inner.name!r} ({_op_id(inner.domain, inner.op_type)}) is in a subgraph of it, "
                    "and plugins run nodes of the main graph only\nmove it out of the subgraph",
                    argument="model",
                )
        host = self._host_node(label, name, op, node)
        if op == f"{ONNX_DOMAIN}.Constant":
            (self._constants[node.output[0]],) = host.evaluator.run(None, {})
        else:
            self._nodes.append(host)

    def _device_node(self, label: str, name: str, op: str, node: Any) -> _DeviceNode:
        with _naming(label, op):
            loaded = self._registry[op]
        manifest = loaded.manifest
        version = self._opsets.get(node.domain, 0)
        if version < manifest.since_version:
            raise InputError(
                f"{label}: the model imports version {version} of the domain {node.domain or ONNX_DOMAIN!r}\n"
                f"{loaded.dist} {loaded.version} has the op as of version {manifest.since_version}\n"
                "convert the model to that version, or install another plugin",
                op=op,
                argument="model",
            )
        ports = self._match(label, "input", node.input, manifest.inputs)
        results = self._match(label, "output", node.output, manifest.outputs)
        attributes = {one.name: _attribute(label, one) for one in node.attribute}
        with _naming(label, loaded):
            loaded.require_inputs(ports)
        with _naming(label, op):
            loaded.bind_attributes(attributes)
        for port_name, value in ports.items():
            self._check_dtype(label, loaded, port_name, value)
        previous = self._nodes[-1] if self._nodes else None
        batch = max((one.batch for one in self._nodes if one.batch is not None), default=0)
        return _DeviceNode(
            label=label,
            name=name,
            op=loaded,
            attributes=attributes,
            ports=ports,
            results=results,
            batch=batch if isinstance(previous, _DeviceNode) else batch + 1,
        )

    def _match(self, label: str, kind: str, names: Sequence[str], ports: Sequence[Port]) -> dict[str, str]:
        """The node's values by the manifest's ports, which are in ONNX's order; "" is an optional one left out."""
        surplus = [name for name in names[len(ports) :] if name]
        if surplus:
            known = ", ".join(port.names[-1] for port in ports)
            raise InputError(
                f"{label}: it has more {kind}s than its op: {surplus[0]!r}\n{kind}s: {known}\n"
                "install a plugin of this version of the op",
                argument=surplus[0],
            )
        return {port.name: name for port, name in zip(ports, names, strict=False) if name}

    def _check_dtype(self, label: str, op: Op, port_name: str, value: str) -> None:
        """Refuses a dtype now where the model tells it; elsewhere the run does."""
        port = op.manifest.input(port_name)
        info = self._types.get(value)
        dtype = self._constants[value].dtype if value in self._constants else _node_arg(info).dtype if info else None
        if port and dtype is not None and dtype.name not in op.manifest.dtypes(port):
            raise InputError(
                f"{label}: {port.names[-1]}: the value {value!r} is {dtype.name}, "
                f"which is not one of {', '.join(op.manifest.dtypes(port))}\nput a Cast before the node",
                op=op.id,
                argument=port.names[-1],
            )

    def _host_node(self, label: str, name: str, op: str, node: Any) -> _HostNode:
        reads = list(dict.fromkeys([*filter(None, node.input), *_outer_names(node)]))
        writes = [one for one in node.output if one]
        graph = onnx.helper.make_graph([node], "node", self._infos(reads), self._infos(writes))
        try:
            evaluator = ReferenceEvaluator(graph, opsets=self._opsets)
        except Exception as error:  # NotImplementedError, RuntimeError and others: whatever makes it give up
            # onnx's own text follows; its first line may be all, or a whole node.
            lines = str(error).strip().splitlines() or [""]
            advice = f"{discovery.advice_to_install(op)}; or save the model with fewer optimizations"
            if not node.domain:
                advice = "update the package onnx, or export the model to an opset that it knows"
            raise UnknownOpError(
                f"{label}: no plugin offers this op, and onnx's ReferenceEvaluator does not run it\n"
                f"{type(error).__name__}: {lines[0]:.500}\n"
                f"{advice}"
            ) from error
        return _HostNode(label, name, op, evaluator, reads, writes)

    def _infos(self, names: Iterable[str]) -> list[Any]:
        return [self._types.get(name) or onnx.ValueInfoProto(name=name) for name in names]

    def _told_specs(self, wanted: _DeviceNode) -> Mapping[str, TensorSpec]:
        """The inputs of a node by port, so far as the model tells them without a run."""
        made: dict[str, TensorSpec] = {}  # by nodes whose shapes onnx cannot infer
        for node in self._nodes:
            if isinstance(node, _HostNode):
                continue
            told = {port: made.get(value) or self._told_spec(value) for port, value in node.ports.items()}
            specs = {port: spec for port, spec in told.items() if spec}
            if node is wanted:
                for port, spec in told.items():
                    if spec is None:
                        raise InputError(
                            f"{node.label}: the shape of {node.ports[port]!r} is not known before a run\n"
                            "run the model once, or fix the dimensions of its inputs",
                            op=node.op.id,
                            argument="node",
                        )
                break
            if len(specs) == len(told):
                with _naming(node.label, node.op):
                    results = node.op.infer(node.op.bind(specs, node.attributes, tuple(node.results)))
                made |= {node.results[port]: spec for port, spec in results.items()}
        return specs

    def _told_spec(self, value: str) -> TensorSpec | None:
        if value in self._constants:
            return TensorSpec.of(self._constants[value])
        known = _node_arg(self._types[value]) if value in self._types else None
        if known is None or known.dtype is None or known.dtype.name not in DTYPES or known.shape is None:
            return None
        shape = tuple(n for n in known.shape if isinstance(n, int))
        return TensorSpec(shape, known.dtype.name) if len(shape) == len(known.shape) else None

    def _last_uses(self) -> list[list[str]]:
        """For each node, the values that nothing reads after it."""
        releases: list[list[str]] = []
        needed = {one.name for one in self._outputs}
        for node in reversed(self._nodes):
            writes = node.writes if isinstance(node, _HostNode) else node.results.values()
            mine = {*node.reads, *writes}
            releases.append(sorted(mine - needed))
            needed |= mine
        return releases[::-1]

    # Running

    def _check_feeds(self, feeds: Mapping[str, Any]) -> None:
        def refuse(name: str, fault: str, advice: str) -> NoReturn:
            raise InputError(f"input_feed: {name}: {fault}\n{advice}", argument=name)

        if not isinstance(feeds, Mapping):
            raise InputError(
                f"input_feed: {type(feeds).__name__} is not a mapping of arrays by input name\n"
                f"pass {{{self.get_inputs()[0].name if self.get_inputs() else ''!r}: …}}",
                argument="input_feed",
            )
        known = {one.name: one for one in self._inputs}
        for one in self.get_inputs():
            if one.name not in feeds:
                refuse(one.name, "is an input of the model and was not fed", f"feed it: {one.type}")
        for name, value in feeds.items():
            if name not in known:
                refuse(name, "is not an input of the model", f"inputs: {', '.join(known)}")
            wanted = known[name]
            if wanted.dtype is None:
                continue
            if not isinstance(value, np.ndarray | np.generic | Tensor):
                refuse(name, f"{type(value).__name__} is not an array", f"feed np.asarray(…, np.{wanted.dtype.name})")
            if value.dtype != wanted.dtype:
                refuse(name, f"{value.dtype.name} was fed, and the model takes {wanted.type}", "convert it with astype")
            if wanted.shape is not None and not _fits(value.shape, wanted.shape):
                dims = ", ".join("?" if n is None else str(n) for n in wanted.shape)
                refuse(name, f"shape {shape_text(value.shape)} was fed, and the model takes ({dims})", "reshape it")

    def _run_device(self, node: _DeviceNode, values: _Values) -> None:
        with _naming(node.label, node.op):
            tensors: dict[str, Any] = {port: values.tensor(value) for port, value in node.ports.items()}
            specs = self._seen[node] = {port: tensor.spec for port, tensor in tensors.items()}
            if node.op.checks_values:
                hosts = {port: values.known_host(value) for port, value in node.ports.items()}
                hosts = {port: host for port, host in hosts.items() if host is not None}
                if hosts:
                    request = node.op.bind(specs, node.attributes, tuple(node.results))
                    node.op.check(request, hosts)
            results = self._registry.run(node.op.id, attrs=node.attributes, outputs=tuple(node.results), **tensors)
        order = node.op.bind_outputs(tuple(node.results))
        for port, tensor in zip(order, results if isinstance(results, tuple) else (results,), strict=True):
            values.put(node.results[port], tensor)

    def _run_host(self, node: _HostNode, values: _Values) -> None:
        # Outside the try: that a tensor cannot be read is not this node's fault.
        feeds = {name: values.host(name) for name in node.reads}
        try:
            results = node.evaluator.run(None, feeds)
        except Exception as error:  # whatever numpy makes of it
            given = [
                f"  {name} {value.dtype} {shape_text(value.shape)}" if isinstance(value, np.ndarray) else f"  {name}"
                for name, value in feeds.items()
            ]
            raise InputError(
                "\n".join(
                    [
                        f"{node.label}: onnx's ReferenceEvaluator failed: {type(error).__name__}: {error}",
                        *given,
                        "feed what the model is made for; if that was so, report it to the onnx project",
                    ]
                ),
                op=node.op,
                argument=node.name,
            ) from error
        for name, value in zip(node.writes, results, strict=True):
            values.put(name, value)


# Reading a model -------------------------------------------------------------------------------------


def _load(source: object) -> Any:
    """A model of the session's own, with the data of its tensors, in which ONNX's domain is "" throughout."""

    def refusal(fault: str, evidence: str, advice: str) -> InputError:
        name = source if isinstance(source, str | os.PathLike) else f"the {type(source).__name__}"
        return InputError(f"model: {name!s:.200}: {fault}\n{evidence:.500}\n{advice}", argument="model")

    if not isinstance(source, str | os.PathLike | bytes | onnx.ModelProto):
        raise refusal("it is neither a path, bytes nor a ModelProto", f"{source!r:.60}", "pass one of these")
    # Not through onnx's checker, which wants a shape for every output; onnxruntime takes models without.
    try:
        if isinstance(source, bytes):
            model = onnx.load_model_from_string(source)
        elif isinstance(source, onnx.ModelProto):
            model = onnx.ModelProto()
            model.CopyFrom(source)  # which the caller may go on to change
        else:
            model = onnx.load(source, load_external_data=False)
    except OSError as error:
        raise refusal("it cannot be read", error.strerror or str(error), "pass the path of a model's file") from error
    except Exception as error:  # protobuf's DecodeError and others
        fault = f"{type(error).__name__}: {error}"
        raise refusal("not an ONNX model", fault, "pass a model's file, its bytes, or a ModelProto") from error
    if not model.HasField("graph"):
        raise refusal("not an ONNX model", "it has no graph", "pass a model's file, its bytes, or a ModelProto")
    if isinstance(source, str | os.PathLike):
        try:
            onnx.external_data_helper.load_external_data_for_model(model, os.path.dirname(os.path.abspath(source)))
        except Exception as error:  # of several kinds, as what is wrong with the file or the place that the model tells
            raise refusal(
                "the data that it has in other files cannot be read",
                f"{type(error).__name__}: {error}",
                "put the files beside it as they were saved, or export the model again",
            ) from error
    for one in _messages(model, onnx.NodeProto, onnx.FunctionProto, onnx.OperatorSetIdProto):
        if one.domain == ONNX_DOMAIN:  # the other spelling, which onnx itself does not know
            one.domain = ""
    return model


@contextlib.contextmanager
def _refusing(part: str) -> Iterator[None]:
    """Turns whatever onnx and numpy raise over a part of a malformed model into an InputError."""
    try:
        yield
    except OpletError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise InputError(
            f"model: {part}: {type(error).__name__}: {lines[0]:.500}\nexport the model again", argument="model"
        ) from error


def _messages(message: Any, *kinds: type) -> Iterator[Any]:
    """Every message of some kinds that a model has, at whatever depth."""
    if isinstance(message, kinds):
        yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for one in [value] if hasattr(value, "ListFields") else value:
                yield from _messages(one, *kinds)


def _check_tensor(tensor: Any) -> None:
    """Refuses a tensor whose data lies elsewhere, or that claims more than it holds."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:  # of a file, onnx has read it by now
        raise InputError(
            f"model: {tensor.name}: its data is in a file of its own\n"
            "pass the path of the model's file, or load it with its external data",
            argument="model",
        )
    if any(n < 0 for n in tensor.dims) or math.prod(tensor.dims) > 8 * tensor.ByteSize():
        raise InputError(
            f"model: {tensor.name}: shape {tuple(tensor.dims)} is more than its {tensor.ByteSize()} bytes can hold\n"
            "export the model again",
            argument="model",
        )


def _array(tensor: Any) -> np.ndarray:
    with _refusing(tensor.name):
        array: np.ndarray = onnx.numpy_helper.to_array(tensor)
    return array


def _types_of(model: Any) -> dict[str, Any]:
    """The type of each value where the model tells it or onnx infers it."""
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # protobuf's limit of 2 GB, in one of several errors; what the model itself tells will do
        graph = model.graph
    return {one.name: one for one in (*graph.input, *graph.value_info, *graph.output)}


def _op_id(domain: str, op_type: str) -> str:
    return f"{domain or ONNX_DOMAIN}.{op_type}"


def _name(number: int, node: Any) -> str:
    return node.name or f"#{number}"


def _label(number: int, node: Any) -> str:
    """How messages name a node."""
    return f"node {_name(number, node)!r} ({_op_id(node.domain, node.op_type)})"


def _node_arg(info: Any) -> NodeArg:
    with _refusing(info.name):
        kind = info.type.WhichOneof("value")
        if kind != "tensor_type" or not info.type.tensor_type.elem_type:
            return NodeArg(info.name, (kind or "unknown").removesuffix("_type"), None, None)
        tensor = info.type.tensor_type
        element = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
        shape = None
        if tensor.HasField("shape"):
            shape = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        return NodeArg(info.name, f"tensor({element})", shape, dtype)


def _fits(shape: tuple[int, ...], wanted: Sequence[int | str | None]) -> bool:
    return len(shape) == len(wanted) and all(
        size == n for size, n in zip(shape, wanted, strict=True) if isinstance(n, int)
    )


def _attribute(label: str, attribute: Any) -> object:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, int | float):
        raise InputError(
            f"{label}: {attribute.name}: the attribute is neither a float, an int nor a string\n"
            "leave it out, or install a plugin of this version of the op",
            argument=attribute.name,
        )
    return value


def _subgraphs(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _nodes_inside(node: Any) -> Iterator[Any]:
    for graph in _subgraphs(node):
        for inner in graph.node:
            yield inner
            yield from _nodes_inside(inner)


def _outer_names(node: Any) -> Iterator[str]:
    """Values that a node's subgraphs take from around them."""
    for graph in _subgraphs(node):
        own = {one.name for one in (*graph.input, *graph.initializer)}
        for inner in graph.node:
            yield from (name for name in (*inner.input, *_outer_names(inner)) if name and name not in own)
            own.update(inner.output)
        yield from (one.name for one in graph.output if one.name not in own)


@contextlib.contextmanager
def _naming(label: str, op: Op | str) -> Iterator[None]:
    """Puts the node before the message of an OpletError that its op raises, in place of the op's id.

    Inputs and outputs of a loaded op are called by ONNX's names, since those are what the model's author knows.
    """
    try:
        yield
    except OpletError as error:
        if isinstance(error, InputError) and isinstance(op, Op):
            error.rename(op.onnx_names)
        prefix = op if isinstance(op, str) else op.id
        error.args = (f"{label}: {str(error).removeprefix(f'{prefix}: ')}",)
        raise
