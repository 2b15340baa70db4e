"""Branches and loops of ONNX files against onnxruntime: on one rank, through the whole pipeline on eight, with ops cut at random on three."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_files import BOOL, FLOAT, INT64, computed, imported, model_of, under_onnxruntime
from pipeline_cases import through

from dmlc.frontend.onnx import ImportResult
from dmlc.interpret.run import run
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh
from dmlc.ir.verifier import verify
from dmlc.passes.isolate import Isolate
from dmlc.passes.partition import Partition
from dmlc.passmanager.context import Context
from dmlc.passmanager.manager import PassManager
from dmlc.tools.random_plans import place_randomly

node = helper.make_node
RNG = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def graph(inputs: Sequence[str], outputs: Sequence[str], *nodes: onnx.NodeProto, **initializers: np.ndarray) -> onnx.GraphProto:
    """A subgraph; `i` is an i64 scalar, `going` a bool."""
    kinds = {"i": (INT64, []), "going": (BOOL, [])}
    made = [helper.make_tensor_value_info(n, *kinds[n]) if n in kinds else helper.make_empty_tensor_value_info(n) for n in inputs]
    return helper.make_graph(
        list(nodes),
        "body",
        made,
        [helper.make_empty_tensor_value_info(n) for n in outputs],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in initializers.items()],
    )


# ---------------------------------------------------------------- models: nodes, inputs (shape or type and shape), results, constants, values of inputs

IF = node(
    "If", ["flag"], ["y", "z"],
    then_branch=graph([], ["ty", "tz"], node("MatMul", ["x", "w"], ["t"]), node("Tanh", ["t"], ["ty"]), node("Add", ["x", "one"], ["tz"]), one=np.float32(1)),
    else_branch=graph([], ["ey", "ez"], node("Mul", ["x", "two"], ["ey"]), node("Identity", ["x"], ["ez"]), two=np.float32(2)),
)  # fmt: skip
NESTED_IF = node(
    "If", ["flag"], ["y"],
    then_branch=graph([], ["ty"], node("If", ["other"], ["ty"], then_branch=graph([], ["a"], node("Neg", ["x"], ["a"])), else_branch=graph([], ["b"], node("Exp", ["x"], ["b"])))),
    else_branch=graph([], ["ey"], node("Constant", [], ["ey"], value=numpy_helper.from_array(floats(4, 3)))),
)  # fmt: skip
COUNT = node("Loop", ["n", "", "x", "k"], ["y", "m"], body=graph(
    ["i", "going", "c", "q"], ["still", "d", "r"],
    node("Identity", ["going"], ["still"]), node("MatMul", ["c", "w"], ["p"]), node("Tanh", ["p"], ["d"]), node("Add", ["q", "i"], ["r"]),
))  # fmt: skip
DOUBLE = graph(
    ["i", "going", "c"], ["still", "d"],
    node("Mul", ["c", "two"], ["d"]), node("ReduceSum", ["d"], ["s"], keepdims=0), node("Less", ["s", "most"], ["still"]), two=np.float32(2),
)  # fmt: skip
ROWS = graph(
    ["i", "going", "c"], ["still", "d", "row", "place"],
    node("Identity", ["going"], ["still"]), node("Cast", ["i"], ["f"], to=FLOAT), node("Mul", ["x", "f"], ["m"]), node("Sin", ["m"], ["s"]),
    node("Add", ["c", "s"], ["d"]), node("Identity", ["d"], ["row"]), node("Identity", ["i"], ["place"]),
)  # fmt: skip
GROWING = graph(["i", "going", "c"], ["still", "d"], node("Identity", ["going"], ["still"]), node("Concat", ["c", "x"], ["d"], axis=0))
INNER = graph(
    ["i", "going", "e"], ["still2", "g"],
    node("Add", ["e", "x"], ["g"]), node("ReduceMax", ["g"], ["top"], keepdims=0), node("Less", ["top", "most"], ["still2"]),
)  # fmt: skip
OUTER = graph(
    ["i", "going", "c"], ["still", "d", "row"],
    node("Identity", ["going"], ["still"]), node("Loop", ["", "still", "c"], ["h"], body=INNER), node("Mod", ["i", "k"], ["odd"]), node("Cast", ["odd"], ["is_odd"], to=BOOL),
    node("If", ["is_odd"], ["d"], then_branch=graph([], ["u"], node("MatMul", ["h", "w"], ["u"])), else_branch=graph([], ["v"], node("Neg", ["h"], ["v"]))),
    node("Identity", ["h"], ["row"]),
)  # fmt: skip
RNN = graph(
    ["h", "a", "b"], ["h2", "row", "other"],
    node("MatMul", ["a", "w"], ["p"]), node("Add", ["p", "h"], ["q"]), node("Tanh", ["q"], ["h2"]), node("Identity", ["h2"], ["row"]), node("Mul", ["b", "h2"], ["other"]),
)  # fmt: skip

X = (4, 3)
CASES = {
    "if": ([IF], {"x": X, "flag": (BOOL, ())}, ["y", "z"], {"w": floats(3, 3)}, {"flag": np.array(True)}),
    "if, the other side": ([IF], {"x": X, "flag": (BOOL, ())}, ["y", "z"], {"w": floats(3, 3)}, {"flag": np.array(False)}),
    "nested if": ([NESTED_IF], {"x": X, "flag": (BOOL, (1,)), "other": (BOOL, ())}, ["y"], {}, {"flag": np.array([True]), "other": np.array(False)}),
    "a count that is an input": ([COUNT], {"x": X, "n": (INT64, ()), "k": (INT64, ())}, ["y", "m"], {"w": floats(3, 3)}, {"n": np.array(5), "k": np.array(7)}),
    "a count of zero": ([COUNT], {"x": X, "n": (INT64, ()), "k": (INT64, ())}, ["y", "m"], {"w": floats(3, 3)}, {"n": np.array(0), "k": np.array(7)}),
    "until a sum is large": ([node("Loop", ["", "go", "x"], ["y"], body=DOUBLE)], {"x": X}, ["y"], {"go": np.array(True), "most": np.float32(1000)}, {"x": np.abs(floats(4, 3))}),
    "until then, or ten times": ([node("Loop", ["ten", "", "x"], ["y"], body=DOUBLE)], {"x": X}, ["y"], {"ten": np.array(10), "most": np.float32(1e9)}, {"x": np.abs(floats(4, 3))}),
    "not even once": ([node("Loop", ["", "go", "x"], ["y"], body=DOUBLE)], {"x": X, "go": (BOOL, ())}, ["y"], {"most": np.float32(9)}, {"go": np.array(False)}),
    "stacked rows": ([node("Loop", ["n", "", "start"], ["y", "rows", "places"], body=ROWS)], {"x": X}, ["y", "rows", "places"], {"n": np.array(20), "start": floats(4, 3)}, {}),
    "stacked rows of no iteration": ([node("Loop", ["n", "", "start"], ["y", "rows", "places"], body=ROWS)], {"x": X}, ["y", "rows", "places"], {"n": np.array(0), "start": floats(4, 3)}, {}),
    "a value that grows": ([node("Loop", ["n", "", "x"], ["y"], body=GROWING)], {"x": X}, ["y"], {"n": np.array(11)}, {}),
    "loop and branch in a loop": (
        [node("Loop", ["n", "", "x"], ["y", "rows"], body=OUTER)], {"x": X}, ["y", "rows"],
        {"n": np.array(12), "most": np.float32(9), "k": np.array(2), "w": floats(3, 3)}, {"x": np.abs(floats(4, 3)) + np.float32(0.1)},
    ),
    "scan": ([node("Scan", ["h", "a", "b"], ["last", "rows", "others"], body=RNN, num_scan_inputs=2)], {"a": (20, 4, 3), "b": (20, 4, 3), "h": X}, ["last", "rows", "others"], {"w": floats(3, 3)}, {}),
    "scan of other axes": (
        [node("Scan", ["h", "a", "b"], ["last", "rows", "others"], body=RNN, num_scan_inputs=2, scan_input_axes=[1, -1], scan_output_axes=[1, -1])],
        {"a": (4, 20, 3), "b": (4, 3, 20), "h": X}, ["last", "rows", "others"], {"w": floats(3, 3)}, {},
    ),
    "scan backwards": (
        [node("Scan", ["h", "a", "b"], ["last", "rows", "others"], body=RNN, num_scan_inputs=2, scan_input_directions=[1, 1], scan_output_directions=[1, 0])],
        {"a": (20, 4, 3), "b": (20, 4, 3), "h": X}, ["last", "rows", "others"], {"w": floats(3, 3)}, {},
    ),
    "scan both ways": (
        [node("Scan", ["h", "a", "b"], ["last", "rows", "others"], body=RNN, num_scan_inputs=2, scan_input_directions=[1, 0], scan_output_directions=[0, 1])],
        {"a": (20, 4, 3), "b": (20, 4, 3), "h": X}, ["last", "rows", "others"], {"w": floats(3, 3)}, {},
    ),
    "a short scan backwards": (
        [node("Scan", ["h", "a", "b"], ["last", "rows", "others"], body=RNN, num_scan_inputs=2, scan_input_directions=[1, 1], scan_output_directions=[1, 0])],
        {"a": (5, 4, 3), "b": (5, 4, 3), "h": X}, ["last", "rows", "others"], {"w": floats(3, 3)}, {},
    ),
}  # fmt: skip
LOOPS = {
    "a count that is an input": "dmlc.while",
    "until a sum is large": "dmlc.while",
    "if": "dmlc.cond",
    "stacked rows": "dmlc.scan",
    "scan both ways": "dmlc.scan",
}


def case(folder: Path, name: str, opset: int = 21) -> tuple[ImportResult, dict[str, np.ndarray], list[np.ndarray]]:
    """The imported model, its inputs, and what onnxruntime makes of them."""
    nodes, shapes, outputs, constants, given = CASES[name]
    model = model_of(nodes, shapes, outputs, constants, opset)
    result = imported(folder, model)
    inputs = {n: given[n] if n in given else floats(*s) for n, s in shapes.items()}
    wanted = under_onnxruntime(folder / "model.onnx", inputs)
    assert all(not w.size or w.std() > 0 for w in wanted if w.ndim and w.dtype == np.float32)
    return result, inputs, wanted


def close(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape or not max(ours.size, theirs.size)  # onnxruntime knows no shape of rows that never were
        if not ours.size:
            continue
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * max(1.0, float(np.abs(theirs).max(initial=0))))


def run_on_ranks(module: Module, result: ImportResult, inputs: dict[str, np.ndarray], poison: bool = True) -> list[np.ndarray]:
    verify(module)
    arguments = {a.attrs.get("dmlc.name", a.name): a.name for a in result.module.main.args}
    return list(run(module, {arguments[n]: x for n, x in inputs.items()}, weights=result.weights, poison_pads=poison).values())


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime(tmp_path, name):
    result, inputs, wanted = case(tmp_path, name)
    close(computed(result, inputs), wanted)
    assert LOOPS.get(name, "") in ("", *(op.name for op in result.module.main.ops()))
    close(run_on_ranks(through(result.module, Context(result.weights), 8), result, inputs), wanted)


@pytest.mark.parametrize("name", CASES)
def test_cut_at_random(tmp_path, name):
    """Three ranks, so that no part is like another; pads hold NaN. Loops and branches are cut where all ops inside allow it."""
    result, inputs, wanted = case(tmp_path, name)
    module = result.module.clone()
    PassManager((Isolate(),)).run(module, Context(result.weights))
    if place_randomly(module, Mesh.make(a=3), random.Random(zlib.crc32(name.encode())), eager=1.0):
        PassManager((Partition(),)).run(module, Context(result.weights))
        close(run_on_ranks(module, result, inputs), wanted)


# ---------------------------------------------------------------- recurrent layers


@pytest.mark.parametrize("lengths", ["whole", "known", "given"])
@pytest.mark.parametrize(("operator", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_layers(tmp_path, operator, gates, lengths):
    """Twenty steps in both directions are two loops; where sequences are shorter, states stay and results are zero."""
    constants = {"w": floats(2, gates * 5, 3), "r": floats(2, gates * 5, 5), "b": floats(2, 2 * gates * 5), "h0": floats(2, 4, 5)}
    inputs, shapes, short = {"x": floats(20, 4, 3)}, {"x": (20, 4, 3)}, np.array([20, 3, 1, 11], np.int32)
    if lengths == "known":
        constants["l"] = short
    elif lengths == "given":
        shapes["l"], inputs["l"] = (onnx.TensorProto.INT32, (4,)), short
    results = ["y", "yh", *(["yc"] if operator == "LSTM" else [])]
    layer = node(operator, ["x", "w", "r", "b", "" if lengths == "whole" else "l", "h0"], results, hidden_size=5, direction="bidirectional")
    result = imported(tmp_path, model_of([layer], shapes, results, constants))
    wanted = under_onnxruntime(tmp_path / "model.onnx", inputs)
    assert [op.name for op in result.module.main.body].count("dmlc.scan") == 2 and len(list(result.module.main.ops())) < 100
    close(computed(result, inputs), wanted)
    close(run_on_ranks(through(result.module, Context(result.weights), 3), result, inputs), wanted)


def test_a_layer_of_ten_thousand_steps_is_no_longer_than_one_of_ten(tmp_path):
    found = []
    for steps in (10, 10_000):
        model = model_of([node("GRU", ["x", "w", "r"], ["y"], hidden_size=5)], {"x": (steps, 2, 3)}, ["y"], {"w": floats(1, 15, 3), "r": floats(1, 15, 5)})
        found.append([op.name for op in imported(tmp_path, model).module.main.ops()])
    assert found[0] == found[1]


def test_scan_of_operator_set_8(tmp_path):
    """The body sees one sample; states and scanned tensors have the batch first."""
    body = graph(["h", "a"], ["h2", "row"], node("Add", ["h", "a"], ["h2"]), node("Mul", ["h2", "a"], ["row"]))
    scan = node("Scan", ["", "h", "a"], ["last", "rows"], body=body, num_scan_inputs=1, directions=[1])
    inputs = {"h": floats(10, 3), "a": floats(10, 12, 3)}
    result = imported(tmp_path, model_of([scan], {n: x.shape for n, x in inputs.items()}, ["last", "rows"], opset=8))
    close(computed(result, inputs), under_onnxruntime(tmp_path / "model.onnx", inputs))
    assert [op.name for op in result.module.main.ops()].count("dmlc.scan") == 2


# ---------------------------------------------------------------- what is refused


def refused(folder: Path, nodes: Sequence[onnx.NodeProto], inputs: dict, outputs: Sequence[str], constants: dict[str, np.ndarray]) -> str:
    with pytest.raises(DmlcError) as error:
        imported(folder, model_of(nodes, inputs, outputs, constants))
    return " ".join([error.value.message, *error.value.notes])


def test_stacked_results_of_unknown_length(tmp_path):
    loop = node("Loop", ["n", "", "start"], ["y", "rows", "places"], body=ROWS)
    said = refused(tmp_path, [loop], {"x": X, "n": (INT64, ())}, ["y", "rows", "places"], {"start": floats(4, 3)})
    assert "the number of iterations of a loop with stacked results must be known at import, but it depends on the data" in said


def test_a_value_that_grows_in_a_loop_of_unknown_length(tmp_path):
    said = refused(tmp_path, [node("Loop", ["n", "", "x"], ["y"], body=GROWING)], {"x": X, "n": (INT64, ())}, ["y"], {})
    assert "a value carried by the loop changes its type from tensor<4x3xf32> to tensor<8x3xf32>" in said


def test_an_unsupported_operator_inside_is_named(tmp_path):
    body = graph(["i", "going", "c"], ["still", "d"], node("Identity", ["going"], ["still"]), node("Strange", ["c"], ["d"], name="odd", domain="own"))
    for count in (3, 30, None):
        inputs = {"x": X} if count else {"x": X, "n": (INT64, ())}
        loop = node("Loop", ["n", "", "x"], ["y"], body=body, name="loop")
        with pytest.raises(DmlcError) as error:
            imported(tmp_path, model_of([loop], inputs, ["y"], {"n": np.array(count)} if count else {}, domains=["own"]))
        assert error.value.message == "unsupported: Strange" and "odd" in error.value.notes[0]
    branch = node(
        "If",
        ["flag"],
        ["y"],
        then_branch=graph([], ["a"], node("Strange", ["x"], ["a"], domain="own")),
        else_branch=graph([], ["b"], node("Neg", ["x"], ["b"])),
    )
    with pytest.raises(DmlcError) as error:
        imported(tmp_path, model_of([branch], {"x": X, "flag": (BOOL, ())}, ["y"], domains=["own"]))
    assert error.value.message == "unsupported: Strange"


def test_branches_of_different_shapes(tmp_path):
    branch = node("If", ["flag"], ["y"], then_branch=graph([], ["a"], node("Transpose", ["x"], ["a"])), else_branch=graph([], ["b"], node("Neg", ["x"], ["b"])))
    assert "the branches' results have different shapes or dtypes" in refused(tmp_path, [branch], {"x": X, "flag": (BOOL, ())}, ["y"], {})
