"""Element types that the IR lacks, carried by wider ones: right values, wrapped where the type wraps, and refused where only the wider type would be right."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_files import computed, imported, model_of

from dmlc.frontend.onnx import import_onnx
from dmlc.ir.location import DmlcError

node = helper.make_node
RNG = np.random.default_rng(3)


def results(folder, nodes, inputs, outputs, **options):
    result = imported(folder, model_of(nodes, {n: (e, x.shape) for n, (e, x) in inputs.items()}, outputs, **options))
    return result, computed(result, {n: x for n, (_, x) in inputs.items()})


@pytest.mark.parametrize(("element", "dtype"), [(TensorProto.UINT16, np.uint16), (TensorProto.UINT32, np.uint32), (TensorProto.UINT64, np.uint64)])
def test_unsigned_arithmetic_wraps(tmp_path, element, dtype):
    a, b = (RNG.integers(0, np.iinfo(dtype).max, 64, dtype, endpoint=True) for _ in range(2))
    names = {"Add": a + b, "Sub": a - b, "Mul": a * b, "Less": a < b, "Max": np.maximum(a, b), "GreaterOrEqual": a >= b, "Min": np.minimum(a, b), "BitwiseXor": a ^ b}
    result, found = results(tmp_path, [node(op, ["a", "b"], [op]) for op in names], {"a": (element, a), "b": (element, b)}, list(names), opset=26)
    for ours, wanted in zip(found, names.values(), strict=True):
        np.testing.assert_array_equal(ours.astype(wanted.dtype), wanted)
    assert any(f"'Add' (1 node) of type {np.dtype(dtype).name} is given as i{32 if dtype is np.uint16 else 64}" in str(r) for r in result.remarks)


def test_the_type_survives_movement_and_a_cast_ends_it(tmp_path):
    """4-bit integers through a transpose; as int8 they are ordinary."""
    x = RNG.integers(-8, 8, (3, 4)).astype(np.int8)
    nodes = [node("Transpose", ["x"], ["t"]), node("Cast", ["t"], ["i"], to=TensorProto.INT8), node("Add", ["i", "i"], ["y"])]
    _, (y,) = results(tmp_path, nodes, {"x": (TensorProto.INT4, x)}, ["y"], opset=25, ir_version=12)
    np.testing.assert_array_equal(y, 2 * x.T)


@pytest.mark.parametrize(
    ("operator", "element", "why"),
    [("MatMul", TensorProto.INT4, "MatMul.*int4"), ("Neg", TensorProto.UINT32, "Neg.*uint32"), ("Div", TensorProto.UINT64, "Div.*uint64"), ("Sqrt", TensorProto.FLOAT8E4M3FNUZ, "Sqrt.*float8e4m3fnuz")],
)
def test_operators_that_would_compute_with_the_wider_type_are_refused(tmp_path, operator, element, why):
    operands = ["x"] * (1 if operator in ("Neg", "Sqrt") else 2)
    with pytest.raises(DmlcError) as caught:
        imported(tmp_path, model_of([node(operator, operands, ["y"])], {"x": (element, (4,))}, ["y"], opset=25, ir_version=12))
    assert re.search(why, " ".join([str(caught.value), *caught.value.notes]))


def test_quantising_to_four_bits_saturates_at_four_bits(tmp_path):
    x = np.array([-3, -1, 0, 0.3, 1, 5], np.float32)
    nodes = [node("QuantizeLinear", ["x", "s"], ["q"], output_dtype=TensorProto.INT4), node("DequantizeLinear", ["q", "s"], ["y"])]
    _, (y,) = results(tmp_path, nodes, {"x": (TensorProto.FLOAT, x)}, ["y"], constants={"s": np.float32(0.25)}, opset=25, ir_version=12)
    np.testing.assert_array_equal(y, [-2, -1, 0, 0.25, 1, 1.75])


def test_packed_four_bit_weights(tmp_path):
    """Inside the file and beside it, an odd number of them."""
    w = RNG.integers(-8, 8, (3, 5)).astype(np.int8)
    packed = helper.make_tensor("w", TensorProto.INT4, w.shape, w.reshape(-1).tolist())
    model = model_of([node("DequantizeLinear", ["w", "s"], ["f"]), node("MatMul", ["x", "f"], ["y"])], {"x": (2, 3)}, ["y"], {"s": np.float32(0.5)}, opset=25, ir_version=12)
    x = RNG.standard_normal((2, 3)).astype(np.float32)
    for external in (False, True):
        del model.graph.initializer[1:]
        model.graph.initializer.append(packed)
        if external:
            (tmp_path / "w.bin").write_bytes(b"--" + _nibbles(w))
            model.graph.initializer[1].CopyFrom(onnx.TensorProto(name="w", data_type=TensorProto.INT4, dims=w.shape, data_location=TensorProto.EXTERNAL))
            for key, value in (("location", "w.bin"), ("offset", "2"), ("length", "8")):
                model.graph.initializer[1].external_data.add(key=key, value=value)
        (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
        np.testing.assert_allclose(computed(import_onnx(tmp_path / "model.onnx"), {"x": x})[0], x @ (w * 0.5), rtol=1e-5)


def _nibbles(w: np.ndarray) -> bytes:
    flat = np.append(w.reshape(-1), 0).astype(np.uint8) & 15
    return (flat[::2] | flat[1::2] << 4).tobytes()
