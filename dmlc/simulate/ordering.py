"""Finding an order of units: the best of a few list schedules, exact search for small graphs, local search, late starts.

The local search is the joint one with moves of order only (`joint_descent`): each move is simulated from where it begins to where it makes no
difference. Nothing here is random and every limit counts evaluations, not seconds, so that the same graph gives the same order everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable

from dmlc.simulate.branch import best_order
from dmlc.simulate.clocks import Streams
from dmlc.simulate.engine import bounds, replay
from dmlc.simulate.joint_descent import Descent
from dmlc.simulate.joint_layout import Layout
from dmlc.simulate.joint_problem import Buffer, Node, Problem, Stream
from dmlc.simulate.joint_state import Change, Schedule
from dmlc.simulate.late import prepared
from dmlc.simulate.listing import Order, list_order, list_orders
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
    def binding(self) -> int:
        """The cap if memory could ever reach it, else 0."""
        return self.cap if self.cap and sum(s.bytes for s in self.units.storages) + max(self.units.scratch, default=0) > self.cap else 0

    @property
    def finished(self) -> bool:
        return self.time <= self.bound or self.left <= 0


def find_order(units: Units, cap: int = 0, effort: int = EFFORT, late: int = 0) -> Order:
    """An order whose makespan is never above that of the units as listed; the best there is for up to `EXACT` units.
    Without `effort` it is the list schedule nearest to the program, so that programs that differ by a layer are ordered alike.
    `late`: how many percent longer computations or collectives may take than they are priced; the order is then prepared for that (`dmlc.simulate.late`)."""
    search = _searched(units, cap, effort)
    if effort and search.order != search.base:
        search.order = late_starts(search)
    return _prepared(search, effort, late) if late and effort and units.communicates else search.order


def price(units: Units, effort: int = PRICING) -> int:
    """Makespan of the order that a short search finds, by shifts around stalls alone: what a decision is judged by."""
    return _searched(units, 0, effort, short=True).time


def _searched(units: Units, cap: int, effort: int, short: bool = False) -> Search:
    search = Search(units, cap, effort)
    if not units.communicates or search.finished:
        return search
    for order in list_orders(units) if effort else [list_order(units, by_path=False)]:
        search.offer(order)
    if len(units) > EXACT and effort:
        _improve(search, short)
    if len(units) <= SMALL and not search.finished:
        search.offer(best_order(units, search.order, search.cap, states=200_000 if len(units) <= EXACT else effort // 50))
    return search


def _improve(search: Search, short: bool) -> None:
    """Local search from the order at hand; a short one has neither moves of repeated layers nor windows."""
    schedule = _schedule(search)
    walk = Descent(schedule, 0, search.binding, search.left * len(search.units), frozenset({"order"}))
    start = walk.best()
    if short:
        walk.sweep_order(start, 0)
    else:
        walk.descend(start, 0)
        walk.polish(start, 0)
    search.left -= walk.spent // len(search.units)
    best = walk.best()
    search.offer(tuple(best.layout.members[u][0] for u in best.order))


def _prepared(search: Search, effort: int, late: int) -> Order:
    found = prepared(_schedule(search), late, search.binding, effort, frozenset({"order"}), replay(search.units, search.base))
    return tuple(found.layout.members[u][0] for u in found.order)


def _schedule(search: Search) -> Schedule:
    """The order at hand with the state before each unit. Unit numbers of the layout are those of the units."""
    units = search.units
    layout = Layout(problem_of(units), {})
    for u in range(len(units)):
        layout.unit((u,))
    return Schedule(layout, search.order, memory=search.binding > 0)


def problem_of(units: Units) -> Problem:
    """The units as nodes that nothing joins."""
    host, scratch, call = (values or (0,) * len(units) for values in (units.host, units.scratch, units.call))
    nodes = [Node(units.time[u], units.preds[u], units.stream[u], None, host[u], scratch[u], call=call[u]) for u in range(len(units))]
    rates = units.rates or Streams.plain(len(units.streams))
    streams = [Stream(",".join(axes), *rest) for axes, *rest in zip(units.streams, rates.computing, rates.moving, rates.link)]
    return Problem(nodes, streams, [Buffer(s.bytes, s.maker, s.users, s.kept) for s in units.storages])


# ---------------------------------------------------------------- late starts


def late_starts(search: Search) -> Order:
    """Put each start as late as the makespan allows (its deadline), last ones first: what it delivers then takes memory for less
    long. Starts of one stream keep their order. The order stays as it was if the peak would grow."""
    schedule = _schedule(search)
    for u in reversed(search.order):
        if search.units.stream[u] != COMPUTE:
            _delay(schedule, search.units, u, search.time)
    order = tuple(schedule.order)
    return order if search.units.peak(order) <= search.units.peak(search.order) else search.order


def _delay(schedule: Schedule, units: Units, unit: int, limit: int) -> None:
    """Move `unit` down as far as its first consumer, its stream and the limit allow (bisection)."""
    order, at = schedule.order, schedule.place[unit]
    stop, readers = at + 1, set(units.succs[unit])
    while stop < len(order) and order[stop] not in readers and units.stream[order[stop]] != units.stream[unit]:
        stop += 1
    low, high = at, stop - 1  # positions after the move
    while low < high:
        middle = (low + high + 1) // 2
        if schedule.trial(_down(schedule, at, middle), limit + 1) <= limit:
            low = middle
        else:
            high = middle - 1
    if low > at:
        schedule.accept(_down(schedule, at, low))


def _down(schedule: Schedule, at: int, to: int) -> Change:
    order = schedule.order
    return Change(at, to + 1, (*order[at + 1 : to + 1], order[at]))
