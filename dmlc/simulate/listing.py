"""List schedules: orders made front to back by a rule for what comes next."""

from __future__ import annotations

import heapq

from dmlc.simulate.engine import tails
from dmlc.simulate.units import COMPUTE, Units

Order = tuple[int, ...]
AHEAD = 32  # collectives looked at for what comes next


def list_order(units: Units, by_path: bool = True, eager: bool = True) -> Order:
    """The ready unit that need not wait for a collective comes next: a start if there is one, else a computation.

    by_path  among several, the one with the longest path after it; otherwise the one that stands first in the program
    eager    start collectives as soon as they are ready; otherwise only when their stream is idle, so that an urgent one that gets
             ready later need not queue behind all others
    """
    rank = [-t for t in tails(units)] if by_path else list(range(len(units)))
    return _ListScheduler(units, rank, eager).run()


def list_orders(units: Units) -> list[Order]:
    """The list schedules by every rule, the one nearest to the program first."""
    found = [list_order(units, by_path, eager) for by_path in (False, True) for eager in (True, False)]
    return [*found, fed_order(units)]


def fed_order(units: Units) -> Order:
    """The list schedule by `release_rank`."""
    return _ListScheduler(units, release_rank(units), True).run()


def release_rank(units: Units) -> list[int]:
    """Unit -> its place where each time the collective comes next that moves longest for the computation it still needs before it, so that
    streams never run dry (a flow shop of two machines, Johnson 1954). What no collective needs comes last, in program order."""
    issued = bytearray(len(units))
    heads = _heads(units)
    waiting = sorted((u for u in range(len(units)) if units.stream[u] != COMPUTE), key=heads.__getitem__)
    order: list[int] = []
    while waiting:
        options = [(_needed(units, collective, issued), collective) for collective in waiting[:AHEAD]]
        chosen, _ = max(options, key=lambda option: _gain(units, *option))
        for u in chosen:
            issued[u] = 1
        order += chosen
        waiting = [u for u in waiting if not issued[u]]
    order += [u for u in range(len(units)) if not issued[u]]
    rank = [0] * len(units)
    for place, u in enumerate(order):
        rank[u] = place
    return rank


def _heads(units: Units) -> list[int]:
    """Unit -> time of the longest chain that ends before it."""
    head = [0] * len(units)
    for u in range(len(units)):
        head[u] = max((head[p] + units.time[p] for p in units.preds[u]), default=0)
    return head


def _needed(units: Units, collective: int, issued: bytearray) -> list[int]:
    """The units that have to be issued up to a collective, in program order."""
    found, pending = {collective}, [collective]
    while pending:
        for p in units.preds[pending.pop()]:
            if not issued[p] and p not in found:
                found.add(p)
                pending.append(p)
    return sorted(found)


def _gain(units: Units, needed: list[int], collective: int) -> tuple[float, int]:
    """Picoseconds that the collectives among `needed` move for each of computation; of equals the first in the program."""
    moving = sum(units.time[u] for u in needed if units.stream[u] != COMPUTE)
    return moving / (sum(units.time[u] for u in needed if units.stream[u] == COMPUTE) + 1), -collective


class _ListScheduler:
    """Clocks of a rank that nothing slows down; ready units lie in one of three places: `later` (what they need is in flight), `now`
    (computations), `starts` (collectives, a heap a stream)."""

    def __init__(self, units: Units, rank: list[int], eager: bool):
        self.units, self.rank, self.eager = units, rank, eager
        self.missing = [len(p) for p in units.preds]
        self.done = [0] * len(units)
        self.free = [0] * (len(units.streams) + 1)
        self.later: list[tuple[int, int, int]] = []
        self.now: list[tuple[int, int]] = []
        self.starts: list[list[tuple[int, int]]] = [[] for _ in units.streams]
        self.order: list[int] = []

    def run(self) -> Order:
        for u, n in enumerate(self.missing):
            if n == 0:
                self._make_ready(u)
        while len(self.order) < len(self.units):
            self._issue(self._next())
        return tuple(self.order)

    def _make_ready(self, u: int) -> None:
        available = max((self.done[p] for p in self.units.preds[u]), default=0)
        heapq.heappush(self.later, (available, self.rank[u], u))

    def _next(self) -> int:
        while self.later and self.later[0][0] <= self.free[COMPUTE]:
            _, rank, u = heapq.heappop(self.later)
            stream = self.units.stream[u]
            heapq.heappush(self.now if stream == COMPUTE else self.starts[stream], (rank, u))
        for stream, waiting in enumerate(self.starts):
            if waiting and (self.eager or self.free[stream] <= self.free[COMPUTE]):
                return heapq.heappop(waiting)[1]
        if self.now:
            return heapq.heappop(self.now)[1]
        for waiting in self.starts:
            if waiting:
                return heapq.heappop(waiting)[1]
        return heapq.heappop(self.later)[2]

    def _issue(self, u: int) -> None:
        available = max((self.done[p] for p in self.units.preds[u]), default=0)
        stream, free = self.units.stream[u], self.free
        free[COMPUTE] = max(free[COMPUTE], available)
        free[stream] = self.done[u] = max(free[COMPUTE], free[stream]) + self.units.time[u]
        self.order.append(u)
        for v in self.units.succs[u]:
            self.missing[v] -= 1
            if self.missing[v] == 0:
                self._make_ready(v)
