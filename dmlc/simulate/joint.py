"""Joint search: kernels, buckets, pieces and the order of all of it, chosen together against the simulated step under a memory cap.

From each start (what the passes decide one by one) a descent over moves of order and of sets, then exact search in windows, then kicks
from the best found. Nothing is random and limits count simulated units, so that the same problem gives the same plan everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dmlc.simulate.clocks import Clocks
from dmlc.simulate.engine import Bounds, bounds
from dmlc.simulate.joint_descent import ALL, Descent, Score
from dmlc.simulate.joint_layout import Layout
from dmlc.simulate.joint_problem import COMPUTE, CUT, JOIN, Buffer, Chunks, Node, Plan, Problem, Stream, Unit
from dmlc.simulate.joint_state import Schedule
from dmlc.simulate.late import prepared
from dmlc.simulate.listing import list_orders
from dmlc.simulate.units import Units

__all__ = [
    "ALL",
    "COMPUTE",
    "CUT",
    "EFFORT",
    "JOIN",
    "Buffer",
    "Chunks",
    "Node",
    "Plan",
    "Problem",
    "Result",
    "Step",
    "Stream",
    "Unit",
    "events_of",
    "peak_of",
    "search",
    "time_of",
]

EFFORT = 5_000_000  # units simulated by a search, all trials together
POLISHED = 3  # results of descents that exact windows go on from
KICKS = 8


@dataclass(frozen=True)
class Step:
    """What made the best plan better: the kind of move, the makespan after it, and the units simulated until then."""

    name: str
    time: int
    evaluations: int


@dataclass(frozen=True)
class Result:
    """The best plan found.

    time, peak    picoseconds, bytes
    start         the start it grew from
    starts        makespans of the starts; -1 of one that needs more memory than the cap
    bound         what no order of the plan's units can beat
    """

    plan: Plan
    time: int
    peak: int
    start: int
    starts: tuple[int, ...]
    trace: tuple[Step, ...]
    evaluations: int
    bound: int


def search(problem: Problem, starts: Sequence[Plan], cap: int = 0, effort: int = EFFORT, moves: frozenset[str] = ALL, late: int = 0) -> Result:
    """The best plan found from `starts`: never slower than the best of them, never above `cap` bytes (0: none) unless all starts are;
    then the least of their peaks is the cap. `moves` names what may change: order, fusion, buckets, chunks. `late`: how many percent longer
    computations or collectives may take than they are priced (`dmlc.simulate.late`)."""
    if not starts:
        raise ValueError("a search needs a plan to start from")
    first = [_schedule(problem, plan, memory=True) for plan in starts]
    peaks = [s.peak() for s in first]
    cap = max(cap, min(peaks)) if cap else 0
    binding = cap if cap < _total(problem) else 0
    ranked = sorted((i for i, peak in enumerate(peaks) if not cap or peak <= cap), key=lambda i: (Score.of(first[i]), i))
    run = _run([(i, first[i]) for i in ranked], binding, effort, moves)
    best = prepared(run.best(), late, binding, effort, moves, first[ranked[0]].makespan) if late else run.best()
    return Result(
        best.layout.plan(best.order),
        best.makespan,
        _schedule(problem, best.layout.plan(best.order), memory=True).peak(),
        run.origin,
        tuple(s.makespan if i in ranked else -1 for i, s in enumerate(first)),
        tuple(Step(*s) for s in run.trace),
        run.spent,
        bounds_of(best).best,
    )


def _run(starts: list[tuple[int, Schedule]], cap: int, effort: int, moves: frozenset[str]) -> Descent:
    """Of a few units all is tried. Else descents from all starts, exact windows from the best few results, cuts, then kicks of the best."""
    run = Descent(starts[0][1], starts[0][0], cap, effort // 2, moves)
    found: dict[tuple, tuple[Score, int, Schedule]] = {}
    for origin, start in [*starts, *_listed(starts[0], cap)]:
        schedule = run.fresh(start)
        run.descend(schedule, origin)
        if run.whole(schedule, origin) and not _cuttable(schedule, moves):
            return run
        found.setdefault((tuple(schedule.layout.chunks.items()), tuple(schedule.order)), (Score.of(schedule), origin, schedule))
    run.until = effort
    for _, origin, schedule in sorted(found.values(), key=lambda f: f[:2])[:POLISHED]:
        run.polish(schedule, origin)
    run.polish(run.cut(run.best(), run.origin), run.origin)
    for number in range(KICKS):
        schedule = run.kick(number)
        run.descend(schedule, run.origin)
        run.polish(schedule, run.origin)
    return run


def _listed(start: tuple[int, Schedule], cap: int) -> list[tuple[int, Schedule]]:
    """The units of a start in the order of each list schedule, as far as memory suffices."""
    origin, schedule = start
    units = as_units(schedule)
    found = [Schedule(schedule.layout, [schedule.order[i] for i in order], memory=cap > 0) for order in list_orders(units)]
    return [(origin, s) for s in found if not cap or s.peak() <= cap]


def as_units(schedule: Schedule) -> Units:
    """The schedule's units in its order, for what works on units."""
    layout, place, home, order = schedule.layout, schedule.place, schedule.home, schedule.order
    preds = tuple(tuple(sorted({place[home[p]] for a in layout.members[u] for p in layout.preds[a]} - {i})) for i, u in enumerate(order))
    ids, names = tuple(map(str, range(len(order)))), tuple((n,) for n in layout.problem.names)
    time, stream, host, call = (tuple(values[u] for u in order) for values in (layout.time, layout.stream, layout.host, layout.call))
    return Units(ids, time, stream, preds, names, host=host, call=call, rates=layout.problem.streams)


def _cuttable(schedule: Schedule, moves: frozenset[str]) -> bool:
    return "chunks" in moves and bool(schedule.layout.problem.chunks)


def _total(problem: Problem) -> int:
    """Bytes of everything at once: below a cap of that memory never matters."""
    return 2 * sum(b.bytes for b in problem.buffers) + max((n.scratch for n in problem.nodes), default=0)


def _schedule(problem: Problem, plan: Plan, memory: bool = False) -> Schedule:
    return Schedule(*numbered(problem, plan), memory=memory)


def numbered(problem: Problem, plan: Plan) -> tuple[Layout, list[int]]:
    """A plan's layout and its units as numbers. Raises ValueError for one that is not complete or not in a legal order."""
    layout = Layout(problem, plan.chunks)
    order = [layout.number(u) for u in plan.sequence]
    place = {a: i for i, u in enumerate(order) for a in layout.members[u]}
    if sorted(place) != layout.atoms or sum(len(layout.members[u]) for u in order) != len(place):
        raise ValueError("a plan must list each node once")
    for i, u in enumerate(order):
        late = next((p for a in layout.members[u] for p in layout.preds[a] if place[p] >= i and p not in layout.members[u]), None)
        if late is not None:
            raise ValueError(f"unit {i} of the plan stands before node {layout.unit_of[late].nodes[0]}, which it needs")
    return layout, order


def time_of(problem: Problem, plan: Plan) -> int:
    """Makespan in picoseconds."""
    return _schedule(problem, plan).makespan


def peak_of(problem: Problem, plan: Plan) -> int:
    """Most bytes alive at a time."""
    return _schedule(problem, plan, memory=True).peak()


def events_of(problem: Problem, plan: Plan) -> list[tuple[Unit, int, int]]:
    """Each unit's begin and end in picoseconds, in order of issue."""
    layout, order = numbered(problem, plan)
    home = {a: u for u in order for a in layout.members[u]}
    clocks = Clocks(problem.streams, layout.time, layout.call, record=True)
    for u in order:
        clocks.issue(u, layout.stream[u], [home[a] for a in layout.waits[u]], layout.host[u])
    clocks.finish()
    assert clocks.begins is not None
    return [(layout.described(u), clocks.begins[u], clocks.ends[u]) for u in order]


def bounds_of(schedule: Schedule) -> Bounds:
    """What no order of the schedule's units can beat."""
    return bounds(as_units(schedule))
