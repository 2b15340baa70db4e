"""Operators against the specification's own node tests (a sample), and against onnxruntime where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx_files import INT64, agrees, computed, model_of

from dmlc.tools.onnx_case import TENSORS, array, cases_by_module, category, outcome
from dmlc.tools.onnx_cases import surprises

node = helper.make_node
RNG = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# ---------------------------------------------------------------- the specification's node tests

SAMPLE = (
    "add and_ argmax batch_normalization celu center_crop_pad clip concat constantofshape conv convinteger convtranspose cumsum depthtospace dequantizelinear div "
    "dynamicquantizelinear einsum elu expand eyelike flatten gather gatherelements gathernd gemm globalaveragepool greater groupnormalization gru hammingwindow hardmax "
    "hardsigmoid identity instance_normalization isinf layernormalization leakyrelu logsoftmax lpnormalization lrn lstm matmul matmulinteger max "
    "mean meanvariancenormalization min mod nonzero onehot pad pow prelu qlinearconv qlinearmatmul quantizelinear rangeop reciprocal reduce_log_sum reduce_log_sum_exp reducel1 "
    "reducel2 reducemax reducemean reduceprod reducesum reducesumsquare reshape resize reversesequence rmsnormalization rnn rotaryembedding scatterelements scatternd selu "
    "shape shrink size slice softmax softsign spacetodepth split squeeze sum swish tensorscatter thresholdedrelu tile topk transpose trilu unsqueeze upsample where xor"
).split()

LARGE = 20_000  # elements: the few larger inputs only take time

@pytest.mark.parametrize("module", SAMPLE)
def test_node_cases(tmp_path, module):
    cases = [c for c in cases_by_module()[module] if category(c) == TENSORS and max((array(x).size for x in c.data_sets[0][0] if x is not None), default=0) <= LARGE]
    found = [outcome(case, tmp_path, ranks=False) for case in cases]
    assert not surprises(found)
    assert any(o.state == "passed" for o in found)


# ---------------------------------------------------------------- against onnxruntime


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("operator", "gates", "attributes"), [("RNN", 1, {}), ("GRU", 3, {}), ("GRU", 3, {"linear_before_reset": 1}), ("LSTM", 4, {}), ("LSTM", 4, {"clip": 0.3})])
def test_recurrent_layers(tmp_path, operator, gates, attributes, direction):
    """Start states, biases, all results; LSTM with peepholes."""
    d, h = 1 + (direction == "bidirectional"), 5
    constants = {"w": floats(d, gates * h, 3), "r": floats(d, gates * h, h), "b": floats(d, 2 * gates * h), "h0": floats(d, 2, h)}
    operands, results = ["x", "w", "r", "b", "", "h0"], ["y", "yh"]
    if operator == "LSTM":
        constants |= {"c0": floats(d, 2, h), "p": floats(d, 3 * h)}
        operands, results = [*operands, "c0", "p"], [*results, "yc"]
    model = model_of([node(operator, operands, results, hidden_size=h, direction=direction, **attributes)], {"x": (4, 2, 3)}, results, constants)
    result = agrees(tmp_path, model)
    assert set(result.trainable) >= {"w", "r", "b"}


def test_a_scan_is_written_out(tmp_path):
    """Running sums over rows, read backwards, stacked along the last dim."""
    info = helper.make_tensor_value_info
    body = helper.make_graph([node("Add", ["s", "x"], ["sum"]), node("Identity", ["sum"], ["row"])], "body", [info("s", 1, [3]), info("x", 1, [3])], [info("sum", 1, [3]), info("row", 1, [3])])
    scan = node("Scan", ["start", "x"], ["last", "rows"], body=body, num_scan_inputs=1, scan_input_directions=[1], scan_output_axes=[1])
    agrees(tmp_path, model_of([scan], {"x": (4, 3)}, ["last", "rows"], {"start": np.zeros(3, np.float32)}))


def test_batch_normalization_in_training(tmp_path):
    constants = {"s": floats(3), "b": floats(3), "m": floats(3), "v": np.abs(floats(3)) + 0.5}
    model = model_of([node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "rm", "rv"], training_mode=1)], {"x": (4, 3, 5)}, ["y", "rm", "rv"], constants, opset=15)
    agrees(tmp_path, model)


@pytest.mark.parametrize("axis", [0, 1])
def test_weights_in_int8(tmp_path, axis):
    """The file holds integers and scales; a scale per row or per column."""
    w = RNG.integers(-100, 100, (6, 4)).astype(np.int8)
    constants = {"w": w, "scale": np.abs(floats(w.shape[axis])) / 50, "zero": np.zeros(w.shape[axis], np.int8)}
    nodes = [node("DequantizeLinear", ["w", "scale", "zero"], ["f"], axis=axis), node("MatMul", ["x", "f"], ["y"])]
    agrees(tmp_path, model_of(nodes, {"x": (3, 6)}, ["y"], constants))


def test_dynamic_quantisation(tmp_path):
    """As onnxruntime's quantiser writes a layer: range of the input, integer product, scales."""
    constants = {"w": RNG.integers(-100, 100, (6, 4)).astype(np.int8), "scale": np.float32(0.01), "zero": np.int8(3)}
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]), node("MatMulInteger", ["q", "w", "qz", "zero"], ["i"]), node("Cast", ["i"], ["f"], to=1),
        node("Mul", ["qs", "scale"], ["s"]), node("Mul", ["f", "s"], ["y"]),
    ]  # fmt: skip
    agrees(tmp_path, model_of(nodes, {"x": (3, 6)}, ["y"], constants))


MICROSOFT = {
    "gelu": ([node("Gelu", ["x"], ["y"], domain="com.microsoft")], {}),
    "bias gelu": ([node("BiasGelu", ["x", "b"], ["y"], domain="com.microsoft")], {"b": floats(8)}),
    "fast gelu": ([node("FastGelu", ["x", "b"], ["y"], domain="com.microsoft")], {"b": floats(8)}),
    "quick gelu": ([node("QuickGelu", ["x"], ["y"], domain="com.microsoft", alpha=1.5)], {}),
    "fused matmul": ([node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft", alpha=0.5, transB=1)], {"w": floats(3, 6, 8)}),
    "skip layer norm": ([node("SkipLayerNormalization", ["x", "x", "g", "b", "b"], ["y", "", "", "s"], domain="com.microsoft")], {"g": floats(8), "b": floats(8)}),
    "rms norm": ([node("SimplifiedLayerNormalization", ["x", "g"], ["y"], axis=-1, epsilon=1e-3)], {"g": floats(8)}),
    "skip rms norm": ([node("SkipSimplifiedLayerNormalization", ["x", "x", "g"], ["y"], domain="com.microsoft")], {"g": floats(8)}),
    "dynamic product": (
        [node("DynamicQuantizeMatMul", ["x", "w", "s", "z", "b"], ["y"], domain="com.microsoft")],
        {"w": RNG.integers(0, 255, (8, 5)).astype(np.uint8), "s": np.float32(0.02), "z": np.uint8(120), "b": floats(5)},
    ),
}


@pytest.mark.parametrize("case", MICROSOFT)
def test_operators_of_onnxruntime(tmp_path, case):
    nodes, constants = MICROSOFT[case]
    outputs = [o for n in nodes for o in n.output if o]
    agrees(tmp_path, model_of(nodes, {"x": (3, 4, 8)}, outputs, constants, opset=17, domains=["com.microsoft"]))


def test_fused_convolution(tmp_path):
    nodes = [node("FusedConv", ["x", "w", "b", "z"], ["y"], domain="com.microsoft", activation="Relu", pads=[1, 1, 1, 1])]
    inputs = {"x": (2, 3, 5, 5), "z": (2, 4, 5, 5)}
    agrees(tmp_path, model_of(nodes, inputs, ["y"], {"w": floats(4, 3, 3, 3), "b": floats(4)}, opset=17, domains=["com.microsoft"]))


@pytest.mark.parametrize("causal", [0, 1])
def test_packed_attention_of_onnxruntime(tmp_path, causal):
    mask = np.array([[1] * 6, [1] * 4 + [0] * 2], np.int32)
    constants = {"w": floats(8, 24) / 3, "b": floats(24), "mask": mask}
    nodes = [node("Attention", ["x", "w", "b", "" if causal else "mask"], ["y"], domain="com.microsoft", num_heads=2, unidirectional=causal)]
    agrees(tmp_path, model_of(nodes, {"x": (2, 6, 8)}, ["y"], constants, opset=17, domains=["com.microsoft"]), 1e-4)


def test_multi_head_attention_of_onnxruntime(tmp_path):
    nodes = [node("MultiHeadAttention", ["q", "k", "v", "b", "", "bias"], ["y"], domain="com.microsoft", num_heads=2)]
    inputs = {"q": (2, 3, 8), "k": (2, 5, 8), "v": (2, 5, 8)}
    agrees(tmp_path, model_of(nodes, inputs, ["y"], {"b": floats(24), "bias": floats(1, 2, 3, 5)}, opset=17, domains=["com.microsoft"]), 1e-4)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("ids", [np.array([3]), np.array([[0, 1, 2], [5, 6, 7]])])
def test_rotary_positions_of_onnxruntime(tmp_path, interleaved, ids):
    nodes = [node("RotaryEmbedding", ["x", "ids", "cos", "sin"], ["y"], domain="com.microsoft", interleaved=interleaved)]
    angles = np.arange(10)[:, None] * np.array([1, 0.1])
    constants = {"ids": ids, "cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    agrees(tmp_path, model_of(nodes, {"x": (2, 3, 8)}, ["y"], constants, opset=17, domains=["com.microsoft"]))


# ---------------------------------------------------------------- forms an importer chooses between


def test_gather_forms(tmp_path):
    """A row of a table, one place, evenly spaced places, any places, places that depend on the data and may be negative."""
    constants = {"table": floats(7, 4), "one": np.array(-2), "even": np.array([1, 3, 5]), "odd": np.array([0, 4, 1])}
    nodes = [node("Gather", ["table", "ids"], ["a"]), *(node("Gather", ["x", i], [f"{i}_y"], axis=1) for i in ("one", "even", "odd", "ids"))]
    outputs = ["a", *(f"{i}_y" for i in ("one", "even", "odd", "ids"))]
    result = agrees(tmp_path, model_of(nodes, {"x": (2, 6, 3), "ids": (INT64, (5,))}, outputs, constants))
    names = [op.name for op in result.module.main.body]
    assert names.count("dmlc.embedding") == 1 and names.count("dmlc.take") == 2 and names.count("dmlc.slice") == 2
    ids = np.array([-1, 0, -6, 5, 2])
    found = computed(result, {"x": floats(2, 6, 3), "ids": ids})[0]
    np.testing.assert_array_equal(found, constants["table"][ids])


@pytest.mark.parametrize(
    ("left", "right"), [((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 6)), ((4,), (2, 4, 5))],
)  # fmt: skip
def test_matrix_products_of_all_ranks(tmp_path, left, right):
    agrees(tmp_path, model_of([node("MatMul", ["a", "b"], ["y"])], {"a": left, "b": right}, ["y"]))


@pytest.mark.parametrize("attributes", [{}, {"transA": 1}, {"transB": 1}, {"alpha": 0.5, "beta": 2.0}, {"transA": 1, "transB": 1, "beta": 0.0}])
def test_gemm(tmp_path, attributes):
    a, b = ((4, 3) if attributes.get("transA") else (3, 4)), ((5, 4) if attributes.get("transB") else (4, 5))
    agrees(tmp_path, model_of([node("Gemm", ["a", "b", "c"], ["y"], **attributes)], {"a": a}, ["y"], {"b": floats(*b), "c": floats(5)}))


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("operator", ["Conv", "MaxPool", "AveragePool", "ConvTranspose"])
def test_automatic_padding(tmp_path, operator, auto_pad):
    attributes = {"auto_pad": auto_pad, "strides": [2, 1]} | ({} if "Conv" in operator else {"kernel_shape": [3, 2]})
    weight = floats(2, 2, 3, 2)
    agrees(tmp_path, model_of([node(operator, ["x", "w"] if "Conv" in operator else ["x"], ["y"], **attributes)], {"x": (1, 2, 6, 5)}, ["y"], {"w": weight} if "Conv" in operator else {}))


def test_pads_that_crop(tmp_path):
    agrees(tmp_path, model_of([node("Pad", ["x", "p", "v"], ["y"])], {"x": (4, 5)}, ["y"], {"p": np.array([1, -1, -2, 3]), "v": np.float32(2.5)}))
