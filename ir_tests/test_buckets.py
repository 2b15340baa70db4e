"""D10: what may share a bucket, and what happens to values that are read early."""

from __future__ import annotations

import pytest

import dmlc.ops  # noqa: F401
from dmlc.cost import CostModel
from dmlc.ir.location import DmlcError
from dmlc.ir.parser import parse_module
from dmlc.ir.verifier import verify
from dmlc.passes import tensor_fusion
from dmlc.passmanager import Context, PassManager, parse_pipeline
from dmlc.passmanager.check import seeded_inputs
from dmlc.simulate import Choice, UnitGraph

SCATTER = 'dims = array<i64: 0>, sizes = array<i64: 8>, grains = array<i64: 1>'
PROGRAM = f"""
builtin.module attributes {{dmlc.spmd, dmlc.cluster = "h100"}} {{
  dmlc.mesh {{sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=2]>}} : () -> ()
  func.func @main(%a: tensor<8x8xbf16>, %b: tensor<8x8xbf16>, %c: tensor<8x8xf32>, %d: tensor<8x8xbf16>, %e: tensor<8x8xbf16>)
      -> (tensor<4x8xbf16>, tensor<8x8xbf16>, tensor<4x8xf32>, tensor<4x8xbf16>, tensor<8x8xbf16>) {{
    %0 = comm.reduce_scatter %a {{axes = ["data"], combiner = "sum", {SCATTER}, dmlc.id = "rs_bf16"}} : (tensor<8x8xbf16>) -> tensor<4x8xbf16>
    %1 = comm.all_reduce %b {{axes = ["data"], combiner = "sum", dmlc.id = "ar_bf16"}} : (tensor<8x8xbf16>) -> tensor<8x8xbf16>
    %2 = comm.reduce_scatter %c {{axes = ["data"], combiner = "sum", {SCATTER}, dmlc.id = "rs_f32"}} : (tensor<8x8xf32>) -> tensor<4x8xf32>
    %3 = comm.reduce_scatter %d {{axes = ["model"], combiner = "sum", {SCATTER}, dmlc.id = "rs_other"}} : (tensor<8x8xbf16>) -> tensor<4x8xbf16>
    %m = dmlc.matmul %1, %e {{dmlc.id = "early"}} : (tensor<8x8xbf16>, tensor<8x8xbf16>) -> tensor<8x8xbf16>
    %4 = comm.all_reduce %m {{axes = ["data"], combiner = "sum", dmlc.id = "ar_last"}} : (tensor<8x8xbf16>) -> tensor<8x8xbf16>
    func.return %0, %1, %2, %3, %4 : tensor<4x8xbf16>, tensor<8x8xbf16>, tensor<4x8xf32>, tensor<4x8xbf16>, tensor<8x8xbf16>
  }}
}}
"""


def graph_of(text: str) -> UnitGraph:
    module = parse_module(text)
    return UnitGraph.of(module.main, CostModel.of(module))


def test_at_least_four_buckets_and_equal_values():
    from dmlc.interpret.run import run

    module = parse_module(PROGRAM)
    inputs = seeded_inputs(module, 0)
    before = run(module, inputs)
    PassManager(parse_pipeline("tensor-fusion")).run(module, Context())
    assert sum(op.dialect == "comm" for op in module.main.body) >= 4
    after = run(module, inputs)
    assert all((before[k] == after[k]).all() for k in before)


@pytest.mark.parametrize("pair", [("rs_bf16", "ar_bf16"), ("rs_bf16", "rs_f32"), ("rs_bf16", "rs_other")])
def test_keys_that_differ_do_not_mix(pair):
    module = parse_module(PROGRAM)
    choice = Choice(buckets=(pair,))
    assert graph_of(PROGRAM).legal(choice) == pair
    with pytest.raises(DmlcError, match="differ in kind, combiner, axes or dtype"):
        tensor_fusion.apply(module, choice)


def test_a_member_that_waits_for_another_is_refused():
    assert graph_of(PROGRAM).legal(Choice(buckets=(("ar_bf16", "ar_last"),))) == ("ar_bf16", "ar_last")


def test_the_last_iteration_shares_buckets_with_what_comes_behind_it():
    text = PROGRAM.replace('["model"], combiner = "sum"', '["data"], combiner = "sum"')
    peeled = text.replace('dmlc.id = "rs_bf16"', 'dmlc.id = "rs_bf16", dmlc.iteration = "peel"')
    assert peeled != text and graph_of(peeled).legal(Choice(buckets=(("rs_bf16", "rs_other"),))) is None


CYCLE = """
builtin.module attributes {dmlc.spmd} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2]>} : () -> ()
  func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %0 = dmlc.exp %x {dmlc.id = "p"} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = comm.all_reduce %0 {axes = ["data"], combiner = "sum", dmlc.id = "r1"} : (tensor<4xf32>) -> tensor<4xf32>
    %2 = comm.all_reduce %y {axes = ["data"], combiner = "sum", dmlc.id = "r2"} : (tensor<4xf32>) -> tensor<4xf32>
    %3 = dmlc.exp %2 {dmlc.id = "q"} : (tensor<4xf32>) -> tensor<4xf32>
    func.return %1, %3 : tensor<4xf32>, tensor<4xf32>
  }
}
"""


def test_a_group_and_a_bucket_that_are_cyclic_only_together():
    graph = graph_of(CYCLE)
    group, bucket = (("p", "q"),), (("r1", "r2"),)
    assert graph.legal(Choice(groups=group)) is None
    assert graph.legal(Choice(buckets=bucket)) is None
    cycle = graph.legal(Choice(groups=group, buckets=bucket))
    assert cycle is not None and set(cycle) == {"p", "r1"}


def test_readers_before_the_last_member_move_behind_the_bucket():
    module = parse_module(CYCLE.replace('%2 = comm.all_reduce %y {axes = ["data"], combiner = "sum", dmlc.id = "r2"}', '%5 = dmlc.neg %1 {dmlc.id = "early"} : (tensor<4xf32>) -> tensor<4xf32>\n    %2 = comm.all_reduce %y {axes = ["data"], combiner = "sum", dmlc.id = "r2"}').replace("func.return %1, %3", "func.return %5, %3"))
    tensor_fusion.apply(module, Choice(buckets=(("r1", "r2"),)))
    verify(module)
    names = [op.name for op in module.main.body]
    assert names == ["dmlc.exp", "comm.all_reduce", "dmlc.neg", "dmlc.exp", "func.return"]


def test_max_bytes_bounds_a_bucket():
    text = (__import__("pathlib").Path(__file__).parent / "passes" / "tensor_fusion.mlir").read_text().split("// -----")[0]
    for limit, expected in ((0, 1), (300_000, 2), (1, 3)):
        module = parse_module(text)
        PassManager(parse_pipeline(f"tensor-fusion{{max-bytes={limit}}}")).run(module, Context())
        assert sum(op.name == "comm.all_reduce" for op in module.main.body) == expected
