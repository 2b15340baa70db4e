"""overlap-split in a loop over microbatches: the peeled last iteration is cut as the loop is, and the sums stay what they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import dmlc.ops  # noqa: F401
from dmlc.interpret.run import run
from dmlc.ir.core import Module
from dmlc.ir.parser import parse_module
from dmlc.ir.verifier import verify
from dmlc.passmanager import Context, PassManager, parse_pipeline

torch.set_num_threads(1)
ROWS, WIDTH = 16384, 1024


def step(rows: int, width: int) -> Module:
    """Two microbatches of a product whose inner dim two ranks share; the second one peeled."""
    x, h, w, s = f"tensor<2x{rows}x{width}xf64>", f"tensor<{rows}x{width}xf64>", f"tensor<{width}x{width}xf64>", "tensor<f64>"

    def body(p: str, index: str, suffix: str) -> str:
        return f"""
    %{p}s = dmlc.shard_slice %x, {index} {{dim = 0 : i64, size = 1 : i64}} : ({x}, tensor<i64>) -> tensor<1x{rows}x{width}xf64>
    %{p}h = dmlc.reshape %{p}s : (tensor<1x{rows}x{width}xf64>) -> {h}
    %{p}y = dmlc.matmul %{p}h, %w {{dmlc.id = "fc{suffix}"}} : ({h}, {w}) -> {h}
    %{p}r = comm.all_reduce %{p}y {{axes = ["model"], combiner = "sum", dmlc.id = "fc.ar{suffix}"}} : ({h}) -> {h}
    %{p}t = dmlc.tanh %{p}r {{dmlc.id = "act{suffix}"}} : ({h}) -> {h}
    %{p}l = dmlc.reduce_sum %{p}t {{dims = array<i64: 0, 1>}} : ({h}) -> {s}"""

    attrs = f'dmlc.global = array<i64: 2, {rows}, {2 * width}>, dmlc.sharding = #dmlc.sharding<@mesh, [{{}}, {{}}, {{"model"}}]>'
    weight = f'dmlc.global = array<i64: {2 * width}, {width}>, dmlc.storage = #dmlc.sharding<@mesh, [{{"model"}}, {{}}]>'
    module = parse_module(f"""builtin.module attributes {{dmlc.spmd, dmlc.mode = "train", dmlc.cluster = "a100"}} {{
  dmlc.mesh {{sym_name = "mesh", axes = #dmlc.axes<["micro"=2:sequential, "model"=2]>}} : () -> ()
  func.func @main(%x: {x} {{dmlc.role = "input", {attrs}}}, %w: {w} {{dmlc.role = "param", {weight}}}) -> ({s} {{dmlc.name = "loss"}}) {{
    %a = dmlc.microbatch {{count = 1 : i64}} {{
    ^bb0(%i: tensor<i64>):{body("b_", "%i", "")}
    dmlc.yield %b_l : ({s}) -> ()
    }} : () -> {s}
    %last = dmlc.full {{value = 1 : i64}} : () -> tensor<i64>{body("p_", "%last", "#peel")}
    %loss = dmlc.add %a, %p_l : ({s}, {s}) -> {s}
    func.return %loss : {s}
  }}
}}""")
    verify(module)
    return module


def split(module: Module, text: str) -> Module:
    PassManager(parse_pipeline(text)).run(module, Context())
    verify(module)
    return module


def products(module: Module) -> list[int]:
    """Products in the loop and after it."""
    loop = next(op for op in module.main.body if op.name == "dmlc.microbatch")
    return [[op.name for op in block].count("dmlc.matmul") for block in (loop.region.block, module.main.body)]


@pytest.mark.parametrize("chunks", [2, 4])
def test_the_peeled_iteration_is_cut_like_the_loop(chunks: int) -> None:
    assert products(split(step(8, 4), f"overlap-split{{force, chunks={chunks}}}")) == [chunks, chunks]


def test_it_is_cut_where_that_is_shorter() -> None:
    large, small = (products(split(step(rows, WIDTH), "overlap-split")) for rows in (ROWS, 8))
    assert large[0] == large[1] > 1
    assert small == [1, 1]


def test_chunks_give_the_same_sums() -> None:
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((2, 8, 8)), "w": rng.standard_normal((8, 4))}
    expected = run(step(8, 4), inputs)["loss"]
    found = run(split(step(8, 4), "overlap-split{force, chunks=2},schedule"), inputs)["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
