"""Plans for steps in which computations or collectives take longer than priced, and collectives that are started in the idle time before others."""

from __future__ import annotations

import pytest
from joint_cases import larger, plans_of_passes

from dmlc.simulate.joint import ALL, Chunks, Node, Plan, Problem, Stream, numbered, peak_of, search, time_of
from dmlc.simulate.joint_moves import ahead, order_moves, splits
from dmlc.simulate.joint_state import Schedule
from dmlc.simulate.late import PRICE, prepared


def schedule_of(problem: Problem, plan: Plan) -> Schedule:
    return Schedule(*numbered(problem, plan), memory=True)


def test_either_side_of_a_problem_is_made_slower():
    """Starts are computation; sets and pieces take longer like their members."""
    nodes = [Node(100), Node(40, (0,), 0, "k", call=20), Node(60, (0,), 0, "k", call=30)]
    ways = {1: {2: Chunks((30, 30), 8, 12, 20)}}
    problem = Problem(nodes, [Stream("data")], time=lambda m: 80, chunks=ways, call=lambda m: 70)
    computing, moving = problem.slower(computation=50), problem.slower(communication=50)
    assert [problem.price(m) for m in ((0,), (1,), (1, 2))] == [(100, 0, 0), (40, 0, 20), (80, 0, 70)]
    assert [computing.price(m) for m in ((0,), (1,), (1, 2))] == [(150, 0, 0), (40, 0, 30), (80, 0, 105)]
    assert [moving.price(m) for m in ((0,), (1,), (1, 2))] == [(100, 0, 0), (60, 0, 20), (120, 0, 70)]
    assert computing.chunks[1][2] == Chunks((30, 30), 12, 18, 30) and moving.chunks[1][2] == Chunks((45, 45), 8, 12, 20)
    plan = Plan.of(problem)
    assert time_of(problem, plan) < min(time_of(computing, plan), time_of(moving, plan))


@pytest.mark.parametrize("percent", (10, 40))
def test_a_prepared_plan_is_about_as_short_and_better_in_all_cases_together(percent):
    better = 0
    for seed in range(2):
        problem = larger(seed)
        starts = list(plans_of_passes(problem).values())
        cap = min(peak_of(problem, p) for p in starts) + 100 if seed % 2 else 0
        plain = search(problem, starts, cap, 20_000)
        best = schedule_of(problem, plain.plan)
        found = prepared(best, percent, cap, 20_000, ALL, best.makespan + 10**9)
        cases = (problem, problem.slower(computation=percent), problem.slower(communication=percent))
        plans = [s.layout.plan(s.order) for s in (best, found)]
        before, after = (sum(time_of(case, plan) for case in cases) for plan in plans)
        assert after <= before and found.makespan <= best.makespan + best.makespan // PRICE
        assert found.makespan == time_of(problem, plans[1]) and (not cap or peak_of(problem, plans[1]) <= cap)
        assert prepared(best, percent, cap, 20_000, ALL, best.makespan).makespan <= best.makespan, "never above the limit"
        better += after < before
    assert better, "some plan had something to prepare for"


def test_a_search_with_late_parts_never_exceeds_its_starts():
    for seed in range(2):
        problem = larger(seed)
        starts = list(plans_of_passes(problem).values())
        found = search(problem, starts, effort=20_000, late=25)
        assert found.time == time_of(problem, found.plan) <= min(found.starts)


def early_gradient() -> tuple[Problem, Schedule]:
    """Node 1 makes a gradient right away, node 3 a late one. Both travel in one bucket behind node 3, while the stream has been idle; two collectives
    take longer than one, so that the split alone costs time."""
    nodes = [Node(10), Node(5, (0,)), Node(30, (1,), 0, "k"), Node(40, (0,)), Node(30, (3,), 0, "k"), Node(10, (3,)), Node(4, (2, 4))]
    problem = Problem(nodes, [Stream("data")], time=lambda m: 52)
    return problem, schedule_of(problem, Plan.of(problem, [(2, 4)], order=(0, 3, 1, 2, 4, 5, 6)))


def test_an_early_gradient_is_taken_out_of_its_bucket_and_started_in_the_idle_time():
    problem, schedule = early_gradient()
    change, _ = ahead(schedule)  # the one that needs the least comes first
    assert schedule.makespan == 10 + 40 + 5 + 52 + 4
    apart = list(splits(schedule, 2))
    assert apart and all(schedule.trial(c) >= schedule.makespan for c in (*apart, *order_moves(schedule))), "neither half gains"
    assert schedule.trial(change) == 10 + 5 + 40 + 30 + 4
    schedule.accept(change)
    assert [schedule.layout.members[u] for u in schedule.order][:3] == [(0,), (1,), (2,)]
    found = search(problem, [Plan.of(problem, [(2, 4)], order=(0, 3, 1, 2, 4, 5, 6))])
    assert found.time == schedule.makespan


def test_small_members_are_left_in_their_bucket():
    """What takes less than a part of the idle time would not fill it."""
    nodes = [Node(10), Node(5, (0,)), Node(9, (1,), 0, "k"), Node(200, (0,)), Node(30, (3,), 0, "k"), Node(4, (2, 4))]
    problem = Problem(nodes, [Stream("data")], time=lambda m: 35)
    schedule = schedule_of(problem, Plan.of(problem, [(2, 4)], order=(0, 3, 1, 2, 4, 5)))
    assert not list(ahead(schedule))
