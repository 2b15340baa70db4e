"""A schedule that is still good when computations or collectives take longer than they are priced.

The shortest simulated step often begins a collective in the very moment in which its link falls idle, and leaves for the end as much as just fits
behind the last computations. In a real step some computations take longer (caches, memory that is shared, a rank that is behind), and then the link
waits; or collectives do, and then the step waits for the last one. So a search goes on from its best schedule with either of them slower, and what it
finds is taken if all three steps together get shorter and the step as priced stays about as short.
"""

from __future__ import annotations

from dmlc.simulate.joint_descent import Descent
from dmlc.simulate.joint_layout import Layout
from dmlc.simulate.joint_problem import Problem
from dmlc.simulate.joint_state import Schedule

PRICE = 100  # the step as priced may get longer by one part in so many


def prepared(best: Schedule, percent: int, cap: int, effort: int, moves: frozenset[str], limit: int) -> Schedule:
    """The schedule to take in place of `best` when computations or collectives may take `percent` longer: as priced never longer than `limit`
    picoseconds nor by more than one part in `PRICE`, never above `cap` bytes (0: none). `effort`: units simulated in each search."""
    problem = best.layout.problem
    cases = (problem, problem.slower(computation=percent), problem.slower(communication=percent))
    limit = min(limit, best.makespan + best.makespan // PRICE)
    found, least = best, _together(best, cases)
    for case in cases[1:]:
        walk = Descent(_in(case, found), 0, cap, effort, moves)
        schedule = walk.best()
        walk.descend(schedule, 0)
        walk.polish(schedule, 0)
        other = _in(problem, walk.best())
        if other.makespan <= limit and (together := _together(other, cases)) < least:
            found, least = other, together
    return found


def _together(schedule: Schedule, cases: tuple[Problem, ...]) -> int:
    """Picoseconds of the step in all cases."""
    return sum(_in(case, schedule).makespan for case in cases)


def _in(problem: Problem, schedule: Schedule) -> Schedule:
    """The same units in the same order under the prices of a problem with equal nodes."""
    return moved(schedule, Layout(problem, schedule.layout.chunks))


def moved(schedule: Schedule, layout: Layout) -> Schedule:
    """The same units in the same order, in a layout of equal atoms."""
    order = [layout.unit(schedule.layout.members[u]) for u in schedule.order]
    return Schedule(layout, order, memory=schedule.memory)
