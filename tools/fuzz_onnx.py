"""Damages ONNX files in many ways and imports them: each must give a module or one error, never a traceback.

    python -m dmlc.tools.fuzz_onnx [FILES]        (default 2000, a third of each kind of damage)
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dmlc.frontend.onnx import import_onnx
from dmlc.ir.location import DmlcError
from dmlc.ir.verifier import verify

node = helper.make_node


def subject() -> onnx.ModelProto:
    """A bit of everything: convolution, norm, pool, resize, recurrent layer, branch, function, shape arithmetic, quantisation, gather."""
    rng = np.random.default_rng(0)
    then, other = (
        helper.make_graph([node(op, ["flat"], [name])], name, [], [helper.make_empty_tensor_value_info(name)]) for op, name in (("Neg", "t"), ("Abs", "e"))
    )
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]), node("BatchNormalization", ["c", "b", "b", "b", "v"], ["n"]), node("MaxPool", ["n"], ["p"], kernel_shape=[2, 2], ceil_mode=1),
        node("Resize", ["p", "", "scales"], ["r"], mode="linear"), node("Shape", ["r"], ["shape"]), node("Slice", ["shape", "zero", "one"], ["batch"]), node("Concat", ["batch", "rest"], ["target"], axis=0),
        node("Reshape", ["r", "target"], ["flat"]), node("Equal", ["batch", "one"], ["alone"]), node("If", ["alone"], ["chosen"], then_branch=then, else_branch=other),
        node("Unsqueeze", ["chosen", "zero"], ["steps"]), node("LSTM", ["steps", "lw", "lr"], ["l"], hidden_size=3), node("Squeeze", ["l"], ["s"]),
        node("QuantizeLinear", ["s", "scale", "point"], ["q"]), node("DequantizeLinear", ["q", "scale", "point"], ["d"]), node("Gather", ["table", "ids"], ["g"]),
        node("MyGelu", ["g"], ["h"], domain="own"), node("ReduceMean", ["h", "zero"], ["m"], keepdims=0), node("Tile", ["m", "two"], ["tiled"]), node("Softmax", ["d"], ["y"], axis=-1),
        node("Pad", ["tiled", "pads"], ["z"]),
    ]  # fmt: skip
    body = [node("Constant", [], ["half"], value_float=0.5), node("Mul", ["x", "half"], ["m"]), node("Erf", ["m"], ["e"]), node("Mul", ["x", "e"], ["y"])]
    constants = {
        "w": rng.standard_normal((4, 2, 3, 3), np.float32), "b": np.ones(4, np.float32), "v": np.ones(4, np.float32), "scales": np.array([1, 1, 2, 2], np.float32), "zero": np.array([0]), "one": np.array([1]),
        "rest": np.array([-1]), "lw": rng.standard_normal((1, 12, 144), np.float32), "lr": rng.standard_normal((1, 12, 3), np.float32), "scale": np.float32(0.1), "point": np.uint8(3),
        "table": rng.standard_normal((5, 6), np.float32), "two": np.array([2]), "pads": np.array([1, 2]),
    }  # fmt: skip
    function = helper.make_function("own", "MyGelu", ["x"], ["y"], body, [helper.make_opsetid("", 18)])
    return _model(nodes, constants, function)


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
        rng.choice([_edit_node, _edit_attribute, _edit_initializer, _edit_interface])(model, rng)
    return model.SerializeToString()


def _edit_node(model: onnx.ModelProto, rng: random.Random) -> None:
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
    a = rng.choice(attributes)
    a.i, a.f = rng.choice([-1, 0, 3, 1 << 40, -(1 << 62)]), rng.choice([float("nan"), -1.0, 1e30])
    if a.ints:
        a.ints[rng.randrange(len(a.ints))] = rng.choice([-1, 0, 7, 1 << 40])
    if rng.random() < 0.3:
        a.type = rng.choice([onnx.AttributeProto.INT, onnx.AttributeProto.FLOATS, onnx.AttributeProto.TENSOR, onnx.AttributeProto.STRING])
    if rng.random() < 0.2:
        a.name = rng.choice(attributes).name


def _edit_initializer(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(model.graph.initializer)
    kind = rng.randrange(4)
    if kind == 0 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice([-1, 0, 2, 1 << 33])
    elif kind == 1:
        tensor.data_type = rng.randrange(30)
    elif kind == 2:
        tensor.raw_data = bytes(rng.randrange(256) for _ in range(len(tensor.raw_data)))
    else:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=rng.choice(["model.onnx", "../x", "", "a\0b", "/"]))


def _edit_interface(model: onnx.ModelProto, rng: random.Random) -> None:
    value = rng.choice([*model.graph.input, *model.graph.output])
    if value.type.tensor_type.shape.dim and rng.random() < 0.5:
        value.type.tensor_type.shape.dim[0].dim_value = rng.choice([-5, 0, 1 << 50])
    elif rng.random() < 0.5:
        value.type.tensor_type.elem_type = rng.randrange(30)
    else:
        value.name = rng.choice(["", "w", "c"])


def _model(nodes: Sequence[onnx.NodeProto], constants: dict[str, np.ndarray], function: onnx.FunctionProto) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", 2, 8, 8)), helper.make_tensor_value_info("ids", TensorProto.INT64, (3,))]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("y", "z")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("own", 1)], ir_version=9, functions=[function])


DAMAGES = (flipped, cut, edited)


def outcome(path: Path) -> str:
    """`module` or `error`; whatever else the importer does is raised."""
    try:
        verify(import_onnx(path).module)
    except DmlcError as e:
        assert e.message and e.loc.known and "\n" not in e.message, f"not a message with a place: {e}"
        return "error"
    return "module"


def main(arguments: Sequence[str]) -> int:
    files = int(arguments[0]) if arguments else 2000
    data, counts = subject().SerializeToString(), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        for number in range(files):
            damage = DAMAGES[number % len(DAMAGES)]
            path.write_bytes(damage(data, random.Random(number)))
            try:
                counts[outcome(path)] += 1
            except BaseException:
                print(f"damage '{damage.__name__}', seed {number}:", file=sys.stderr)
                raise
    print(f"{files} damaged files: {counts['error']} errors with a place, {counts['module']} still models, no traceback")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
