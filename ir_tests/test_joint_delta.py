"""A change simulated from where it begins to where it makes no difference: equal to the simulation of the whole, in time, state and memory."""

from __future__ import annotations

import random

import pytest

from dmlc.simulate.clocks import Streams
from dmlc.simulate.engine import replay
from dmlc.simulate.joint import ALL, Buffer, Chunks, Node, Plan, Problem, Stream, events_of, numbered, time_of
from dmlc.simulate.joint_layers import layer_moves
from dmlc.simulate.joint_moves import merges, pulled, pushed, splits, transfers
from dmlc.simulate.joint_state import NEVER, Change, Schedule
from dmlc.simulate.liveness import Storage
from dmlc.simulate.units import Units

SLOW = [Stream("a", 60, 45, link=0), Stream("b", 85, 98, link=1), Stream("c", 50, 70, link=0)]
PLAIN = [Stream("a"), Stream("b")]


def random_problem(seed: int, streams: list[Stream], host: int, pieces: bool = False) -> Problem:
    draw = random.Random(seed)
    count = draw.randint(12, 36)
    nodes = []
    for i in range(count):
        preds = tuple(sorted(draw.sample(range(max(0, i - 8), i), min(i, draw.randint(0, 2)))))
        stream = draw.choice((-1, -1, *range(len(streams))))
        call = draw.choice((0, 40, 300)) if stream >= 0 and streams is SLOW else 0
        nodes.append(Node(draw.randint(0, 4000), preds, stream, stream if stream >= 0 else None, draw.randint(0, host), draw.randint(0, 50), call=call))
    readers = [tuple(j for j in range(count) if i in nodes[j].preds) for i in range(count)]
    buffers = [Buffer(draw.randint(1, 100), i, readers[i], draw.random() < 0.1) for i in range(count)]
    buffers += [Buffer(draw.randint(1, 100), -1, tuple(sorted(draw.sample(range(count), 2))), draw.random() < 0.5) for _ in range(5)]
    cuts = {
        i: {2: Chunks((900, 800), draw.choice((0, 50)), draw.choice((0, 70)), n.call), 3: Chunks((500, 500, 600), call=n.call)}
        for i, n in enumerate(nodes)
        if n.stream >= 0
    }
    price = lambda members: sum(nodes[m].time for m in members) * 3 // 4  # noqa: E731
    packed = lambda members: 2 * sum(nodes[m].call for m in members)  # noqa: E731
    return Problem(nodes, streams, buffers, price, lambda members: len(members) < 6, chunks=cuts if pieces else None, call=packed)


def units_of(problem: Problem, schedule: Schedule, order: list[int]) -> Units:
    """The same units for the engine, which knows nothing of layouts."""
    layout = schedule.layout
    place = {a: i for i, u in enumerate(order) for a in layout.members[u]}
    preds = tuple(tuple(sorted({place[p] for a in layout.members[u] for p in layout.preds[a]} - {i})) for i, u in enumerate(order))
    storages = []
    for b in problem.buffers if not layout.pieces else ():
        maker = place[b.maker] if b.maker >= 0 else -1
        users = tuple(sorted({place[u] for u in b.users} - {maker}))
        if users or b.kept or not b.users:
            storages.append(Storage(None, b.bytes, maker, users, b.kept))  # type: ignore[arg-type]
    take = lambda values: tuple(values[u] for u in order)  # noqa: E731
    names = tuple((n,) for n in problem.names)
    rates = Streams(problem.streams.computing, problem.streams.moving, problem.streams.link)
    return Units(
        take(layout.members), take(layout.time), take(layout.stream), preds, names, tuple(storages), take(layout.scratch), (), take(layout.host), rates, take(layout.call)
    )  # type: ignore[arg-type]


def random_change(schedule: Schedule, draw: random.Random) -> Change | None:
    kind = draw.randrange(4)
    atom = draw.choice(schedule.layout.atoms)
    if kind == 0:
        source = draw.randrange(len(schedule))
        return pulled(schedule, source, draw.randint(0, source))
    if kind == 1:
        source = draw.randrange(len(schedule))
        return pushed(schedule, source, draw.randint(source, len(schedule) - 1))
    if kind == 2 and draw.random() < 0.1:
        found = [c for _, c in layer_moves(schedule, ALL)]
    else:
        found = [c for move in (merges, splits, transfers) for c in move(schedule, atom)]
    return draw.choice(found) if found else None


def check(problem: Problem, schedule: Schedule, change: Change) -> None:
    order = [*schedule.order[: change.lo], *change.units, *schedule.order[change.hi :]]
    units = units_of(problem, schedule, order)
    assert units.is_legal(range(len(units)))
    whole = replay(units, range(len(units)))
    assert schedule.trial(change) == whole
    assert whole % 8 or (schedule.trial(change, whole) >= whole and schedule.trial(change, whole + 1) == whole)
    if not schedule.layout.pieces:
        assert schedule.peak(change) == units.peak(range(len(units)))


CASES = [(PLAIN, 0), (SLOW, 0), (PLAIN, 900), (SLOW, 900)]


@pytest.mark.parametrize("streams, host", CASES, ids=["plain", "slowed", "host", "slowed-host"])
def test_ten_thousand_moves(streams, host):
    """2,500 moves each on 25 graphs; a third are made, after which all state is that of a schedule made anew."""
    shorter = 0
    for seed in range(25):
        draw = random.Random(seed)
        problem = random_problem(seed, streams, host)
        schedule = Schedule(*numbered(problem, Plan.of(problem)), memory=True)
        made = 0
        while made < 100:
            change = random_change(schedule, draw)
            if change is None:
                continue
            made += 1
            before = schedule.replayed
            check(problem, schedule, change)
            shorter += schedule.replayed - before < len(schedule) - change.lo - 1
            if draw.random() < 1 / 3:
                schedule.accept(change)
                fresh = Schedule(schedule.layout, schedule.order, memory=True)
                assert (schedule.makespan, schedule.states, schedule.alive) == (fresh.makespan, fresh.states, fresh.alive)
                assert (schedule.after, schedule.stalls, schedule.slack) == (fresh.after, fresh.stalls, fresh.slack)
    assert shorter > 800  # simulations do stop early


@pytest.mark.parametrize("seed", range(10))
def test_moves_among_pieces(seed):
    problem, draw = random_problem(seed, SLOW, 300, pieces=True), random.Random(seed)
    cut = {c: draw.choice(tuple(ways)) for c, ways in problem.chunks.items() if draw.random() < 0.5}
    plan = Plan.of(problem, chunks=cut)
    schedule = Schedule(*numbered(problem, plan), memory=True)
    assert schedule.makespan == time_of(problem, plan) == max(end for _, _, end in events_of(problem, plan))
    for _ in range(60):
        change = random_change(schedule, draw)
        if change is not None:
            check(problem, schedule, change)
            schedule.accept(change)
    assert schedule.alive == Schedule(schedule.layout, schedule.order, memory=True).alive


def test_a_limit_ends_a_trial():
    problem = random_problem(3, SLOW, 0)
    schedule = Schedule(*numbered(problem, Plan.of(problem)))
    change = pulled(schedule, len(schedule) // 2, 0)
    assert change is not None
    before = schedule.replayed
    assert schedule.trial(change, 1) == 1
    assert schedule.replayed - before == len(change.units)
    assert schedule.trial(change, NEVER) > 1
