"""Faults of other tools, from public issue trackers, through the whole inference pipeline on one and more ranks with the numbers of the reports:
graph passes (B). Passes alone and importers have their cases in files of their own (`test_cleaning_cases`, `test_raising`, `test_onnx_cases`).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pipeline_cases import compiled, everywhere, ops_of, program, results, run_exported

NAN = float("nan")


@everywhere
def test_b1_a_fused_away_value_is_an_output(devices: int, plan: str) -> None:
    text = program(
        "x: 3xf32",
        "t4: 3xf32, t2: 3xf32",
        "%c = dmlc.full {value = 1.702 : f64} : () -> tensor<f32>",
        "%t2 = dmlc.mul %x, %c : (tensor<3xf32>, tensor<f32>) -> tensor<3xf32>",
        "%t3 = dmlc.sigmoid %t2 : (tensor<3xf32>) -> tensor<3xf32>",
        "%t4 = dmlc.mul %x, %t3 : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>",
    )
    t4, t2 = results(text, {"x": np.array([-1.0, 0.0, 2.0])}, devices, plan)
    np.testing.assert_allclose(t4, [-0.154204, 0, 1.935659], atol=1e-6)
    np.testing.assert_allclose(t2, [-1.702, 0, 3.404], rtol=1e-6)


@everywhere
def test_b3_duplicates_of_which_one_is_an_output(devices: int, plan: str) -> None:
    shape, flat = "tensor<1x1x1x7xf32>", "tensor<1x1x7xf32>"
    text = program(
        "x: 1x1x1x7xf32",
        "o1: 1x1x7xf32, o2: 1x1x7xf32, o3: 1x1x7xf32",
        f"%t = dmlc.cos %x : ({shape}) -> {shape}",
        f"%o1 = dmlc.reshape %t : ({shape}) -> {flat}",
        f"%o3 = dmlc.reshape %t : ({shape}) -> {flat}",
        f"%o2 = dmlc.floor %o3 : ({flat}) -> {flat}",
    )
    x = np.array([4.164, 3.107, 6.293, 4.184, 5.94, 4.6, 5.547]).reshape(1, 1, 1, 7)
    o1, o2, o3 = results(text, {"x": x}, devices, plan)
    np.testing.assert_allclose(o1.ravel(), [-0.5213, -0.9994, 0.99995, -0.5041, 0.9417, -0.1122, 0.7410], atol=1e-4)
    assert o2.ravel().tolist() == [-1, -1, 0, -1, 0, -1, 0] and o3.tolist() == o1.tolist()


@everywhere
def test_b5_what_must_not_merge(devices: int, plan: str) -> None:
    """Random values of two streams, casts to two types; the second result of two equal topk's is one value."""
    text = program(
        "x: 6xf32",
        "d: 6xf32, h: 6xf16, g: 6xf64, i: 3xi64, j: 3xi64",
        "%seed = dmlc.full {value = 7 : i64} : () -> tensor<i64>",
        "%a = dmlc.random_uniform %seed, %seed {shape = array<i64: 6>, stream = 1 : i64} : (tensor<i64>, tensor<i64>) -> tensor<6xf32>",
        "%b = dmlc.random_uniform %seed, %seed {shape = array<i64: 6>, stream = 2 : i64} : (tensor<i64>, tensor<i64>) -> tensor<6xf32>",
        "%d = dmlc.sub %a, %b : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>",
        '%h = dmlc.cast %x {to = "f16"} : (tensor<6xf32>) -> tensor<6xf16>',
        '%g = dmlc.cast %x {to = "f64"} : (tensor<6xf32>) -> tensor<6xf64>',
        "%u, %i = dmlc.topk %x {k = 3 : i64, dim = 0 : i64} : (tensor<6xf32>) -> (tensor<3xf32>, tensor<3xi64>)",
        "%v, %j = dmlc.topk %x {k = 3 : i64, dim = 0 : i64} : (tensor<6xf32>) -> (tensor<3xf32>, tensor<3xi64>)",
    )
    x = np.array([0.1, 3.0, -2.0, 5.0, 4.0, 0.3], np.float32)
    d, h, g, i, j = results(text, {"x": x}, devices, plan)
    assert (d != 0).all() and h.dtype == np.float16 and g.tolist() == x.astype(np.float64).tolist()
    assert i.tolist() == j.tolist() == [3, 4, 1]
    assert len(ops_of(compiled(text, devices, plan), "dmlc.topk")) == 1
    np.testing.assert_array_equal(d, results(text, {"x": x})[0])  # random values do not depend on the plan


@everywhere
def test_b6_squeezes_and_transposes_in_a_row(devices: int, plan: str) -> None:
    text = program(
        "x: 1x50x1x1xf32, y: 2x3x4xf32",
        "s: 1x50xf32, t: 3x4x2xf32",
        "%r = dmlc.reshape %x : (tensor<1x50x1x1xf32>) -> tensor<1x50x1xf32>",
        "%s = dmlc.reshape %r : (tensor<1x50x1xf32>) -> tensor<1x50xf32>",
        "%p = dmlc.transpose %y {perm = array<i64: 1, 0, 2>} : (tensor<2x3x4xf32>) -> tensor<3x2x4xf32>",
        "%t = dmlc.transpose %p {perm = array<i64: 0, 2, 1>} : (tensor<3x2x4xf32>) -> tensor<3x4x2xf32>",
    )
    x, y = np.arange(50.0).reshape(1, 50, 1, 1), np.arange(24.0).reshape(2, 3, 4)
    s, t = results(text, {"x": x, "y": y}, devices, plan)
    assert s.tolist() == x.reshape(1, 50).tolist() and t.tolist() == y.transpose(1, 2, 0).tolist()
    assert len(ops_of(compiled(text), "dmlc.transpose")) == 1


class ConvolutionNorm(torch.nn.Module):
    """Variants: inference; the batch's own statistics; the convolution's result returned too; transposed with two groups."""

    def __init__(self, variant: str):
        super().__init__()
        self.variant = variant
        self.conv = torch.nn.ConvTranspose2d(4, 6, 3, groups=2) if variant == "transposed" else torch.nn.Conv2d(4, 6, 3)
        self.norm = torch.nn.BatchNorm2d(6)
        generator = torch.Generator().manual_seed(0)
        for name, value in [*self.named_parameters(), *self.named_buffers()]:
            if value.is_floating_point():
                value.data = torch.randn(value.shape, generator=generator).abs() + 0.1 if "var" in name else torch.randn(value.shape, generator=generator)
        self.norm.running_var[2] = 0  # a scale of 316

    def forward(self, x: torch.Tensor):
        y = self.conv(x)
        if self.variant == "own statistics":
            return torch.nn.functional.batch_norm(y, None, None, self.norm.weight, self.norm.bias, training=True)
        return (self.norm(y), y) if self.variant == "returned" else self.norm(y)


@everywhere
@pytest.mark.parametrize("variant", ["inference", "own statistics", "returned", "transposed"])
def test_b9_convolution_and_batch_norm(variant: str, devices: int, plan: str) -> None:
    model, x = ConvolutionNorm(variant).eval(), torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(1))
    module, found = run_exported(model, x, devices=devices, plan=plan, promote="f64")
    with torch.no_grad():
        eager = model.double()(x.double())
    for wanted, got in zip(eager if isinstance(eager, tuple) else (eager,), found, strict=True):
        np.testing.assert_allclose(got, wanted.numpy(), atol=1e-9 * wanted.abs().max().item())
    assert any("dmlc.derived" in a.attrs for a in module.main.args) == (variant in ("inference", "transposed"))


def attention_by_hand(scale: float, dim: int) -> str:
    scores = "tensor<4x4x2x3xf32>"
    return program(
        "q: 4x4x2x8xf32, k: 4x4x3x8xf32, v: 4x4x3x8xf32",
        "y: 4x4x2x8xf32",
        "%kt = dmlc.transpose %k {perm = array<i64: 0, 1, 3, 2>} : (tensor<4x4x3x8xf32>) -> tensor<4x4x8x3xf32>",
        f"%s = dmlc.matmul %q, %kt : (tensor<4x4x2x8xf32>, tensor<4x4x8x3xf32>) -> {scores}",
        f"%c = dmlc.full {{value = {scale} : f64}} : () -> tensor<f32>",
        f"%d = dmlc.mul %s, %c : ({scores}, tensor<f32>) -> {scores}",
        f"%p = dmlc.softmax %d {{dim = {dim} : i64}} : ({scores}) -> {scores}",
        f"%y = dmlc.matmul %p, %v : ({scores}, tensor<4x4x3x8xf32>) -> tensor<4x4x2x8xf32>",
    )


@everywhere
@pytest.mark.parametrize("dim", [0, 3])
def test_b10_attention_of_the_wrong_dim_or_scale(dim: int, devices: int, plan: str) -> None:
    shapes = {"q": (4, 4, 2, 8), "k": (4, 4, 3, 8), "v": (4, 4, 3, 8)}
    qkv = {n: torch.randn(s, generator=torch.Generator().manual_seed(i)) for i, (n, s) in enumerate(shapes.items())}
    text = attention_by_hand(1 / 128, dim)
    (y,) = results(text, qkv, devices, plan)
    scores = (qkv["q"] @ qkv["k"].transpose(-1, -2) / 128).softmax(dim)
    np.testing.assert_allclose(y, (scores @ qkv["v"]).numpy(), atol=1e-5)
    assert bool(ops_of(compiled(text, devices, plan), "dmlc.attention")) == (dim == 3)
    if dim == 0:
        assert abs(y.sum() - 3.0356) < 1e-3


@everywhere
def test_b10_a_row_that_sees_nothing(devices: int, plan: str) -> None:
    """0 where attention was written, NaN where a softmax over minus infinities was."""
    scores = "tensor<1x1x2x2xf32>"
    types = "(tensor<1x1x2x1xf32>, tensor<1x1x2x1xf32>, tensor<1x1x2x1xf32>, tensor<1x1x2x2xi1>)"
    text = program(
        "q: 1x1x2x1xf32, k: 1x1x2x1xf32, v: 1x1x2x1xf32, m: 1x1x2x2xi1",
        "a: 1x1x2x1xf32, y: 1x1x2x1xf32",
        f"%a = dmlc.attention %q, %k, %v, %m {{scale = 1.0 : f64}} : {types} -> tensor<1x1x2x1xf32>",
        "%kt = dmlc.transpose %k {perm = array<i64: 0, 1, 3, 2>} : (tensor<1x1x2x1xf32>) -> tensor<1x1x1x2xf32>",
        f"%s = dmlc.matmul %q, %kt : (tensor<1x1x2x1xf32>, tensor<1x1x1x2xf32>) -> {scores}",
        "%inf = dmlc.full {value = 0xFFF0000000000000 : f64} : () -> tensor<f32>",
        f"%h = dmlc.select %m, %s, %inf : (tensor<1x1x2x2xi1>, {scores}, tensor<f32>) -> {scores}",
        f"%p = dmlc.softmax %h {{dim = 3 : i64}} : ({scores}) -> {scores}",
        f"%y = dmlc.matmul %p, %v : ({scores}, tensor<1x1x2x1xf32>) -> tensor<1x1x2x1xf32>",
    )
    ones = np.ones((1, 1, 2, 1))
    inputs = {"q": ones, "k": ones, "v": np.array([5.0, 6.0]).reshape(1, 1, 2, 1), "m": np.array([[False, False], [True, False]]).reshape(1, 1, 2, 2)}
    a, y = results(text, inputs, devices, plan)
    assert a.ravel().tolist() == [0, 5] and np.isnan(y.ravel()[0]) and y.ravel()[1] == 5


@everywhere
@pytest.mark.parametrize(
    ("op", "other", "x", "wanted"),
    [("add", 0.0, [-0.0], [0.0]), ("mul", 0.0, [float("inf"), NAN], [NAN, NAN]), ("sub", None, [float("inf"), 1.0], [NAN, 0.0]), ("div", None, [0.0, 2.0], [NAN, 1.0])],
)
def test_b11_what_is_not_neutral(op: str, other: float | None, x: list[float], wanted: list[float], devices: int, plan: str) -> None:
    n = f"tensor<{len(x)}xf32>"
    lines = [f"%y = dmlc.{op} %x, %x : ({n}, {n}) -> {n}"]
    if other is not None:
        lines = [f"%c = dmlc.full {{value = {other} : f64}} : () -> tensor<f32>", f"%y = dmlc.{op} %x, %c : ({n}, tensor<f32>) -> {n}"]
    (y,) = results(program(f"x: {len(x)}xf32", f"y: {len(x)}xf32", *lines), {"x": np.array(x)}, devices, plan)
    np.testing.assert_array_equal(y, wanted)
    assert np.isnan(y[0]) or not np.signbit(y[0])  # +0.0, not -0.0
