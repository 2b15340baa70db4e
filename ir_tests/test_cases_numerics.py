"""Faults of other tools, from public issue trackers, through the whole inference pipeline on one and more ranks with the numbers of the reports:
numerics (C). Passes alone and importers have their cases in files of their own (`test_op_cases`, `test_triton_codegen`).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pipeline_cases import everywhere, program, results

NAN = float("nan")


@everywhere
def test_c1_nan_through_extrema(devices: int, plan: str) -> None:
    t = "tensor<4xf32>"
    text = program(
        "x: 4xf32",
        "a: 4xf32, b: 4xf32, c: 4xf32, d: 4xf32, e: 4xf32, m: f32, i: i64",
        "%z = dmlc.full {value = 0.0 : f64} : () -> tensor<f32>",
        f"%a = dmlc.maximum %x, %z : ({t}, tensor<f32>) -> {t}",
        f"%b = dmlc.maximum %z, %x : (tensor<f32>, {t}) -> {t}",
        f"%c = dmlc.clamp %x {{min = 0.5 : f64, max = unit}} : ({t}) -> {t}",
        f"%d = dmlc.clamp %x {{min = 2.0 : f64, max = -1.0 : f64}} : ({t}) -> {t}",
        f"%e = dmlc.relu %x : ({t}) -> {t}",
        f"%m = dmlc.reduce_max %x {{dims = array<i64: 0>}} : ({t}) -> tensor<f32>",
        f"%i = dmlc.argmax %x {{dim = 0 : i64}} : ({t}) -> tensor<i64>",
    )
    *rows, m, i = results(text, {"x": np.array([-5.0, 0.5, 9.0, NAN])}, devices, plan)
    for row, wanted in zip(rows, ([0, 0.5, 9, NAN], [0, 0.5, 9, NAN], [0.5, 0.5, 9, NAN], [-1, -1, -1, NAN], [0, 0.5, 9, NAN]), strict=True):
        np.testing.assert_array_equal(row, wanted)
    assert np.isnan(m) and i == 3


@everywhere
def test_c3_strided_inputs(devices: int, plan: str) -> None:
    """Column-major, with step 2, repeated with stride 0, from the middle of a buffer."""
    text = program(
        "x: 4x6xf32",
        "i: i64, j: 4xi64",
        "%s = dmlc.reduce_sum %x {dims = array<i64: 1>} : (tensor<4x6xf32>) -> tensor<4xf32>",
        "%i = dmlc.argmax %s {dim = 0 : i64} : (tensor<4xf32>) -> tensor<i64>",
        "%r = dmlc.reshape %x : (tensor<4x6xf32>) -> tensor<4x3x2xf32>",
        "%t = dmlc.reduce_sum %r {dims = array<i64: 2>} : (tensor<4x3x2xf32>) -> tensor<4x3xf32>",
        "%j = dmlc.argmax %t {dim = 1 : i64} : (tensor<4x3xf32>) -> tensor<4xi64>",
    )
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    wide, deep = torch.empty(4, 12), torch.empty(6, 6)
    wide[:, ::2], deep[1:5] = x, x
    views = [x.t().contiguous().t(), wide[:, ::2], deep[1:5]]
    assert [v.stride() for v in views] == [(1, 4), (12, 2), (6, 1)]
    for view in views:
        i, j = results(text, {"x": view}, devices, plan)
        assert i == 2 and j.tolist() == [2, 2, 2, 0]
    i, j = results(text, {"x": x[:1].expand(4, 6)}, devices, plan)
    assert i == 0 and j.tolist() == [2] * 4


@everywhere
def test_c5_nothing_to_do(devices: int, plan: str) -> None:
    text = program(
        "x: 0x64xf32, a: 0x5xf32, b: 5x3xf32, c: 4x0xf32, d: 0x3xf32, s: 3x0xf32",
        "n: 0x64xf32, ab: 0x3xf32, cd: 4x3xf32, sum: 3xf32, mean: 3xf32, soft: 3x0xf32",
        "%w = dmlc.full {value = 1.0 : f64} : () -> tensor<64xf32>",
        "%xb = dmlc.add %x, %w : (tensor<0x64xf32>, tensor<64xf32>) -> tensor<0x64xf32>",
        "%g = dmlc.gelu %xb : (tensor<0x64xf32>) -> tensor<0x64xf32>",
        "%n = dmlc.layer_norm %g, %w, %w {eps = 1.0e-05 : f64} : (tensor<0x64xf32>, tensor<64xf32>, tensor<64xf32>) -> tensor<0x64xf32>",
        "%ab = dmlc.matmul %a, %b : (tensor<0x5xf32>, tensor<5x3xf32>) -> tensor<0x3xf32>",
        "%cd = dmlc.matmul %c, %d : (tensor<4x0xf32>, tensor<0x3xf32>) -> tensor<4x3xf32>",
        "%sum = dmlc.reduce_sum %s {dims = array<i64: 1>} : (tensor<3x0xf32>) -> tensor<3xf32>",
        "%zero = dmlc.full {value = 0.0 : f64} : () -> tensor<f32>",
        "%mean = dmlc.div %sum, %zero : (tensor<3xf32>, tensor<f32>) -> tensor<3xf32>",
        "%soft = dmlc.softmax %s {dim = 1 : i64} : (tensor<3x0xf32>) -> tensor<3x0xf32>",
    )
    shapes = {"x": (0, 64), "a": (0, 5), "b": (5, 3), "c": (4, 0), "d": (0, 3), "s": (3, 0)}
    n, ab, cd, total, mean, soft = results(text, {k: np.ones(s) for k, s in shapes.items()}, devices, plan)
    assert (n.shape, ab.shape, soft.shape) == ((0, 64), (0, 3), (3, 0))
    assert cd.tolist() == [[0] * 3] * 4 and total.tolist() == [0] * 3 and np.isnan(mean).all()


@everywhere
def test_c5_a_single_number(devices: int, plan: str) -> None:
    text = "func.func @main(%x: tensor<f32>) -> tensor<f32> {\n%y = dmlc.exp %x : (tensor<f32>) -> tensor<f32>\n%z = dmlc.add %y, %x : (tensor<f32>, tensor<f32>) -> tensor<f32>\nfunc.return %z : tensor<f32>\n}"
    assert results(text, {"x": np.array(0.0)}, devices, plan)[0] == 1


@everywhere
@pytest.mark.parametrize("by_hand", [False, True])
def test_c7_sums_of_squares_in_half_precision(by_hand: bool, devices: int, plan: str) -> None:
    """1000 squared overflows f16. By hand with casts to f32 inside: they stay."""
    full, row, one, ones = "tensor<2x8xf32>", "tensor<2x8xf16>", "tensor<2x1xf32>", "%w = dmlc.full {value = 1.0 : f64} : () -> tensor<8xf16>"
    lines = [ones, f"%y = dmlc.rms_norm %x, %w {{eps = 1.0e-06 : f64}} : ({row}, tensor<8xf16>) -> {row}"]
    if by_hand:
        lines = [
            f'%h = dmlc.cast %x {{to = "f32"}} : ({row}) -> {full}',
            f"%q = dmlc.mul %h, %h : ({full}, {full}) -> {full}",
            f"%s = dmlc.reduce_sum %q {{dims = array<i64: 1>, keepdim = true}} : ({full}) -> {one}",
            "%n = dmlc.full {value = 0.125 : f64} : () -> tensor<f32>",
            f"%m = dmlc.mul %s, %n : ({one}, tensor<f32>) -> {one}",
            "%e = dmlc.full {value = 1.0e-06 : f64} : () -> tensor<f32>",
            f"%me = dmlc.add %m, %e : ({one}, tensor<f32>) -> {one}",
            f"%r = dmlc.rsqrt %me : ({one}) -> {one}",
            f"%z = dmlc.mul %h, %r : ({full}, {one}) -> {full}",
            f'%y = dmlc.cast %z {{to = "f16"}} : ({full}) -> {row}',
        ]
    for precision in ("fp32", "bf16"):
        (y,) = results(program("x: 2x8xf16", "y: 2x8xf16", *lines), {"x": np.full((2, 8), 1000.0)}, devices, plan, precision=precision)
        assert y.tolist() == [[1.0] * 8] * 2


@everywhere
def test_c8_rounding_between_a_product_and_what_follows(devices: int, plan: str) -> None:
    """257 is no bf16 number. The product's result has the dtype the program says, so it rounds to 256 before 256 is subtracted; in f32 it does not.
    Under `precision = bf16` an f32 program stays within one unit of the last place of the intermediate, which is 2."""

    def text(dtype: str) -> str:
        return program(
            f"x: 1x2x{dtype}, w: 2x1x{dtype}",
            f"y: 1x1x{dtype}",
            f"%d = dmlc.matmul %x, %w : (tensor<1x2x{dtype}>, tensor<2x1x{dtype}>) -> tensor<1x1x{dtype}>",
            f"%c = dmlc.full {{value = 256.0 : f64}} : () -> tensor<{dtype}>",
            f"%y = dmlc.sub %d, %c : (tensor<1x1x{dtype}>, tensor<{dtype}>) -> tensor<1x1x{dtype}>",
        )

    inputs = {"x": np.array([[1.0, 1.0]]), "w": np.array([[256.0], [1.0]])}
    assert results(text("f32"), inputs, devices, plan)[0].item() == 1
    if devices == 1:  # summed over ranks, the product rounds in other places
        assert results(text("bf16"), inputs)[0].item() == 0
    assert abs(results(text("f32"), inputs, devices, plan, precision="bf16")[0].item() - 1) <= 2
