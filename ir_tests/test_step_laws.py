"""Laws of simulated steps on random programs: no less than the bounds, more bandwidth never slower, memory no less than the live tensors."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from timed_programs import compute, loop, program, random_lines, stages, stated
from training_programs import perceptron_step

from dmlc.cluster import Cluster
from dmlc.cost import CostModel
from dmlc.cost.model import type_bytes
from dmlc.ir.core import Module
from dmlc.ir.types import FutureType
from dmlc.ops.comm import is_collective, is_start
from dmlc.passmanager import Context, PassManager, parse_pipeline
from dmlc.simulate.liveness import block_liveness
from dmlc.simulate.step import StepReport, simulate_step


def random_case(seed: int, loops: bool = True) -> tuple[Module, CostModel]:
    rng = random.Random(seed)
    lines = random_lines(rng, rng.randrange(1, 25), largest=4000, host=rng.choice([0, 0, 500, 3000]))
    if loops and seed % 2:
        inside = random_lines(rng, rng.randrange(1, 6), "v", 4000)
        lines.insert(0, loop("l", rng.randrange(1, 9), inside or [compute("v", 7)]))
    percent = [(rng.randrange(30, 101), rng.randrange(30, 101)) for _ in range(2)]
    return program(lines), stated(slow=dict(zip(("data", "model"), percent)), links={"data": 0, "model": 0} if rng.random() < 0.5 else {})


@pytest.mark.parametrize("delays", [None, {1: 1.7}], ids=["even", "late"])
def test_time_is_no_less_than_the_bounds(delays: dict[int, float] | None) -> None:
    for seed in range(150):
        module, cost = random_case(seed)
        report = simulate_step(module, cost, delays)
        for one in report.classes or (report,):
            assert one.time >= one.bounds.best, seed
            assert one.time == one.computation + one.exposed + one.starved and one.exposed >= 0, seed
            assert one.exposed == sum(end - begin for begin, end in one.run.exposed), seed
            assert one.time >= max([e.end for e in one.events], default=0), seed


def test_faster_collectives_are_never_slower() -> None:
    for seed in range(150):
        module, cost = random_case(seed)
        rng = random.Random(seed)
        before = simulate_step(module, cost).time
        for op in module.main.ops():
            if is_collective(op):
                op.attrs["test.time"] = op.attrs["test.time"] * rng.randrange(50, 101) // 100
        assert simulate_step(module, cost).time <= before, seed


@pytest.mark.parametrize("device", ["h100", "a100", "cpu"])
def test_more_bandwidth_is_never_slower_and_a_late_rank_never_helps(device: str) -> None:
    for peel in (False, True):
        module = perceptron_step(6, 512, 256, 3, peel, 8, device)
        PassManager(parse_pipeline("cse,dce,schedule")).run(module, Context())
        cluster = Cluster.of(module)
        times = []
        for factor in (1, 2, 8):
            wider = replace(cluster, links=tuple(replace(link, bandwidth=link.bandwidth * factor) for link in cluster.links))
            times.append(simulate_step(module, CostModel(wider)).time)
        assert times == sorted(times, reverse=True)
        late = [simulate_step(module, CostModel(cluster), {3: delay}).time for delay in (1, 1.2, 2)]
        assert late == sorted(late) and late[0] == times[0] < late[-1]


# ---------------------------------------------------------------- memory


def test_memory_is_no_less_than_the_live_tensors() -> None:
    """A tensor is there from when its op begins to the end of the last that reads it; of a collective, when its transfer does so."""
    for seed in range(150):
        module, cost = random_case(seed, loops=False)
        report = simulate_step(module, cost)
        lives = _lives(module, report)
        points = report.memory_over_time
        for time, _ in points:
            held = sum([held for at, held in points if at <= time][-1])
            alive = sum(size for begin, end, size in lives if begin < time < end)
            assert held >= alive, (seed, time)
        assert max(sum(held) for _, held in points) == report.peak == block_liveness(module.main.body).peak


def _lives(module: Module, report: StepReport) -> list[tuple[int, int, int]]:
    """(begin, end, bytes) of each tensor, by the events of the ops that make and read it."""
    at = {e.op: (e.begin, e.end) for e in report.events}
    found = [(0, report.time, type_bytes(a.type)) for a in module.main.args]
    for op in module.main.body:
        for result in op.results:
            if isinstance(result.type, FutureType):
                continue
            maker = op.operands[0].op if op.name == "comm.wait" else op
            assert maker is not None
            begin, end = at[maker.id]
            ends = [end, *(at[u.id][1] for u in result.users if u.id in at)]
            found.append((begin, max([*ends, *(_released(u, at) for u in result.users)]), type_bytes(result.type)))
    return found


def _released(user, at: dict[str, tuple[int, int]]) -> int:
    return at[user.id][1] if is_start(user) else 0


def test_memory_inside_a_loop_is_on_top_of_what_is_outside() -> None:
    lines = [
        compute("a", 10),
        loop("l", 3, [compute("b", 10, of="a"), compute("c", 10, of="b"), compute("d", 10, of="c")], gives="d"),
        compute("e", 10, of="l"),
    ]
    report = simulate_step(program(lines), stated())
    held = [(time, sum(h)) for time, h in report.memory_over_time]
    size = 16  # of each tensor: x, a, what the loop gives and its index (8) are there all along; b c, then c d
    inside = [(t, h - 3 * size - 8) for t, h in held if 10 <= t < 100]
    assert inside[-3:] == [(70, size), (80, 2 * size), (90, 2 * size)]
    assert report.peak == 5 * size + 8 and report.peak_at.op == "c" and report.peak_at.time == 20
    assert held[-1][1] < report.peak


def test_memory_of_a_stage_is_that_of_its_region() -> None:
    wide = [
        compute("b0", 1),
        *(compute(f"b{i}", 1, of=f"b{i - 1}") for i in range(1, 4)),
        "%s = dmlc.add %b0, %b3 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>",
    ]
    report = simulate_step(program([stages("y", [[compute("a", 1)], wide])], '"pipe"=2'), stated())
    few, many = report.classes
    assert few.peak < many.peak == block_liveness(program([stages("y", [[compute("a", 1)], wide])], '"pipe"=2').main.body).peak


def test_values_of_a_step_that_are_never_read_are_counted() -> None:
    report = simulate_step(program([compute("a", 1), compute("b", 1)]), stated())
    assert [sum(h) for _, h in report.memory_over_time] == [32]
