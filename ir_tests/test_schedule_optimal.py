"""Orders of small blocks are optimal: z3 is asked for a better one and proves that there is none.

The clocks are written as inequalities over a place and a clock for each unit. A solution is an order and times that keep to all of them; the
replay of its order is no longer than it says, so that an order that can be beaten is refuted by one that beats it.
"""

from __future__ import annotations

import random

import pytest
import z3

from dmlc.simulate.clocks import Streams
from dmlc.simulate.engine import bounds, replay
from dmlc.simulate.ordering import find_order
from dmlc.simulate.units import COMPUTE, Units


def random_block(seed: int, count: int, host: int = 0) -> Units:
    """Products, two kinds of collectives on two streams, data dependences."""
    draw = random.Random(seed)
    streams = tuple(draw.choice((COMPUTE, COMPUTE, 0, 1)) for _ in range(count))
    preds = tuple(tuple(sorted(draw.sample(range(i), min(i, draw.randint(0, 2))))) for i in range(count))
    times = tuple(draw.randint(1, 30) for _ in range(count))
    return Units(tuple(map(str, range(count))), times, streams, preds, (("data",), ("model",)), host=(host,) * count)


def better_order(units: Units, limit: int) -> list[int] | None:
    """An order whose makespan is below `limit`; None if z3 proves that there is none."""
    solver = z3.SolverFor("QF_IDL")
    n = len(units)
    place, clock, end = ([z3.Int(f"{name}{u}") for u in range(n)] for name in ("place", "clock", "end"))
    for u in range(n):
        solver.add(place[u] >= 0, clock[u] >= 0, end[u] >= clock[u] + units.time[u], end[u] < limit)
        if units.host:
            solver.add(z3.Or([z3.And(place[u] == k, clock[u] >= units.host[u] * (k + 1)) for k in range(n)]))
        for p in units.preds[u]:
            solver.add(place[p] < place[u], clock[u] >= end[p])
        for v in range(u):
            solver.add(z3.Or(_before(units, place, clock, end, u, v), _before(units, place, clock, end, v, u)))
    result = solver.check()
    assert result != z3.unknown
    if result == z3.unsat:
        return None
    model = solver.model()
    return sorted(range(n), key=lambda u: model.eval(place[u], model_completion=True).as_long())


def _before(units: Units, place: list, clock: list, end: list, first: int, second: int) -> z3.BoolRef:
    """What follows if `first` is issued before `second`: the second's clock, and its place in the queue of a common stream."""
    passed = units.time[first] if units.stream[first] == COMPUTE else 0
    found = [place[first] < place[second], clock[second] >= clock[first] + passed]
    if units.stream[first] == units.stream[second] != COMPUTE:
        found.append(end[second] >= end[first] + units.time[second])
    return z3.And(found)


@pytest.mark.parametrize("seed", range(36))
def test_no_order_is_better(seed):
    """Up to 12 ops, on every third block with a host that issues them one by one."""
    units = random_block(seed, 4 + seed % 9, host=(0, 0, 9)[seed % 3])
    order = find_order(units)
    assert units.is_legal(order)
    assert better_order(units, replay(units, order)) is None


@pytest.mark.parametrize("seed", range(12))
def test_a_bad_order_is_refuted_with_a_better_one(seed):
    """The longest of a few random orders: z3 gives one that is shorter when replayed."""
    units, draw = random_block(100 + seed, 10), random.Random(seed)
    worst = max((_random_order(units, draw) for _ in range(20)), key=lambda order: replay(units, order))
    found = better_order(units, replay(units, worst))
    assert found is not None and units.is_legal(found)
    assert replay(units, found) < replay(units, worst)
    assert replay(units, find_order(units)) <= replay(units, found)


def _random_order(units: Units, draw: random.Random) -> list[int]:
    order: list[int] = []
    while len(order) < len(units):
        ready = [u for u in range(len(units)) if u not in order and all(p in order for p in units.preds[u])]
        order.append(draw.choice(ready))
    return order


@pytest.mark.parametrize("seed", range(20))
def test_no_order_is_below_the_bound(seed):
    units = random_block(200 + seed, 9, host=seed % 4)
    assert better_order(units, bounds(units).best) is None


@pytest.mark.parametrize("seed", range(20))
def test_slowed_orders_keep_the_bound(seed):
    """With slow-down, shared links and a host's queue no order is below the bound, and the order found is not above the unscheduled one."""
    draw = random.Random(seed)
    plain = random_block(seed, 12, host=seed % 5)
    rates = Streams((draw.choice((50, 85, 100)), 70), (draw.choice((44, 98)), 60), (0, seed % 2))
    units = Units(plain.ids, tuple(t * 1000 for t in plain.time), plain.stream, plain.preds, plain.streams, host=plain.host, rates=rates)
    for _ in range(10):
        assert bounds(units).best <= replay(units, _random_order(units, draw))
    found = replay(units, find_order(units))
    assert bounds(units).best <= found <= replay(units, range(12))
    assert found <= min(replay(units, _random_order(units, draw)) for _ in range(100))
