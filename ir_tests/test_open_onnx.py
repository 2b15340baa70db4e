"""Open sizes of ONNX files: what exporters compute from shapes, sizes that have to agree, bounds that the graph implies, and what has to be fixed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_files import model_of, under_onnxruntime

from dmlc import driver
from dmlc.driver import Options
from dmlc.interpret.run import run
from dmlc.ir.open_sizes import OpenSizes

node = helper.make_node
END = {"int32": 2**31 - 1, "int64": 2**63 - 1}


def compile_file(folder, model: onnx.ModelProto, plan: str = "dp=2", **like: int):
    """The program of a model for two ranks, its sizes open."""
    path = folder / "model.onnx"
    onnx.save(model, str(path))
    options = Options(devices=2, plan=plan, target="cpu", open_sizes=True, like=like)
    return path, driver.compile_model(driver.load(str(path), options), options)


def agrees(folder, model: onnx.ModelProto, *shapes: dict[str, tuple[int, ...]], **options: Any):
    """Compiled once, the ranks' results at all these shapes are onnxruntime's."""
    path, program = compile_file(folder, model, **options)
    rng = np.random.default_rng(3)
    for each in shapes:
        inputs = {n: rng.standard_normal(s).astype(np.float32) for n, s in each.items()}
        for ours, theirs in zip(run(program.module, inputs, weights=program.weights, poison_pads=True).values(), under_onnxruntime(path, inputs), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    return program


def open_sizes(program) -> dict[str, tuple[int, int | None]]:
    return {name: (s.least, s.most) for name, s in OpenSizes.of(program.module).sizes.items()}


@pytest.mark.parametrize("plan", ["dp=2", "tp=2"])
def test_a4_slices_to_the_end_of_dims_that_stay_open(tmp_path, plan):
    """The reported fault typed the result [batch, seq, 768]; nothing is added to the largest integers."""
    constants = {"starts": np.array([0, 0, 0]), "ends": np.array([END["int32"], 1, END["int64"]]), "axes": np.array([0, 1, 2]), "w": np.ones((8, 6), np.float32)}
    model = model_of([node("Slice", ["x", "starts", "ends", "axes"], ["s"]), node("MatMul", ["s", "w"], ["y"])], {"x": ("batch", "seq", 8)}, ["y", "s"], constants)
    program = agrees(tmp_path, model, {"x": (4, 7, 8)}, {"x": (1, 1, 8)}, {"x": (3, 2, 8)}, plan=plan)
    assert open_sizes(program) == {"batch": (1, None), "seq": (1, None)}
    assert [str(n) for n in program.module.main.result_attrs[1].get("dmlc.global", program.module.main.results[1].shape)] == ["batch", "1", "8"]


@pytest.mark.parametrize(("start", "end", "least"), [(1, END["int64"], 1), (-3, END["int32"], 3), (0, -2, 2), (2, 5, 5)])
def test_a_slice_narrows_the_range_where_its_clamps_would_act(tmp_path, start, end, least):
    constants = {"starts": np.array([start]), "ends": np.array([end]), "axes": np.array([1])}
    model = model_of([node("Slice", ["x", *constants], ["y"])], {"x": ("batch", "seq", 2)}, ["y"], constants)
    program = agrees(tmp_path, model, {"x": (2, 9, 2)}, {"x": (3, 5, 2)}, seq=9)
    assert open_sizes(program)["seq"] == (least, None)


def test_shapes_that_exporters_compute(tmp_path):
    """Shape, Gather, arithmetic, Concat, Reshape; a mask of ones; a range; Expand by Where(Equal(…))."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["b"]), node("Gather", ["shape", "one"], ["t"]), node("Mul", ["b", "t"], ["bt"]),
        node("Unsqueeze", ["b", "first"], ["b1"]), node("Unsqueeze", ["t", "first"], ["t1"]), node("Unsqueeze", ["bt", "first"], ["bt1"]),
        node("Concat", ["bt1", "six"], ["flat"], axis=0), node("Reshape", ["x", "flat"], ["rows"]), node("MatMul", ["rows", "w"], ["product"]),
        node("Concat", ["b1", "t1", "two", "rest"], ["heads"], axis=0), node("Reshape", ["product", "heads"], ["split"]),
        node("Range", ["zero", "t", "one"], ["places"]), node("Cast", ["places"], ["floats"], to=TensorProto.FLOAT),
        node("Reshape", ["floats", "column"], ["columns"]), node("Add", ["split", "columns"], ["moved"]),
        node("Concat", ["b1", "minus", "ones2"], ["wish"], axis=0), node("Equal", ["wish", "minus4"], ["is_minus"]), node("Where", ["is_minus", "one4", "wish"], ["wide"]),
        node("Expand", ["columns", "wide"], ["expanded"]), node("ConstantOfShape", ["heads2"], ["zeros"]), node("Concat", ["b1", "t1"], ["heads2"], axis=0),
        node("Cast", ["t"], ["tf"], to=TensorProto.FLOAT), node("Div", ["moved", "tf"], ["y"]), node("Add", ["expanded", "y"], ["z"]),
    ]  # fmt: skip
    ints = {"zero": 0, "one": 1, "first": [0], "six": [6], "two": [2], "rest": [-1], "column": [-1, 1, 1], "minus": [-1], "minus4": [-1] * 4, "one4": [1] * 4, "ones2": [1, 1]}
    constants = {k: np.array(v) for k, v in ints.items()} | {"w": np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)}
    model = model_of(sorted_nodes(nodes), {"x": ("batch", "seq", 6)}, ["y", "z", "zeros"], constants)
    program = agrees(tmp_path, model, {"x": (4, 5, 6)}, {"x": (1, 1, 6)}, {"x": (3, 11, 6)})
    assert open_sizes(program) == {"batch": (1, None), "seq": (1, None)}


def sorted_nodes(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """In an order that the checker takes: a node after what it reads."""
    made = {o for n in nodes for o in n.output}
    placed: list[onnx.NodeProto] = []
    while len(placed) < len(nodes):
        done = {o for n in placed for o in n.output}
        placed += [n for n in nodes if n not in placed and all(i in done or i not in made for i in n.input)]
    return placed


def test_sizes_that_have_to_agree_become_one(tmp_path):
    program = agrees(tmp_path, model_of([node("Add", ["x", "y"], ["z"])], {"x": ("a", 4), "y": ("b", 4)}, ["z"]), {"x": (3, 4), "y": (3, 4)}, {"x": (1, 4), "y": (1, 4)})
    assert list(open_sizes(program)) == ["a"]
    assert any(r.text.startswith("b is a:") for r in program.loaded.remarks)


def test_a_size_that_meets_a_number_is_that_number(tmp_path):
    model = model_of([node("Add", ["x", "w"], ["z"])], {"x": ("a", "n")}, ["z"], {"w": np.ones((6,), np.float32)})
    path, program = compile_file(tmp_path, model, n=6)
    assert list(open_sizes(program)) == ["a"] and path.exists()


def test_a_size_that_has_to_be_a_multiple(tmp_path):
    """Pairs along a dim: the reshape has a whole number of rows for even lengths only."""
    model = model_of([node("Reshape", ["x", "pairs"], ["y"])], {"x": ("batch", "seq")}, ["y"], {"pairs": np.array([0, -1, 2])})
    program = agrees(tmp_path, model, {"x": (2, 8)}, {"x": (3, 2)}, {"x": (1, 6)}, seq=8)
    assert open_sizes(program) == {"batch": (1, None), "seq_by_2": (1, None)}
    assert any("seq has to be a multiple of 2" in r.text for r in program.loaded.remarks)


@pytest.mark.parametrize(("operator", "attributes"), [("Resize", {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}), ("Resize", {"mode": "linear"})])
def test_an_image_of_any_size_is_enlarged(tmp_path, operator, attributes):
    model = model_of([node(operator, ["x", "", "scales"], ["y"], **attributes)], {"x": ("n", 2, "h", "w")}, ["y"], {"scales": np.array([1, 1, 2, 2], np.float32)})
    agrees(tmp_path, model, {"x": (2, 2, 3, 5)}, {"x": (1, 2, 1, 1)}, {"x": (3, 2, 6, 2)})


def test_what_cannot_stay_open_is_said_with_its_op(tmp_path):
    """A scale of 1.3 gives sizes that no quotient of whole numbers is."""
    model = model_of([node("Resize", ["x", "", "scales"], ["y"], name="enlarge")], {"x": ("n", "c", 10)}, ["y"], {"scales": np.array([1, 1.3, 1], np.float32)})
    _, program = compile_file(tmp_path, model, c=10)
    assert list(open_sizes(program)) == ["n"]
    said = [r for r in program.loaded.remarks if "c is fixed at 10" in r.text]
    assert len(said) == 1 and "Resize" in said[0].text and said[0].loc.name == "enlarge"
