"""Exact search over orders by branch and bound, for small graphs and as the oracle of the heuristics.

A state is what has been issued and the clocks after it. One dominates another of the same issued units if nothing in it is later.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import le

from dmlc.simulate.clocks import Clocks
from dmlc.simulate.engine import clocks_of, replay, tails
from dmlc.simulate.units import COMPUTE, Units

Order = tuple[int, ...]
Ends = tuple[int, ...]


def best_order(units: Units, start: Order, cap: int = 0, states: int = 200_000) -> Order:
    """The order of least makespan, `start` if none is shorter. `cap` bytes (0 = none) bound the peak. Stops after `states` states.

    With slow-down, `ends` are lower bounds, and an order that profits from a later beginning may be missed.
    """
    search = _Branch(units, start, cap, states)
    search.extend(0, clocks_of(units), ())
    return search.best


def ends_of(clocks: Clocks, units: Sequence[int]) -> Ends:
    """What tells clocks apart after the same units have been issued: now, host, and when each of `units` is done at full speed."""
    ends = {}
    for stream in clocks.active:
        end = clocks.now + clocks.left[stream]
        for i, u in enumerate(clocks.queues[stream]):
            end += clocks.time[u] if i else 0
            ends[u] = end
    return clocks.now, clocks.host, *(ends.get(u, clocks.now) for u in units)


def dominates(a: Ends, b: Ends) -> bool:
    return all(map(le, a, b))


class _Branch:
    def __init__(self, units: Units, start: Order, cap: int, states: int):
        self.units, self.cap, self.left = units, cap, states
        self.best, self.time = start, replay(units, start)
        self.tail = tails(units)
        self.masks = [sum(1 << p for p in preds) for preds in units.preds]
        self.collectives = [u for u in range(len(units)) if units.stream[u] != COMPUTE]
        self.host = units.host or (0,) * len(units)
        self.seen: dict[int, list[Ends]] = {}
        self.full = (1 << len(units)) - 1

    def extend(self, issued: int, clocks: Clocks, order: Order) -> None:
        """Try every unit that may come next."""
        if issued == self.full:
            end = clocks.finish()
            if end < self.time and (not self.cap or self.units.peak(order) <= self.cap):
                self.best, self.time = order, end
            return
        self.left -= 1
        if self.left < 0 or self.bound(issued, clocks) >= self.time or (not self.cap and self.is_dominated(issued, clocks)):
            return
        state = clocks.state()
        for u in range(len(self.units)):
            if not issued >> u & 1 and self.masks[u] & ~issued == 0:
                clocks.restore(state)
                clocks.issue(u, self.units.stream[u], self.units.waits[u], self.host[u])
                self.extend(issued | 1 << u, clocks, (*order, u))

    def bound(self, issued: int, clocks: Clocks) -> int:
        """No completion ends before what is left on a stream, or before the longest path of an open unit."""
        ends = [clocks.now + clocks.left[s] + sum(clocks.time[u] for u in q[1:]) for s, q in enumerate(clocks.queues)] + [clocks.now]
        longest = 0
        for u in range(len(self.units)):
            if not issued >> u & 1:
                ends[self.units.stream[u]] += self.units.time[u]
                longest = max(longest, self.tail[u])
        return max(*ends, clocks.now + longest)

    def is_dominated(self, issued: int, clocks: Clocks) -> bool:
        """Whether the same units were issued before with every clock no later (only without a memory cap: the peak on the way counts then)."""
        mine = ends_of(clocks, self.collectives)
        known = self.seen.setdefault(issued, [])
        if any(dominates(k, mine) for k in known):
            return True
        known[:] = [k for k in known if not dominates(mine, k)] + [mine]
        return False
