"""decouple: the two halves of an all-reduce run beside the backward and the forward pass, and the training stays the same to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_recompute import GLOBAL
from training_cases import OPTIMIZERS, driver, interpreted, loaded, passed
from training_programs import slow_cluster

from dmlc.cost import CostModel
from dmlc.ir.core import BlockArgument, Module
from dmlc.simulate.step import simulate_step


def transformer(decouple: bool, zero: int, microbatches: int) -> tuple[Module, object]:
    train = replace(OPTIMIZERS["adamw"], decouple=decouple)
    options = driver.Options(train=train, plan=f"dp=2,zero={zero}", devices=2, microbatches=microbatches, cluster=slow_cluster(2, 10**8, 10**8))
    return passed(
        loaded("transformer"), f"{GLOBAL},decouple,recompute,partition,mask-elim,canonicalize,cse,dce,tensor-fusion,tensor-partition,schedule", options
    )


@pytest.mark.parametrize(("zero", "microbatches"), [(1, 1), (2, 2)])
def test_gathers_move_to_the_start_and_are_hidden(zero, microbatches):
    runs, exposed = [], []
    for decouple in (False, True):
        module, weights = transformer(decouple, zero, microbatches)
        report = simulate_step(module, CostModel.of(module))
        exposed.append(report.exposed)
        assert report.traffic["all_gather"].bytes == 2400, "the same traffic"
        check_gathers(module, decouple)
        if microbatches == 1:
            runs.append(interpreted(module, weights, "transformer", 2, promote=torch.float64))
    assert exposed[1] < exposed[0]
    assert not runs or runs[0][:2] == runs[1][:2]
    assert not runs or all((runs[0][2][k] == runs[1][2][k]).all() for k in runs[0][2])


def check_gathers(module: Module, decouple: bool) -> None:
    """At the start, of stored parameters, in order of first use; or at the end, of what the optimizer made."""
    ops = list(module.main.body)
    gathers = [op for op in ops if op.name in ("comm.all_gather_start", "comm.all_gather")]
    assert gathers
    assert all(isinstance(v, BlockArgument) == decouple for op in gathers for v in op.operands)
    if decouple:
        scatters = [i for i, op in enumerate(ops) if op.name.startswith("comm.reduce_scatter")]
        assert max(map(ops.index, gathers)) < min(scatters)
        used = [
            min(ops.index(u) for wait in op.results[0].users for r in wait.results for u in r.users if u in ops) for op in gathers if op.name.endswith("_start")
        ]
        assert used == sorted(used)
