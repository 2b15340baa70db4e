"""Every strategy of every op, and every way to split its factors, through `partition` itself: the ranks' program with NaN in all padding gives what
the op gives. Like the other generic tests, it knows no op."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import facets
from facets import Case, agree, build, cases, operands

from dmlc.interpret.evaluate import evaluate, promoted
from dmlc.interpret.run import run_tensors
from dmlc.ir.builder import Builder
from dmlc.ir.core import Module, Op
from dmlc.ir.sharding import Mesh
from dmlc.ops.base import Strategy, rule_of, strategies_of
from dmlc.ops.place import Place, states
from dmlc.passes.partition import Partition
from dmlc.passmanager.context import Context

torch.set_num_threads(1)


def placed_module(case: Case, mesh: Mesh, place: Place) -> Module:
    """The op alone in a program on `mesh`, its arguments lying as the place asks."""
    module = Module()
    if mesh.axes.sizes:
        module.body.append(Op("dmlc.mesh", attrs={"sym_name": mesh.name, "axes": mesh.axes}))
    function = module.add_function("main", case.sample.operands)
    b = Builder.at_end(function.body)
    op = b.op(case.op_name, function.args, {**case.sample.attrs, "dmlc.place": place.to_attr()}, case.sample.results)
    for arg, sharding in zip(function.args, states(mesh, op, place)[0]):
        arg.attrs["dmlc.sharding"] = sharding
    b.op("func.return", op.results, result_types=())
    return module


def check(case: Case, mesh: Mesh, place: Place) -> None:
    op, xs = build(case), operands(case, wide=True)
    module = placed_module(case, mesh, place)
    Partition().run(module, Context())
    named = {a.name: x for a, x in zip(module.main.args, xs)}
    found = run_tensors(module, named, promote="f64", poison_pads=True)
    for actual, wanted in zip(found.values(), evaluate(op, xs, promoted), strict=True):
        agree(actual, wanted, what=f"{place.to_attr()} on {mesh.axes}")


def strategies() -> Iterator[Any]:
    for case in cases(lambda d: d.strategies is not None):
        for strategy in strategies_of(build(case)):
            if strategy.sequential_only:
                continue  # means something over microbatches alone: tested where the op is
            yield pytest.param(case, strategy, id=f"{case.id}-{strategy.name}")


@pytest.mark.parametrize(("case", "strategy"), list(strategies()))
def test_strategy(case: Case, strategy: Strategy) -> None:
    """On 2, 3 and 4 ranks, and on 2 x 3."""
    for sizes in ({"a": 2}, {"a": 3}, {"a": 4}, {"a": 2, "b": 3}):
        mesh = Mesh.make(**sizes)
        if strategy.divides and strategy.divides % mesh.devices:
            continue
        check(case, mesh, Place.make(strategy=(strategy.name, tuple(sizes))))


def test_every_strategy_runs() -> None:
    """Each strategy's name appears with a sample it can split."""
    assert {p.values[1].name for p in strategies()}


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.id)
def test_factors(case: Case) -> None:
    """Each factor in 2 and 3 parts."""
    for split in facets.legal_splits(rule_of(build(case))):
        place = Place.make({f: (f"on_{f}",) for f in split.parts})
        check(case, split.mesh, place)
