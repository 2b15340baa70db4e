"""Operators of onnxruntime's own domain against onnxruntime: quantised ones to within one step, attention with caches, weights of a few bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_files import INT64, agrees, computed, imported, model_of, random_inputs, under_onnxruntime

from dmlc.ir.location import DmlcError

RNG = np.random.default_rng(5)
DOMAIN = "com.microsoft"
INT32, UINT8 = TensorProto.INT32, TensorProto.UINT8


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = DOMAIN, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, list(inputs), list(outputs), domain=domain, **attributes)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def integers(dtype: Any, low: int, high: int, *shape: int) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


def model(nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Any], outputs: Sequence[str], constants: Mapping[str, Any], opset: int = 17) -> onnx.ModelProto:
    return model_of(nodes, inputs, outputs, {k: np.asarray(v) for k, v in constants.items()}, opset=opset, domains=[DOMAIN])


# ---------------------------------------------------------------- floats

IMAGE = {"x": (2, 3, 5, 5)}
FLOATS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "matrices, batch in the middle": (node("FusedMatMul", ["x", "z"], ["y"], transBatchA=1, transBatchB=1, alpha=0.5), {"x": (4, 3, 8), "z": (8, 3, 5)}, {}),
    "matrices, batch in the middle, swapped": (node("FusedMatMul", ["x", "z"], ["y"], transBatchA=1, transA=1, transB=1), {"x": (8, 3, 4), "z": (3, 5, 8)}, {}),
    "transposed product": (node("TransposeMatMul", ["x", "w"], ["y"], transA=1), {"x": (8, 4)}, {"w": floats(8, 5)}),
    "gemm and activation": (node("FusedGemm", ["x", "w", "b"], ["y"], transB=1, activation="LeakyRelu", activation_alpha=0.2), {"x": (3, 8)}, {"w": floats(5, 8), "b": floats(5)}),
    "gemm and elu": (node("FusedGemm", ["x", "w"], ["y"], alpha=0.5, activation="Elu", activation_alpha=0.5), {"x": (3, 8)}, {"w": floats(8, 5)}),
    "convolution and clip": (node("FusedConv", ["x", "w"], ["y"], activation="Clip", activation_params=[-0.5, 0.5]), IMAGE, {"w": floats(4, 3, 3, 3)}),
    "convolution and hard sigmoid": (node("FusedConv", ["x", "w"], ["y"], activation="HardSigmoid", activation_params=[0.3, 0.4]), IMAGE, {"w": floats(4, 3, 3, 3) / 9}),
    "upper triangle": (node("Trilu", ["x", "k"], ["y"], upper=1), {"x": (4, 5)}, {"k": np.int64(1)}),
    "a dim of one": (node("ExpandDims", ["x", "k"], ["y"]), {"x": (4, 5)}, {"k": np.int32(-1)}),
    "padding": (node("Pad", ["x", "p", "v"], ["y"], mode="constant"), {"x": (4, 5)}, {"p": np.array([1, 0, 0, 2]), "v": np.array([3], np.float32)}),
    "gathered places": (node("GatherND", ["x", "i"], ["y"]), {"x": (4, 5)}, {"i": np.array([[1, 2], [3, 4]])}),
    "sampled image": (node("GridSample", ["x", "g"], ["y"], mode="bilinear", padding_mode="zeros"), IMAGE, {"g": floats(2, 4, 4, 2)}),
}  # fmt: skip


@pytest.mark.parametrize("case", FLOATS)
def test_operators_on_floats(tmp_path, case):
    made, inputs, constants = FLOATS[case]
    agrees(tmp_path, model([made], inputs, ["y"], constants))


EMBEDDING = {"w": floats(20, 8), "p": floats(6, 8), "t": floats(2, 8), "g": floats(8), "b": floats(8)}


@pytest.mark.parametrize("segments", [True, False])
def test_embeddings_with_a_count_of_tokens(tmp_path, segments):
    names = ["ids", "seg" if segments else "", "w", "p", "t" if segments else "", "g", "b", "mask"]
    inputs = {"ids": (INT32, (2, 6)), "mask": (INT32, (2, 6)), **({"seg": (INT32, (2, 6))} if segments else {})}
    agrees(tmp_path, model([node("EmbedLayerNormalization", names, ["y", "count", "sum"])], inputs, ["y", "count", "sum"], EMBEDDING))


def test_embeddings_of_integers(tmp_path):
    tables = {k: integers(np.uint8, 0, 255, *v.shape) for k, v in EMBEDDING.items()}
    scales = {f"{k}s": np.float32(0.02) for k in tables} | {f"{k}z": np.uint8(100 + i) for i, k in enumerate(tables)}
    names = ["ids", "seg", "w", "p", "t", "g", "b", "mask", *(f"{k}{c}" for c in "sz" for k in tables)]
    inputs = dict.fromkeys(("ids", "seg", "mask"), (INT32, (2, 6)))
    agrees(tmp_path, model([node("QEmbedLayerNormalization", names, ["y", "count"])], inputs, ["y", "count"], tables | scales))


# ---------------------------------------------------------------- integers with a scale


def within_a_step(folder: Path, made: onnx.ModelProto) -> None:
    """Integers differ by at most 1 and are not all one; floats as in `agrees`."""
    result = imported(folder, made)
    inputs = random_inputs(result)
    wanted = under_onnxruntime(folder / "model.onnx", inputs)
    for ours, theirs in zip(computed(result, inputs), wanted, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        if theirs.dtype.kind in "iu":
            assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1 and np.unique(theirs).size > 2
        else:
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * float(np.abs(theirs).max()))


def quantised(*names: str) -> list[onnx.NodeProto]:
    return [node("QuantizeLinear", [name, "xs", "xz"], [f"{name}q"]) for name in names]


SCALES = {"xs": np.float32(0.02), "xz": np.uint8(120), "ys": np.float32(0.05), "yz": np.uint8(100)}
X, Y = ["xq", "xs", "xz"], ["ys", "yz"]
BLOCK = {"x": (2, 4, 6, 6)}
FEW = {"w": integers(np.int8, -20, 20, 6, 5), "ws": np.float32(0.03), "wz": np.int8(2)}
QUANTISED: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "add": (node("QLinearAdd", [*X, "zq", "xs", "xz", *Y], ["y"]), {"x": (2, 4, 6), "z": (4, 1)}, {}),
    "mul": (node("QLinearMul", [*X, "zq", "xs", "xz", *Y], ["y"]), {"x": (2, 4, 6), "z": (6,)}, {}),
    "sigmoid": (node("QLinearSigmoid", [*X, "ps", "pz"], ["y"]), {"x": (4, 6)}, {"ps": np.float32(1 / 256), "pz": np.uint8(0)}),
    "leaky relu": (node("QLinearLeakyRelu", [*X, *Y], ["y"], alpha=0.2), {"x": (4, 6)}, {}),
    "softmax": (node("QLinearSoftmax", [*X, "ps", "pz"], ["y"], opset=13, axis=1), {"x": (4, 6, 3)}, {"ps": np.float32(1 / 256), "pz": np.uint8(0)}),
    "softmax over dims": (node("QLinearSoftmax", [*X, "ps", "pz"], ["y"], opset=11, axis=1), {"x": (4, 2, 3)}, {"ps": np.float32(1 / 256), "pz": np.uint8(0)}),
    "concat": (node("QLinearConcat", [*Y, *X, "zq", "xs", "xz"], ["y"], axis=1), {"x": (2, 4), "z": (2, 3)}, {}),
    "where": (node("QLinearWhere", ["c", *X, "zq", "xs", "xz", *Y], ["y"]), {"x": (2, 4), "z": (2, 4)}, {"c": np.array([[True, False, True, True]])}),
    "average pool": (node("QLinearAveragePool", [*X, *Y], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), BLOCK, {}),
    "average pool, channels last": (node("QLinearAveragePool", [*X, *Y], ["y"], kernel_shape=[2, 2], channels_last=1), BLOCK, {}),
    "global average pool": (node("QLinearGlobalAveragePool", [*X, "ps", "yz"], ["y"], channels_last=0), BLOCK, {"ps": np.float32(0.005)}),
    "global average pool, channels last": (node("QLinearGlobalAveragePool", [*X, "ps", "yz"], ["y"], channels_last=1), BLOCK, {"ps": np.float32(0.005)}),
    "convolution, channels last": (
        node("QLinearConv", [*X, "w", "ws", "wz", *Y, "b"], ["y"], channels_last=1, pads=[1, 1, 1, 1]), {"x": (2, 6, 6, 3)},
        {"w": integers(np.int8, -20, 20, 4, 3, 3, 3), "ws": np.float32(0.03), "wz": np.int8(0), "b": integers(np.int32, -900, 900, 4)},
    ),
    "gemm": (node("QGemm", [*X, "w", "ws", "wz", "b", *Y], ["y"]), {"x": (4, 6)}, FEW | {"b": integers(np.int32, -900, 900, 5)}),
    "gemm, a scale a column": (
        node("QGemm", [*X, "w", "ws", "wz", "", *Y], ["y"], transB=1, alpha=0.5), {"x": (4, 6)},
        {"w": integers(np.int8, -20, 20, 5, 6), "ws": np.abs(floats(5)) / 20 + 0.01, "wz": np.zeros(5, np.int8)},
    ),
    "gemm to floats": (node("QGemm", [*X, "w", "ws", "wz"], ["y"]), {"x": (4, 6)}, FEW),
    "max pool, channels last": (node("NhwcMaxPool", ["xq"], ["y"], kernel_shape=[2, 2], strides=[2, 2]), BLOCK, {}),
    "to floats": (node("DequantizeLinear", X, ["y"]), {"x": (3, 4)}, {}),
    "attention": (
        node("QAttention", ["xq", "w", "b", "xs", "ws", "m", "xz", "wz"], ["y"], num_heads=2), {"x": (2, 5, 8)},
        {"w": integers(np.int8, -20, 20, 8, 24), "ws": np.float32(0.02), "wz": np.int8(0), "b": floats(24), "m": np.array([5, 3], np.int32)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", QUANTISED)
def test_operators_on_integers(tmp_path, case):
    made, inputs, constants = QUANTISED[case]
    within_a_step(tmp_path, model([*quantised(*inputs), made], inputs, ["y"], SCALES | constants))


def test_products_of_16_bit_integers(tmp_path):
    constants = {"w": integers(np.int16, -300, 300, 6, 5)}
    nodes = [helper.make_node("Cast", ["x"], ["q"], to=TensorProto.INT16), node("MatMulInteger16", ["q", "w"], ["y"])]
    agrees(tmp_path, model(nodes, {"x": (INT32, (4, 6))}, ["y"], constants))


# ---------------------------------------------------------------- weights of a few bits


@pytest.mark.parametrize(("bits", "zero"), [(4, ""), (4, "packed"), (4, "floats"), (8, ""), (8, "packed"), (2, "packed")])
def test_weights_of_few_bits(tmp_path, bits, zero):
    """Seven rows of 40 columns, in blocks of 16 of which the last is cut short."""
    rows, columns, block = 7, 40, 16
    blocks = -(-columns // block)
    constants = {"w": integers(np.uint8, 0, 256, rows, blocks, block * bits // 8), "s": np.abs(floats(rows, blocks)) + 0.1, "b": floats(rows)}
    if zero:
        constants["z"] = integers(np.uint8, 0, 256, rows, -(-blocks * bits // 8)) if zero == "packed" else floats(rows, blocks) + 8
    made = node("MatMulNBits", ["x", "w", "s", "z" if zero else "", "", "b"], ["y"], bits=bits, block_size=block, N=rows, K=columns)
    agrees(tmp_path, model([made], {"x": (2, 3, columns)}, ["y"], constants))


@pytest.mark.parametrize("kind", [0, 1])
def test_weights_of_four_bit_floats(tmp_path, kind):
    constants = {"w": integers(np.uint8, 0, 256, 7 * 40 // 2), "s": np.abs(floats(-(-7 * 40 // 16))) + 0.1}
    agrees(tmp_path, model([node("MatMulBnb4", ["x", "w", "s"], ["y"], quant_type=kind, block_size=16, N=7, K=40)], {"x": (3, 40)}, ["y"], constants))


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_a_quantised_table(tmp_path, bits, zero):
    constants = {"w": integers(np.uint8, 0, 256, 9, 32 * bits // 8), "s": np.abs(floats(9, 2)) + 0.1}
    if zero or bits == 8:
        constants["z"] = integers(np.uint8, 0, 256, 9, 2 * bits // 8)
    names = ["w", "i", "s", *(["z"] if "z" in constants else [])]
    agrees(tmp_path, model([node("GatherBlockQuantized", names, ["y"], bits=bits, block_size=16)], {"i": (INT64, (2, 3))}, ["y"], constants))


# ---------------------------------------------------------------- recurrent layers of integers


@pytest.mark.parametrize(("direction", "columns"), [("forward", False), ("reverse", False), ("bidirectional", True)])
def test_recurrent_layers_of_integers(tmp_path, direction, columns):
    """Each step's state is rounded to 8 bits by its range. Weights of 7 bits: onnxruntime's sums of two products saturate without VNNI."""
    d, h = 1 + (direction == "bidirectional"), 4
    per = (d, 4 * h) if columns else (d,)
    constants = {"w": integers(np.int8, -63, 64, d, 3, 4 * h), "r": integers(np.int8, -63, 64, d, h, 4 * h), "b": floats(d, 8 * h)}
    constants |= {"ws": np.full(per, 0.01, np.float32), "wz": np.zeros(per, np.int8), "rs": np.full(per, 0.02, np.float32), "rz": np.zeros(per, np.int8)}
    names = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    made = node("DynamicQuantizeLSTM", names, ["y", "h", "c"], hidden_size=h, direction=direction)
    agrees(tmp_path, model([made], {"x": (6, 2, 3)}, ["y", "h", "c"], constants), 5e-3)


@pytest.mark.parametrize("zero", [False, True])
def test_products_of_integers_to_floats(tmp_path, zero):
    constants = {"w": integers(np.int8, -63, 64, 6, 5), "ws": np.abs(floats(5)) / 20 + 0.01, "b": floats(5)}
    names = ["xq", "w", "qs", "ws", "qz", *(["wz"] if zero else [""]), "b"]
    constants |= {"wz": np.zeros(5, np.int8)} if zero else {}
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["xq", "qs", "qz"]), node("MatMulIntegerToFloat", names, ["y"])]
    agrees(tmp_path, model(nodes, {"x": (4, 6)}, ["y"], constants))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (node("MatMulNBits", ["x", "w", "s", "", "g"], ["y"], bits=4, block_size=16, N=7, K=16), "an order of groups"),
        (node("MultiHeadAttention", ["x"], ["y", "", "", "scores"], num_heads=2), "the scores as a result"),
        (node("FusedConv", ["x", "w"], ["y"], activation="Swish"), "the activation Swish"),
        (node("BeamSearch", ["x"], ["y"]), "no importer for it in domain 'com.microsoft'"),
    ],
)
def test_forms_that_are_refused_by_name(tmp_path, made, why):
    constants = (
        {"w": np.zeros((7, 1, 8), np.uint8), "s": floats(7, 1), "g": np.zeros(16, np.int32)} if made.op_type == "MatMulNBits" else {"w": floats(4, 3, 3, 3)}
    )
    with pytest.raises(DmlcError) as caught:
        imported(tmp_path, model([made], {"x": (2, 3, 2, 3, 16)[-2:] if made.op_type == "MatMulNBits" else (2, 3, 5, 5)}, ["y"], constants))
    assert why in "; ".join(caught.value.notes)
