"""The walk of a joint search: first improvement over moves of order and of sets, windows, kicks, all under one budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dmlc.simulate.joint_layout import Layout
from dmlc.simulate.joint_moves import merges, order_moves, splits, stalls, transfers
from dmlc.simulate.joint_problem import COMPUTE
from dmlc.simulate.joint_state import Change, Schedule
from dmlc.simulate.joint_window import UNITS, best_window, window_end

ALL = frozenset({"order", "fusion", "buckets", "chunks"})

STEPS = 4000  # units issued by a window's search
SHORT = 64  # units up to which windows cover the whole schedule
WINDOWS = 32  # windows of a longer one in one sweep


@dataclass(frozen=True, order=True)
class Score:
    """Less is better: makespan, then the work done in it."""

    time: int
    work: int

    @classmethod
    def of(cls, schedule: Schedule) -> Score:
        layout = schedule.layout
        return cls(schedule.makespan, sum(layout.time[u] + layout.host[u] for u in schedule.order))


class Descent:
    """The best schedule found so far, and the one at hand."""

    def __init__(self, cap: int, effort: int, moves: frozenset[str]):
        self.cap, self.effort, self.moves = cap, effort, moves
        self.spent = 0
        self.trace: list[tuple[str, int, int]] = []
        self.layouts: dict[tuple[tuple[int, int], ...], Layout] = {}

    def begin(self, starts: list[tuple[int, Schedule]]) -> None:
        """The first is the best; all others are walked from as well."""
        self.starts = [(i, self._fresh(s)) for i, s in starts]
        self.origin, first = self.starts[0]
        self.best, self.score = first, Score.of(first)
        self.trace.append(("start", first.makespan, 0))

    def _fresh(self, schedule: Schedule) -> Schedule:
        """A copy that shares the layout of its chunks."""
        layout = self.layouts.setdefault(tuple(schedule.layout.chunks.items()), schedule.layout)
        order = schedule.order if layout is schedule.layout else [layout.unit(schedule.layout.members[u]) for u in schedule.order]
        return Schedule(layout, order, memory=self.cap > 0)

    @property
    def exhausted(self) -> bool:
        return self.spent >= self.effort

    def run(self) -> None:
        """Descend from every start."""
        for origin, schedule in self.starts:
            if self.exhausted:
                return
            self.descend(self._fresh(schedule), origin)

    # -------------------------------------------------- descent

    def descend(self, schedule: Schedule, origin: int) -> None:
        """Sweep sets and orders in turn until neither gains."""
        improved = True
        while improved and not self.exhausted:
            improved = self.sweep_sets(schedule, origin)
            improved |= self.sweep_order(schedule, origin)
            if not improved:
                improved = self.sweep_windows(schedule, origin)

    def sweep_windows(self, schedule: Schedule, origin: int) -> bool:
        """Exact search in windows that overlap by half, all of them in a short schedule, else those at stalls."""
        improved = False
        for lo in self._windows(schedule):
            if self.exhausted:
                break
            hi = window_end(schedule, lo)
            before = schedule.replayed
            change = best_window(schedule, lo, hi, self.moves, schedule.makespan, STEPS, self.cap)
            self.spent += schedule.replayed - before
            if change is not None:
                schedule.accept(change)
                self.note(schedule, "window", origin)
                improved = True
        return improved

    @staticmethod
    def _windows(schedule: Schedule) -> list[int]:
        last = max(len(schedule) - UNITS, 0)
        if len(schedule) <= SHORT:
            return sorted({*range(0, last, UNITS // 2), last})
        found = dict.fromkeys(min(max(p - UNITS // 2, 0), last) for p in stalls(schedule))
        return list(found)[:WINDOWS]

    def sweep_sets(self, schedule: Schedule, origin: int) -> bool:
        """Each atom's moves of sets once, taking every gain."""
        improved = False
        for atom in schedule.layout.atoms:
            name = "fusion" if schedule.layout.atom_stream[atom] == COMPUTE else "buckets"
            if name not in self.moves:
                continue
            for kind in (merges, splits, transfers):
                while self.first(schedule, kind(schedule, atom), name, origin):
                    improved = True
            if self.exhausted:
                break
        return improved

    def sweep_order(self, schedule: Schedule, origin: int) -> bool:
        improved = False
        while "order" in self.moves and self.first(schedule, order_moves(schedule), "order", origin):
            improved = True
        return improved

    def first(self, schedule: Schedule, changes: Iterable[Change], name: str, origin: int) -> bool:
        """Make the first change that is better."""
        for change in changes:
            if self.exhausted:
                return False
            if self.try_change(schedule, change):
                self.note(schedule, name, origin)
                return True
        return False

    def try_change(self, schedule: Schedule, change: Change) -> bool:
        """Make the change if it is better and fits."""
        layout = schedule.layout
        old = schedule.order[change.lo : change.hi]
        work = sum(layout.time[u] + layout.host[u] for u in change.units) - sum(layout.time[u] + layout.host[u] for u in old)
        limit = schedule.makespan + (work < 0)
        before = schedule.replayed
        time = schedule.trial(change, limit)
        self.spent += schedule.replayed - before
        if time >= limit or (self.cap and schedule.peak(change) > self.cap):
            return False
        schedule.accept(change)
        return True

    def note(self, schedule: Schedule, name: str, origin: int) -> None:
        """Keep the schedule if it is the best so far."""
        if schedule.makespan > self.score.time:
            return
        score = Score.of(schedule)
        if score < self.score:
            if score.time < self.score.time:
                self.trace.append((name, score.time, self.spent))
            self.score, self.origin = score, origin
            self.best = self._fresh(schedule)
