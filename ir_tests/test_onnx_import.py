"""The importer's frame: names, sizes, weights and their roles, constants, functions, branches and loops, errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_files import BOOL, INT64, agrees, computed, imported, model_of, outputs_of

from dmlc.frontend.onnx import import_onnx
from dmlc.frontend.onnx.table import HANDLERS, NOT_STANDARD
from dmlc.ir.location import DmlcError

node = helper.make_node


def ops(result) -> list[str]:
    return [op.name.removeprefix("dmlc.") for op in result.module.main.body]


def test_every_importer_is_keyed_by_a_version_of_the_specification():
    known = {(s.domain, s.name, s.since_version) for s in onnx.defs.get_all_schemas_with_history()}
    newest = onnx.defs.onnx_opset_version()
    wrong = [k for k in HANDLERS if not k[0] and k[1] not in NOT_STANDARD and k[2] <= newest and k not in known]
    assert not wrong


# ---------------------------------------------------------------- order, names, places


def test_nodes_in_any_order_and_unused_ones_are_left_out(tmp_path):
    nodes = [node("Relu", ["b"], ["y"]), node("Exp", ["unused"], ["z"]), node("Neg", ["a"], ["b"]), node("Abs", ["x"], ["a"]), node("Sin", ["x"], ["unused"])]
    result = imported(tmp_path, model_of(nodes, {"x": (3,)}, ["y"]))
    assert ops(result) == ["abs", "neg", "relu", "func.return"]


def test_names_are_kept_and_ssa_names_are_identifiers(tmp_path):
    model = model_of([node("Gemm", ["in:0", "a/w", "a/b"], ["out:0"], name="layer/Gemm")], {"in:0": (2, 3)}, ["out:0"], {"a/w": np.ones((3, 4), np.float32), "a/b": np.ones(4, np.float32)})
    result = imported(tmp_path, model)
    x, w, b = result.module.main.args
    assert (x.name, x.attrs["dmlc.name"]) == ("in_0", "in:0")
    assert (w.name, w.attrs["dmlc.names"]) == ("a_w", ("a/w",)) and b.attrs["dmlc.names"] == ("a/b",)
    product, add, _ = result.module.main.body.ops
    assert product.loc.name == add.loc.name == "layer/Gemm" and add.attrs["dmlc.name"] == "out:0"
    assert result.module.main.result_attrs == [{"dmlc.name": "out:0"}]
    assert [op.id for op in result.module.main.body if op.results] == ["0", "1"]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Relu", ["a"], ["b"], name="n1"), node("Relu", ["b"], ["a"], name="n2"), node("Relu", ["b"], ["y"])], "cycle through n1, n2"),
        ([node("Relu", ["y"], ["y"], name="n1")], "n1: error: the node reads its own result"),
        ([node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"], name="n2")], "n2: error: the name 'y' is defined twice"),
        ([node("Relu", ["nothing"], ["y"], name="n1")], "n1: error: Relu: nothing defines 'nothing'"),
        ([node("Relu", ["x"], ["z"])], "nothing defines 'y'"),
        ([node("Concat", ["x", "x"], ["y"], name="c", axis=5)], "c: error: Concat: axis 5 is out of range for rank 2"),
        ([node("Concat", ["x"], ["y"], name="c")], "c: error: Concat: attribute 'axis' is missing"),
        ([node("Concat", ["x"], ["y"], name="c", axis="1")], "c: error: Concat"),
        ([node("Transpose", ["x"], ["y"], name="t", perm=[0, 0])], "t: error: Transpose: perm"),
        ([node("Add", ["x", ""], ["y"], name="a")], "a: error: Add: operand 1 is missing"),
        ([node("Split", ["x"], ["y", "z"], name="s", num_outputs=3)], "s: error: Split: num_outputs is 3"),
        ([node("Relu", ["x"], ["y", "z"], name="r"), node("Neg", ["z"], ["w"])], "r: error: Relu has 2 results in the file but makes 1"),
    ],
)
def test_what_is_wrong_with_a_graph_is_said_with_its_place(tmp_path, nodes, message):
    with pytest.raises(DmlcError) as caught:
        imported(tmp_path, model_of(nodes, {"x": (2, 3)}, ["y"]))
    assert message in str(caught.value)


# ---------------------------------------------------------------- sizes


def test_open_sizes_get_stated_defaults(tmp_path):
    inputs = {"x": ("batch", 3, "length"), "mask": (BOOL, ("batch", "length")), "state": (2, "batch", None)}
    nodes = [node("Relu", ["x"], ["y"]), node("Not", ["mask"], ["m"]), node("Abs", ["state"], ["s"])]
    result = imported(tmp_path, model_of(nodes, inputs, ["y", "m", "s"]), devices=8)
    assert [(i.shape, i.batch_dim) for i in result.inputs] == [((8, 3, 64), 0), ((8, 64), 0), ((2, 8, 64), 1)]
    assert [a.attrs.get("dmlc.batch_dim") for a in result.module.main.args] == [0, 0, 1]
    table = {s.name: (s.size, s.why, s.dims) for s in result.sizes}
    assert table["batch"] == (8, "default: the number of devices", ("x[0]", "mask[0]", "state[1]"))
    assert table["length"] == (64, "default: 64", ("x[2]", "mask[1]")) and table["state[2]"] == (64, "default: 64", ("state[2]",))


def test_sizes_that_the_user_gives(tmp_path):
    model = model_of([node("Add", ["a", "b"], ["y"])], {"a": ("n", "m"), "b": ("n", "m")}, ["y"])
    result = imported(tmp_path, model, dims={"m": 5}, shapes={"a": (2, 5)})
    assert result.module.main.results[0].shape == (2, 5)
    assert {s.name: s.why for s in result.sizes} == {"m": "--dim", "n": "--shape"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": {"bach": 2}}, "no such dim; did you mean 'batch'?"),
        ({"shapes": {"x11": (2, 3)}}, "no such input; did you mean 'x1'?"),
        ({"shapes": {"x1": (2, 4)}}, "the file fixes it at 3"),
        ({"shapes": {"x1": (2, 3, 4)}}, "has 2 dims but the shape given for it has 3"),
        ({"shapes": {"x1": (4, 3)}, "dims": {"batch": 2}}, "'batch' is already 2"),
        ({"dims": {"batch": -1}}, "given as -1"),
        ({"batch_dims": ["x1"]}, "write INPUT:DIM"),
        ({"batch_dims": ["x1:7"]}, "input 'x1' has no dim 7"),
        ({"trainable": "("}, "not a regular expression"),
    ],
)
def test_sizes_that_do_not_fit(tmp_path, options, message):
    with pytest.raises(DmlcError) as caught:
        imported(tmp_path, model_of([node("Relu", ["x1"], ["y"])], {"x1": ("batch", 3)}, ["y"]), **options)
    assert message in str(caught.value)


def test_a_batch_that_the_file_fixes(tmp_path):
    model = model_of([node("Relu", ["x"], ["y"])], {"x": (1, 3)}, ["y"])
    assert imported(tmp_path, model).inputs[0].batch_dim is None
    assert imported(tmp_path, model, batch_dims=["x:0"]).inputs[0].batch_dim == 0


def test_an_error_mentions_sizes_that_nobody_chose(tmp_path):
    model = model_of([node("Conv", ["x", "w"], ["y"], name="c")], {"x": (1, 1, "time")}, ["y"], {"w": np.ones((1, 1, 100), np.float32)})
    with pytest.raises(DmlcError) as caught:
        imported(tmp_path, model)
    assert "c: error: Conv" in str(caught.value) and "time = 64" in str(caught.value)


def test_unnamed_sizes_are_not_tied_together(tmp_path):
    model = model_of([node("Relu", ["x"], ["y"])], {"x": ("?", 3, "?", "?")}, ["y"])
    assert imported(tmp_path, model, dims={"x[2]": 5}, devices=2).inputs[0].shape == (2, 3, 5, 64)


# ---------------------------------------------------------------- weights


def _block() -> onnx.ModelProto:
    constants = {
        "conv.w": np.random.default_rng(0).standard_normal((4, 2, 3, 3)).astype(np.float32), "conv.b": np.ones(4, np.float32), "scale": np.ones(4, np.float32), "bias": np.ones(4, np.float32),
        "mean": np.zeros(4, np.float32), "var": np.ones(4, np.float32), "shift": np.ones((4, 1, 1), np.float32), "half": np.float32(0.5),
        "grid": np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6), "axes": np.array([2, 3]),
    }  # fmt: skip
    nodes = [
        node("Conv", ["x", "conv.w", "conv.b"], ["c"], pads=[1, 1, 1, 1]), node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["n"]),
        node("Add", ["n", "shift"], ["s"]), node("Mul", ["s", "half"], ["h"]), node("Add", ["h", "grid"], ["g"]), node("ReduceMean", ["g", "axes"], ["y"], keepdims=0),
    ]  # fmt: skip
    return model_of(nodes, {"x": ("batch", 2, 6, 6)}, ["y"], constants)


def test_roles_follow_from_operator_and_operand(tmp_path):
    result = agrees(tmp_path, _block())
    roles = {a.attrs["dmlc.names"][0]: a.attrs["dmlc.role"] for a in result.module.main.args if "dmlc.names" in a.attrs}
    assert roles == {"conv.w": "param", "conv.b": "param", "scale": "param", "bias": "param", "mean": "buffer", "var": "buffer", "shift": "param", "grid": "const"}
    assert result.trainable == ["conv.w", "conv.b", "scale", "bias", "shift"]


def test_trainable_weights_by_name(tmp_path):
    result = imported(tmp_path, _block(), trainable="^conv|half")
    assert result.trainable == ["conv.w", "conv.b", "half"]
    roles = {a.attrs["dmlc.names"][0]: a.attrs["dmlc.role"] for a in result.module.main.args if "dmlc.names" in a.attrs}
    assert roles["scale"] == "const" and roles["mean"] == "buffer"


def test_several_uses_are_one_argument(tmp_path):
    w = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    nodes = [node("Identity", ["w"], ["w2"]), node("MatMul", ["x", "w"], ["a"]), node("MatMul", ["a", "w2"], ["y"])]
    result = agrees(tmp_path, model_of(nodes, {"x": (2, 3)}, ["y"], {"w": w}))
    assert [a.name for a in result.module.main.args] == ["x", "w"]


def test_a_transposed_weight_is_a_linear_layer(tmp_path):
    w = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    nodes = [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])]
    result = agrees(tmp_path, model_of(nodes, {"x": (2, 4, 3)}, ["y"], {"w": w}))
    assert ops(result) == ["linear", "func.return"] and result.trainable == ["w"]


def test_a_weight_seen_through_views_is_a_weight(tmp_path):
    """Stored in another shape and dtype than the layer uses it in."""
    w = np.random.default_rng(0).standard_normal((1, 5, 3)).astype(np.float16)
    nodes = [node("Cast", ["w"], ["f"], to=TensorProto.FLOAT), node("Squeeze", ["f", "first"], ["s"]), node("Slice", ["s", "first", "end"], ["part"]), node("Gemm", ["x", "part"], ["y"], transB=1)]
    result = agrees(tmp_path, model_of(nodes, {"x": (2, 3)}, ["y"], {"w": w, "first": np.array([0]), "end": np.array([4])}))
    assert result.trainable == ["w"]


@pytest.mark.parametrize("form", ["raw", "typed"])
@pytest.mark.parametrize(("element", "values"), [(TensorProto.FLOAT16, [1.5, -2, 65504]), (TensorProto.BFLOAT16, [1.5, -2, 3e38]), (TensorProto.INT8, [-128, 0, 127]), (TensorProto.BOOL, [1, 0, 1]), (TensorProto.DOUBLE, [1e300, 0, -1])])
def test_initializers_of_all_dtypes_and_forms(tmp_path, form, element, values):
    model = model_of([node("Cast", ["w"], ["f"], to=TensorProto.DOUBLE), node("Add", ["f", "x"], ["y"])], {"x": (TensorProto.DOUBLE, (3,))}, ["y"])
    if form == "typed":
        model.graph.initializer.append(helper.make_tensor("w", element, [3], values))
    else:
        array = np.array(values).astype(helper.tensor_dtype_to_np_dtype(element))
        model.graph.initializer.append(helper.make_tensor("w", element, [3], array.tobytes(), raw=True))
    (y,) = outputs_of(tmp_path, model, {"x": np.zeros(3)})
    np.testing.assert_allclose(y, values, rtol=0.01)


# ---------------------------------------------------------------- constants


def test_shape_arithmetic_leaves_nothing_behind(tmp_path):
    """[b, s, 6] -> [b, s, 2, 3] -> [b, 2, s, 3] -> [b, 2 s, 3] through Shape, Gather, Mul, Unsqueeze, Concat, Cast."""
    nodes = [
        node("Shape", ["x"], ["shape"]), node("Gather", ["shape", "zero"], ["b"]), node("Gather", ["shape", "one"], ["s"]), node("Unsqueeze", ["b", "first"], ["b1"]),
        node("Unsqueeze", ["s", "first"], ["s1"]), node("Concat", ["b1", "s1", "heads"], ["split"], axis=0), node("Reshape", ["x", "split"], ["v"]),
        node("Transpose", ["v"], ["t"], perm=[0, 2, 1, 3]), node("Mul", ["s", "two"], ["s2"]), node("Cast", ["s2"], ["f"], to=TensorProto.FLOAT),
        node("Cast", ["f"], ["i"], to=TensorProto.INT64), node("Unsqueeze", ["i", "first"], ["i1"]), node("Concat", ["b1", "i1", "three"], ["join"], axis=0), node("Reshape", ["t", "join"], ["y"]),
    ]  # fmt: skip
    constants = {"zero": np.array(0), "one": np.array(1), "two": np.array(2), "first": np.array([0]), "heads": np.array([2, 3]), "three": np.array([3])}
    result = agrees(tmp_path, model_of(nodes, {"x": ("b", "s", 6)}, ["y"], constants), dims={"b": 2, "s": 5})
    assert ops(result) == ["reshape", "transpose", "reshape", "func.return"]


def test_a_mask_made_of_constants_is_one_argument_without_repetition(tmp_path):
    """Range, comparisons, Where and Expand give [2, 1, 4, 4]; the batch dim only repeats."""
    nodes = [
        node("Range", ["zero", "four", "one"], ["i"]), node("Unsqueeze", ["i", "first"], ["row"]), node("Unsqueeze", ["i", "second"], ["column"]), node("LessOrEqual", ["row", "column"], ["seen"]),
        node("Where", ["seen", "nothing", "low"], ["mask"]), node("Expand", ["mask", "shape"], ["wide"]), node("Add", ["x", "wide"], ["y"]),
    ]  # fmt: skip
    constants = {
        "zero": np.array(0), "four": np.array(4), "one": np.array(1), "first": np.array([0]), "second": np.array([1]), "nothing": np.float32(0), "low": np.float32(-1e9),
        "shape": np.array([2, 1, 4, 4]),
    }  # fmt: skip
    result = agrees(tmp_path, model_of(nodes, {"x": (2, 3, 4, 4)}, ["y"], constants))
    assert ops(result) == ["add", "func.return"]
    mask = result.module.main.args[1]
    assert mask.shape == (1, 1, 4, 4) and mask.attrs["dmlc.role"] == "const"


def test_all_forms_of_constant_nodes(tmp_path):
    forms = [{"value_float": 2.0}, {"value_floats": [2.0, 3.0]}, {"value": onnx.numpy_helper.from_array(np.array([[2.0], [3.0]], np.float32))}]
    for number, attributes in enumerate(forms):
        model = model_of([node("Constant", [], ["c"], **attributes), node("Mul", ["x", "c"], ["y"])], {"x": (2, 2)}, ["y"])
        result = agrees(tmp_path, model)
        assert ops(result) == (["full", "mul", "func.return"] if number == 0 else ["mul", "func.return"])


def test_decimals_come_back_as_they_were_written(tmp_path):
    nodes = [node("Constant", [], ["c"], value_float=0.1), node("Mul", ["x", "c"], ["m"]), node("LeakyRelu", ["m"], ["y"], alpha=0.3)]
    full, _, leaky, _ = imported(tmp_path, model_of(nodes, {"x": (2,)}, ["y"])).module.main.body.ops
    assert full.attrs["value"] == 0.1 and leaky.attrs["slope"] == 0.3


def test_outputs_that_are_constants_or_inputs(tmp_path):
    nodes = [node("Shape", ["x"], ["s"]), node("Identity", ["x"], ["same"]), node("Constant", [], ["c"], value_ints=[7, 7])]
    x = np.ones((2, 3), np.float32)
    s, same, c = outputs_of(tmp_path, model_of(nodes, {"x": (2, 3)}, ["s", "same", "c"]), {"x": x})
    assert s.tolist() == [2, 3] and (same == x).all() and c.tolist() == [7, 7]


# ---------------------------------------------------------------- functions, branches, loops


def test_function_bodies_are_inlined(tmp_path):
    """An attribute given, one left to the function's default, an operand left out, a function in a function."""
    ref = helper.make_node("LeakyRelu", ["t"], ["y"], name="leak")
    ref.attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope"))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    inner = helper.make_function("own", "Shifted", ["x", "by"], ["y"], [node("Clip", ["x", "by"], ["y"])], opsets[:1])
    outer = helper.make_function("own", "Leaky", ["x", "low"], ["y"], [node("Shifted", ["x", "low"], ["t"], domain="own", name="shift"), ref], opsets, [], [helper.make_attribute("slope", 0.5)])
    nodes = [node("Leaky", ["x"], ["a"], domain="own", name="first"), node("Leaky", ["a", "low"], ["y"], domain="own", name="second", slope=0.25)]
    model = model_of(nodes, {"x": (4,)}, ["y"], {"low": np.float32(-1)}, functions=[inner, outer], domains=["own"])
    result = imported(tmp_path, model)
    x = np.array([-8, -1, 0, 3], np.float32)
    leaky = np.where(x < 0, x * 0.5, x)
    clipped = np.maximum(leaky, -1)
    np.testing.assert_allclose(computed(result, {"x": x})[0], np.where(clipped < 0, clipped * 0.25, clipped))
    assert [op.loc.name for op in result.module.main.body if op.results] == ["first/leak", "second/shift/y", "second/leak"]
    assert [op.attrs["dmlc.name"] for op in result.module.main.body if op.results] == ["a", "second/t", "y"]


def test_a_function_that_calls_itself(tmp_path):
    endless = helper.make_function("own", "F", ["x"], ["y"], [node("F", ["x"], ["y"], domain="own")], [helper.make_opsetid("own", 1)])
    with pytest.raises(DmlcError, match="calls itself"):
        imported(tmp_path, model_of([node("F", ["x"], ["y"], domain="own")], {"x": (2,)}, ["y"], functions=[endless], domains=["own"]))


def _branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [helper.make_empty_tensor_value_info(nodes[-1].output[0])])


def test_a_branch_with_a_known_condition_is_chosen(tmp_path):
    """The exporter's guard: squeeze only when the dim is 1. Branches read the graph around them."""
    nodes = [
        node("Shape", ["x"], ["shape"]), node("Gather", ["shape", "one"], ["size"]), node("Equal", ["size", "one"], ["is_one"]),
        node("If", ["is_one"], ["y"], then_branch=_branch("then", node("Squeeze", ["x", "axes"], ["t"])), else_branch=_branch("else", node("Neg", ["x"], ["e"]))),
    ]  # fmt: skip
    model = model_of(nodes, {"x": (2, "n")}, ["y"], {"one": np.array(1), "axes": np.array([1])})
    assert ops(imported(tmp_path, model, dims={"n": 1})) == ["reshape", "func.return"]
    assert ops(imported(tmp_path, model, dims={"n": 3})) == ["neg", "func.return"]


def test_a_branch_that_depends_on_the_data_selects(tmp_path):
    branches = {"then_branch": _branch("t", node("Neg", ["x"], ["a"])), "else_branch": _branch("e", node("Abs", ["x"], ["b"]))}
    model = model_of([node("If", ["flag"], ["y"], **branches)], {"x": (3,), "flag": (BOOL, ())}, ["y"])
    result = imported(tmp_path, model)
    x = np.array([-1, 2, -3], np.float32)
    assert computed(result, {"x": x, "flag": np.array(True)})[0].tolist() == [1, -2, 3]
    assert computed(result, {"x": x, "flag": np.array(False)})[0].tolist() == [1, 2, 3]


def test_a_branch_that_cannot_run_with_these_sizes_is_never_taken(tmp_path):
    branches = {"then_branch": _branch("t", node("MatMul", ["x", "w"], ["a"])), "else_branch": _branch("e", node("Abs", ["x"], ["b"]))}
    model = model_of([node("If", ["flag"], ["y"], **branches)], {"x": (3, 3), "flag": (BOOL, ())}, ["y"], {"w": np.ones((4, 4), np.float32)})
    result = imported(tmp_path, model)
    assert ops(result) == ["abs", "func.return"] and "then branch cannot run" in result.remarks[0].text


def test_a_loop_of_known_length_is_written_out(tmp_path):
    """s <- s + i x, every s stacked."""
    body = helper.make_graph(
        [node("Cast", ["i"], ["f"], to=TensorProto.FLOAT), node("Mul", ["x", "f"], ["m"]), node("Add", ["s", "m"], ["out"]), node("Identity", ["going"], ["still"]), node("Identity", ["out"], ["row"])],
        "body",
        [helper.make_tensor_value_info("i", INT64, []), helper.make_tensor_value_info("going", BOOL, []), helper.make_empty_tensor_value_info("s")],
        [helper.make_empty_tensor_value_info(n) for n in ("still", "out", "row")],
    )
    model = model_of([node("Loop", ["count", "", "start"], ["last", "rows"], body=body)], {"x": (2,)}, ["last", "rows"], {"count": np.array(3), "start": np.zeros(2, np.float32)})
    last, rows = outputs_of(tmp_path, model, {"x": np.array([1, 2], np.float32)})
    assert last.tolist() == [3, 6] and rows.tolist() == [[0, 0], [1, 2], [3, 6]]


# ---------------------------------------------------------------- errors


def test_all_unsupported_operators_are_listed_at_once(tmp_path):
    nodes = [
        node("NonZero", ["x"], ["z"], name="places"), node("StringNormalizer", ["x"], ["s"], name="text"), node("Relu", ["s"], ["r"]), node("Strange", ["r"], ["q"], domain="own", name="odd"),
        node("Strange", ["q"], ["p"], domain="own", name="odder"), node("SequenceConstruct", ["x"], ["list"], name="list"),
    ]  # fmt: skip
    with pytest.raises(DmlcError) as caught:
        imported(tmp_path, model_of(nodes, {"x": (3,)}, ["z", "p", "list"], domains=["own"]))
    text = str(caught.value)
    assert "unsupported: NonZero, StringNormalizer, Strange, SequenceConstruct" in text
    assert "Strange (2×: odd, odder): no importer for it in domain 'own'" in text and "NonZero (1×: places): the data" in text and "sequences of tensors" in text


def test_a_newer_version_of_an_operator_is_not_taken_for_an_old_one(tmp_path, monkeypatch):
    monkeypatch.delitem(HANDLERS, ("", "Tanh", 13))
    with pytest.raises(DmlcError, match=r"version 13 of the operator is not supported \(versions 6 are\)"):
        imported(tmp_path, model_of([node("Tanh", ["x"], ["y"])], {"x": (2,)}, ["y"]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "the file is empty"),
        (b"hello, this is no model", "not an ONNX model"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "no graph"),
        (model_of([node("Relu", ["x"], ["y"])], {"x": (2,)}, ["y"], opset=99).SerializeToString(), "operator set 99"),
    ],
)
def test_files_that_are_no_model(tmp_path: Path, content, message):
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DmlcError, match=message) as caught:
        import_onnx(path)
    assert str(path) in str(caught.value)


def test_a_folder_is_no_model(tmp_path):
    with pytest.raises(DmlcError, match="not a file"):
        import_onnx(tmp_path)


@pytest.mark.parametrize(
    ("element", "message"),
    [(TensorProto.STRING, "element type string"), (TensorProto.COMPLEX128, "element type complex128"), (TensorProto.COMPLEX64, "element type complex64")],
)
def test_element_types_that_the_ir_lacks_are_named(tmp_path, element, message):
    with pytest.raises(DmlcError, match=message):
        imported(tmp_path, model_of([node("Identity", ["x"], ["y"])], {"x": (element, (2,))}, ["y"]))
