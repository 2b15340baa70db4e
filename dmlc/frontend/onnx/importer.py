"""Importing an ONNX graph into a module: names to values, one node after another, everything concrete.

Node results that are known as arrays stay arrays (shapes, axes, masks and tables made from constants) and reach the program only when
a tensor op needs them. All nodes that cannot be imported are reported together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from dmlc.frontend.onnx import ops  # noqa: F401  (registers the importers)
from dmlc.frontend.onnx.carried import brought_back, prepared, result_elements
from dmlc.frontend.onnx.emit import Scratch
from dmlc.frontend.onnx.frame import Frame, deeper
from dmlc.frontend.onnx.graph import node_name, ordered
from dmlc.frontend.onnx.loader import NEWEST_OPSET, Source, source_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.open_values import INTEGERS, computed, is_open
from dmlc.frontend.onnx.program import Program
from dmlc.frontend.onnx.schemas import element_of, has_body, schema_body, schema_defaults
from dmlc.frontend.onnx.table import STATIC, Handler, Unsupported, handler_for, schema_version, supported_versions
from dmlc.frontend.onnx.tensors import CARRIERS, element_name, shape_of_proto
from dmlc.frontend.onnx.values import POISON, Known, Poison, Tensor, Weight
from dmlc.frontend.trace import Entry
from dmlc.ir.core import Value
from dmlc.ir.location import DmlcError, Loc, Remark

MAX_LISTED = 40


class Importer:
    """The state of one import."""

    def __init__(self, model: onnx.ModelProto, path: Path, program: Program):
        self.model, self.path, self.program = model, path, program
        self.functions = {(_domain(f.domain), f.name, f.overload): f for f in model.functions}
        self.unsupported: list[tuple[str, str, str]] = []  # operator, node, why
        self.remarks: list[Remark] = []
        self.kinds: dict[tuple[str, str], int] = {}

    def remark(self, node: Node, text: str) -> None:
        self.remarks.append(Remark("import", text, loc=Loc(node.name)))

    def told(self, what: str, text: str) -> None:
        """A remark on all nodes of a kind, counted."""
        self.kinds[what, text] = self.kinds.get((what, text), 0) + 1

    # ------------------------------------------------------------ graphs

    def bind_initializers(self, graph: onnx.GraphProto, frame: Frame, overridable: frozenset[str] = frozenset()) -> None:
        sources = [source_of(t, self.path) for t in graph.initializer] + [_dense(t) for t in graph.sparse_initializer]
        for source in sources:
            if source.name in frame.scope:
                raise DmlcError(f"the initializer '{source.name}' is defined twice")
            frame.elements.update(carried_elements([t for t in graph.initializer if t.name == source.name]))
            frame.scope[source.name] = Weight(source, source.name in overridable, self.program.is_named_trainable(source.name))

    def run(self, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], frame: Frame) -> list[Tensor | Poison]:
        """Import what the outputs need; the outputs' values."""
        for proto in ordered(nodes, outputs, frame.scope):
            self.node(proto, frame)
        return [self._read(name, frame, "the graph's outputs") for name in outputs]

    def subgraph(self, graph: onnx.GraphProto, node: Node, inputs: Sequence[Tensor], label: str) -> list[Tensor | Poison]:
        """Import a branch or a loop's body in place, `inputs` bound to its formal inputs."""
        frame = node.frame.inner(f"{node.proto.name or node.name}{label}")
        if len(graph.input) != len(inputs):
            raise DmlcError(f"its subgraph takes {len(graph.input)} inputs, {len(inputs)} are given")
        frame.scope.update(zip([v.name for v in graph.input], inputs))
        self.bind_initializers(graph, frame)
        results = self.run(graph.node, [v.name for v in graph.output], frame)
        carried = next((e for v in graph.output if (e := frame.element(v.name))), None)
        if carried:
            raise Unsupported(f"a subgraph whose results are of type {element_name(carried)}")
        return results

    def function(self, body: onnx.FunctionProto, node: Node, defaults: Mapping[str, onnx.AttributeProto]) -> list[Tensor | Poison]:
        """Import a function's body in place of a node that calls it; `defaults` stand in for attributes the node leaves out."""
        attributes = {**defaults} | {a.name: a for a in body.attribute_proto} | node.attributes
        frame = Frame(_opsets(body.opset_import), None, attributes, f"{node.name}/", depth=deeper(node.frame))
        frame.scope.update({name: t for name, t in zip(body.input, node.operands) if t is not None})
        frame.elements.update({name: e for name, e in zip(body.input, node.elements) if e})
        absent = set(body.input) - set(frame.scope)
        nodes = [_without(proto, absent) for proto in body.node]
        wanted = [name for i, name in enumerate(body.output) if node.wants(i)]
        results = dict(zip(wanted, self.run(nodes, wanted, frame)))
        node.result_elements = [frame.element(name) for name in body.output]
        return [results.get(name, POISON) for name in body.output]

    def _read(self, name: str, frame: Frame, reader: str) -> Tensor | Poison:
        found = frame.lookup(name)
        if found is None:
            raise DmlcError(f"nothing defines '{name}', which {reader} name")
        return found

    # ------------------------------------------------------------ nodes

    def node(self, proto: onnx.NodeProto, frame: Frame) -> None:
        """Import one node and bind its results. What goes wrong is reported with the node's name."""
        name = frame.prefix + node_name(proto)
        with self.program.trace.node(_operator(proto), name) as entry:
            try:
                operands = [self._read(n, frame, "the node's operands") if n else None for n in proto.input]
                results, elements = self._results(proto, frame, name, operands, entry)
            except Unsupported as e:
                self.unsupported.append((proto.op_type, name, str(e)))
                entry.problem, entry.inner = str(e), []
                results, elements = [POISON] * len(proto.output), []
            except DmlcError as e:
                raise e if e.loc.known else e.told(f"{proto.op_type}: {e.message}", Loc(name), e.notes) from None
            except Exception as e:  # a damaged file can break any assumption of a handler
                raise DmlcError(f"{proto.op_type} cannot be imported: {one_line(e)}", Loc(name)) from e
        self._bind(proto, frame, name, results)
        frame.elements.update({o: e for o, e in zip(proto.output, elements) if e})

    def _results(
        self, proto: onnx.NodeProto, frame: Frame, name: str, operands: Sequence[Tensor | Poison | None], entry: Entry
    ) -> tuple[Sequence[Tensor | Poison], Sequence[int | None]]:
        domain = _domain(proto.domain)
        local = self.functions.get((domain, proto.op_type, proto.overload))
        since = 1 if local else schema_version(domain, proto.op_type, _opset(frame, domain))
        entry.operator = _operator(proto, 0 if local else since)
        handler = None if local else handler_for(domain, proto.op_type, since)
        if not (local or handler or has_body(proto.op_type, since, domain)):
            raise Unsupported(_why_unsupported(domain, proto.op_type, since))
        present = [t for t in operands if not isinstance(t, Poison)]
        if len(present) != len(operands):
            entry.waits = True
            return [POISON] * len(proto.output), []
        self.program.loc = Loc(name)
        node = Node(self, frame, proto, name, since, present, self.program)
        return self._made(node, domain, local, handler), node.result_elements

    def _made(self, node: Node, domain: str, local: onnx.FunctionProto | None, handler: Handler | None) -> Sequence[Tensor | Poison]:
        """A node's results, by its function, its handler or its definition."""
        if local:
            return self.function(local, node, {})
        if handler is None:
            return self._by_definition(node, domain)
        try:
            return self._folded(node, domain, handler) or _handled(handler, node)
        except Unsupported:
            if not has_body(node.proto.op_type, node.since, domain):
                raise
            listed = len(self.unsupported)
            results = self._by_definition(node, domain)
            if len(self.unsupported) > listed:  # that does not help either: the first reason is the one to tell
                del self.unsupported[listed:]
                raise
            return results

    def _by_definition(self, node: Node, domain: str) -> Sequence[Tensor | Poison]:
        """The node through the function that the specification itself gives for its operator."""
        types = [(e or element_of(t), t.shape) if t is not None else None for t, e in zip(node.operands, node.elements)]
        body = schema_body(node.proto, node.since, _opset(node.frame, domain), types, node.attributes.values())
        if domain and not any(_domain(e.domain) == "" for e in body.opset_import):
            body.opset_import.append(onnx.helper.make_opsetid("", NEWEST_OPSET))  # the installed onnx wrote the body just now
        return self.function(body, node, schema_defaults(node.proto.op_type, node.since, domain))

    def _folded(self, node: Node, domain: str, handler: Handler) -> Sequence[Tensor] | None:
        """The results as arrays when all operands are known, else None."""
        given = [t for t in node.operands if t is not None]
        if not given or (domain, node.proto.op_type) in STATIC or not all(isinstance(t, Known) or (isinstance(t, Weight) and t.constant_like) for t in given):
            return None
        if any(isinstance(t, Known) and is_open(t.array) for t in given):
            return self._of_sizes(node, given)
        scratch = Scratch(Loc(node.name))
        operands = [t.read() if isinstance(t, Weight) else t for t in node.operands]
        inner = Node(self, node.frame, node.proto, node.name, node.since, operands, scratch)
        results = scratch.evaluate(_handled(handler, inner))
        node.result_elements = inner.result_elements
        return results

    def _of_sizes(self, node: Node, given: Sequence[Tensor]) -> Sequence[Tensor] | None:
        """The result of integers that depend on open sizes, where the operator is one of those that exporters compute shapes with."""
        arrays = [t.read() if isinstance(t, Weight) else t for t in given]
        if not all(isinstance(t, Known) and t.dtype in (*INTEGERS, "i1") for t in arrays) or any(t is None for t in node.operands):
            return None
        found = computed(node, [t.array for t in arrays if isinstance(t, Known)])
        dtype = "i1" if found is not None and found.dtype == bool else next((t.dtype for t in arrays if t.dtype != "i1"), "i64")
        return None if found is None else [Known(found, "i64" if node.proto.op_type == "Cast" and node.attr("to") == 7 else dtype)]

    def _bind(self, proto: onnx.NodeProto, frame: Frame, name: str, results: Sequence[Tensor | Poison]) -> None:
        wanted = max((i + 1 for i, o in enumerate(proto.output) if o), default=0)
        if len(results) < wanted:
            raise DmlcError(f"{proto.op_type} has {wanted} results in the file but makes {len(results)}", Loc(name))
        for output, result in zip(proto.output, results):
            if not output:
                continue
            frame.scope[output] = result
            label = frame.prefix + output
            if isinstance(result, Known) and not result.name:
                result.name = label
            elif isinstance(result, Value) and result.op is not None and result.op.results[0] is result:
                inner = result.op.attrs.get("dmlc.name", name)
                if inner == name or inner.startswith((f"{name}/", f"{name}.")):  # unnamed so far, or named inside the function or branch that this node stands for
                    result.op.attrs["dmlc.name"] = label

    def raise_unsupported(self) -> None:
        """One error that lists every node that could not be imported, by operator."""
        if not self.unsupported:
            return
        by_operator: dict[tuple[str, str], list[str]] = {}
        for operator, name, why in self.unsupported:
            by_operator.setdefault((operator, why), []).append(name)
        notes = [f"{operator} ({len(names)}×: {', '.join(names[:4])}{', …' if len(names) > 4 else ''}): {why}" for (operator, why), names in by_operator.items()]
        operators = list(dict.fromkeys(o for o, _, _ in self.unsupported))
        raise DmlcError(f"unsupported: {', '.join(operators)}", Loc(str(self.path)), tuple(notes[:MAX_LISTED]))


def one_line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _listed(results: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return list(results) if isinstance(results, (tuple, list)) else [results]  # type: ignore[list-item]


def _handled(handler: Handler, node: Node) -> list[Tensor]:
    node.result_elements = result_elements(node)
    given, node.operands = node.operands, prepared(node)
    try:
        return brought_back(node, _listed(handler(node)))
    finally:
        node.operands = given


def carried_elements(values: Sequence[onnx.ValueInfoProto | onnx.TensorProto]) -> dict[str, int]:
    """The names, among inputs or initializers, whose element type the IR lacks."""
    elements = {v.name: v.data_type if isinstance(v, onnx.TensorProto) else v.type.tensor_type.elem_type for v in values}
    return {name: e for name, e in elements.items() if e in CARRIERS}


def _operator(proto: onnx.NodeProto, since: int = 0) -> str:
    """Operator and schema version for a reader: Conv-11, com.microsoft.Gelu."""
    domain = _domain(proto.domain)
    return f"{domain}.{proto.op_type}" if domain else f"{proto.op_type}-{since}" if since else proto.op_type


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _opsets(entries: Sequence[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {_domain(e.domain): e.version for e in entries}


def _opset(frame: Frame, domain: str) -> int:
    if domain not in frame.opsets:
        raise DmlcError(f"the model does not import the operator domain '{domain or 'ai.onnx'}'")
    return frame.opsets[domain]


def _why_unsupported(domain: str, operator: str, since: int) -> str:
    known = supported_versions(domain, operator)
    if known:
        return f"version {since} of the operator is not supported (versions {', '.join(map(str, known))} are)"
    return f"no importer for it{f' in domain {domain!r}' if domain else ''}"


def _without(proto: onnx.NodeProto, absent: set[str]) -> onnx.NodeProto:
    """The node of a function body with operands that the caller left out made absent."""
    if not absent & set(proto.input):
        return proto
    copy = onnx.NodeProto()
    copy.CopyFrom(proto)
    for i, name in enumerate(copy.input):
        copy.input[i] = "" if name in absent else name
    return copy


def _dense(sparse: onnx.SparseTensorProto) -> Source:
    """A sparse initializer (values and linear or coordinate indices) as a dense one."""
    shape, values, indices = tuple(sparse.dims), source_of(sparse.values, Path()), source_of(sparse.indices, Path())

    def load() -> np.ndarray:
        dense, places = np.zeros(shape, values.load().dtype), indices.load()
        flat = places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), shape)
        dense.reshape(-1)[flat] = values.load()
        return dense

    shape_of_proto(onnx.TensorProto(name=sparse.values.name, dims=sparse.dims))
    return Source(values.name, shape, values.dtype, load)


def opsets_of(model: onnx.ModelProto) -> dict[str, int]:
    return _opsets(model.opset_import)
