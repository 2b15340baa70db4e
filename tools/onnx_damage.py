"""Ways to damage an ONNX file: its bytes, or its meaning in a file that is still well formed."""

from __future__ import annotations

import random

import onnx
from onnx import TensorProto

SIZES = [-1, 0, 2, 1 << 33, -(1 << 40), (1 << 63) - 1]
NUMBERS = [-1, 0, 3, 1 << 40, -(1 << 62), (1 << 63) - 1]


def flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def cut(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] if rng.random() < 0.5 else data[:start] + data[start + rng.randint(1, 40) :]


def edited(data: bytes, rng: random.Random) -> bytes:
    """A well-formed file with a wrong meaning: names, attributes, sizes and types exchanged."""
    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.randint(1, 3)):
        rng.choice(EDITS)(model, rng)
    return model.SerializeToString()


def _edit_node(model: onnx.ModelProto, rng: random.Random) -> None:
    if not model.graph.node:
        return
    changed = rng.choice(model.graph.node)
    names = [n for other in model.graph.node for n in other.output] + [t.name for t in model.graph.initializer] + [""]
    if changed.input and rng.random() < 0.5:
        changed.input[rng.randrange(len(changed.input))] = rng.choice(names)
    elif rng.random() < 0.5:
        changed.op_type = rng.choice(model.graph.node).op_type
    else:
        del changed.input[rng.randrange(len(changed.input) + 1) :]


def _edit_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    attributes = [a for n in model.graph.node for a in n.attribute]
    if not attributes:
        return
    a = rng.choice(attributes)
    a.i, a.f = rng.choice(NUMBERS), rng.choice([float("nan"), -1.0, 1e30])
    if a.ints:
        a.ints[rng.randrange(len(a.ints))] = rng.choice(NUMBERS)
    if rng.random() < 0.3:
        a.type = rng.randrange(15)  # type: ignore[reportAttributeAccessIssue]
    if a.s and rng.random() < 0.5:
        a.s = rng.choice([b"", b"SAME_UPPER", b"no such mode", b"\xff\xfe", b"linear"])
    if rng.random() < 0.2:
        a.name = rng.choice(attributes).name


def _edit_initializer(model: onnx.ModelProto, rng: random.Random) -> None:
    if not model.graph.initializer:
        return
    tensor = rng.choice(model.graph.initializer)
    kind = rng.randrange(5)
    if kind == 0 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(SIZES)
    elif kind == 1:
        tensor.data_type = rng.randrange(30)
    elif kind == 2:
        del tensor.dims[:]
        tensor.dims.extend(rng.choice(([], [1], [1 << 31, 1 << 31, 4], [0, 3], [-1], [2, 2])))
    elif kind == 3:
        tensor.raw_data = bytes(rng.randrange(256) for _ in range(len(tensor.raw_data)))
    else:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=rng.choice(["model.onnx", "../x", "", "a\0b", "/", "/etc/hostname", "."]))
        tensor.external_data.add(key=rng.choice(["offset", "length"]), value=rng.choice(["-1", "0", "99999999999999999999", "x", "", "4"]))


def _edit_interface(model: onnx.ModelProto, rng: random.Random) -> None:
    values = [*model.graph.input, *model.graph.output]
    if not values:
        return
    value = rng.choice(values)
    if value.type.tensor_type.shape.dim and rng.random() < 0.5:
        value.type.tensor_type.shape.dim[0].dim_value = rng.choice(SIZES)
    elif rng.random() < 0.5:
        value.type.tensor_type.elem_type = rng.randrange(30)
    else:
        value.name = rng.choice(["", "w", "c"])


def _edit_order(model: onnx.ModelProto, rng: random.Random) -> None:
    """A cycle, a name defined twice, a node or an initializer that is not there."""
    nodes, kind = model.graph.node, rng.randrange(5)
    if not nodes:
        return
    first, second = rng.choice(nodes), rng.choice(nodes)
    if kind == 0 and first.input and second.output:
        first.input[0] = second.output[0]
    elif kind == 1 and first.output and second.output:
        first.output[0] = second.output[-1]
    elif kind == 2:
        nodes.remove(first)
    elif kind == 3 and model.graph.initializer:
        model.graph.initializer.remove(rng.choice(model.graph.initializer))
    else:
        nodes.add().CopyFrom(first)


def _edit_operands(model: onnx.ModelProto, rng: random.Random) -> None:
    """Too many or too few operands and results, absent ones among them; another domain."""
    if not model.graph.node:
        return
    node, kind = rng.choice(model.graph.node), rng.randrange(5)
    if kind == 0:
        node.input.extend(rng.choice([[""], list(node.input), ["", "", ""]]))
    elif kind == 1:
        node.output.extend(["more"])
    elif kind == 2 and node.output:
        del node.output[-1]
    elif kind == 3:
        node.domain = rng.choice(["com.microsoft", "ai.onnx.ml", "none", ""])
    elif node.input:
        node.input[rng.randrange(len(node.input))] = ""


def _edit_versions(model: onnx.ModelProto, rng: random.Random) -> None:
    kind = rng.randrange(3)
    if kind == 0 and model.opset_import:
        model.opset_import[0].version = rng.choice([0, 1, 5, 7, 9, 11, 13, 18, 25, 1000, -3])
    elif kind == 1:
        model.ir_version = rng.choice([0, 1, 3, 100])
    elif model.opset_import:
        model.opset_import.remove(rng.choice(model.opset_import))


def _edit_subgraph(model: onnx.ModelProto, rng: random.Random) -> None:
    """The same damages inside a branch, a body or a function."""
    graphs = [g for n in model.graph.node for a in n.attribute for g in (a.g, *a.graphs) if g.node]
    if not graphs:
        return
    graph = rng.choice(graphs)
    inner = onnx.ModelProto(graph=graph)
    rng.choice([_edit_node, _edit_order, _edit_operands, _edit_interface])(inner, rng)
    graph.CopyFrom(inner.graph)


EDITS = (_edit_node, _edit_attribute, _edit_initializer, _edit_interface, _edit_order, _edit_operands, _edit_versions, _edit_subgraph)
DAMAGES = (flipped, cut, edited)
