"""Faults that graph optimizers had in public, run through `simplify` with the numbers of the reports. What a bug changes is a value here."""

from __future__ import annotations

import numpy as np
import pytest

import dmlc.ops  # noqa: F401
from dmlc.interpret.run import run
from dmlc.ir.core import Module
from dmlc.ir.parser import parse_module
from dmlc.passmanager import Context, PassManager, parse_pipeline
from dmlc.pipelines import PIPELINES


def simplified(text: str) -> Module:
    module = parse_module(text)
    PassManager(parse_pipeline("simplify", PIPELINES)).run(module, Context())
    return module


def outputs(text: str, **inputs: np.ndarray) -> list[np.ndarray]:
    """Results after `simplify`, which must equal those before it bit for bit."""
    before = list(run(parse_module(text), inputs).values())
    after = list(run(simplified(text), inputs).values())
    for a, b in zip(before, after, strict=True):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), (a, b)
    return after


def test_intermediate_value_that_is_also_an_output():
    """microsoft/onnxruntime#4110, #15109."""
    text = """
    func.func @main(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
      %k = dmlc.full {value = 1.702 : f64} : () -> tensor<f32>
      %t2 = dmlc.mul %x, %k : (tensor<3xf32>, tensor<f32>) -> tensor<3xf32>
      %t3 = dmlc.sigmoid %t2 : (tensor<3xf32>) -> tensor<3xf32>
      %t4 = dmlc.mul %x, %t3 : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
      func.return %t4, %t2 : tensor<3xf32>, tensor<3xf32>
    }
    """
    t4, t2 = outputs(text, x=np.array([-1, 0, 2], np.float32))
    np.testing.assert_allclose(t4, [-0.154204, 0, 1.935659], rtol=1e-5)
    np.testing.assert_allclose(t2, [-1.702, 0, 3.404], rtol=1e-6)


def test_duplicate_of_which_one_is_an_output():
    """microsoft/onnxruntime#18213."""
    text = """
    func.func @main(%x: tensor<1x1x1x7xf32>) -> (tensor<1x1x7xf32>, tensor<1x1x7xf32>) {
      %t = dmlc.cos %x : (tensor<1x1x1x7xf32>) -> tensor<1x1x1x7xf32>
      %o1 = dmlc.reshape %t : (tensor<1x1x1x7xf32>) -> tensor<1x1x7xf32>
      %s2 = dmlc.reshape %t : (tensor<1x1x1x7xf32>) -> tensor<1x1x7xf32>
      %o2 = dmlc.floor %s2 : (tensor<1x1x7xf32>) -> tensor<1x1x7xf32>
      func.return %o1, %o2 : tensor<1x1x7xf32>, tensor<1x1x7xf32>
    }
    """
    x = np.array([4.164, 3.107, 6.293, 4.184, 5.94, 4.6, 5.547], np.float32).reshape(1, 1, 1, 7)
    first, second = outputs(text, x=x)
    np.testing.assert_allclose(first.ravel(), [-0.5213, -0.9994, 0.99995, -0.5041, 0.9417, -0.1122, 0.7410], atol=1e-4)
    np.testing.assert_array_equal(second.ravel(), [-1, -1, 0, -1, 0, -1, 0])


def test_transposes_compose_in_the_right_order():
    """onnx/optimizer#35: permutations that are not their own inverses."""
    text = """
    func.func @main(%x: tensor<2x3x4xf32>) -> tensor<3x4x2xf32> {
      %a = dmlc.transpose %x {perm = array<i64: 1, 0, 2>} : (tensor<2x3x4xf32>) -> tensor<3x2x4xf32>
      %b = dmlc.transpose %a {perm = array<i64: 0, 2, 1>} : (tensor<3x2x4xf32>) -> tensor<3x4x2xf32>
      func.return %b : tensor<3x4x2xf32>
    }
    """
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(outputs(text, x=x)[0], x.transpose(1, 2, 0))
    assert [op.attrs["perm"] for op in simplified(text).walk() if op.name == "dmlc.transpose"] == [(1, 2, 0)]


SPECIAL = np.array([-0.0, 0.0, np.inf, -np.inf, np.nan, 1e-45, 3.5, -(2.0**24) - 1], np.float32)


@pytest.mark.parametrize(
    "op, number", [("add", "0.0"), ("add", "-0.0"), ("sub", "0.0"), ("mul", "0.0"), ("mul", "1.0"), ("div", "1.0"), ("pow", "1.0"), ("pow", "2.0")]
)
def test_neutral_elements_keep_every_bit(op, number):
    """pytorch/pytorch#166552: signed zeros, infinities and NaN."""
    text = f"""
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{
      %k = dmlc.full {{value = {number} : f64}} : () -> tensor<f32>
      %y = dmlc.{op} %x, %k : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
      func.return %y : tensor<8xf32>
    }}
    """
    outputs(text, x=SPECIAL)


@pytest.mark.parametrize("op, expected", [("sub", [np.nan, 0.0]), ("div", [np.nan, np.nan])])
def test_a_value_with_itself_is_not_simplified(op, expected):
    text = f"""
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{
      %y = dmlc.{op} %x, %x : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
      func.return %y : tensor<2xf32>
    }}
    """
    np.testing.assert_array_equal(outputs(text, x=np.array([np.inf, 0.0], np.float32))[0], expected)


def test_integers_through_floats_are_rounded():
    """int64 * 1.0 computes in float32: 2^24 + 1 becomes 2^24."""
    text = """
    func.func @main(%x: tensor<1xi64>) -> tensor<1xf32> {
      %one = dmlc.full {value = 1.0 : f64} : () -> tensor<f32>
      %f = dmlc.cast %x {to = "f32"} : (tensor<1xi64>) -> tensor<1xf32>
      %y = dmlc.mul %f, %one : (tensor<1xf32>, tensor<f32>) -> tensor<1xf32>
      func.return %y : tensor<1xf32>
    }
    """
    assert outputs(text, x=np.array([2**24 + 1]))[0].tolist() == [16777216.0]


def test_casts_there_and_back_round():
    text = """
    func.func @main(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
      %h = dmlc.cast %x {to = "f16"} : (tensor<8xf32>) -> tensor<8xf16>
      %a = dmlc.cast %h {to = "f32"} : (tensor<8xf16>) -> tensor<8xf32>
      %b = dmlc.cast %x {to = "bf16"} : (tensor<8xf32>) -> tensor<8xbf16>
      %c = dmlc.cast %b {to = "f32"} : (tensor<8xbf16>) -> tensor<8xf32>
      func.return %a, %c : tensor<8xf32>, tensor<8xf32>
    }
    """
    half, brain = outputs(text, x=SPECIAL)
    assert half[-1] == -np.inf and brain[-1] == -(2.0**24) and half[5] == 0


def test_narrow_constants_round_where_they_are_made():
    """0.1 in bf16, cast to float32, is not 0.1."""
    text = """
    func.func @main() -> tensor<f32> {
      %t = dmlc.full {value = 0.1 : f64} : () -> tensor<bf16>
      %y = dmlc.cast %t {to = "f32"} : (tensor<bf16>) -> tensor<f32>
      func.return %y : tensor<f32>
    }
    """
    assert float(outputs(text)[0]) == 0.10009765625


@pytest.mark.parametrize("op, attrs, dtype", [("random_normal", "", "f32"), ("random_uniform", "", "f32"), ("dropout_mask", "p = 0.5 : f64, ", "i1")])
def test_random_values_stay(op, attrs, dtype):
    """onnx/optimizer#254: two random ops whose seed is a number; nothing merges, nothing folds."""
    text = f"""
    func.func @main() -> (tensor<4x{dtype}>, tensor<4x{dtype}>) {{
      %seed = dmlc.full {{value = 7 : i64}} : () -> tensor<i64>
      %step = dmlc.full {{value = 0 : i64}} : () -> tensor<i64>
      %a = dmlc.{op} %seed, %step {{{attrs}shape = array<i64: 4>, stream = 1 : i64}} : (tensor<i64>, tensor<i64>) -> tensor<4x{dtype}>
      %b = dmlc.{op} %seed, %step {{{attrs}shape = array<i64: 4>, stream = 2 : i64}} : (tensor<i64>, tensor<i64>) -> tensor<4x{dtype}>
      func.return %a, %b : tensor<4x{dtype}>, tensor<4x{dtype}>
    }}
    """
    assert sum(1 for o in simplified(text).walk() if o.name == f"dmlc.{op}") == 2
