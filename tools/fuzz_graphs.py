"""Random programs through the whole inference pipeline: on any number of ranks they mean what they meant before.

    python tools/fuzz_graphs.py                        500 graphs on 1, 2, 4 ranks
    python tools/fuzz_graphs.py --seed 17 --devices 4 --plan tp=4 --show       one of them, made as small as it still fails

Programs are interpreted with every float in float64 and NaN in all padding; results agree within 1e-9 of their scale.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import dmlc.ops  # noqa: F401
from dmlc.driver import Options, annotate
from dmlc.interpret.run import run
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError
from dmlc.ir.printer import print_module
from dmlc.ir.verifier import verify
from dmlc.ir.weights import WeightStore
from dmlc.passmanager.base import Pass
from dmlc.passmanager.check import seeded_inputs
from dmlc.passmanager.context import Context
from dmlc.passmanager.manager import PassManager
from dmlc.passmanager.pipeline import parse_pipeline
from dmlc.pipelines import PIPELINES
from dmlc.tools.random_graphs import random_graph

TOLERANCE = 1e-9
PLANS = {1: ("auto",), 2: ("tp=2", "dp=2", "auto"), 4: ("tp=4", "dp=2,tp=2", "dp=4", "auto"), 3: ("tp=3", "dp=3"), 6: ("dp=2,tp=3",)}


def plans_for(seed: int, devices: int) -> str:
    """Mostly plans that have to communicate: on graphs this small the automatic one seldom does."""
    options = PLANS.get(devices, ("auto",))
    return options[seed % len(options)]


@functools.cache
def pipeline(name: str) -> tuple[Pass, ...]:
    return parse_pipeline(name, PIPELINES)


def compiled(module: Module, devices: int, plan: str, verify_each: bool = True, weights: WeightStore | None = None) -> tuple[Module, Context]:
    """A copy after the whole pipeline; where no op can use the plan, after the automatic one."""
    for asked in (plan, "auto"):
        copy, context = module.clone(), Context(weights)
        annotate(copy, Options(devices=devices, plan=asked, target="h100"))
        try:
            PassManager(pipeline("inference"), verify_each).run(copy, context)
        except DmlcError as e:
            if asked == "auto" or "no op of this model can use" not in e.message:
                raise
            continue
        verify(copy)
        return copy, context
    raise AssertionError("unreachable")


def difference(module: Module, devices: int, plan: str, verify_each: bool = True, expected: Mapping[str, Any] | None = None) -> str | None:
    """What is wrong with the compiled program; None when nothing is. `expected` are the results of the program as it is, if known."""
    inputs = seeded_inputs(module)
    if expected is None:
        expected = run(module, inputs, promote="f64")
    after, context = compiled(module, devices, plan, verify_each)
    actual = run(after, inputs, promote="f64", weights=context.weights, poison_pads=True)
    if list(actual) != list(expected):
        return f"the results are {list(actual)}, not {list(expected)}"
    for name, wanted in expected.items():
        error = _error(wanted, actual[name])
        if not error < TOLERANCE:
            return f"{name} is off by {error:.2e} of its scale"
    return None


def _error(wanted: Any, found: Any) -> float:
    if wanted.shape != found.shape:
        return float("inf")
    if not wanted.size:
        return 0.0
    assert np.isfinite(wanted).all(), "the graph itself overflows"
    return float(np.abs(wanted - found).max() / max(np.abs(wanted).max(), 1e-3))


def failure(seed: int, devices: int, plan: str, ops: int | None = None) -> str | None:
    """What goes wrong with one graph, errors and crashes of passes included."""
    module = random_graph(seed, ops)
    try:
        verify(module)
        return difference(module, devices, plan)
    except DmlcError as e:
        return f"error: {e}"
    except Exception as e:
        return f"{type(e).__name__}: {e}"


def smallest(seed: int, devices: int, plan: str) -> int | None:
    """The fewest ops with which the graph of this seed still fails."""
    return next((n for n in range(1, 30) if failure(seed, devices, plan, n)), None)


def report(seed: int, devices: int, plan: str, what: str) -> str:
    ops = smallest(seed, devices, plan)
    text = print_module(random_graph(seed, ops))
    return f"seed {seed}, {devices} devices, {plan}: {what}\nsmallest: --ops {ops}, {failure(seed, devices, plan, ops)}\n{text}"


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--count", type=int, default=500, help="how many graphs")
    p.add_argument("--start", type=int, default=1000, help="first seed")
    p.add_argument("--seed", type=int, help="this graph only")
    p.add_argument("--devices", type=int, nargs="*", default=[1, 2, 4])
    p.add_argument("--plan", help="this plan instead of one that depends on the seed")
    p.add_argument("--ops", type=int, help="a graph of this size")
    p.add_argument("--show", action="store_true", help="print the program")
    options = p.parse_args(argv)
    seeds = [options.seed] if options.seed is not None else range(options.start, options.start + options.count)
    failed, begun = 0, time.perf_counter()
    for number, seed in enumerate(seeds, 1):
        if options.show:
            print(print_module(random_graph(seed, options.ops)))
        for devices in options.devices:
            plan = options.plan or plans_for(seed, devices)
            what = failure(seed, devices, plan, options.ops)
            if what is not None:
                failed += 1
                print(report(seed, devices, plan, what), flush=True)
        if number % 50 == 0:
            print(f"{number} graphs, {failed} failures, {time.perf_counter() - begun:.0f} s", flush=True)
    print(f"{len(seeds)} graphs on {options.devices} ranks: {failed} failures")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
