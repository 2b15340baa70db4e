"""joint: never slower than the passes one after another, within memory, the same every time, and the program's meaning is kept."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
from training_cases import OPTIMIZERS, loaded
from training_programs import perceptron_step

from dmlc import driver
from dmlc.cli._ablation import ablation
from dmlc.cost import CostModel
from dmlc.ir.attributes import AttrDict
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

CASES = (  # model, plan, microbatches (0: not trained), cluster
    ("perceptron", "dp=2", 1, "gpu"), ("perceptron", "dp=2,zero=1", 2, "wire"), ("perceptron", "tp=2", 1, "wire"), ("cnn", "dp=2", 1, "wire"),
    ("transformer", "dp=2", 1, "gpu"), ("transformer", "dp=2", 1, "wire"), ("transformer", "dp=4", 2, "wire"), ("transformer", "dp=2,zero=2", 2, "gpu"),
    ("transformer", "dp=2,zero=3", 1, "wire"), ("transformer", "tp=2", 1, "wire"), ("transformer", "dp=2,tp=2", 1, "gpu"),
    ("transformer", "tp=2", 0, "gpu"), ("transformer", "dp=2,tp=2", 0, "wire"),
)  # fmt: skip
DRAFT = ("joint{effort=200}", *JOINT[1:])  # what must hold does whatever the effort


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


def peak(module: Module) -> int:
    return simulate_step(module, CostModel.of(module)).peak


@pytest.mark.parametrize(("model", "plan", "microbatches", "cluster"), CASES, ids=lambda v: str(v))
def test_never_slower_than_the_passes_and_the_same_values(model, plan, microbatches, cluster):
    module, weights = program(model, plan, microbatches, cluster)
    together, apart = after(module, DRAFT), after(module, PASSES)
    assert time(together) <= time(apart)
    assert time(together) <= time(after(module, ("schedule{given}",)))
    assert peak(together) <= max(CostModel.of(module).cluster.memory, peak(module))
    assert "agree" in compare(module, together, "exact", weights)


@pytest.mark.parametrize("model", ["perceptron", "transformer"])
def test_better_where_passes_decide_one_after_another(model):
    module, _ = program(model, "dp=2", 1, "gpu")
    assert time(after(module, JOINT)) < time(after(module, PASSES)) < time(module)


def test_equal_text_gives_equal_text():
    module, _ = program("perceptron", "dp=2,zero=1", 2, "wire")
    first = print_module(after(module, DRAFT[:1]))
    assert print_module(after(parse_module(print_module(module), "copy"), DRAFT[:1])) == first
    done = print_module(after(parse_module(first, "dump"), JOINT[1:]))
    assert print_module(after(module, DRAFT)) == done


def test_a_dump_can_be_edited():
    """Without its bucket's number a collective goes alone; with `dmlc.chunks` one is cut; both as the text says."""
    module = after(perceptron_step(3, 256, 256, 2), DRAFT[:1])
    merged = [op for op in module.main.ops() if "dmlc.bucket" in op.attrs]
    assert merged
    for op in merged:
        del op.attrs["dmlc.bucket"]
    merged[0].attrs["dmlc.chunks"] = 2
    done = after(module, JOINT[1:])
    starts = [op for op in done.main.ops() if op.name.startswith("comm.all_reduce")]
    assert all(len(op.operands) == 1 for op in starts)
    assert len([op for op in starts if "dmlc.chunk" in op.attrs]) == 2


def test_less_memory_is_kept_to():
    """A cap that the program as it stands just meets: nothing is sent off so early that both sides of it must be there."""
    module = perceptron_step(3, 512, 512, 2, ranks=4)
    cap = peak(after(module, ("schedule{given}",)))
    module.attrs["dmlc.request"] = AttrDict({"memory": cap})
    bounded = after(module, DRAFT)
    assert peak(bounded) <= cap < peak(after(perceptron_step(3, 512, 512, 2, ranks=4), DRAFT))
    assert time(bounded) <= time(after(module, ("schedule{given}",)))


def test_gathers_may_move_ahead_of_their_barriers():
    """ZeRO-3 gathers parameters again in the backward pass; where the order puts the gather, the barrier opens with what stands before it."""
    module, _ = program("perceptron", "dp=2,zero=3", 1, "wire")
    assert any(op.name == "dmlc.barrier" for op in module.main.ops())
    for op in after(module, DRAFT).main.ops():
        if op.name == "dmlc.barrier":
            trigger, block = op.operands[1].op, op.block
            assert block is not None
            assert trigger is None or trigger.block is not block or block.ops.index(trigger) < block.ops.index(op)


def test_the_request_chooses_the_pipeline():
    assert driver.usual_pipeline(annotated(driver.Options(schedule="joint"))) == "inference-joint"
    assert driver.usual_pipeline(annotated(driver.Options())) == "inference"
    assert annotated(driver.Options(schedule="joint")).attrs["dmlc.request"]["schedule"] == "joint"
    assert [p.name for p in parse_pipeline("training-joint", PIPELINES) if p.name in ("joint", "fuse")] == ["joint", "fuse"]


def annotated(options: driver.Options) -> Module:
    module = parse_module("func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\nfunc.return %x : tensor<2xf32>\n}", "x")
    driver.annotate(module, options)
    return module


def test_ablation_adds_one_decision_a_line():
    model = replace(loaded("perceptron"), module=loaded("perceptron").module.clone(), evaluation=None)
    rows = ablation(model, driver.Options(2, "dp=2", target="cpu", train=OPTIMIZERS["adamw"]))
    assert [line for line, *_ in rows] == list(ABLATION)
    steps = {line: step for line, step, *_ in rows}
    assert steps["joint"] <= steps["+ fusion"] <= steps["none"]
