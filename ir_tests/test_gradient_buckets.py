"""Buckets of gradients: the exact intervals against every division, MG-WFBP's rule, and the pass against every division by simulation."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from training_programs import perceptron_step, slow_cluster

from dmlc.cost import CostModel
from dmlc.ir.core import Module
from dmlc.ir.parser import parse_module
from dmlc.passes import tensor_fusion
from dmlc.passes._intervals import Interval, best_intervals, finish, merge_rule
from dmlc.passmanager import Context, PassManager, parse_pipeline
from dmlc.simulate import Choice, UnitGraph
from dmlc.simulate.ordering import price
from dmlc.simulate.step import simulate_step


def divisions(n: int) -> list[list[Interval]]:
    """Every way to cut a row of n into intervals."""
    found = []
    for cuts in itertools.product((False, True), repeat=n - 1):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), n]
        found.append(list(itertools.pairwise(edges)))
    return found


def instance(seed: int) -> tuple[list[int], list[int], int]:
    """When gradients become ready, their sizes, a start-up: idle links, busy links, bursts."""
    rng = random.Random(seed)
    gap, at, ready = rng.choice([1, 5, 20, 60]), 0, []
    for _ in range(rng.randrange(2, 10)):
        at += rng.randrange(gap)
        ready.append(at)
    return ready, [rng.randrange(1, 40) for _ in ready], rng.choice([1, 3, 8, 20])


def linear(startup: int) -> Callable[[int], int]:
    return lambda size: startup + size


def test_intervals_are_the_best_of_all_divisions():
    for seed in range(150):
        ready, sizes, startup = instance(seed)
        best = min((finish(d, ready, sizes, linear(startup)), len(d)) for d in divisions(len(ready)))
        found = best_intervals(ready, sizes, linear(startup))
        assert finish(found, ready, sizes, linear(startup)) == best[0], seed
        assert [i for first, stop in found for i in range(first, stop)] == list(range(len(ready)))


def test_the_merge_rule_is_near_the_best():
    ratios = []
    for seed in range(400):
        ready, sizes, startup = instance(seed)
        time = linear(startup)
        exact, rule, apart = (
            finish(d, ready, sizes, time) for d in (best_intervals(ready, sizes, time), merge_rule(ready, sizes, time), [(i, i + 1) for i in range(len(ready))])
        )
        assert exact <= rule <= apart
        ratios.append(rule / exact)
    assert max(ratios) < 1.4 and sum(ratios) / len(ratios) < 1.02


@pytest.mark.parametrize("solve", [best_intervals, merge_rule])
def test_a_limit_bounds_the_bytes_of_an_interval(solve):
    found = solve([0, 0, 0, 0], [30, 5, 5, 50], lambda m: 100 + m, 40)
    assert [(a, b) for a, b in found] == [(0, 3), (3, 4)]


def test_no_collective_waits_for_nothing():
    """With a start-up of nothing, merging only delays."""
    assert merge_rule([0, 10, 20], [5, 5, 5], lambda m: m) == [(0, 1), (1, 2), (2, 3)]


# ---------------------------------------------------------------- the pass


TOY = (
    'dmlc.cluster = {device = {name = "toy", peak = {f32 = 100000000000 : i64}, memory = 1000000000 : i64, bandwidth = 1000000000000 : i64, launch = 1000 : i64, source = "test"},'
    ' count = 4 : i64, links = [{name = "wire", span = 0 : i64, alpha = ALPHA : i64, bandwidth = 10000000000 : i64, source = "test"}]}'
)


def backward(seed: int, layers: int = 5) -> Module:
    """Layers of random widths going backward, each gradient all-reduced where it is made."""
    rng = random.Random(seed)
    widths = [rng.choice([8, 32, 64, 128, 256]) for _ in range(layers + 1)]
    arguments = [f"%g: tensor<64x{widths[0]}xf32>"] + [
        f"%w{i}: tensor<{widths[i]}x{widths[i + 1]}xf32>, %x{i}: tensor<64x{widths[i + 1]}xf32>" for i in range(layers)
    ]
    lines, here, given, types = [], "%g", [], []
    for i in range(layers):
        a, b = widths[i], widths[i + 1]
        lines.append(f'%dw{i} = dmlc.contract {here}, %x{i} {{equation = "bi,bj->ij"}} : (tensor<64x{a}xf32>, tensor<64x{b}xf32>) -> tensor<{a}x{b}xf32>')
        lines.append(f'%r{i} = comm.all_reduce %dw{i} {{axes = ["data"], combiner = "sum"}} : (tensor<{a}x{b}xf32>) -> tensor<{a}x{b}xf32>')
        lines.append(f"%d{i} = dmlc.matmul {here}, %w{i} : (tensor<64x{a}xf32>, tensor<{a}x{b}xf32>) -> tensor<64x{b}xf32>")
        here = f"%d{i}"
        given.append(f"%r{i}")
        types.append(f"tensor<{a}x{b}xf32>")
    toy = TOY.replace("ALPHA", str(rng.choice([1000, 100_000, 10_000_000])))
    body = "\n".join(lines)
    return parse_module(
        f'builtin.module attributes {{dmlc.spmd, {toy}}} {{\n  dmlc.mesh {{sym_name = "mesh", axes = #dmlc.axes<["data"=4]>}} : () -> ()\n'
        f"func.func @main({', '.join(arguments)}) -> ({', '.join(types)}) {{\n{body}\nfunc.return {', '.join(given)} : {', '.join(types)}\n}}\n}}"
    )


def test_the_pass_is_as_good_as_the_best_division():
    worst = 0.0
    for seed in range(10):
        module = backward(seed)
        cost = CostModel.of(module)
        graph = UnitGraph.of(module.main, cost)
        ids = [n.id for n in graph.nodes if n.key is not None]
        options = [Choice(buckets=tuple(tuple(ids[a:b]) for a, b in d if b - a > 1)) for d in divisions(len(ids))]
        best = min(price(graph.units(c)) for c in options)
        found = price(graph.units(tensor_fusion.decide(graph, Choice(), cost)))
        worst = max(worst, found / best)
    assert worst <= 1.05  # the intervals know nothing of the host's queue, in which each collective less is a launch less


def test_gathers_are_merged_by_when_they_are_needed():
    """All weights are there at once, so by readiness they would be one bucket; the first layer would wait for the last one's weight."""
    layers = 4
    arguments = ", ".join(["%x: tensor<64x256xf32>", *(f"%w{i}: tensor<64x256xf32>" for i in range(layers))])
    lines, here = [], "%x"
    for i in range(layers):
        lines.append(
            f'%f{i} = comm.all_gather %w{i} {{axes = ["data"], dims = array<i64: 0>, sizes = array<i64: 256>, grains = array<i64: 1>}} : (tensor<64x256xf32>) -> tensor<256x256xf32>'
        )
        lines.append(f"%h{i} = dmlc.matmul {here}, %f{i} : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>")
        here = f"%h{i}"
    text = "\n".join(lines)
    module = parse_module(
        f'builtin.module attributes {{dmlc.spmd, {TOY.replace("ALPHA", "1000")}}} {{\n  dmlc.mesh {{sym_name = "mesh", axes = #dmlc.axes<["data"=4]>}} : () -> ()\n'
        f"func.func @main({arguments}) -> tensor<64x256xf32> {{\n{text}\nfunc.return {here} : tensor<64x256xf32>\n}}\n}}"
    )
    PassManager(parse_pipeline("tensor-fusion")).run(module, Context())
    gathers = [op for op in module.main.body if op.name == "comm.all_gather"]
    assert len(gathers[0].operands) < layers
    assert len(gathers) > 1


def test_memory_bounds_a_bucket():
    """What takes less time but more memory than there is is not taken."""
    module = backward(3)
    cost = CostModel.of(module)
    graph = UnitGraph.of(module.main, cost)
    merged = Choice(buckets=(tuple(n.id for n in graph.nodes if n.key is not None),))
    units = graph.units(merged)
    for room, taken in ((0, True), (-1, False)):
        trial = tensor_fusion.Trial(graph, Choice(), cost)
        trial.time, trial.cap = price(units), units.peak(range(len(units))) + room
        assert trial.offer(merged) is taken


# ---------------------------------------------------------------- a peeled step


def test_a_peeled_step_reduces_while_it_runs_and_starts_in_order_of_readiness():
    exposed = {}
    for peel in (False, True):
        module = perceptron_step(layers=6, width=256, rows=64, count=4, peel=peel, ranks=4)
        module.attrs["dmlc.cluster"] = slow_cluster(4, 10**9).to_attr()
        PassManager(parse_pipeline("tensor-fusion,tensor-partition,schedule")).run(module, Context())
        exposed[peel] = simulate_step(module, CostModel.of(module)).exposed_share
        ops = list(module.main.body)
        starts = [op for op in ops if op.name in ("comm.all_reduce_start", "comm.all_reduce") and op.operands[0].tensor.rank == 2]
        made = [max(ops.index(v.op) for v in op.operands) for op in starts]
        assert made == sorted(made), "a bucket that is ready earlier starts earlier"
        waits = [op for op in ops if op.name == "comm.wait"]
        assert all(any(u is following(ops, op) for r in op.results for u in r.users) for op in waits), "a wait stands right before a reader"
    assert exposed[False] > 0.3 and exposed[True] < 0.1


def following(ops, wait):
    """The first op behind a wait that is none."""
    return next(op for op in ops[ops.index(wait) :] if op.name != "comm.wait")


def test_the_loop_and_the_peeled_copy_do_not_mix():
    module = perceptron_step(layers=4, count=4)
    PassManager(parse_pipeline("tensor-fusion")).run(module, Context())
    for op in module.main.ops():
        if op.name.startswith("comm.all_reduce"):
            assert len({v.op.parent if v.op else None for v in op.operands}) == 1


# ---------------------------------------------------------------- large tensors


def large_and_urgent(alpha: int) -> Module:
    text = (Path(__file__).parent / "passes" / "tensor_partition.mlir").read_text().split("// -----")[0]
    return parse_module(text.replace("alpha = 1000 : i64", f"alpha = {alpha} : i64"))


@pytest.mark.parametrize(("alpha", "cut"), [(1000, True), (100_000_000, False)])
def test_a_large_tensor_is_cut_only_where_start_ups_are_cheap(alpha, cut):
    """Between its chunks goes what is urgent; where a start-up takes longer than what it would wait for, it stays whole."""
    times = []
    for passes in ("schedule", "tensor-partition,schedule"):
        module = large_and_urgent(alpha)
        PassManager(parse_pipeline(passes)).run(module, Context())
        times.append(simulate_step(module, CostModel.of(module)).time)
    assert any(op.name == "dmlc.concat" for op in module.main.body) == cut
    assert times[1] < times[0] if cut else times[1] == times[0]


def test_updates_go_in_the_order_of_the_next_use():
    """Layers are updated from the first on, whatever order the backward pass made their gradients in."""
    module = perceptron_step(layers=4, width=64, rows=32, ranks=2)
    before = seeded_run(module)
    PassManager(parse_pipeline("tensor-partition")).run(module, Context())
    results = module.main.results[1 : 1 + 4]
    ops = list(module.main.body)
    made = [ops.index(v.op) for v in results]
    assert made == sorted(made)
    after = seeded_run(module)
    assert all((before[k] == after[k]).all() for k in before)


def seeded_run(module: Module):
    from dmlc.interpret.run import run
    from dmlc.passmanager.check import seeded_inputs

    return run(module, seeded_inputs(module, 0))
