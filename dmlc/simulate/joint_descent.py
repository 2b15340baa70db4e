"""The walk of a joint search: first improvement over moves of order, of sets, of whole patterns; exact search in windows; pieces; kicks."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from dmlc.simulate.joint_chunks import chunk_moves, rechunked
from dmlc.simulate.joint_layers import layer_moves
from dmlc.simulate.joint_layout import Layout
from dmlc.simulate.joint_moves import ahead, merges, order_moves, pulled, splits, stalls, transfers
from dmlc.simulate.joint_problem import COMPUTE
from dmlc.simulate.joint_state import NEVER, Change, Schedule
from dmlc.simulate.joint_window import ATOMS, UNITS, Window, window_end

ALL = frozenset({"order", "fusion", "buckets", "chunks"})
STEPS, WHOLE = 1_500, 10_000  # units issued by the search of a window, and of one that is the whole schedule
SHORT = 64  # units up to which windows cover the whole schedule
WINDOWS = 32  # windows of a longer one in one sweep
PATTERNS = 40  # units from which on patterns are moved as a whole
HASTY = 12  # gains of order after which a new cut is judged
LEAST = 200_000  # a gain of less than this part of the step is none (slowed collectives round up)


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
    """The best schedule found so far, its start, and what is left of the budget (`until`, in units simulated)."""

    def __init__(self, first: Schedule, origin: int, cap: int, until: int, moves: frozenset[str]):
        self.cap, self.until, self.moves = cap, until, moves
        self.spent = 0
        self.layouts: dict[tuple[tuple[int, int], ...], Layout] = {}
        self.score, self.origin = Score.of(first), origin
        self._kept = self.layout(first.layout), tuple(first.order)
        self.trace: list[tuple[str, int, int]] = [("start", first.makespan, 0)]

    def fresh(self, schedule: Schedule) -> Schedule:
        """A copy; equal chunks share a layout."""
        layout = self.layout(schedule.layout)
        order = schedule.order if layout is schedule.layout else [layout.unit(schedule.layout.members[u]) for u in schedule.order]
        self.spent += len(order)
        return Schedule(layout, order, memory=self.cap > 0)

    def layout(self, layout: Layout) -> Layout:
        return self.layouts.setdefault(tuple(layout.chunks.items()), layout)

    @property
    def exhausted(self) -> bool:
        return self.spent >= self.until

    # -------------------------------------------------- one change

    def try_change(self, schedule: Schedule, change: Change) -> bool:
        """Make the change if it is better and fits: a shorter step, or one as long with less work in it."""
        layout = schedule.layout
        old = schedule.order[change.lo : change.hi]
        work = sum(layout.time[u] + layout.host[u] for u in change.units) - sum(layout.time[u] + layout.host[u] for u in old)
        limit = schedule.makespan + 1 if work < 0 else _gainful(schedule)
        before = schedule.replayed
        time = schedule.trial(change, limit)
        self.spent += schedule.replayed - before
        if time >= limit or (self.cap and schedule.peak(change) > self.cap):
            return False
        schedule.accept(change)
        return True

    def first(self, schedule: Schedule, changes: Iterable[Change], name: str, origin: int) -> bool:
        """Make the first change that is better."""
        for change in changes:
            if self.exhausted:
                return False
            if self.try_change(schedule, change):
                self.note(schedule, name, origin)
                return True
        return False

    def note(self, schedule: Schedule, name: str, origin: int) -> None:
        """Keep the schedule if it is the best so far."""
        if schedule.makespan > self.score.time:
            return
        score = Score.of(schedule)
        if score < self.score:
            if score.time < self.score.time:
                self._record(name, score.time)
            self._kept, self.score, self.origin = (schedule.layout, tuple(schedule.order)), score, origin

    def _record(self, name: str, time: int) -> None:
        """One entry for gains of one kind in a row."""
        if self.trace[-1][0] == name:
            self.trace.pop()
        self.trace.append((name, time, self.spent))

    def best(self) -> Schedule:
        """The best schedule so far, made anew."""
        layout, order = self._kept
        self.spent += len(order)
        return Schedule(layout, order, memory=self.cap > 0)

    # -------------------------------------------------- descent

    def descend(self, schedule: Schedule, origin: int) -> None:
        """Patterns, sets and orders in turn until none gains."""
        improved = True
        while improved and not self.exhausted:
            improved = len(schedule) >= PATTERNS and self.sweep_patterns(schedule, origin)
            improved |= self.sweep_sets(schedule, origin)
            improved |= self.sweep_order(schedule, origin)

    def sweep_patterns(self, schedule: Schedule, origin: int) -> bool:
        """Moves at all instances of a pattern, every gain taken; a list of moves stays good as long as nothing is changed."""
        improved, again = False, True
        while again and not self.exhausted:
            again = False
            for name, change in layer_moves(schedule, self.moves):
                self.spent += len(schedule)  # all units were put in order for it
                if self.exhausted:
                    break
                if self.try_change(schedule, change):
                    self.note(schedule, name, origin)
                    improved = again = True
                    break
        return improved

    def sweep_sets(self, schedule: Schedule, origin: int) -> bool:
        """Each atom's moves of sets, every gain taken."""
        improved = False
        for atom in schedule.layout.atoms:
            name = "fusion" if schedule.layout.atom_stream[atom] == COMPUTE else "buckets"
            if name not in self.moves:
                continue
            for kind in (merges, splits, transfers):
                while self.first(schedule, kind(schedule, atom), name, origin):
                    improved = True
            if self.exhausted:
                return improved
        while "buckets" in self.moves and self.first(schedule, ahead(schedule), "buckets", origin):
            improved = True
        return improved

    def sweep_order(self, schedule: Schedule, origin: int, name: str = "order", most: int = NEVER) -> bool:
        gains = 0
        while gains < most and "order" in self.moves and self.first(schedule, order_moves(schedule), name, origin):
            gains += 1
        return gains > 0

    # -------------------------------------------------- windows

    def whole(self, schedule: Schedule, origin: int) -> bool:
        """One window of all units, if they are few enough; returns whether it was searched to its end."""
        if len(schedule) > ATOMS or window_end(schedule, 0, ATOMS) < len(schedule):
            return False
        window = self.window(schedule, 0, len(schedule), origin)
        return window.complete

    def polish(self, schedule: Schedule, origin: int) -> None:
        """Windows and descents in turn until none gains."""
        improved = True
        while improved and not self.exhausted:
            improved = False
            for lo in _windows(schedule):
                improved |= self.window(schedule, lo, window_end(schedule, lo, UNITS), origin).best is not None
                if self.exhausted:
                    return
            if improved:
                self.descend(schedule, origin)

    def window(self, schedule: Schedule, lo: int, hi: int, origin: int) -> Window:
        """Search a window and make its best change."""
        steps = WHOLE if hi - lo == len(schedule) else STEPS
        window = Window(schedule, lo, hi, self.moves, _gainful(schedule), steps, self.cap)
        self.spent += window.run()
        if window.best is not None:
            schedule.accept(window.best)
            self.note(schedule, "window", origin)
        return window

    # -------------------------------------------------- pieces

    def cut(self, schedule: Schedule, origin: int) -> Schedule:
        """Collectives cut, or joined again, where that gains once the order has been put right."""
        improved = "chunks" in self.moves
        while improved and not self.exhausted:
            improved = False
            for collective, pieces in list(chunk_moves(schedule)):
                if self.exhausted:
                    break
                other = self.with_pieces(schedule, collective, pieces)
                self.sweep_order(other, origin, "chunks", HASTY)
                if Score.of(other) < Score.of(schedule) and (not self.cap or other.peak() <= self.cap):
                    schedule, improved = other, True
                    self.note(schedule, "chunks", origin)
                    break
        return schedule

    def with_pieces(self, schedule: Schedule, collective: int, pieces: int) -> Schedule:
        old = schedule.layout
        chunks = {c: n for c, n in {**old.chunks, collective: pieces}.items() if n > 1}
        key = tuple(sorted(chunks.items()))
        layout = self.layouts[key] if key in self.layouts else self.layout(Layout(old.problem, chunks))
        order = rechunked(old.plan(schedule.order), layout, collective, pieces)
        self.spent += len(order)
        return Schedule(layout, order, memory=self.cap > 0)

    # -------------------------------------------------- kicks

    def kick(self, number: int) -> Schedule:
        """The best schedule with a few legal changes of any value made to it; equal numbers give equal kicks."""
        draw = random.Random(number)
        schedule = self.best()
        for _ in range(2 + number % 3):
            changes = [c for c in _any_changes(schedule, draw, self.moves) if not self.cap or schedule.peak(c) <= self.cap]
            if changes:
                schedule.accept(changes[int(draw.random() * len(changes))])
        return schedule


def _gainful(schedule: Schedule) -> int:
    """The makespan that a better schedule stays below."""
    return schedule.makespan - schedule.makespan // LEAST


def _windows(schedule: Schedule) -> list[int]:
    """Where windows begin: overlapping by half over a short schedule, else around stalls, the longest first."""
    last = max(len(schedule) - UNITS, 0)
    if len(schedule) <= SHORT:
        return sorted({*range(0, last, UNITS // 2), last})
    found = dict.fromkeys(min(max(p - UNITS // 2, 0), last) for p in stalls(schedule))
    return list(found)[:WINDOWS]


def _any_changes(schedule: Schedule, draw: random.Random, moves: frozenset[str]) -> list[Change]:
    """Changes of sets around a random atom, and a random shift."""
    atoms = schedule.layout.atoms
    atom = atoms[int(draw.random() * len(atoms))]
    name = "fusion" if schedule.layout.atom_stream[atom] == COMPUTE else "buckets"
    found = [c for kind in (merges, splits, transfers) for c in kind(schedule, atom)] if name in moves else []
    source, back = int(draw.random() * len(schedule)), 1 + int(draw.random() * 2 * UNITS)
    shift = pulled(schedule, source, max(source - back, 0)) if "order" in moves else None
    return found if shift is None else [*found, shift]
