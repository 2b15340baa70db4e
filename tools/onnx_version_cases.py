"""Small models at old and new operator sets for `onnx_versions`: node cases of `onnx.backend.test` told to be of an older set, and random modes."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from dmlc.tools.onnx_case import TENSORS, array, cases_by_module, category
from dmlc.tools.onnx_mode_cases import GENERATORS, Case, case

FIRST, LATE = 7, 21  # the oldest operator set that the import takes; a late one that onnxruntime has all of
TRIES = 60  # random modes drawn of an operator
DATA_ARE_SIZES = "BlackmanWindow ConstantOfShape HammingWindow HannWindow Loop MelWeightMatrix NonMaxSuppression NonZero Range Unique".split()
LARGE = 2_000  # elements of an operand: larger ones only take time
ELEMENTS = {getattr(onnx.TensorProto, n) for n in "FLOAT DOUBLE FLOAT16 BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64".split()}


@functools.cache
def versions_of(operator: str) -> list[int]:
    """Operator sets that changed the schema of an operator of the standard domain, from FIRST on; FIRST itself if it had the operator then."""
    found = sorted({s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == operator and s.domain == ""})
    return sorted({max(v, FIRST) for i, v in enumerate(found) if v > FIRST or i + 1 == len(found) or found[i + 1] > FIRST})


def neighbours(operator: str, opset: int) -> list[int]:
    """The nearest operator sets before and after `opset` with another schema of the operator; of one that exists no more, a late set."""
    versions = versions_of(operator)
    after = [LATE] if onnx.defs.get_schema(operator).deprecated else [v for v in versions if v > opset][:1]
    return [*([v - 1 for v in versions if FIRST < v <= opset][-1:]), *after]


def samples(each: int, only: str = "", written: bool = False) -> list[tuple[str, int, Case]]:
    """(operator, operator set, case): the models written down here and, unless only they are wanted, of each operator and version at most `each`
    of those told to be older and of those of random modes."""
    made = _written(only) if written else (*_of_node_cases(each, only), *_of_modes(each, only), *_written(only))
    return sorted(made, key=lambda m: m[:2])


# ---------------------------------------------------------------- node cases


def _of_node_cases(each: int, only: str) -> Iterator[tuple[str, int, Case]]:
    """Each node case at every operator set whose schema it fits; per operator and set those with different attributes first."""
    taken: Counter[tuple[str, int]] = Counter()
    given = [c for cases in cases_by_module().values() for c in cases if _small(c)]
    for node_case in sorted(given, key=_rank_of_attributes()):
        operator = node_case.model.graph.node[0].op_type
        if only not in ("", operator):
            continue
        for opset in versions_of(operator):
            if taken[operator, opset] < each and (made := _told(node_case, opset)) is not None:
                taken[operator, opset] += 1
                yield operator, opset, made


def _small(node_case: Any) -> bool:
    operands = node_case.data_sets[0][0] if node_case.data_sets else [None]
    if len(node_case.model.graph.node) != 1 or node_case.model.graph.node[0].domain != "" or category(node_case) != TENSORS:
        return False
    if any(x is None or isinstance(x, (list, dict)) or array(x).dtype.isbuiltin != 1 or array(x).size > LARGE for x in operands):
        return False
    return all(v.type.tensor_type.elem_type in ELEMENTS for v in node_case.model.graph.output)


def _rank_of_attributes() -> Any:
    """A key that puts the first case of each combination of attributes and operands before the second."""
    seen: Counter[Any] = Counter()

    def key(node_case: Any) -> int:
        node = node_case.model.graph.node[0]
        what = (node.op_type, len(node.input), tuple(sorted((a.name, str(a.i) + str(a.s)) for a in node.attribute)))
        seen[what] += 1
        return seen[what]

    return key


def _told(node_case: Any, opset: int) -> Case | None:
    """The case at `opset`, with operands that may be sizes as initializers; None where its schema then is another."""
    model = onnx.ModelProto()
    model.CopyFrom(node_case.model)
    inputs: dict[str, np.ndarray] = {}
    for position, (value, x) in enumerate(zip(list(model.graph.input), map(array, node_case.data_sets[0][0]))):
        if (position and x.ndim <= 1) or node_case.model.graph.node[0].op_type in DATA_ARE_SIZES:
            model.graph.initializer.append(numpy_helper.from_array(x, value.name))
            model.graph.input.remove(value)
        else:
            inputs[value.name] = x
    model.ir_version = 8 if opset < 21 else 10
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", opset))
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # it has no common class of errors
        return None
    return Case(model, inputs, 1e-5, said=f"{node_case.name} at {opset}")


# ---------------------------------------------------------------- random modes


def _of_modes(each: int, only: str) -> Iterator[tuple[str, int, Case]]:
    """Of the operators with many modes, `each` for each version, of TRIES drawn."""
    for operator, generate in GENERATORS.items():
        if only not in ("", operator):
            continue
        taken: Counter[int] = Counter()
        for i in range(TRIES):
            made = generate(random.Random(f"{operator} {i}"), np.random.default_rng([i, len(operator)]))
            opset = made.model.opset_import[0].version
            version = max(v for v in versions_of(operator) if v <= opset)
            if not made.may_refuse and taken[version] < each:
                taken[version] += 1
                yield operator, opset, made


# ---------------------------------------------------------------- written down

REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare")
FLATTENING = ("Softmax", "LogSoftmax", "Hardmax")  # before version 13 they take all dims from `axis` on as one


def floats(*size: int) -> np.ndarray:
    return np.random.default_rng(sum(size)).standard_normal(size).astype(np.float32)


X = floats(2, 3, 4)
IMAGE = floats(1, 2, 5, 6)
GRID = np.tanh(floats(1, 3, 4, 2))
BOXES = np.array([[0, 0, 4, 4], [1, 2, 5, 4]], np.float32)
PER_CHANNEL = {"scale": floats(2), "bias": floats(2)}
STATISTICS = {**PER_CHANNEL, "mean": floats(2), "variance": np.abs(floats(2)) + 1}

# operator, the versions, x, the other operands, attributes: forms that no node case of the installed onnx has any more
WRITTEN: list[tuple[str, tuple[int, ...], np.ndarray, dict[str, Any], dict[str, Any]]] = [
    *((o, (7, 11, 13), np.abs(X) + 1, {}, {"axes": [0, 2], "keepdims": k}) for o in REDUCTIONS for k in (0, 1) if o != "ReduceSum"),
    *((o, (11, 13), np.abs(X) + 1, {}, {"axes": [-1]}) for o in REDUCTIONS if o != "ReduceSum"),
    *(("ReduceSum", (7, 11), X, {}, a) for a in ({"axes": [0, 2], "keepdims": 0}, {"axes": [1]}, {})),
    ("ReduceSum", (13,), X, {"axes": np.array([1])}, {}),
    *(("ReduceMean", (18,), X, {"axes": np.array([-1])}, {"keepdims": k}) for k in (0, 1)),
    *((o, (7, 11, 13), X, {}, {"axis": a}) for o in FLATTENING for a in (0, 1, 2)),
    *((o, (11, 13), X, {}, {"axis": -2}) for o in FLATTENING),
    *((o, (7, 11, 13), X, {}, {}) for o in FLATTENING),
    *(("Upsample", (7,), IMAGE, {}, {"mode": m, "scales": [1.0, 1.0, 2.0, 1.5]}) for m in ("nearest", "linear")),
    *(("Upsample", (9,), IMAGE, {"s": np.array([1, 1, 2, 1.5], np.float32)}, {"mode": m}) for m in ("nearest", "linear")),
    *(("Resize", (10,), IMAGE, {"s": np.array([1, 1, *s], np.float32)}, {"mode": m}) for m in ("nearest", "linear") for s in ((2, 1.5), (0.75, 0.5))),
    *(("Resize", (11,), IMAGE, {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 2, 1.5], np.float32)}, {"coordinate_transformation_mode": c}) for c in ("half_pixel", "tf_half_pixel_for_nn")),
    *(("Clip", (7,), X, {}, a) for a in ({"min": -0.5}, {"min": -0.5, "max": 0.5}, {})),
    *((o, (7,), x, {}, {"axes": [0, 2]}) for o, x in (("Squeeze", floats(1, 3, 1)), ("Unsqueeze", X))),
    *((o, (11,), x, {}, {"axes": [-1]}) for o, x in (("Squeeze", floats(2, 3, 1)), ("Unsqueeze", X))),
    ("Squeeze", (7, 11), floats(1, 3, 1), {}, {}),
    ("Split", (7, 11), X, {}, {"axis": 1, "split": [1, 2], "outputs": 2}),
    *(("Slice", (7,), X, {}, a) for a in ({"starts": [1], "ends": [3]}, {"starts": [0, -3], "ends": [9, -1], "axes": [0, 2]})),
    ("Slice", (10,), X, {"b": np.array([1]), "e": np.array([3])}, {}),
    *(("Pad", (7,), X, {}, {"pads": [0, 1, 2, 0, 0, 1], "mode": m}) for m in ("constant", "edge", "reflect")),
    *(("TopK", (7,), X, {}, {"k": 2, "outputs": 2, **a}) for a in ({}, {"axis": 1})),
    ("Dropout", (7, 10), X, {}, {"ratio": 0.3}),
    ("Dropout", (10,), X, {}, {"ratio": 0.3, "outputs": 2}),
    *(("BatchNormalization", (7,), IMAGE, STATISTICS, {"spatial": 1, "epsilon": e}) for e in (1e-5, 0.1)),
    ("DepthToSpace", (7,), floats(1, 8, 2, 3), {}, {"blocksize": 2}),
    ("GlobalLpPool", (7, 22), IMAGE, {}, {"p": 3}),
    *(("LpPool", (7, 11, 18, 22), IMAGE, {}, {"p": p, "kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}) for p in (1, 3)),
    *(("AveragePool", (10, 11, 19, 22), IMAGE, {}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [3, 2], "ceil_mode": 1, "count_include_pad": c}) for c in (0, 1)),
    *(("MaxPool", (10, 11, 12, 22), IMAGE, {}, {"kernel_shape": [2, 2], "strides": [3, 2], "ceil_mode": 1, "dilations": [d, 1], "outputs": 2}) for d in (1, 2)),
    *(("ConvTranspose", (7, 11, 22), IMAGE, {"w": floats(2, 3, 3, 3)}, {"strides": [2, 2], "auto_pad": p}) for p in ("SAME_UPPER", "SAME_LOWER")),
    ("GroupNormalization", (18,), floats(2, 4, 3), PER_CHANNEL, {"num_groups": 2}),
    *(("GridSample", (16,), IMAGE, {"grid": GRID}, {"mode": m, "align_corners": a}) for m in ("bilinear", "nearest", "bicubic") for a in (0, 1)),
    *(("GridSample", (20, 22), IMAGE, {"grid": GRID}, {"mode": m}) for m in ("linear", "nearest", "cubic")),
    *(("RoiAlign", (10,), IMAGE, {"rois": BOXES, "at": np.array([0, 0])}, {"output_height": 2, "output_width": 2, "spatial_scale": 0.9, "sampling_ratio": 2, "mode": m}) for m in ("avg", "max")),
    *(("RoiAlign", (16,), IMAGE, {"rois": BOXES, "at": np.array([0, 0])}, {"output_height": 2, "output_width": 2, "sampling_ratio": 2, "coordinate_transformation_mode": m}) for m in ("half_pixel", "output_half_pixel")),
    *(("DFT", (17,), floats(1, 4, 5, 1), {}, {"axis": a, "onesided": 1}) for a in (1, 2)),
    *(("OneHot", (9, 11), np.array([0, -1, 2]), {"depth": np.array(3), "values": np.array([2, 5], np.float32)}, {"axis": a}) for a in (0, -1)),
    *(("MeanVarianceNormalization", (9, 13), IMAGE, {}, a) for a in ({}, {"axes": [0, 2]})),
    *((o, v, X, {}, {}) for o, v in (("Erf", (9, 13)), ("Mish", (18, 22)))),
    *(("Flatten", (7, 9, 11, 13), X, {}, {"axis": a}) for a in (0, 2)),
    *(("ArgMax", (7, 11, 12, 13), np.sign(X), {}, {"axis": 1, "keepdims": k}) for k in (0, 1)),
    *(("Gemm", (7, 9, 11, 13), floats(3, 4), {"b": floats(5, 4), "c": floats(5)}, {"transB": 1, "alpha": 0.5, "beta": b}) for b in (1.0, 2.0)),
    *(("PRelu", (7, 9, 16), X, {"slope": s}, {}) for s in (floats(4), floats(3, 1))),
]  # fmt: skip


def _scan(opset: int) -> Case:
    """Running sums. Version 8 has a batch dim, and lengths, which are left out."""
    info, start, rows = helper.make_tensor_value_info, floats(1, 2), floats(1, 3, 2)
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [info(n, 1, [2]) for n in "ab"],
        [info(n, 1, [2]) for n in "cd"],
    )
    inputs = {"start": start, "rows": rows} if opset == 8 else {"start": start[0], "rows": rows[0]}
    node = helper.make_node("Scan", [*([""] if opset == 8 else []), *inputs], ["last", "sums"], body=body, num_scan_inputs=1)
    results = [info("last", 1, inputs["start"].shape), info("sums", 1, inputs["rows"].shape)]
    graph = helper.make_graph([node], "g", [info(n, 1, a.shape) for n, a in inputs.items()], results)
    return Case(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), inputs, said=f"running sums at {opset}")


def _written(only: str) -> Iterator[tuple[str, int, Case]]:
    yield from (("Scan", opset, _scan(opset)) for opset in (8, 9, 11) if only in ("", "Scan"))
    for operator, opsets, x, operands, attributes in WRITTEN:
        for opset in opsets if only in ("", operator) else ():
            yield operator, opset, case(operator, opset, x, operands, **attributes)
