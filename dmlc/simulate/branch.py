"""Exact search over orders by branch and bound, for small graphs and as the oracle of the heuristics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dmlc.simulate.engine import replay, tails
from dmlc.simulate.units import COMPUTE, Units

Order = tuple[int, ...]


@dataclass(frozen=True)
class _State:
    """After a set of units has been issued: when each stream is free and when each collective in flight is done."""

    issued: int  # bit mask
    free: tuple[int, ...]  # the last entry is the compute stream's
    done: tuple[int, ...]  # a unit -> its end; 0 for those not issued, or already waited for

    def dominates(self, other: _State) -> bool:
        return all(a <= b for a, b in zip(self.free, other.free)) and all(a <= b for a, b in zip(self.done, other.done))


def best_order(units: Units, start: Order, cap: int = 0, states: int = 200_000) -> Order:
    """The order of least makespan, `start` if none is shorter. `cap` bytes (0 = none) bound the peak. Stops after `states` states."""
    search = _Branch(units, start, cap, states)
    zero = (0,) * (len(units.streams) + 1)
    search.extend(_State(0, zero, (0,) * len(units)), ())
    return search.best


class _Branch:
    def __init__(self, units: Units, start: Order, cap: int, states: int):
        self.units, self.cap, self.left = units, cap, states
        self.best, self.time = start, replay(units, start)
        self.tail = tails(units)
        self.masks = [sum(1 << p for p in preds) for preds in units.preds]
        self.seen: dict[int, list[_State]] = {}
        self.full = (1 << len(units)) - 1

    def extend(self, state: _State, order: Order) -> None:
        """Try every unit that may come next."""
        if state.issued == self.full:
            if max(state.free) < self.time and (not self.cap or self.units.peak(order) <= self.cap):
                self.best, self.time = order, max(state.free)
            return
        self.left -= 1
        if self.left < 0 or self.bound(state) >= self.time or self.is_dominated(state):
            return
        for u in range(len(self.units)):
            if not state.issued >> u & 1 and self.masks[u] & ~state.issued == 0:
                self.extend(self.after(state, u), (*order, u))

    def after(self, state: _State, u: int) -> _State:
        free, done = list(state.free), list(state.done)
        free[COMPUTE] = max([free[COMPUTE], *(done[p] for p in self.units.preds[u])])
        stream = self.units.stream[u]
        free[stream] = done[u] = max(free[COMPUTE], free[stream]) + self.units.time[u]
        done = [d if d > free[COMPUTE] else 0 for d in done]
        return _State(state.issued | 1 << u, tuple(free), tuple(done))

    def bound(self, state: _State) -> int:
        """No completion ends before what is left on a stream, or before the longest path of an open unit."""
        ends = list(state.free)
        longest = 0
        for u in self._open(state):
            ends[self.units.stream[u]] += self.units.time[u]
            longest = max(longest, self.tail[u])
        return max(*ends, state.free[COMPUTE] + longest)

    def _open(self, state: _State) -> Sequence[int]:
        return [u for u in range(len(self.units)) if not state.issued >> u & 1]

    def is_dominated(self, state: _State) -> bool:
        """Whether the same units were issued before with every clock no later (only without a memory cap, which clocks do not show)."""
        if self.cap:
            return False
        known = self.seen.setdefault(state.issued, [])
        if any(k.dominates(state) for k in known):
            return True
        known[:] = [k for k in known if not state.dominates(k)] + [state]
        return False
