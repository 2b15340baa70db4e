"""Batch normalisation in training against PyTorch's, microbatch by microbatch: statistics, gradients, running statistics, ragged batches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from facets import agree, run_block

import dmlc.ops  # noqa: F401  (registers all ops)
from dmlc.interpret.train import Trainer
from dmlc.ir.builder import Builder
from dmlc.ir.core import Block, Module, Op, Value
from dmlc.ir.parser import parse_module
from dmlc.ir.types import TensorType
from dmlc.ops.base import strategies_of
from dmlc.passes.autodiff import Autodiff
from dmlc.passes.optimizer import Optimizer
from dmlc.passes.partition import Partition
from dmlc.passes.plan import Plan
from dmlc.passmanager.context import Context

torch.set_num_threads(1)

INDEX = TensorType((), "i64")
MOMENTUM, EPS = 0.1, 1e-5


class OneRank:
    """What a strategy sees on a single rank: microbatches of which some are not full."""

    def __init__(self, block: Block, local_types: list[TensorType], devices: tuple[str, ...] = ()):
        self.b, self.local_types, self.devices = Builder(block), local_types, devices
        self.valid, self.micro_index, self.filled = (block.add_arg(INDEX) for _ in range(3))

    def window(self, n: int, grain: int = 1) -> tuple[Value, Value]:
        return self.valid, self.valid

    def count(self, n: int, grain: int = 1) -> Value:
        return self.valid

    def filled_microbatches(self) -> Value:
        return self.filled

    def all_reduce(self, value: Value, combiner: str = "sum") -> Value:
        return value


def emitted(op: Op, operands: list[TensorType], results: list[TensorType]) -> Any:
    """A function of (valid, index, count, *operands) that runs the op's strategy."""
    block = Block()
    env = OneRank(block, results)
    args = [block.add_arg(t) for t in operands]
    made = strategies_of(op)[0].emit(env, op, args)
    assert [v.type for v in made] == results
    return lambda sizes, *xs: [run_block(block, [*map(torch.tensor, sizes), *xs])[v] for v in made]


def f64(*shape: int) -> TensorType:
    return TensorType(shape, "f64")


def built(name: str, operands: list[TensorType], **attrs: Any) -> Op:
    block = Block(operands)
    return Builder(block).op(name, block.args, attrs)


@pytest.mark.parametrize("statistics", ["global", "rank"])
@pytest.mark.parametrize("spatial", [(), (3, 2)])
@pytest.mark.parametrize("valid", [4, 3, 1])
def test_ragged_microbatch(valid: int, spatial: tuple[int, ...], statistics: str) -> None:
    """The strategies on a part of 4 samples of which `valid` are there and the rest NaN: y, gradients and statistics are PyTorch's."""
    if valid * max(1, len(spatial)) == 1:
        spatial = (2,)  # PyTorch refuses a single value a channel
    image, vector = f64(4, 3, *spatial), f64(3)
    attrs = {"eps": EPS, "correction": 1, "statistics": statistics}
    forward = emitted(built("dmlc.batch_norm_train", [f64(8, 3, *spatial), vector, vector], **attrs), [image, vector, vector], [image, vector, vector])
    back_op = built("dmlc.batch_norm_grad", [f64(8, 3, *spatial), vector, vector, vector, f64(8, 3, *spatial)], **attrs)
    backward = emitted(back_op, [image, vector, vector, vector, image], [image, vector, vector])
    x, g = (torch.randn(4, 3, *spatial, dtype=torch.float64) for _ in range(2))
    w, b = (torch.rand(3, dtype=torch.float64).requires_grad_() for _ in range(2))
    part = x[:valid].clone().requires_grad_()
    wanted = torch.nn.functional.batch_norm(part, None, None, w, b, True, MOMENTUM, EPS)
    wanted.backward(g[:valid])
    x[valid:], g[valid:] = float("nan"), float("nan")
    y, mean, var = forward((valid, 0, 1), x, w.detach(), b.detach())
    dims = [d for d in range(x.dim()) if d != 1]
    agree(y[:valid], wanted.detach(), 1e-12)
    agree(mean, part.detach().mean(dims), 1e-12)
    agree(var, part.detach().var(dims), 1e-12)
    dx, dw, db = backward((valid, 0, 1), x, w.detach(), mean, var, g)
    for found, due in ((dx[:valid], part.grad), (dw, w.grad), (db, b.grad)):
        agree(found, due, 1e-12)


@pytest.mark.parametrize("statistics", ["global", "rank"])
def test_empty_microbatch(statistics: str) -> None:
    """No sample at all: nothing is added to the gradients, and everything is finite."""
    image, vector = f64(2, 3, 2), f64(3)
    op = built("dmlc.batch_norm_grad", [image, vector, vector, vector, image], eps=EPS, correction=1, statistics=statistics)
    run = emitted(op, [image, vector, vector, vector, image], [image, vector, vector])
    x, g = (torch.randn(2, 3, 2, dtype=torch.float64) for _ in range(2))
    dx, dw, db = run((0, 1, 2), x, torch.ones(3).double(), torch.zeros(3).double(), torch.zeros(3).double(), g)
    assert bool(dx.isfinite().all()) and not dw.any() and not db.any()


@pytest.mark.parametrize("momentum", [0.1, 1.0])
@pytest.mark.parametrize(("count", "filled"), [(1, 1), (4, 4), (4, 2), (3, 1), (2, 0)])
def test_running_average_over_microbatches(count: int, filled: int, momentum: float) -> None:
    """What the microbatches contribute adds up to the recurrence over those that hold samples."""
    running, batches = torch.randn(5, dtype=torch.float64), torch.randn(count, 5, dtype=torch.float64)
    run = emitted(built("dmlc.running_average", [f64(5), f64(5)], momentum=momentum), [f64(5)] * 2, [f64(5)])
    total = sum(run((1, i, filled), running, batches[i])[0] for i in range(count))
    wanted = running
    for batch in batches[:filled]:
        wanted = momentum * batch + (1 - momentum) * wanted
    agree(total, wanted, 1e-14)


# ---------------------------------------------------------------- a training step on ranks and microbatches

STEP = """
builtin.module attributes {dmlc.mode = "train", dmlc.request = {devices = DEVICES : i64, plan = "PLAN", precision = "fp32", microbatches = MICRO : i64},
  dmlc.cluster = "h100", dmlc.train = {optimizer = "sgd", batch_norm = "STATISTICS"}} {
  func.func @main(%x: tensor<8x3x4xf64> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}, %v: tensor<3x5xf64> {dmlc.role = "param", dmlc.names = ["v"]},
     %w: tensor<5xf64> {dmlc.role = "param", dmlc.names = ["w"]}, %b: tensor<5xf64> {dmlc.role = "param", dmlc.names = ["b"]},
     %rm: tensor<5xf64> {dmlc.role = "buffer", dmlc.names = ["rm"]}, %rv: tensor<5xf64> {dmlc.role = "buffer", dmlc.names = ["rv"]})
    -> (tensor<f64> {dmlc.name = "loss"}, tensor<5xf64> {dmlc.name = "rm", dmlc.updates = "rm"}, tensor<5xf64> {dmlc.name = "rv", dmlc.updates = "rv"}) {
    %h = dmlc.contract %x, %v {equation = "nct,cd->ndt"} : (tensor<8x3x4xf64>, tensor<3x5xf64>) -> tensor<8x5x4xf64>
    %y, %m, %s = dmlc.batch_norm_train %h, %w, %b {eps = 1.0e-05 : f64, correction = 1 : i64}
      : (tensor<8x5x4xf64>, tensor<5xf64>, tensor<5xf64>) -> (tensor<8x5x4xf64>, tensor<5xf64>, tensor<5xf64>)
    %nm = dmlc.running_average %rm, %m {momentum = 0.1 : f64} : (tensor<5xf64>, tensor<5xf64>) -> tensor<5xf64>
    %nv = dmlc.running_average %rv, %s {momentum = 0.1 : f64} : (tensor<5xf64>, tensor<5xf64>) -> tensor<5xf64>
    %t = dmlc.tanh %y : (tensor<8x5x4xf64>) -> tensor<8x5x4xf64>
    %u = dmlc.mul %t, %h : (tensor<8x5x4xf64>, tensor<8x5x4xf64>) -> tensor<8x5x4xf64>
    %loss = dmlc.reduce_sum %u {dims = array<i64: 0, 1, 2>} : (tensor<8x5x4xf64>) -> tensor<f64>
    func.return %loss, %nm, %nv : tensor<f64>, tensor<5xf64>, tensor<5xf64>
  }
}
"""


def step_program(devices: int, plan: str, microbatches: int, statistics: str) -> Module:
    text = STEP
    for key, value in {"DEVICES": devices, "PLAN": plan, "MICRO": microbatches, "STATISTICS": statistics}.items():
        text = text.replace(key, str(value))
    module, context = parse_module(text, "step"), Context()
    for step in (Autodiff(), Optimizer(), Plan(), Partition()):
        step.run(module, context)
    return module


def initial() -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(3)
    return {name: torch.rand(shape, generator=rng, dtype=torch.float64) for name, shape in {"v": (3, 5), "w": (5,), "b": (5,), "rm": (5,), "rv": (5,)}.items()}


def eager_step(state: dict[str, torch.Tensor], parts: list[list[torch.Tensor]], lr: float) -> float:
    """One step of plain PyTorch: statistics of each part; running ones take each microbatch's (the average over its parts)."""
    params = {k: state[k].clone().requires_grad_() for k in ("v", "w", "b")}
    total = torch.zeros((), dtype=torch.float64)
    for microbatch in parts:
        statistics = []
        for x in microbatch:
            h = torch.einsum("nct,cd->ndt", x, params["v"])
            y = torch.nn.functional.batch_norm(h, None, None, params["w"], params["b"], True, MOMENTUM, EPS)
            total = total + (y.tanh() * h).sum()
            statistics.append((h.detach().mean((0, 2)), h.detach().var((0, 2))))
        for name, values in zip(("rm", "rv"), zip(*statistics)):
            state[name] = (1 - MOMENTUM) * state[name] + MOMENTUM * torch.stack(values).mean(0)
    total.backward()
    for k, p in params.items():
        state[k] = (p - lr * p.grad).detach()
    return float(total.detach())


@pytest.mark.parametrize("statistics", ["global", "rank"])
@pytest.mark.parametrize(
    ("devices", "plan", "ranks", "microbatches"),
    [(1, "dp=1", 1, 2), (2, "dp=2", 2, 2), (2, "dp=2", 2, 1), (2, "dp=2,zero=3", 2, 2), (2, "dp=1,tp=2", 1, 2), (4, "dp=4", 4, 2), (4, "dp=2,tp=2", 2, 2)],
)
def test_steps_are_those_of_pytorch(devices: int, plan: str, ranks: int, microbatches: int, statistics: str) -> None:
    """Three steps, of 8, 5 and 3 samples, NaN where there is none: loss, parameters and running statistics."""
    trainer = Trainer(step_program(devices, plan, microbatches, statistics), poison_pads=True)
    trainer.state.update(initial())
    state, rows = initial(), 8 // microbatches // ranks
    for n in (8, 5, 3):
        x = torch.randn(n, 3, 4, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        pieces = [list(part.split(rows if statistics == "rank" else rows * ranks)) for part in x.split(rows * ranks)]
        wanted = eager_step(state, pieces, 0.01)
        assert trainer.step({"x": x}, lr=0.01)["loss"] == pytest.approx(wanted, rel=1e-12)
        for name, value in state.items():
            agree(trainer.state[name], value, 1e-12, what=f"{name} after {n} samples")
