"""Faults that users of other ONNX importers met (A1 to A15), with the numbers of the reports: files through the whole compiler on one and more ranks.
Each case is extended to its kind against onnxruntime. What is about weights (A8, A10, A11) is in `test_cases_onnx_weights`.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_files import imported, model_of
from pipeline_cases import compiled_agrees, everywhere, run_onnx

from dmlc.frontend.onnx.tensors import array_from
from dmlc.ir.location import DmlcError

node = helper.make_node
NAN = float("nan")
RNG = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def of_x(
    operator: str, shape: tuple[Any, ...], operands: tuple[str, ...] = (), constants: dict[str, Any] | None = None, opset: int = 21, **attributes: Any
) -> onnx.ModelProto:
    """One node on x, whose other operands are constants."""
    given = {k: np.asarray(v) for k, v in (constants or {}).items()}
    return model_of([node(operator, ["x", *operands], ["y"], **attributes)], {"x": shape}, ["y"], given, opset=opset)


# ---------------------------------------------------------------- A1: softmax before operator set 13

RAMP = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 10


@everywhere
def test_a1_softmax_flattens_before_opset_13(tmp_path, devices, plan):
    (y,) = run_onnx(tmp_path, of_x("Softmax", ("n", 3, 4), opset=11), {"x": RAMP}, devices, plan)[1]
    np.testing.assert_allclose(y.sum(axis=(1, 2)), 1, atol=1e-6)
    np.testing.assert_allclose(y[0, 0], [0.045330, 0.050097, 0.055366, 0.061189], atol=1e-6)
    (last,) = run_onnx(tmp_path, of_x("Softmax", ("n", 3, 4), opset=13), {"x": RAMP}, devices, plan)[1]
    np.testing.assert_allclose(last[0, 0], [0.2138, 0.2363, 0.2612, 0.2887], atol=1e-4)


@pytest.mark.parametrize("opset", [7, 11, 12, 13, 21])
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
def test_a1_every_axis_of_every_operator(tmp_path, operator, opset):
    for axis in (None, *range(-3 if opset >= 11 else 0, 3)):
        model = of_x(operator, ("n", 3, 4), opset=opset, **({} if axis is None else {"axis": axis}))
        compiled_agrees(tmp_path, model, {"x": floats(2, 3, 4)}, 2, "tp=2")


# ---------------------------------------------------------------- A2: Reshape


def two_reshapes(second: list[int], allow_zero: int, *outputs: str) -> onnx.ModelProto:
    nodes = [node("Reshape", ["x", "first"], ["m"]), node("Reshape", ["m", "second"], ["y"], allowzero=allow_zero)]
    return model_of(nodes, {"x": (0, 8, 2)}, outputs, {"first": np.array([4, 2, -1]), "second": np.array(second)})


@everywhere
@pytest.mark.parametrize("outputs", [("m", "y"), ("y",)])
def test_a2_reshape_with_allowzero(tmp_path, outputs, devices, plan):
    """With only y returned the two reshapes merge."""
    x = {"x": np.zeros((0, 8, 2), np.float32)}
    assert [r.shape for r in run_onnx(tmp_path, two_reshapes([0, 0, 4], 1, *outputs), x, devices, plan)[1]] == [(4, 2, 0), (0, 0, 4)][-len(outputs) :]


@pytest.mark.parametrize(("second", "allow_zero", "why"), [([0, 0, 4], 0, r"\[4, 2, 4\]"), ([0, 0, -1], 1, "-1"), ([0, 3, -1], 0, "3")])
def test_a2_reshapes_without_a_meaning(tmp_path, second, allow_zero, why):
    """Zeros that copy and then do not fit; -1 beside a size of 0, which any number would fit; no whole number for -1."""
    model = two_reshapes(second, allow_zero, "y")
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([4, 2, -1]), "first"))
    if second[1] == 3:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    with pytest.raises(DmlcError, match=why):
        imported(tmp_path, model)


@everywhere
@pytest.mark.parametrize(
    ("target", "wanted"), [([0, -1, 2], (2, 6, 2)), ([-1, 0, 1], (8, 3, 1)), ([0, 0, 2, -1], (2, 3, 2, 2)), ([0, -1], (2, 12)), ([-1], (24,))]
)
def test_a2_minus_one_beside_a_copied_dim(tmp_path, target, wanted, devices, plan):
    x = floats(2, 3, 4)
    (y,) = run_onnx(tmp_path, of_x("Reshape", ("n", 3, 4), ("s",), {"s": target}), {"x": x}, devices, plan)[1]
    np.testing.assert_array_equal(y, x.reshape(wanted))


# ---------------------------------------------------------------- A4: slices to the end

END = {"int32": 2**31 - 1, "int64": 2**63 - 1}


@everywhere
@pytest.mark.parametrize("seq", [1, 5])
def test_a4_slice_to_the_end_of_open_sizes(tmp_path, seq, devices, plan):
    constants = {"starts": [0, 0, 0], "ends": [END["int32"], 1, END["int64"]], "axes": [0, 1, 2]}
    x = floats(3, seq, 8)
    (y,) = run_onnx(tmp_path, of_x("Slice", ("batch", "seq", 8), ("starts", "ends", "axes"), constants), {"x": x}, devices, plan)[1]
    np.testing.assert_array_equal(y, x[:, :1])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("start", "end", "step"),
    [(1, "most", 1), (-3, "most", 2), ("most", "least", -1), (-1, "least", -2), ("least", "most", 3), (4, 2, 1), (2, 4, -1), ("most", "most", 1)],
)
def test_a4_every_sentinel(tmp_path, start, end, step, dtype):
    """The largest and smallest integers of both widths, forwards and backwards, ranges without a place."""
    ends = {"most": np.iinfo(dtype).max, "least": np.iinfo(dtype).min}
    constants = {k: np.array([ends.get(v, v)], dtype) for k, v in (("starts", start), ("ends", end), ("axes", -2), ("steps", step))}
    compiled_agrees(tmp_path, of_x("Slice", ("n", "s", 2), tuple(constants), constants), {"x": floats(2, 6, 2)}, 2, "tp=2")


@pytest.mark.parametrize("opset", [7, 10, 11, 13])
def test_a4_every_version(tmp_path, opset):
    """Until operator set 10 starts, ends and axes were attributes."""
    values = {"starts": [1, -2], "ends": [END["int32"], END["int64"]], "axes": [0, 2]}
    model = of_x("Slice", ("n", 4, 5), opset=opset, **values) if opset < 10 else of_x("Slice", ("n", 4, 5), tuple(values), values, opset)
    compiled_agrees(tmp_path, model, {"x": floats(3, 4, 5)}, 3, "dp=3")


# ---------------------------------------------------------------- A5: Resize, nearest


@everywhere
@pytest.mark.parametrize(
    ("size", "scale", "coordinate", "rounding", "rows"),
    [
        (3, 1.5, "half_pixel", "round_prefer_floor", {0: [0, 0, 1, 2], 1: [0, 0, 1, 2], 2: [3, 3, 4, 5], 3: [6, 6, 7, 8]}),
        (4, 2.0, "half_pixel", "floor", {0: [0, 0, 0, 1, 1, 2, 2, 3], 3: [4, 4, 4, 5, 5, 6, 6, 7]}),
        (4, 2.0, "asymmetric", "floor", {0: [0, 0, 1, 1, 2, 2, 3, 3]}),
    ],
)
def test_a5_resize_nearest(tmp_path, size, scale, coordinate, rounding, rows, devices, plan):
    x = np.arange(size * size, dtype=np.float32).reshape(1, 1, size, size)
    model = of_x(
        "Resize", x.shape, ("", "s"), {"s": np.array([1, 1, scale, scale], np.float32)}, 13, coordinate_transformation_mode=coordinate, nearest_mode=rounding
    )
    (y,) = run_onnx(tmp_path, model, {"x": x}, devices, plan)[1]
    for row, values in rows.items():
        assert y[0, 0, row].tolist() == values


@pytest.mark.parametrize("coordinate", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"])
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_a5_every_rounding_of_every_coordinate_rule(tmp_path, coordinate, rounding):
    """Up and down, with channels cut over the ranks."""
    for scales in ([1, 1, 2.0, 3.0], [1, 1, 0.5, 1.5]):
        model = of_x(
            "Resize", ("n", 3, 4, 6), ("", "s"), {"s": np.array(scales, np.float32)}, 19, coordinate_transformation_mode=coordinate, nearest_mode=rounding
        )
        compiled_agrees(tmp_path, model, {"x": floats(2, 3, 4, 6)}, 2, "tp=2")


# ---------------------------------------------------------------- A6: division of negative integers

SIGNED = {TensorProto.INT8: np.int8, TensorProto.INT16: np.int16, TensorProto.INT32: np.int32, TensorProto.INT64: np.int64}
QUOTIENTS = [("Div", {}, [-2, -2, -3, -3]), ("Mod", {"fmod": 0}, [-1, 1, -1, 1]), ("Mod", {"fmod": 1}, [2, -2, 1, -1])]


@pytest.mark.parametrize(("devices", "element"), [(1, TensorProto.INT64), (3, TensorProto.INT64), *((2, e) for e in SIGNED)])
@pytest.mark.parametrize(("operator", "attributes", "wanted"), QUOTIENTS)
@pytest.mark.parametrize("constant", [False, True])
def test_a6_division_and_remainder_of_negative_integers(tmp_path, operator, attributes, wanted, constant, devices, element):
    """The same whether computed by the program or folded."""
    a, b = np.array([8, -8, 7, -7], SIGNED[element]), np.array([-3, 3, -2, 2], SIGNED[element])
    nodes = [node(operator, ["a", "b"], ["q"], **attributes), node("Add", ["q", "x"], ["y"])]
    given = {"x": np.zeros(4, a.dtype)} | ({} if constant else {"a": a, "b": b})
    model = model_of(nodes, dict.fromkeys(given, (element, ("n",))), ["y"], {"a": a, "b": b} if constant else {})
    (y,) = run_onnx(tmp_path, model, given, devices, f"dp={devices}" if devices > 1 else "auto")[1]
    assert y.tolist() == wanted and y.dtype == a.dtype


# ---------------------------------------------------------------- A7: optional inputs


@everywhere
@pytest.mark.parametrize("bounds", ["known", "given at run time"])
@pytest.mark.parametrize(
    ("operands", "constants", "wanted"),
    [
        (("", "high"), {"high": 1.0}, [-5, 0.5, 1, NAN]),
        (("low",), {"low": 0.5}, [0.5, 0.5, 9, NAN]),
        (("low", ""), {"low": 0.5}, [0.5, 0.5, 9, NAN]),
        (("low", "high"), {"low": 2.0, "high": -1.0}, [-1, -1, -1, NAN]),
        (("low", "high"), {"low": 0.0, "high": 6.0}, [0, 0.5, 6, NAN]),
        (("", "high"), {"high": 6.0}, [-5, 0.5, 6, NAN]),
        (("low", "high"), {"low": -1.0, "high": 6.0}, [-1, 0.5, 6, NAN]),
    ],
)
def test_a7_clip_with_optional_bounds(tmp_path, operands, constants, wanted, bounds, devices, plan):
    """0 and 6 are a relu6, other bounds are not."""
    x = np.array([-5, 0.5, 9, np.nan], np.float32)
    numbers = {k: np.float32(v) for k, v in constants.items()}
    dynamic = numbers if bounds != "known" else {}
    model = model_of([node("Clip", ["x", *operands], ["y"])], {"x": ("n",), **dict.fromkeys(dynamic, ())}, ["y"], numbers if not dynamic else {})
    np.testing.assert_array_equal(run_onnx(tmp_path, model, {"x": x, **dynamic}, devices, plan)[1][0], np.array(wanted, np.float32))


@everywhere
def test_a7_empty_initializers_of_resize_are_absent_operands(tmp_path, devices, plan):
    constants = {"roi": np.zeros(0, np.float32), "scales": np.zeros(0, np.float32), "sizes": np.array([1, 1, 4, 4])}
    model = of_x("Resize", (1, 1, 2, 2), ("roi", "scales", "sizes"), constants, 11)
    (y,) = run_onnx(tmp_path, model, {"x": np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)}, devices, plan)[1]
    assert y[0, 0].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]


H, STEPS = 3, 2
SKIPPING = {  # operators with an operand left out before one that is given
    "Pad": (("p", "", "a"), {"p": [1, 2], "a": [1]}, {}, (2, 4)),
    "Slice": (("s", "e", "", "t"), {"s": [0, 3], "e": [2, 0], "t": [1, -1]}, {}, (2, 4)),
    "Conv": (("w", ""), {"w": floats(4, 2, 3)}, {}, (2, 2, 5)),
    "GRU": (("w", "r", "", "", "h"), {"w": floats(1, 3 * H, 4), "r": floats(1, 3 * H, H), "h": floats(1, 2, H)}, {"hidden_size": H}, (STEPS, 2, 4)),
    "LSTM": (("w", "r", "", "", "", "", "p"), {"w": floats(1, 4 * H, 4), "r": floats(1, 4 * H, H), "p": floats(1, 3 * H)}, {"hidden_size": H}, (STEPS, 2, 4)),
    "LayerNormalization": (("s", ""), {"s": floats(4)}, {}, (2, 4)),
}  # fmt: skip


@pytest.mark.parametrize("operator", SKIPPING)
def test_a7_operands_left_out_before_others(tmp_path, operator):
    operands, constants, attributes, shape = SKIPPING[operator]
    compiled_agrees(tmp_path, of_x(operator, ("n", *shape[1:]), operands, constants, **attributes), {"x": floats(*shape)}, 2, "dp=2")


# ---------------------------------------------------------------- A13: casts out of range

WILD = [300, NAN, float("inf"), float("-inf"), 50, -50]


@pytest.mark.parametrize(
    ("source", "to"),
    itertools.product(
        (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16), (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64)
    ),
)
def test_a13_folded_casts_agree_with_computed_ones(tmp_path, source, to):
    """Where the specification says nothing, a constant is cast as the program would cast it; what it specifies is right."""
    dtype = helper.tensor_dtype_to_np_dtype(source)
    x = np.array(WILD if to != TensorProto.UINT8 else [abs(w) for w in WILD], dtype)
    nodes = [node("Cast", ["x"], ["c"], to=to), node("Mul", ["c", "one"], ["y"])]
    one = np.ones(6, helper.tensor_dtype_to_np_dtype(to))
    computed = run_onnx(tmp_path, model_of(nodes, {"x": (source, ("n",)), "one": (to, ("n",))}, ["y"]), {"x": x, "one": one}, 2, "dp=2")[1][0]
    folded = run_onnx(tmp_path, model_of(nodes, {"one": (to, (6,))}, ["y"], {"x": x}), {"one": one})[1][0]
    assert folded.dtype == computed.dtype == one.dtype and folded.tolist() == computed.tolist()
    assert folded[4:].tolist() == x[4:].tolist() and (to in (TensorProto.INT8, TensorProto.UINT8) or folded[0] == 300)


# ---------------------------------------------------------------- A15: pools


@everywhere
def test_a15_average_pool_counts_padding_but_not_what_ceil_mode_adds(tmp_path, devices, plan):
    x = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1, "count_include_pad": 1}
    (y,) = run_onnx(tmp_path, of_x("AveragePool", x.shape, opset=19, **attributes), {"x": x}, devices, plan)[1]
    np.testing.assert_allclose(y[0, 0], [[1.5556, 3.3333, 2.0], [6.3333, 11, 6], [4.5, 7.5, 4]], atol=1e-4)


@everywhere
def test_a15_a_window_that_would_start_in_the_padding_is_dropped(tmp_path, devices, plan):
    attributes = {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}
    for operator in ("AveragePool", "MaxPool"):
        _, (y,) = compiled_agrees(tmp_path, of_x(operator, ("n", 3, 2, 2), opset=19, **attributes), {"x": floats(1, 3, 2, 2)}, devices, plan)
        assert y.shape == (1, 3, 1, 1)


@pytest.mark.parametrize("operator", ["AveragePool", "MaxPool"])
def test_a15_windows_of_all_kinds(tmp_path, operator):
    """Uneven pads, strides past the kernel, dilated windows, both ways to round and to count."""
    kinds = itertools.product((1, 2, 3), (0, 1), (0, 1), (0, 1), (0, 1) if operator == "AveragePool" else (0,))
    for stride, low, high, ceil, counted in random.Random(0).sample(list(kinds), 10):
        attributes = {"kernel_shape": [2, 3], "strides": [stride, 2], "pads": [low, 1, high, 0], "ceil_mode": ceil, "dilations": [1, 2]}
        model = of_x(operator, ("n", 2, 5, 7), opset=19, **attributes, **({"count_include_pad": counted} if counted else {}))
        compiled_agrees(tmp_path, model, {"x": floats(1, 2, 5, 7)}, 2, "tp=2")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 2.0**63, 2**63, -(2**63) - 1])
def test_a_constant_that_no_integer_holds_is_refused(number):
    assert array_from([-(2.0**63), 0.0], "i64").tolist() == [-(2**63), 0]
    with pytest.raises(DmlcError, match="does not fit i64"):
        array_from(np.asarray([0, number], np.float64 if isinstance(number, float) else object), "i64")
