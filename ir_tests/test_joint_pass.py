"""joint: never slower than the passes one after another, within memory, the same every time, and the program's meaning is kept."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
from training_cases import OPTIMIZERS, loaded
from training_programs import perceptron_step

from dmlc import driver
from dmlc.cost import CostModel
from dmlc.ir.core import Module
from dmlc.ir.parser import parse_module
from dmlc.ir.printer import print_module
from dmlc.passmanager import Context, PassManager, parse_pipeline
from dmlc.passmanager.check import compare
from dmlc.pipelines import ABLATION, JOINT, PASSES, PIPELINES
from dmlc.simulate.step import simulate_step
from dmlc.tools.folders import cluster_of

UP_TO = {name: PIPELINES[name].partition(",fuse,")[0] for name in ("training", "inference")}
SLOW = {"gpu": None, "wire": 1.0}  # clusters: what a plan is made for usually; processors with a link of 1 Gbit/s

PROGRAMS = (
    ("perceptron", "dp=2", 1), ("perceptron", "dp=2,zero=1", 2), ("perceptron", "tp=2", 1), ("cnn", "dp=2", 1), ("transformer", "dp=2", 1),
    ("transformer", "dp=4", 2), ("transformer", "dp=2,zero=1", 1), ("transformer", "dp=2,zero=2", 2), ("transformer", "dp=2,zero=3", 1),
    ("transformer", "tp=2", 1), ("transformer", "dp=2,tp=2", 1),
)  # fmt: skip
RUNS = (("perceptron", "tp=2"), ("transformer", "tp=2"), ("transformer", "dp=2,tp=2"))
CASES = [(*p, c) for p in PROGRAMS for c in SLOW] + [(*p, 0, c) for p in RUNS for c in SLOW]


@functools.cache
def program(model: str, plan: str, microbatches: int, cluster: str) -> tuple[Module, Any]:
    """A per-rank program as `joint` gets it, with its weights; without microbatches one that is not trained."""
    training = OPTIMIZERS["adamw"] if microbatches else None
    devices = _ranks(plan)
    where = cluster_of(devices, SLOW[cluster]) if SLOW[cluster] else None
    options = driver.Options(train=training, plan=plan, devices=devices, microbatches=max(microbatches, 1), target="" if where else "h100", cluster=where)
    source = loaded(model) if microbatches else driver.load(f"{loaded(model).source}", driver.Options())
    module = source.module.clone()
    driver.annotate(module, options)
    context = Context(source.weights)
    PassManager(parse_pipeline(UP_TO["training" if microbatches else "inference"], PIPELINES)).run(module, context)
    return module, context.weights


def _ranks(plan: str) -> int:
    ranks = 1
    for part in plan.split(","):
        kind, _, n = part.partition("=")
        ranks *= 1 if kind == "zero" else int(n)
    return ranks


def after(module: Module, passes: tuple[str, ...]) -> Module:
    copy = module.clone()
    PassManager(parse_pipeline(",".join(passes)), verify=True).run(copy, Context())
    return copy


def time(module: Module) -> int:
    return simulate_step(module, CostModel.of(module)).time


@pytest.mark.parametrize(("model", "plan", "microbatches", "cluster"), CASES, ids=lambda v: str(v))
def test_never_slower_than_the_passes_one_after_another(model, plan, microbatches, cluster):
    module, weights = program(model, plan, microbatches, cluster)
    together, apart = after(module, JOINT), after(module, PASSES)
    print(model, plan, microbatches, cluster, time(module) / 1e6, time(apart) / 1e6, time(together) / 1e6)
    assert time(together) <= time(apart)
    assert time(together) <= time(after(module, ("schedule{given}",)))
