"""Small ONNX files for tests: building them, importing them, running them here and under onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from dmlc.frontend.onnx import ImportResult, import_onnx
from dmlc.interpret.run import run
from dmlc.ir.verifier import verify

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 21,
    ir_version: int = 9,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model. An input is a shape (float), or (element type, shape); a name that is a constant too is an overridable initializer."""

    def info(name: str, given: Any) -> onnx.ValueInfoProto:
        element, shape = given if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], (tuple, list)) else (FLOAT, given)
        return helper.make_tensor_value_info(name, element, shape)

    graph = helper.make_graph(
        list(nodes),
        "g",
        [info(n, s) for n, s in inputs.items()],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, functions=list(functions))


def imported(folder: Path, model: onnx.ModelProto, **options: Any) -> ImportResult:
    """The model written to a file, imported and verified."""
    path = folder / "model.onnx"
    onnx.save(model, str(path))
    result = import_onnx(path, **options)
    verify(result.module)
    return result


def computed(result: ImportResult, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The program's outputs, in the model's order, for inputs by the model's names."""
    arguments = {a.attrs.get("dmlc.name", a.name): a.name for a in result.module.main.args}
    found = run(result.module, {arguments[n]: x for n, x in inputs.items()}, weights=result.weights)
    return list(found.values())


def under_onnxruntime(path: Path, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Without its rewrites, some of which compute in less precision than the file says."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, dict(inputs))


def random_inputs(result: ImportResult, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    kinds = {"f32": np.float32, "i64": np.int64, "i32": np.int32, "i1": np.bool_}
    return {s.name: (rng.standard_normal(s.shape) if s.dtype == "f32" else rng.integers(0, 2, s.shape)).astype(kinds[s.dtype]) for s in result.inputs}


def outputs_of(folder: Path, model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], **options: Any) -> list[np.ndarray]:
    shapes = {n: np.shape(x) for n, x in inputs.items()}
    return computed(imported(folder, model, **({"shapes": shapes} | options)), inputs)


def agrees(folder: Path, model: onnx.ModelProto, tolerance: float = 1e-5, **options: Any) -> ImportResult:
    """Import and compare with onnxruntime on random inputs, relative to the largest output, which must not be constant."""
    result = imported(folder, model, **options)
    inputs = random_inputs(result)
    wanted = under_onnxruntime(folder / "model.onnx", inputs)
    for ours, theirs in zip(computed(result, inputs), wanted, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * max(1e-6, float(np.abs(theirs).max(initial=0))))
        assert theirs.size < 2 or theirs.dtype.kind != "f" or theirs.std() > 0
    return result
