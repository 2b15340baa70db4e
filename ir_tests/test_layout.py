"""Dim orders: what the annotation does to a program's text and to PyTorch's strides."""

from __future__ import annotations

import torch

import dmlc.ops  # noqa: F401
from dmlc.codegen.table import emit_table
from dmlc.interpret.evaluate import evaluate
from dmlc.ir.parser import parse_module
from dmlc.passmanager import Context, PassManager, parse_pipeline

RESIDUAL = """
builtin.module attributes {dmlc.cluster = "cpu"} {
  func.func @main(%x: tensor<2x8x9x9xf32>, %w: tensor<8x8x3x3xf32> {dmlc.role = "param"}, %l: tensor<648x4xf32> {dmlc.role = "param"}) -> tensor<2x4xf32> {
    %a = dmlc.conv %x, %w {padding = array<i64: 1, 1, 1, 1>} : (tensor<2x8x9x9xf32>, tensor<8x8x3x3xf32>) -> tensor<2x8x9x9xf32>
    %b = dmlc.relu %a : (tensor<2x8x9x9xf32>) -> tensor<2x8x9x9xf32>
    %c = dmlc.conv %b, %w {padding = array<i64: 1, 1, 1, 1>} : (tensor<2x8x9x9xf32>, tensor<8x8x3x3xf32>) -> tensor<2x8x9x9xf32>
    %d = dmlc.add %c, %x : (tensor<2x8x9x9xf32>, tensor<2x8x9x9xf32>) -> tensor<2x8x9x9xf32>
    %e = dmlc.reshape %d : (tensor<2x8x9x9xf32>) -> tensor<2x648xf32>
    %f = dmlc.matmul %e, %l : (tensor<2x648xf32>, tensor<648x4xf32>) -> tensor<2x4xf32>
    func.return %f : tensor<2x4xf32>
  }
}
"""


def laid_out():
    module = parse_module(RESIDUAL)
    PassManager(parse_pipeline("layout{force}")).run(module, Context())
    return module


def test_a_chain_converts_its_image_once_and_its_weight_at_loading():
    module = laid_out()
    assert [op.name for op in module.main.body].count("dmlc.relayout") == 1
    assert "'order': (0, 2, 3, 1)" in emit_table(module, None)


def test_pytorch_hands_the_order_on():
    """Every value between the conversion and the flattening really lies channels-last."""
    module = laid_out()
    values = {a: torch.randn(a.shape) for a in module.main.args}
    weight = module.main.args[1]
    values[weight] = values[weight].contiguous(memory_format=torch.channels_last)
    for op in module.main.body:
        if op.name == "dmlc.reshape":
            break
        (values[op.result],) = evaluate(op, [values[v] for v in op.operands])
        assert values[op.result].is_contiguous(memory_format=torch.channels_last), op.name


def test_kinds_of_convolutions_that_stay():
    """One-dimensional convolutions have no such order."""
    module = parse_module("""
builtin.module attributes {dmlc.cluster = "cpu"} {
  func.func @main(%x: tensor<2x8x9xf32>, %w: tensor<8x8x3xf32>) -> tensor<2x8x7xf32> {
    %a = dmlc.conv %x, %w : (tensor<2x8x9xf32>, tensor<8x8x3xf32>) -> tensor<2x8x7xf32>
    func.return %a : tensor<2x8x7xf32>
  }
}
""")
    assert not any(r.changed for r in PassManager(parse_pipeline("layout{force}")).run(module, Context()))


def test_convolutions_in_a_loop_and_in_its_peeled_copy():
    """Each region converts its own image; a weight that the update reads too is not laid out otherwise."""
    conv = "dmlc.conv %s, %%w {padding = array<i64: 1, 1, 1, 1>} : (tensor<2x8x9x9xf32>, tensor<8x8x3x3xf32>) -> tensor<2x8x9x9xf32>"
    one = "{dim = 0 : i64, size = 1 : i64} : (tensor<2x2x8x9x9xf32>, tensor<i64>) -> tensor<1x2x8x9x9xf32>"
    flat = ": (tensor<1x2x8x9x9xf32>) -> tensor<2x8x9x9xf32>"
    total = "dmlc.reduce_sum %s {dims = array<i64: 0, 1, 2, 3>} : (tensor<2x8x9x9xf32>) -> tensor<f32>"
    module = parse_module(f"""
builtin.module attributes {{dmlc.cluster = "cpu", dmlc.spmd}} {{
  func.func @main(%x: tensor<2x2x8x9x9xf32>, %w: tensor<8x8x3x3xf32> {{dmlc.role = "param"}}) -> (tensor<f32>, tensor<8x8x3x3xf32>) {{
    %s = dmlc.microbatch {{count = 1 : i64}} {{
    ^bb0(%i: tensor<i64>):
      %y = dmlc.shard_slice %x, %i {one}
      %a = dmlc.reshape %y {flat}
      %b = {conv % "%a"}
      %c = {conv % "%b"}
      %t = {total % "%c"}
      dmlc.yield %t : (tensor<f32>) -> ()
    }} : () -> tensor<f32>
    %last = dmlc.full {{value = 1 : i64}} : () -> tensor<i64>
    %y = dmlc.shard_slice %x, %last {one}
    %a = dmlc.reshape %y {flat}
    %b = {conv % "%a"}
    %t = {total % "%b"}
    %u = dmlc.add %s, %t : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %v = dmlc.mul %w, %u {{dmlc.phase = "update"}} : (tensor<8x8x3x3xf32>, tensor<f32>) -> tensor<8x8x3x3xf32>
    func.return %u, %v : tensor<f32>, tensor<8x8x3x3xf32>
  }}
}}
""")
    PassManager(parse_pipeline("layout{force}")).run(module, Context())
    loop = next(op for op in module.main.body if op.name == "dmlc.microbatch")
    for block, convolutions in ((loop.region.block, 2), (module.main.body, 1)):
        assert [op.name for op in block].count("dmlc.relayout") == 1
        assert len([op for op in block if op.attrs.get("dmlc.layout") == (0, 2, 3, 1)]) == convolutions
    assert "dmlc.layout" not in module.main.arg("w").attrs
