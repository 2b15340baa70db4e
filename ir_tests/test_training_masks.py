"""Masks of a training step whose batch is not full: how few are left, that what is left is needed, and that results stay what they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from training_cases import OPTIMIZERS, interpreted, loaded, passed
from training_programs import perceptron_step

import dmlc.ops  # noqa: F401
from dmlc import driver
from dmlc.interpret.run import run
from dmlc.ir.core import Module, Op
from dmlc.ir.parser import parse_module
from dmlc.ir.verifier import verify
from dmlc.passes.mask_elim import MaskElim
from dmlc.passmanager import Context
from dmlc.pipelines import PIPELINES

torch.set_num_threads(1)
LAYERS, WIDTH, ROWS, COUNT, RANKS = 3, 4, 3, 3, 2


def step() -> Module:
    return perceptron_step(LAYERS, WIDTH, ROWS, COUNT, ranks=RANKS, masks=True, dtype="f64")


def eliminated(module: Module) -> Module:
    MaskElim().run(module, Context())
    verify(module)
    return module


def masks(module: Module) -> list[Op]:
    return [op for op in module.walk() if op.name == "dmlc.mask_pad"]


def inputs(batch: int, beyond: float) -> dict[str, np.ndarray]:
    """Values of a step on `batch` samples; what lies past them is `beyond`."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((COUNT * RANKS * ROWS, WIDTH))
    x[batch:] = beyond
    weights = {f"{k}{i}": rng.standard_normal((WIDTH, WIDTH)) for k in "wm" for i in range(LAYERS)}
    return {"x": x.reshape(COUNT, RANKS * ROWS, WIDTH), **weights, "lr": np.asarray(0.1), "batch_size": np.asarray(batch)}


def results(module: Module, batch: int, beyond: float, poison: bool = False) -> dict[str, np.ndarray]:
    return run(module, inputs(batch, beyond), poison_pads=poison)


def test_one_mask_a_microbatch_for_the_gradients_and_one_for_the_loss() -> None:
    """7 masks in the loop and 7 in the peeled copy: two a weight gradient, one of the loss."""
    module = step()
    assert len(masks(module)) == 2 * (2 * LAYERS + 1)
    eliminated(module)
    assert len(masks(module)) == 4
    assert next(a for a in module.main.args if a.name == "x").attrs["dmlc.pad"] == "finite"


@pytest.mark.parametrize("batch", [18, 17, 13, 7, 3, 1])
def test_results_are_the_same_whatever_lies_past_the_batch(batch: int) -> None:
    """Before the pass even NaN may lie there, after it finite numbers. Some ranks have no sample in some microbatches."""
    expected = results(step(), batch, np.nan, poison=True)
    for beyond in (0.0, 3.0):
        found = results(eliminated(step()), batch, beyond, poison=True)
        for name, value in expected.items():
            assert np.isfinite(value).all()
            np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("number", range(4))
def test_every_mask_that_is_left_is_needed(number: int) -> None:
    module = eliminated(step())
    expected = results(module, 7, 3.0)
    mask = masks(module)[number]
    mask.replace([mask.operands[0]])
    assert any(not np.allclose(value, expected[name]) for name, value in results(module, 7, 3.0).items())


# ---------------------------------------------------------------- single rules

HEAD = """builtin.module attributes {dmlc.spmd} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2]>} : () -> ()
  func.func @main(%x: tensor<1x4x3xf32> {dmlc.role = "input", dmlc.micro, dmlc.global = array<i64: 1, 8, 3>, dmlc.sharding = #dmlc.sharding<@mesh, [{}, {"data"}, {}]>}, %w: tensor<3x3xf32> {dmlc.role = "param"}, %n: tensor<i64> {dmlc.role = "size"}, %m: tensor<i64> {dmlc.role = "size"}) -> tensor<3x3xf32> {
    %zero = dmlc.full {value = 0 : i64} : () -> tensor<i64>
    %one = dmlc.full {value = 1.0 : f32} : () -> tensor<f32>
    %xs = dmlc.shard_slice %x, %zero {dim = 0 : i64, size = 1 : i64} : (tensor<1x4x3xf32>, tensor<i64>) -> tensor<1x4x3xf32>
    %h = dmlc.reshape %xs : (tensor<1x4x3xf32>) -> tensor<4x3xf32>
    %r = comm.axis_index {axis = "data"} : () -> tensor<i64>
    %s, %k = dmlc.window %n, %r {counts = array<i64: 2>, grain = 1 : i64} : (tensor<i64>, tensor<i64>) -> (tensor<i64>, tensor<i64>)
    %s2, %k2 = dmlc.window %m, %r {counts = array<i64: 2>, grain = 1 : i64} : (tensor<i64>, tensor<i64>) -> (tensor<i64>, tensor<i64>)
"""
TAIL = """    %y = dmlc.contract %am, %bm {equation = "bk,bj->kj"} : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<3x3xf32>
    func.return %y : tensor<3x3xf32>
  }
}
"""
ROW = "(tensor<4x3xf32>) -> tensor<4x3xf32>"
PAIR = "(tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>"
MASK = "{dim = 0 : i64, identity = %s} : (tensor<4x3xf32>, tensor<i64>) -> tensor<4x3xf32>"


def left(*lines: str) -> int:
    """Masks left of a product of %am and %bm (both masked by the lines) over the batch."""
    module = parse_module(HEAD + "".join(f"    {line}\n" for line in lines) + TAIL, "rule")
    return len(masks(eliminated(module)))


def masked(name: str, source: str, valid: str = "%k", identity: str = '"sum"') -> str:
    return f"{name} = dmlc.mask_pad {source}, {valid} {MASK % identity}"


def test_one_of_two_masks_is_enough_where_the_other_operand_is_finite() -> None:
    assert left(f"%t = dmlc.tanh %h : {ROW}", masked("%am", "%t"), masked("%bm", "%h")) == 1


@pytest.mark.parametrize(("operation", "count"), [("log", 2), ("rsqrt", 2), ("sqrt", 2), ("reciprocal", 2), ("exp", 1), ("gelu", 1), ("relu", 1)])
def test_what_may_not_be_finite_keeps_its_mask(operation: str, count: int) -> None:
    assert left(f"%t = dmlc.{operation} %h : {ROW}", f"%u = dmlc.{operation} %h : {ROW}", masked("%am", "%t"), masked("%bm", "%u")) == count


def test_a_root_of_a_square_and_more_is_finite() -> None:
    lines = [f"%q = dmlc.mul %h, %h : {PAIR}", "%p = dmlc.add %q, %one : (tensor<4x3xf32>, tensor<f32>) -> tensor<4x3xf32>", f"%t = dmlc.rsqrt %p : {ROW}"]
    assert left(*lines, masked("%am", "%t"), masked("%bm", "%h")) == 1


def test_masks_of_different_batches_do_not_stand_in_for_each_other() -> None:
    """%n and %m rows: the mask of one says nothing about the other's rows."""
    assert left(masked("%am", "%h", "%k"), masked("%bm", "%h", "%k2")) == 2
    assert left(masked("%a", "%h", "%k"), masked("%am", "%a", "%k2"), masked("%bm", "%h", "%k2")) == 2


def test_ones_are_no_zeros() -> None:
    """A mask that fills with ones makes the other one necessary."""
    assert left(masked("%am", "%h", identity="1.0 : f64"), masked("%bm", "%h")) == 2


def test_zeros_go_through_a_backward_pass() -> None:
    """A gradient masked where it begins: through a product with finite numbers, a row sum, a weight's transpose, a selection."""
    of = '{dmlc.of = "0"}'
    lines = [
        masked("%d0", "%h"),
        f"%t = dmlc.tanh %h : {ROW}",
        f"%d1 = dmlc.mul %d0, %t {of} : {PAIR}",
        "%z = dmlc.reduce_sum %d1 {dims = array<i64: 1>, keepdim = true} : (tensor<4x3xf32>) -> tensor<4x1xf32>",
        "%d2 = dmlc.sub %d1, %z : (tensor<4x3xf32>, tensor<4x1xf32>) -> tensor<4x3xf32>",
        "%d3 = dmlc.linear %d2, %w : (tensor<4x3xf32>, tensor<3x3xf32>) -> tensor<4x3xf32>",
        f"%c = dmlc.gt %t, %h : {PAIR.replace('-> tensor<4x3xf32>', '-> tensor<4x3xi1>')}",
        "%nil = dmlc.full {value = 0.0 : f64} : () -> tensor<f32>",
        "%d4 = dmlc.select %c, %d3, %nil : (tensor<4x3xi1>, tensor<4x3xf32>, tensor<f32>) -> tensor<4x3xf32>",
        masked("%am", "%t"),
        masked("%bm", "%d4"),
    ]
    assert left(*lines) == 1


# ---------------------------------------------------------------- whole models


@pytest.mark.parametrize(("model", "left_over"), [("perceptron", 7), ("transformer", 11)])
def test_masks_of_a_models_step(model: str, left_over: int) -> None:
    """The count of valid targets; in the loop and its peeled copy: indices (twice), the sum of the losses, the gradient where it begins.

    On a batch of 11 of 16 the step gives what it gave with all masks."""
    options = driver.Options(train=OPTIMIZERS["adamw"], plan="dp=2", devices=2, microbatches=2)
    before = PIPELINES["training"].split(",mask-elim,")[0]
    module, weights = passed(loaded(model), before, options)
    expected = interpreted(module.clone(), weights, model, 1, n=11, promote="f64")
    eliminated(module)
    assert len(masks(module)) == left_over
    found = interpreted(module, weights, model, 1, n=11, promote="f64", poison_pads=True)
    np.testing.assert_allclose([*found[0], *found[1]], [*expected[0], *expected[1]], rtol=1e-12)
    for name, value in expected[2].items():
        torch.testing.assert_close(found[2][name], value, rtol=1e-12, atol=1e-12)
