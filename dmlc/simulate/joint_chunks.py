"""Cutting collectives into pieces and joining them again: moves that change which atoms there are."""

from __future__ import annotations

from collections.abc import Iterator

from dmlc.simulate.joint_layout import Layout
from dmlc.simulate.joint_problem import JOIN, Plan, Unit
from dmlc.simulate.joint_state import Schedule


def chunk_moves(schedule: Schedule) -> Iterator[tuple[int, int]]:
    """(collective, other number of pieces), the longest collective first; those in a bucket are left out."""
    problem, layout = schedule.layout.problem, schedule.layout
    for c in sorted(problem.chunks, key=lambda c: (-problem.nodes[c].time, c)):
        if c in layout.pieces or len(layout.members[schedule.home[c]]) == 1:
            yield from ((c, n) for n in (1, *problem.chunks[c]) if n != layout.chunks.get(c, 1))


def rechunked(plan: Plan, layout: Layout, collective: int, pieces: int) -> list[int]:
    """The plan's units under `layout`, which cuts `collective` in `pieces` (1: not): its parts stand where it or its first part
    stood, but what joins them goes before the first reader."""
    parts = [layout.described(layout.unit((a,))) for a in layout.parts(collective)] if pieces > 1 else [Unit((collective,))]
    join = [u for u in parts if u.part == JOIN]
    readers = {i for i, n in enumerate(layout.problem.nodes) if collective in n.preds}
    found: list[Unit] = []
    placed = False
    for unit in plan.sequence:
        if unit.nodes == (collective,):
            found += [] if placed else [u for u in parts if u.part != JOIN]
            placed = True
            continue
        if join and readers & set(unit.nodes):
            found, join = found + join, []
        found.append(unit)
    return [layout.number(u) for u in found + join]
