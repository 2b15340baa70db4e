"""A sequence of units with the state before each position, so that a change is simulated from where it begins to where it makes no difference.

A change replaces units `lo` to `hi` (excluded) by others made of the same atoms. Its simulation starts from the state before `lo` and
stops behind `hi` as soon as the queues are what they were: everything after is then shifted by one constant. Memory is counted the same way:
only buffers that the changed units touch, or that a collective they wait for holds, can live otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dmlc.simulate.clocks import Clocks
from dmlc.simulate.joint_layout import Layout
from dmlc.simulate.joint_problem import COMPUTE

NEVER = 1 << 62


@dataclass(frozen=True)
class Change:
    """Units at positions lo … hi-1 become `units` (numbers of the layout)."""

    lo: int
    hi: int
    units: tuple[int, ...]


class Schedule:
    """order, its makespan and peak, and by position:

    states  clocks before it (now, host, queues, left)
    stalls  picoseconds that it waits for collectives
    after   picoseconds of computation from it on
    slack   how far the host is ahead at the worst point from it on (0 where the host costs nothing)
    alive   bytes alive at it; one more entry for the end. Only with `memory`
    """

    def __init__(self, layout: Layout, order: Sequence[int], memory: bool = False):
        self.layout, self.memory = layout, memory
        self.home = [-1] * len(layout.unit_of)
        self.place: dict[int, int] = {}
        self.order: list[int] = []
        self.states: list[tuple] = []
        self.stalls: list[int] = []
        self.margins: list[int] = []  # how far the host was ahead at it
        self.slack: list[int] = []
        self.after = [0]
        self.hosted = any(layout.problem.nodes[n].host for n in range(len(layout.problem.nodes)))
        self.replayed = 0  # units simulated by trials
        self.alive: list[int] = []
        self.makespan = 0
        self._splice(Change(0, 0, tuple(order)))

    def __len__(self) -> int:
        return len(self.order)

    # -------------------------------------------------- changing

    def accept(self, change: Change) -> None:
        """Make the change; it must be legal."""
        if self.memory:
            self.alive = self._alive_with(change)
        self._splice(change)

    def _splice(self, change: Change) -> None:
        layout, lo = self.layout, change.lo
        for u in self.order[lo : change.hi]:
            del self.place[u]
        same = len(change.units) == change.hi - lo
        self.order[lo : change.hi] = change.units
        for u in change.units:
            for atom in layout.members[u]:
                self.home[atom] = u
        for p in range(lo, lo + len(change.units) if same else len(self.order)):
            self.place[self.order[p]] = p
        self._resimulate(change)
        if self.memory and not self.alive:
            self.alive = self._alive_now()

    def _resimulate(self, change: Change) -> None:
        """States of the changed units, and of those behind them up to where they are the old ones, shifted."""
        clocks, order, layout, lo = Clocks(self.layout.problem.streams, self.layout.time, self.layout.call), self.order, self.layout, change.lo
        if lo:
            clocks.restore(self.states[lo])
        top, shift = lo + len(change.units), len(change.units) - (change.hi - lo)
        states: list[tuple] = []
        stalls: list[int] = []
        margins: list[int] = []
        p = lo
        while p < len(order) and not (p >= top and self._meets(clocks, p - shift)):
            states.append(clocks.state())
            u, stalled = order[p], clocks.stalled
            clocks.issue(u, layout.stream[u], [self.home[a] for a in layout.waits[u]], layout.host[u])
            margins.append(clocks.margin)
            stalls.append(clocks.stalled - stalled)
            p += 1
        self._join(clocks, lo, p - shift, states, stalls, margins)
        self._sum_up(change)

    def _meets(self, clocks: Clocks, old: int) -> bool:
        """Whether the state before old position `old` has come back, shifted."""
        now, host, queues, left = self.states[old]
        return clocks.queues == queues and clocks.left == left and (not self.hosted or self._same_host(old, clocks.now - clocks.host - now + host))

    def _join(self, clocks: Clocks, lo: int, old: int, states: list[tuple], stalls: list[int], margins: list[int]) -> None:
        """New states from `lo` on, and behind them the old ones from `old` on, shifted to what the clocks say now; there may be none."""
        if old < len(self.states) - 1:
            now, ahead = clocks.now - self.states[old][0], clocks.host - self.states[old][1]
            states += [(n + now, h + ahead, q, rest) for n, h, q, rest in self.states[old:]]
            margins += [m + now - ahead for m in self.margins[old:]]
            self.makespan += now
        else:
            states.append(clocks.state())
            self.makespan = clocks.finish()
        self.states[lo:] = states
        self.margins[lo:] = margins
        self.stalls[lo:] = stalls + self.stalls[old:]

    def _sum_up(self, change: Change) -> None:
        """Suffix sums of computation, suffix minima of the host's margins."""
        order, layout = self.order, self.layout
        top = change.lo + len(change.units)
        after = self.after[change.hi :]
        front: list[int] = []
        total = after[0]
        for u in reversed(order[:top]):
            total += layout.time[u] if layout.stream[u] == COMPUTE else 0
            front.append(total)
        self.after = front[::-1] + after
        if self.hosted:
            self.slack = [NEVER] * (len(order) + 1)
            for p in reversed(range(len(order))):
                self.slack[p] = min(self.slack[p + 1], self.margins[p])

    # -------------------------------------------------- trials

    def trial(self, change: Change, limit: int = NEVER) -> int:
        """The makespan with the change, or `limit` (or more) if it is no less than that."""
        saved = self._rehome(change.units)
        clocks, layout, home = Clocks(self.layout.problem.streams, self.layout.time, self.layout.call), self.layout, self.home
        clocks.restore(self.states[change.lo])
        stream, waits, host = layout.stream, layout.waits, layout.host
        issue = clocks.issue
        for u in change.units:
            issue(u, stream[u], [home[a] for a in waits[u]], host[u])
        found = self.continued(clocks, change.hi, limit)
        self.replayed += len(change.units)
        for atom, unit in saved:
            home[atom] = unit
        return found

    def continued(self, clocks: Clocks, start: int, limit: int) -> int:
        """Makespan when units from position `start` on follow what the clocks have run."""
        order, states, after, home, layout = self.order, self.states, self.after, self.home, self.layout
        stream, waits, host = layout.stream, layout.waits, layout.host
        for p in range(start, len(order)):
            now, _, queues, left = states[p]
            if clocks.queues == queues and clocks.left == left and self._meets(clocks, p):
                self.replayed += p - start
                return self.makespan + clocks.now - now
            if clocks.now + after[p] >= limit:
                self.replayed += p - start
                return limit
            u = order[p]
            clocks.issue(u, stream[u], [home[a] for a in waits[u]] if clocks.active else (), host[u])
        self.replayed += len(order) - start
        return clocks.finish()

    def _same_host(self, position: int, shift: int) -> bool:
        """Whether the host is as far ahead as before, or does not hold anything up either way. `shift`: by how much further ahead it is."""
        return shift == 0 or (self.slack[position] >= 0 and self.slack[position] + shift >= 0)

    def _rehome(self, units: Sequence[int]) -> list[tuple[int, int]]:
        """Atoms join their new units; returns where those that moved were."""
        saved, home, members = [], self.home, self.layout.members
        for u in units:
            if u not in self.place:
                for atom in members[u]:
                    saved.append((atom, home[atom]))
                    home[atom] = u
        return saved

    # -------------------------------------------------- memory

    def peak(self, change: Change | None = None) -> int:
        """Most bytes alive at a time, with the change if one is given."""
        alive = self.alive if change is None else self._alive_with(change)
        order = self.order if change is None else [*self.order[: change.lo], *change.units, *self.order[change.hi :]]
        scratch = self.layout.scratch
        return max([a + scratch[u] for a, u in zip(alive, order)] + alive[-1:])

    def _alive_now(self) -> list[int]:
        """By definition: every buffer over its whole life."""
        change = [0] * (len(self.order) + 2)
        for i in range(len(self.layout.buffers)):
            begin, end = self.life(i)
            change[begin] += self.layout.buffers[i].bytes
            change[end + 1] -= self.layout.buffers[i].bytes
        alive, total = [], 0
        for p in range(len(self.order) + 1):
            total += change[p]
            alive.append(total)
        return alive

    def life(self, buffer: int) -> tuple[int, int]:
        """First and last position at which a buffer is there."""
        return self._life(buffer, self.place.__getitem__, len(self.order))

    def _life(self, buffer: int, place: Callable[[int], int], last: int) -> tuple[int, int]:
        """First and last position at which a buffer is there; (0, -1) if it never is, since one unit makes and reads it."""
        b, home = self.layout.buffers[buffer], self.home
        units = {home[a] for a in (*b.makers, *b.users)}
        if b.makers and b.users and not b.kept and len(units) == 1:
            return 0, -1
        begin = min([place(home[a]) for a in b.makers], default=0)
        if b.kept:
            return begin, last
        return begin, max([self._release(u, place, last) for u in units], default=begin)

    def _release(self, unit: int, place: Callable[[int], int], last: int) -> int:
        """The position at which a unit lets its operands go: its own, or its first reader's for a collective."""
        layout, home = self.layout, self.home
        if layout.stream[unit] == COMPUTE:
            return place(unit)
        return min([place(home[s]) for a in layout.members[unit] for s in layout.succs[a]], default=last)

    def affected(self, change: Change) -> list[int]:
        """Buffers whose lives the change may change."""
        layout, home = self.layout, self.home
        atoms = {a for u in change.units for a in layout.members[u]}
        waited = {a for u in change.units for c in layout.waits[u] for a in layout.members[home[c]]}
        return sorted({b for a in atoms | waited for b in layout.touched[a]})

    def _alive_with(self, change: Change) -> list[int]:
        """`alive` after the change, from what it is now."""
        lo, hi = change.lo, change.hi
        top, last = lo + len(change.units), len(self.order) + len(change.units) - (hi - lo)
        saved = self._rehome(change.units)
        buffers = self.affected(change)
        moved = {u: lo + k for k, u in enumerate(change.units)}
        place, shift = self.place, top - hi

        def new_place(unit: int) -> int:
            at = moved.get(unit)
            return at if at is not None else place[unit] if place[unit] < lo else place[unit] + shift

        lives = [self._life(b, new_place, last) for b in buffers]
        for atom, unit in saved:
            self.home[atom] = unit
        before = [self.life(b) for b in buffers]
        size = [self.layout.buffers[b].bytes for b in buffers]
        steady = self.alive[lo] - sum(n for n, (begin, end) in zip(size, before) if begin <= lo <= end)
        alive = [*self.alive[:lo], *[steady] * (top - lo), *self.alive[hi:]]
        for n, (b0, e0), (b1, e1) in zip(size, before, lives):
            _move(alive, n, (b0, min(e0, lo - 1)), (b1, min(e1, lo - 1)))
            _move(alive, n, (0, -1), (max(b1, lo), min(e1, top - 1)))
            _move(alive, n, (max(b0, hi) + shift, e0 + shift), (max(b1, top), e1))
        return alive


def _move(alive: list[int], size: int, old: tuple[int, int], new: tuple[int, int]) -> None:
    """Bytes alive at positions `old` (both ends included; empty where the end lies before) are alive at `new` instead."""
    if old == new:
        return
    for p in range(old[0], old[1] + 1):
        alive[p] -= size
    for p in range(new[0], new[1] + 1):
        alive[p] += size
