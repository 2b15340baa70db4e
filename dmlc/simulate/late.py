"""A schedule that is still good when computations take longer than they are priced.

The shortest simulated step often begins a collective in the very moment in which its link falls idle. In a real step some computations take longer
(caches, memory that is shared, a rank that is behind), and then the link waits. So a search goes on from its best schedule with slower
computations, and what it finds is taken if the step as priced stays about as short.
"""

from __future__ import annotations

from dmlc.simulate.joint_descent import Descent
from dmlc.simulate.joint_layout import Layout
from dmlc.simulate.joint_state import Schedule

PRICE = 200  # the step as priced may get longer by one part in so many


def prepared(best: Schedule, percent: int, cap: int, effort: int, moves: frozenset[str], limit: int) -> Schedule:
    """The schedule to take in place of `best` when computations may take `percent` longer: as priced never longer than `limit` picoseconds nor by more than
    one part in `PRICE`, never above `cap` bytes (0: none). `effort`: units simulated."""
    slow = best.layout.problem.slower(percent)
    start = moved(best, Layout(slow, best.layout.chunks))
    walk = Descent(start, 0, cap, effort, moves)
    schedule = walk.best()
    walk.descend(schedule, 0)
    walk.polish(schedule, 0)
    found = moved(walk.best(), Layout(best.layout.problem, walk.best().layout.chunks))
    return found if found.makespan <= min(limit, best.makespan + best.makespan // PRICE) else best


def moved(schedule: Schedule, layout: Layout) -> Schedule:
    """The same units in the same order, in a layout of equal atoms."""
    order = [layout.unit(schedule.layout.members[u]) for u in schedule.order]
    return Schedule(layout, order, memory=schedule.memory)
