"""Order and liveness of an ONNX graph's nodes, without trusting the file's own order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import onnx

from dmlc.frontend.onnx.tensors import shortest
from dmlc.ir.location import DmlcError, Loc


def node_name(node: onnx.NodeProto) -> str:
    """The node's own name, or that of its first result, which identifies it too."""
    return node.name or next((o for o in node.output if o), "") or node.op_type


def subgraphs(node: onnx.NodeProto) -> Iterable[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def captured(graph: onnx.GraphProto) -> list[str]:
    """Names that a subgraph takes from the scopes around it, in order of first use."""
    inner = {v.name for v in graph.input} | {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    inner |= {name for node in graph.node for name in node.output}
    used = [name for node in graph.node for name in reads(node)] + [v.name for v in graph.output]
    return list(dict.fromkeys(name for name in used if name and name not in inner))


def reads(node: onnx.NodeProto) -> list[str]:
    """Names a node reads, those captured by its subgraphs included; absent operands are left out."""
    names = [name for name in node.input if name]
    for graph in subgraphs(node):
        names += captured(graph)
    return names


def ordered(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str], known: Iterable[str]) -> list[onnx.NodeProto]:
    """The nodes that the outputs need, each after what it reads and otherwise in the file's order.

    `known` are names defined beside the nodes. Raises `DmlcError` for a name defined twice, for a cycle, and for a graph whose output nothing makes.
    """
    makers = _makers(nodes, set(known))
    live = _live(nodes, outputs, makers)
    waiting = {i: len({makers[name] for name in reads(nodes[i]) if name in makers} - {i}) for i in live}
    readers: dict[int, list[int]] = {i: [] for i in live}
    for i in live:
        for j in sorted({makers[name] for name in reads(nodes[i]) if name in makers}):
            if i == j:
                raise DmlcError("the node reads its own result", Loc(node_name(nodes[i])))
            readers[j].append(i)
    ready = [i for i in live if not waiting[i]]
    result = []
    while ready:
        i = heapq.heappop(ready)
        result.append(nodes[i])
        for reader in readers[i]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(result) != len(live):
        stuck = [node_name(nodes[i]) for i in live if waiting[i]]
        raise DmlcError(f"the graph has a cycle through {', '.join(stuck[:5])}{' …' if len(stuck) > 5 else ''}")
    return result


def _makers(nodes: Sequence[onnx.NodeProto], known: set[str]) -> dict[str, int]:
    makers: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in node.output:
            if name and (name in makers or name in known):
                raise DmlcError(f"the name '{name}' is defined twice", Loc(node_name(node)))
            if name:
                makers[name] = i
    return makers


def _live(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str], makers: dict[str, int]) -> list[int]:
    pending = [makers[name] for name in outputs if name in makers]
    live = set(pending)
    while pending:
        for name in reads(nodes[pending.pop()]):
            i = makers.get(name)
            if i is not None and i not in live:
                live.add(i)
                pending.append(i)
    return sorted(live)


def attribute_value(attribute: onnx.AttributeProto) -> Any:
    """An attribute as a Python value; strings are decoded, tensors and graphs stay protobufs."""
    A = onnx.AttributeProto
    readers = {
        A.FLOAT: lambda: shortest(attribute.f), A.INT: lambda: attribute.i, A.STRING: lambda: attribute.s.decode("utf-8", "replace"), A.TENSOR: lambda: attribute.t,
        A.GRAPH: lambda: attribute.g, A.FLOATS: lambda: tuple(map(shortest, attribute.floats)), A.INTS: lambda: tuple(attribute.ints),
        A.STRINGS: lambda: tuple(s.decode("utf-8", "replace") for s in attribute.strings),
    }  # fmt: skip
    if attribute.type not in readers:
        raise DmlcError(f"attribute '{attribute.name}' has an unsupported type")
    return readers[attribute.type]()
