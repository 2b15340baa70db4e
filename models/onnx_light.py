"""The nine networks whose graphs the onnx package carries without weights ("light" models), given seeded weights.

In the files every weight is one repeated number, so that all inputs give one output; with random weights a comparison means something.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19", "zfnet512")


def write_light_model(name: str, path: Path, seed: int = 0) -> Path:
    """Write network `name` (see `NAMES`) with weights to `path`: He-normal matrices and kernels (He et al. 2015, eq. 10), norms near the identity."""
    model = onnx.load(str(FOLDER / f"light_{name}.onnx"))
    graph = model.graph
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    fills = [n for n in graph.node if n.op_type == "ConstantOfShape" and n.input[0] in shapes]
    operands = _operands(graph)
    rng = np.random.default_rng(seed)
    for fill in fills:
        weight = _weight(tuple(int(s) for s in shapes[fill.input[0]]), operands[fill.output[0]], rng)
        graph.initializer.append(numpy_helper.from_array(weight, fill.output[0]))
        graph.node.remove(fill)
    model.ir_version = 4  # since then initializers need not be inputs
    used = {name for n in graph.node for name in n.input}
    for kind in (graph.initializer, graph.input):
        for entry in [e for e in kind if e.name not in used or (kind is graph.input and e.name in shapes)]:
            kind.remove(entry)
    onnx.save(model, str(path))
    return path


def _operands(graph: onnx.GraphProto) -> dict[str, tuple[str, int]]:
    """For each name, an operator that reads it and as which operand; through reshapes, which some files put before a bias."""
    readers = {name: (n, i) for n in graph.node for i, name in enumerate(n.input)}
    result = {}
    for name, (reader, i) in readers.items():
        while reader.op_type in ("Unsqueeze", "Reshape") and reader.output[0] in readers:
            reader, i = readers[reader.output[0]]
        result[name] = reader.op_type, i
    return result


def _weight(shape: tuple[int, ...], operand: tuple[str, int], rng: np.random.Generator) -> np.ndarray:
    operator, position = operand
    if operator in ("Conv", "Gemm", "MatMul") and len(shape) > 1:
        fan_in = int(np.prod(shape[1:]))
        return rng.normal(0, np.sqrt(2 / fan_in), shape).astype(np.float32)
    if operator == "BatchNormalization" and position == 4:  # variance
        return rng.uniform(0.8, 1.2, shape).astype(np.float32)
    if operator in ("BatchNormalization", "Mul") and position == 1:  # scale, small enough that sums of residuals don't saturate the softmax
        return rng.uniform(0.3, 0.6, shape).astype(np.float32)
    return rng.normal(0, 0.1, shape).astype(np.float32)
