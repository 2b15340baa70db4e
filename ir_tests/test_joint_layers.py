"""Repeated layers decided once: roles of nodes, and moves at all instances together."""

from __future__ import annotations

import pytest
from test_joint_search import larger

from dmlc.simulate.joint import ALL, Node, Plan, Problem, Stream, numbered, search
from dmlc.simulate.joint_layers import layer_moves, merged_together
from dmlc.simulate.joint_state import Schedule

LAYERS = 24


def schedule_of(problem: Problem) -> Schedule:
    return Schedule(*numbered(problem, Plan.of(problem)))


def named(problem: Problem, kind: str) -> list[int]:
    return [i for i, n in enumerate(problem.nodes) if n.kind == kind]


def test_inner_layers_share_their_roles():
    problem = larger(0, LAYERS)
    for kind in ("forward", "bias", "gelu", "weight grad", "reduce", "scale", "update", "input grad"):
        roles = {problem.roles[n] for n in named(problem, kind)}
        assert 1 <= len(roles) <= 5, kind  # the first and last ones see other surroundings
    assert not {problem.roles[n] for n in named(problem, "bias")} & {problem.roles[n] for n in named(problem, "scale")}


def test_equal_nodes_in_other_surroundings_have_other_roles():
    problem = Problem([Node(5), Node(5, (0,)), Node(5, (1,)), Node(5, (2,)), Node(5, (0,))])
    assert len(set(problem.roles)) == 5


def test_roles_do_not_depend_on_names():
    plain = Problem([Node(5, name="a"), Node(7, (0,), name="b"), Node(5, name="c"), Node(7, (2,), name="d")])
    assert plain.roles[0] == plain.roles[2] and plain.roles[1] == plain.roles[3]


def test_one_change_joins_all_instances():
    problem = larger(0, LAYERS)
    schedule = schedule_of(problem)
    pairs = list(zip(named(problem, "bias"), named(problem, "gelu")))
    change = merged_together(schedule, pairs, late=False)
    assert change is not None
    before = len(schedule)
    time = schedule.trial(change)
    schedule.accept(change)
    assert schedule.makespan == time
    assert len(schedule) == before - LAYERS
    assert {schedule.layout.members[u] for u in schedule.order if len(schedule.layout.members[u]) > 1} == set(pairs)


@pytest.mark.parametrize("kind", ["fusion", "buckets", "order"])
def test_moves_are_legal_and_of_the_kind_asked_for(kind):
    problem = larger(1, LAYERS)
    schedule = schedule_of(problem)
    found = list(layer_moves(schedule, frozenset({kind})))
    assert found and {name for name, _ in found} == {kind}
    for _, change in found[:40]:
        tried = Schedule(schedule.layout, schedule.order)  # unit numbers are the layout's
        time = tried.trial(change)
        tried.accept(change)
        assert tried.makespan == time
        numbered(problem, tried.layout.plan(tried.order))  # refuses an order that is not legal


def test_a_few_trials_decide_all_layers():
    """As many units simulated as twelve whole replays: every layer's pointwise ops are joined, whatever the number of layers."""
    problem = larger(0, LAYERS)
    size = len(problem.nodes)
    found = search(problem, [Plan.of(problem)], effort=24 * size, moves=ALL)
    kernels = {s for s in found.plan.sets if problem.nodes[s[0]].stream < 0}
    for kind in ("bias", "scale"):
        assert sum(n in {m for s in kernels for m in s} for n in named(problem, kind)) >= LAYERS - 2, kind


def test_layers_that_differ_are_decided_one_by_one():
    """Every second layer's pair may not be joined: the others still are."""
    nodes = [Node(50, kind="start")]
    for layer in range(30):
        nodes.append(Node(10, (len(nodes) - 1,), kind="a"))
        nodes.append(Node(10, (len(nodes) - 1,), kind="b"))
        nodes.append(Node(40, (len(nodes) - 1,), 0, kind="ar"))
        nodes.append(Node(30 + layer % 2, (len(nodes) - 1,), kind="product"))
    problem = Problem(nodes, [Stream("data")], time=lambda m: 10 * len(m), fusable=lambda m: len(m) == 2 and m[1] == m[0] + 1 and m[0] % 8 == 1)
    price = Problem(nodes, [Stream("data")], time=lambda m: 12, fusable=lambda m: len(m) == 2 and m[1] == m[0] + 1 and m[0] % 8 == 1)
    assert not search(problem, [Plan.of(problem)], effort=30_000).plan.sets
    assert set(search(price, [Plan.of(price)], effort=30_000).plan.sets) == {(n, n + 1) for n in range(1, len(nodes), 8)}
