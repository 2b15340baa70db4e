"""Faults of other tools, from public issue trackers, through the whole inference pipeline on one and more ranks with the numbers of the reports:
graph passes (B). Passes alone and importers have their cases in files of their own (`test_cleaning_cases`, `test_raising`, `test_onnx_cases`).
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx_files import BOOL, model_of
from pipeline_cases import compiled, compiled_agrees, everywhere, ops_of, program, results, run_exported, run_onnx

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
def test_b5_nodes_that_differ_only_in_a_subgraph(tmp_path, devices: int, plan: str) -> None:
    def branch(name: str, operator: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(operator, ["x"], [name])], name, [], [helper.make_empty_tensor_value_info(name)])

    nodes = [helper.make_node("If", ["flag"], [y], then_branch=branch(f"{y}_t", "Neg"), else_branch=branch(f"{y}_e", other)) for y, other in (("a", "Abs"), ("b", "Exp"))]
    model = model_of(nodes, {"x": ("n",), "flag": (BOOL, ())}, ["a", "b"])
    x = np.array([-1, 2, -3], np.float32)
    for flag in (True, False):
        compiled_agrees(tmp_path, model, {"x": x, "flag": np.array(flag)}, devices, plan)


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


@everywhere
@pytest.mark.parametrize("statistics", ["used", "not used"])
def test_b9_batch_norm_in_training_form(tmp_path, statistics: str, devices: int, plan: str) -> None:
    """It normalises by the batch, so nothing folds, whether the statistics it also gives are used or not."""
    rng = np.random.default_rng(0)
    constants = {"w": (6, 4, 3, 3), "g": (6,), "b": (6,), "m": (6,), "v": (6,)}
    given = {n: np.abs(rng.standard_normal(s)).astype(np.float32) for n, s in constants.items()}
    results = ["y", "mean", "variance"] if statistics == "used" else ["y"]
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["y", "mean", "variance"], training_mode=1)]
    model = model_of(nodes, {"x": ("n", 4, 6, 5)}, results, given, opset=15)
    module, _ = compiled_agrees(tmp_path, model, {"x": rng.standard_normal((2, 4, 6, 5)).astype(np.float32)}, devices, plan)
    assert not any("dmlc.derived" in a.attrs and a.dtype == "f32" and a.shape == (6, 4, 3, 3) for a in module.main.args)


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
@pytest.mark.parametrize("mask", [(2, 1, 1, 5), (2, 1, 3, 5), (1, 4, 3, 5), (3, 5), (1, 1)])
def test_b10_masks_of_all_shapes(mask: tuple[int, ...], devices: int, plan: str) -> None:
    """[b, 1, 1, s], [b, 1, q, s], one for each head, without batch, a number: each is raised to attention with that mask, which cannot hide a row."""
    q, k, v, m = (torch.randn(s, generator=torch.Generator().manual_seed(i)) for i, s in enumerate([(2, 4, 3, 8), (2, 4, 5, 8), (2, 4, 5, 8), mask]))

    class Masked(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
            return (q @ k.transpose(-1, -2) * 0.3 + m * -1e9).softmax(-1) @ v

    m = m > 1
    module, (y,) = run_exported(Masked(), q, k, v, m, devices=devices, plan=plan, promote="f64")
    np.testing.assert_allclose(y, Masked()(q.double(), k.double(), v.double(), m).numpy(), atol=1e-6)
    assert len(ops_of(module, "dmlc.attention")) == 1


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


@everywhere
def test_b11_what_changes_the_dtype_or_rounds(devices: int, plan: str) -> None:
    class Promotions(torch.nn.Module):
        def forward(self, i: torch.Tensor, h: torch.Tensor, x: torch.Tensor):
            return i * 1.0, h + torch.zeros(2), x.half().float(), x.expand(2) * 1.0

    i, h, x = torch.tensor([2**24 + 1, -3]), torch.tensor([1.5, -2.0], dtype=torch.bfloat16), torch.tensor([1 + 2**-12])
    _, found = run_exported(Promotions(), i, h, x, devices=devices, plan=plan)
    assert [f.dtype for f in found] == [np.float32] * 4
    assert [f.tolist() for f in found] == [[16777216, -3], [1.5, -2], [1], [1 + 2**-12] * 2]


@everywhere
def test_b11_casts_and_products_of_a_file(tmp_path, devices: int, plan: str) -> None:
    """x * 1 that broadcasts, a cast to half and back, x + 0 with -0.0 and x * 0 with infinities."""
    node = helper.make_node
    nodes = [
        node("Mul", ["x", "ones"], ["a"]), node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16), node("Cast", ["h"], ["b"], to=TensorProto.FLOAT),
        node("Add", ["x", "zero"], ["c"]), node("Mul", ["x", "zero"], ["d"]),
    ]  # fmt: skip
    model = model_of(nodes, {"x": ("n", 4)}, ["a", "b", "c", "d"], {"ones": np.ones((2, 1, 1), np.float32), "zero": np.float32(0)})
    x = np.array([[-0.0, 1 + 2**-12, np.inf, np.nan]] * 2, np.float32)
    a, b, c, d = run_onnx(tmp_path, model, {"x": x}, devices, plan)[1]
    np.testing.assert_array_equal(a, np.broadcast_to(x, (2, 2, 4)))
    np.testing.assert_array_equal(b[0], [0, 1, np.inf, np.nan])
    assert not np.signbit(c[0, 0]) and np.isnan(d[0, 2:]).all()
