"""Element types that the IR lacks, carried by wider ones: right values, wrapped where the type wraps, and refused where only the wider type would be right."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx.reference
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


def test_uint64_where_signed_numbers_end(tmp_path):
    """Quotients, remainders, shifts and conversions, with numbers on both sides of 2^63."""
    a = np.array([0, 1, 7, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1, 2**64 - 1, 10**19, 2**63 + 1025], np.uint64)
    b = np.array([1, 2**64 - 1, 3, 2, 3, 2**63 + 1, 2**63, 10, 2**63 - 1, 7], np.uint64)
    by = np.array([0, 1, 2, 63, 63, 0, 1, 62, 5, 33], np.uint64)
    wanted = {"q": a // b, "r": a % b, "s": a >> by, "f": a.astype(np.float32), "d": a.astype(np.float64), "u": a.astype(np.float64).clip(0, 2.0**63 + 2**60).astype(np.uint64), "c": a.clip(3, 2**63 + 1)}
    nodes = [
        node("Div", ["a", "b"], ["q"]), node("Mod", ["a", "b"], ["r"]), node("BitShift", ["a", "by"], ["s"], direction="RIGHT"), node("Cast", ["a"], ["f"], to=TensorProto.FLOAT),
        node("Cast", ["a"], ["d"], to=TensorProto.DOUBLE), node("Clip", ["d", "zero", "top"], ["t"]), node("Cast", ["t"], ["u"], to=TensorProto.UINT64), node("Clip", ["a", "low", "high"], ["c"]),
    ]  # fmt: skip
    constants = {"zero": np.float64(0), "top": np.float64(2.0**63 + 2**60), "low": np.array(3, np.uint64), "high": np.array(2**63 + 1, np.uint64)}
    _, found = results(tmp_path, nodes, {"a": (TensorProto.UINT64, a), "b": (TensorProto.UINT64, b), "by": (TensorProto.UINT64, by)}, list(wanted), constants=constants, opset=26)
    for ours, theirs in zip(found, wanted.values(), strict=True):
        np.testing.assert_array_equal(ours.view(np.uint64) if theirs.dtype == np.uint64 else ours, theirs)


@pytest.mark.parametrize("rounding", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_conversion_to_powers_of_two(tmp_path, rounding, saturate):
    """Against the specification's evaluator, but for infinity and the smallest power: there the evaluator departs from the text (E8M0_MAX if saturated; exact)."""
    x = np.array([1, 1.25, 1.5, 1.75, 3, 3.5, 0.7, 2.0**127, 1.2 * 2.0**127, 2.0**-126, 1.1 * 2.0**-126, 2.0**-127, 1.6 * 2.0**-127, np.nan, np.inf], np.float32)
    nodes = [node("Cast", ["x"], ["p"], to=TensorProto.FLOAT8E8M0, round_mode=rounding, saturate=saturate), node("Cast", ["p"], ["y"], to=TensorProto.FLOAT)]
    model = model_of(nodes, {"x": (TensorProto.FLOAT, x.shape)}, ["y"], opset=25, ir_version=12)
    (y,) = computed(imported(tmp_path, model), {"x": x})
    wanted = np.asarray(onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})[0])  # type: ignore[index]
    wanted[-1], wanted[x == 2.0**-127] = 2.0**127 if saturate else np.nan, 2.0**-127
    np.testing.assert_array_equal(y, wanted)


def test_the_type_survives_movement_and_a_cast_ends_it(tmp_path):
    """4-bit integers through a transpose; as int8 they are ordinary."""
    x = RNG.integers(-8, 8, (3, 4)).astype(np.int8)
    nodes = [node("Transpose", ["x"], ["t"]), node("Cast", ["t"], ["i"], to=TensorProto.INT8), node("Add", ["i", "i"], ["y"])]
    _, (y,) = results(tmp_path, nodes, {"x": (TensorProto.INT4, x)}, ["y"], opset=25, ir_version=12)
    np.testing.assert_array_equal(y, 2 * x.T)


@pytest.mark.parametrize(
    ("operator", "element", "why"),
    [("MatMul", TensorProto.INT4, "MatMul.*int4"), ("Neg", TensorProto.UINT32, "Neg.*uint32"), ("Pow", TensorProto.UINT64, "Pow.*uint64"), ("Sqrt", TensorProto.FLOAT8E4M3FNUZ, "Sqrt.*float8e4m3fnuz")],
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
