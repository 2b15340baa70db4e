"""Finding an order of units: the best of a few list schedules, exact search for small graphs, local search, late starts.

Nothing here is random and every limit counts evaluations, not seconds, so that the same graph gives the same order everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dmlc.simulate.branch import best_order
from dmlc.simulate.engine import bounds, replay
from dmlc.simulate.listing import Order, list_order
from dmlc.simulate.units import COMPUTE, Units

EXACT = 10  # units up to which every order is considered
SMALL = 30  # units up to which branch and bound is tried, with a limit on its states
EFFORT = 1_000_000  # units replayed by a local search, all evaluations together
PRICING = 50_000  # the same for a search that only prices a decision


def order_of(units: Units, ids: Iterable[str] | None) -> Order | None:
    """An explicit order as unit numbers; None when it is absent or does not fit the units."""
    if ids is None:
        return None
    number = {name: u for u, name in enumerate(units.ids)}
    order = tuple(number[i] for i in ids if i in number)
    return order if units.is_legal(order) else None


# ---------------------------------------------------------------- search


class Search:
    """The best order found so far under a memory cap: least makespan, then least peak, then nearest to the first candidate.

    `cap` (bytes; 0 = none) is never exceeded unless the units as listed exceed it; then their own peak is the cap.
    """

    def __init__(self, units: Units, cap: int = 0, effort: int = EFFORT):
        self.units = units
        self.base: Order = tuple(range(len(units)))
        self.cap = max(cap, units.peak(self.base)) if cap else 0
        self.left = max(effort // max(len(units), 1), 8)
        self.order, self.time = self.base, replay(units, self.base)
        self.bound = bounds(units).best

    def offer(self, order: Order) -> bool:
        """Take `order` if it is shorter and fits."""
        self.left -= 1
        time = replay(self.units, order)
        if time >= self.time or not self.fits(order):
            return False
        self.order, self.time = order, time
        return True

    def fits(self, order: Order) -> bool:
        return not self.cap or self.units.peak(order) <= self.cap

    @property
    def finished(self) -> bool:
        return self.time <= self.bound or self.left <= 0


def list_orders(units: Units) -> list[Order]:
    """The list schedules by every rule, the one nearest to the program first."""
    return [list_order(units, by_path, eager) for by_path in (False, True) for eager in (True, False)]


def find_order(units: Units, cap: int = 0, effort: int = EFFORT) -> Order:
    """An order whose makespan is never above that of the units as listed; the best there is for up to `EXACT` units."""
    search = _searched(units, cap, effort)
    return late_starts(search) if search.order != search.base else search.order


def price(units: Units, effort: int = PRICING) -> int:
    """Makespan of the order that a short search finds: what a decision is judged by."""
    return _searched(units, 0, effort).time


def _searched(units: Units, cap: int, effort: int) -> Search:
    search = Search(units, cap, effort)
    if not units.communicates or search.finished:
        return search
    for order in list_orders(units):
        search.offer(order)
    if len(units) > EXACT:
        _improve(search)
    if len(units) <= SMALL and not search.finished:
        search.offer(best_order(units, search.order, search.cap, states=200_000 if len(units) <= EXACT else effort // 50))
    return search


def _improve(search: Search) -> None:
    """Local search: at each place where computation waits, either hurry what it waits for or do something else meanwhile."""
    improved = True
    while improved and not search.finished:
        improved = any(search.offer(order) for order in _moves(search))


def _moves(search: Search) -> Iterable[Order]:
    """Neighbours of the present order, nearest to a stall first."""
    units, order = search.units, search.order
    for at, waited in stalls(units, order):
        for target in (*_slots_before(units, order, waited), at):
            for unit in ([waited] if target < at else _fillers(units, order, at)):
                if search.left <= 0:
                    return
                moved = pull(units, order, unit, target)
                if moved != order:
                    yield moved


def stalls(units: Units, order: Sequence[int]) -> list[tuple[int, int]]:
    """(position, collective waited for there), longest wait first."""
    done, free = [0] * len(units), [0] * (len(units.streams) + 1)
    found = []
    for i, u in enumerate(order):
        late = max(units.preds[u], key=lambda p: done[p], default=None)
        ready = done[late] if late is not None else 0
        if late is not None and ready > free[COMPUTE]:
            found.append((ready - free[COMPUTE], i, late))
        free[COMPUTE] = max(free[COMPUTE], ready)
        s = units.stream[u]
        free[s] = done[u] = max(free[COMPUTE], free[s]) + units.time[u]
    return [(i, late) for _, i, late in sorted(found, key=lambda f: (-f[0], f[1]))]


def _slots_before(units: Units, order: Sequence[int], unit: int) -> list[int]:
    """Positions before `unit` worth pulling it to: those of earlier collectives in its stream, and a few evenly spread ones."""
    at = order.index(unit)
    queued = [i for i in range(at) if units.stream[order[i]] == units.stream[unit]]
    return sorted({at * k // 8 for k in range(8)} | set(queued[-8:]))


def _fillers(units: Units, order: Sequence[int], at: int, window: int = 64) -> list[int]:
    """Units after position `at` that could run there without waiting for what it waits for."""
    blocked = {order[at]}
    found = []
    for u in order[at + 1 : at + 1 + window]:
        if blocked.isdisjoint(units.preds[u]):
            found.append(u)
        else:
            blocked.add(u)
    return found


def pull(units: Units, order: Order, unit: int, target: int) -> Order:
    """`unit`, with those of its predecessors that stand behind `target`, moved up to position `target`."""
    needed = {unit}
    for u in reversed(order[target : order.index(unit) + 1]):
        if u in needed:
            needed.update(units.preds[u])
    last = order.index(unit) + 1
    moved = [u for u in order[target:last] if u in needed]
    kept = [u for u in order[target:last] if u not in needed]
    return (*order[:target], *moved, *kept, *order[last:])


# ---------------------------------------------------------------- late starts


def late_starts(search: Search) -> Order:
    """Put each start as late as the makespan allows (its deadline), last ones first: what it delivers then takes memory for less
    long. Starts of one stream keep their order. The order stays as it was if the peak would grow."""
    order = search.order
    for u in reversed(search.order):
        if search.units.stream[u] != COMPUTE:
            order = _latest(search.units, order, u, search.time)
    return order if search.units.peak(order) <= search.units.peak(search.order) else search.order


def _latest(units: Units, order: Order, unit: int, limit: int) -> Order:
    """The order with `unit` moved down as far as its first consumer, its stream and the limit allow (bisection)."""
    at = order.index(unit)
    stop = at + 1
    while stop < len(order) and order[stop] not in units.succs[unit] and units.stream[order[stop]] != units.stream[unit]:
        stop += 1
    low, high = at, stop - 1  # positions after the move
    while low < high:
        middle = (low + high + 1) // 2
        if replay(units, _shifted(order, at, middle)) <= limit:
            low = middle
        else:
            high = middle - 1
    return _shifted(order, at, low)


def _shifted(order: Order, at: int, to: int) -> Order:
    return (*order[:at], *order[at + 1 : to + 1], order[at], *order[to + 1 :])
