"""Training with the vocabulary split over tensor-parallel ranks: table gradients stay in parts, and the steps are PyTorch's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from facets import agree

from dmlc.interpret.train import Trainer
from dmlc.ir.core import Module
from dmlc.ir.parser import parse_module
from dmlc.passes.autodiff import Autodiff
from dmlc.passes.optimizer import Optimizer
from dmlc.passes.partition import Partition
from dmlc.passes.plan import Plan
from dmlc.passmanager.context import Context

torch.set_num_threads(1)

WORDS, WIDTH, TIME = 1031, 4, 5
HEAD = """
builtin.module attributes {dmlc.mode = "train", dmlc.cluster = "h100", dmlc.train = {optimizer = "sgd"},
  dmlc.request = {devices = DEVICES : i64, plan = "PLAN", precision = "fp32", microbatches = 2 : i64}} {
  func.func @main(%ids: tensor<6xTIMExi64> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}, %target: tensor<6xTIMExi64> {dmlc.role = "input", dmlc.batch_dim = 0 : i64},
     %table: tensor<WORDSxWIDTHxf64> {dmlc.role = "param", dmlc.names = ["table"]}) -> (tensor<f64> {dmlc.name = "loss"}) {
    %x = dmlc.embedding %table, %ids : (tensor<WORDSxWIDTHxf64>, tensor<6xTIMExi64>) -> tensor<6xTIMExWIDTHxf64>
    %h = dmlc.tanh %x : (tensor<6xTIMExWIDTHxf64>) -> tensor<6xTIMExWIDTHxf64>
    %z = dmlc.linear %h, %table : (tensor<6xTIMExWIDTHxf64>, tensor<WORDSxWIDTHxf64>) -> tensor<6xTIMExWORDSxf64>
"""
TAIL = """
    %loss = dmlc.reduce_sum %rows {dims = array<i64: 0, 1>} : (tensor<6xTIMExf64>) -> tensor<f64>
    func.return %loss : tensor<f64>
  }
}
"""
LOSSES = {
    "cross_entropy": """
    %rows = dmlc.cross_entropy %z, %target {ignore = 7 : i64, label_smoothing = 0.1 : f64} : (tensor<6xTIMExWORDSxf64>, tensor<6xTIMExi64>) -> tensor<6xTIMExf64>
""",
    "log_softmax": """
    %p = dmlc.log_softmax %z {dim = 2 : i64} : (tensor<6xTIMExWORDSxf64>) -> tensor<6xTIMExWORDSxf64>
    %i = dmlc.reshape %target : (tensor<6xTIMExi64>) -> tensor<6xTIMEx1xi64>
    %picked = dmlc.take_along %p, %i {dim = 2 : i64} : (tensor<6xTIMExWORDSxf64>, tensor<6xTIMEx1xi64>) -> tensor<6xTIMEx1xf64>
    %flat = dmlc.reshape %picked : (tensor<6xTIMEx1xf64>) -> tensor<6xTIMExf64>
    %rows = dmlc.neg %flat : (tensor<6xTIMExf64>) -> tensor<6xTIMExf64>
""",
}


def step_program(loss: str, devices: int, plan: str, words: int = WORDS, width: int = WIDTH, time: int = TIME) -> Module:
    text = HEAD + LOSSES[loss] + TAIL
    for key, value in {"DEVICES": devices, "PLAN": plan, "WORDS": words, "WIDTH": width, "TIME": time}.items():
        text = text.replace(key, str(value))
    module, context = parse_module(text, "step"), Context()
    for step in (Autodiff(), Optimizer(), Plan(), Partition()):
        step.run(module, context)
    return module


def eager_loss(loss: str, table: torch.Tensor, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    z = torch.nn.functional.linear(table[ids].tanh(), table).reshape(-1, WORDS)
    if loss == "cross_entropy":
        return torch.nn.functional.cross_entropy(z, target.reshape(-1), ignore_index=7, label_smoothing=0.1, reduction="sum")
    return torch.nn.functional.nll_loss(z.log_softmax(1), target.reshape(-1), reduction="sum")


@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize(("devices", "plan"), [(2, "dp=1,tp=2"), (3, "dp=1,tp=3"), (4, "dp=2,tp=2"), (4, "dp=2,tp=2,zero=3")])
def test_tied_table(devices: int, plan: str, loss: str) -> None:
    """Two steps of a table that embeds and classifies, with 1031 words, which no number of ranks divides."""
    module = step_program(loss, devices, plan)
    table = torch.randn(WORDS, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    trainer = Trainer(module, poison_pads=True)
    trainer.state["table"] = table.clone()
    for n in (6, 4):
        rng = torch.Generator().manual_seed(n)
        ids, target = (torch.randint(0, WORDS, (n, TIME), generator=rng) for _ in range(2))
        target[0, :2] = 7
        table = table.clone().requires_grad_()
        wanted = eager_loss(loss, table, ids, target)
        wanted.backward()
        assert trainer.step({"ids": ids, "target": target}, lr=0.1)["loss"] == pytest.approx(float(wanted.detach()), rel=1e-12)
        table = (table - 0.1 * table.grad).detach()
        agree(trainer.state["table"], table, 1e-12)


@pytest.mark.parametrize("loss", list(LOSSES))
def test_nothing_of_the_tables_size_is_sent_or_held(loss: str) -> None:
    """Under tensor parallelism alone each rank has its rows' gradient: no value is as large as the table, and only single numbers a row are sent."""
    words, width, time = 40009, 64, 128
    module = step_program(loss, 2, "dp=1,tp=2", words, width, time)
    for op in module.main.op.walk():
        for r in op.results:
            assert words not in r.tensor.shape, f"{op.name} {op.id} gives {r.type}"
            assert not op.name.startswith("comm.") or r.tensor.numel <= 3 * time * width, f"{op.name} {op.id} sends {r.type}"
