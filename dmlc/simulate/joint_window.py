"""Exact search in a window of a schedule: every grouping, bucketing and order of a few units, by branch and bound.

Units are issued one by one, each any set of atoms that may be a unit and whose needs are there. Two ways to have issued the same atoms differ
in their clocks only, so that the later of them is dropped. What follows the window stays as it is and is replayed at the end.
"""

from __future__ import annotations

from collections.abc import Iterator

from dmlc.simulate.branch import Ends, dominates, ends_of
from dmlc.simulate.clocks import Clocks
from dmlc.simulate.joint_problem import COMPUTE, Members
from dmlc.simulate.joint_state import Change, Schedule
from dmlc.simulate.joint_window_memory import WindowMemory

UNITS, ATOMS = 10, 14  # what a window holds at most
SETS = 400  # candidate units of a window
KNOWN = 16  # states of equal atoms that one is compared with
WEIGHT = 8  # a unit issued by a window's search takes as long as so many of a trial


def window_end(schedule: Schedule, lo: int, units: int) -> int:
    """Where a window of at most so many units that begins at `lo` ends at the latest."""
    hi, atoms = lo, 0
    while hi < len(schedule) and hi - lo < units:
        atoms += len(schedule.layout.members[schedule.order[hi]])
        if atoms > ATOMS:
            break
        hi += 1
    return hi


class Window:
    """Units at positions lo … hi-1 regrouped and ordered for the least makespan: `best`, if one below `limit` is found in `steps` units issued.

    Masks are over the window's atoms in order of number.
    """

    def __init__(self, schedule: Schedule, lo: int, hi: int, moves: frozenset[str], limit: int, steps: int, cap: int):
        self.schedule, self.lo, self.hi, self.limit, self.left, self.cap = schedule, lo, hi, limit, steps, cap
        layout = schedule.layout
        self.old = schedule.order[lo:hi]
        self.atoms = sorted(a for u in self.old for a in layout.members[u])
        self.bit = {a: 1 << i for i, a in enumerate(self.atoms)}
        self.before = [sum(self.bit.get(p, 0) for p in layout.preds[a]) for a in self.atoms]
        self.full = (1 << len(self.atoms)) - 1
        self.units = [(self._mask(m), layout.unit(m)) for m in candidates(schedule, self.old, moves)]
        self.needs = {mask: self._needs(mask) for mask, _ in self.units}
        self.collectives = [u for q in schedule.states[lo][2] for u in q]
        self.watched = [a for a in self.atoms if layout.atom_stream[a] != COMPUTE]
        self.memory = WindowMemory(schedule, lo, hi, self.bit) if cap else None
        self.seen: dict[tuple, list[Ends]] = {}
        self.cheapest: dict[tuple[int, int], int] = {}
        self.loads = self._loads_after()
        self.tails = self._tails_after()
        self.best: Change | None = None

    def _mask(self, members: Members) -> int:
        return sum(self.bit[a] for a in members)

    def _needs(self, mask: int) -> int:
        found = 0
        for i, before in enumerate(self.before):
            if mask >> i & 1:
                found |= before
        return found & ~mask

    @property
    def complete(self) -> bool:
        """Whether everything was looked at."""
        return self.left > 0

    def run(self) -> int:
        """Search; returns how many units might have been simulated instead."""
        home = self.schedule.home
        saved = {a: home[a] for a in self.atoms}
        clocks = Clocks(self.schedule.layout.problem.streams, self.schedule.layout.time, self.schedule.layout.call)
        clocks.restore(self.schedule.states[self.lo])
        steps, before = self.left, self.schedule.replayed
        self.extend(0, clocks, ())
        for a, u in saved.items():
            home[a] = u
        return (steps - self.left) * WEIGHT + self.schedule.replayed - before

    # -------------------------------------------------- search

    def extend(self, issued: int, clocks: Clocks, path: tuple[int, ...]) -> None:
        """Try every unit that may come next, the one with the least bound first."""
        if issued == self.full:
            self._end(clocks, path)
            return
        options = []
        layout, home = self.schedule.layout, self.schedule.home
        state = clocks.state()
        for i, (mask, u) in enumerate(self.units):
            if mask & issued or self.needs[mask] & ~issued or (self.memory is not None and self.memory.need(issued, mask, u) > self.cap):
                continue
            clocks.restore(state)
            clocks.issue(u, layout.stream[u], [home[a] for a in layout.waits[u]], layout.host[u])
            self.left -= 1
            bound = self.bound(issued | mask, clocks)
            if bound < self.limit:
                options.append((bound, i, clocks.state()))
        for bound, i, after in sorted(options, key=lambda o: o[:2]):
            if self.left <= 0:
                return
            mask, u = self.units[i]
            for a in layout.members[u]:
                home[a] = u
            clocks.restore(after)
            if bound < self.limit and not self.is_dominated(issued | mask, clocks, (*path, u)):
                self.extend(issued | mask, clocks, (*path, u))

    def _end(self, clocks: Clocks, path: tuple[int, ...]) -> None:
        schedule = self.schedule
        time = schedule.continued(clocks, self.hi, self.limit)
        if time < self.limit and path != tuple(self.old):
            change = Change(self.lo, self.hi, path)
            if not self.cap or self._fits(change):
                self.best, self.limit = change, time

    def _fits(self, change: Change) -> bool:
        """Whether memory suffices; homes are as before the window meanwhile."""
        home, layout = self.schedule.home, self.schedule.layout
        now = {a: home[a] for a in self.atoms}
        for u in self.old:
            for a in layout.members[u]:
                home[a] = u
        fits = self.schedule.peak(change) <= self.cap
        for a, u in now.items():
            home[a] = u
        return fits

    def is_dominated(self, issued: int, clocks: Clocks, path: tuple[int, ...]) -> bool:
        """Whether the same atoms were issued before with nothing later."""
        home = self.schedule.home
        mine = ends_of(clocks, [*self.collectives, *(home[a] for a in self.watched if self.bit[a] & issued)])
        mine = (*mine, *(clocks.now + rest for rest in self._rests(clocks)))
        key = (issued,) if self.memory is None else (issued, *self.memory.holding(path, issued))
        known = self.seen.setdefault(key, [])
        for k in known:
            if dominates(k, mine):
                return True
        known.insert(0, mine)
        del known[KNOWN:]
        return False

    @staticmethod
    def _rests(clocks: Clocks) -> list[int]:
        """What is left on each stream at full speed."""
        return [left + sum([clocks.time[u] for u in queue[1:]]) if queue else 0 for queue, left in zip(clocks.queues, clocks.left)]

    # -------------------------------------------------- bounds

    def bound(self, issued: int, clocks: Clocks) -> int:
        """What no continuation ends before: the cheapest division of what is left of each stream, and longest chains behind the window."""
        rest = self.full & ~issued
        now = clocks.now
        found = now + self.least(COMPUTE, rest) + self.schedule.after[self.hi]
        for stream, open_ in enumerate(self._rests(clocks)):
            found = max(found, now + open_ + self.least(stream, rest) + self.loads[stream])
        for stream in clocks.active:
            end = now + clocks.left[stream]
            for k, u in enumerate(clocks.queues[stream]):
                end += clocks.time[u] if k else 0
                found = max(found, end + max([self.tails.get(a, 0) for a in self.schedule.layout.members[u]]))
        return max(found, now + max([self.tails[a] for a in self.tails if self.bit.get(a, 0) & rest], default=0))

    def least(self, stream: int, rest: int) -> int:
        """Picoseconds of the cheapest division into units of the atoms in `rest` that run on the stream, whatever they need."""
        mine = rest & self.of_stream(stream)
        if not mine:
            return 0
        key = (stream, mine)
        if key not in self.cheapest:
            low, time = mine & -mine, self.schedule.layout.time
            self.cheapest[key] = min(time[u] + self.least(stream, mine & ~mask) for mask, u in self.units if mask & low and not mask & ~mine)
        return self.cheapest[key]

    def of_stream(self, stream: int) -> int:
        found = self.cheapest.get((stream, -1))
        if found is None:
            layout = self.schedule.layout
            found = self.cheapest[stream, -1] = self._mask(tuple(a for a in self.atoms if layout.atom_stream[a] == stream))
        return found

    def _loads_after(self) -> list[int]:
        layout = self.schedule.layout
        loads = [0] * len(layout.problem.streams)
        for u in self.schedule.order[self.hi :]:
            if layout.stream[u] != COMPUTE:
                loads[layout.stream[u]] += layout.time[u]
        return loads

    def _tails_after(self) -> dict[int, int]:
        """Atom issued before the window's end -> longest chain behind the window that begins with one of its readers."""
        layout, home, order = self.schedule.layout, self.schedule.home, self.schedule.order
        longest: dict[int, int] = {}
        for u in reversed(order[self.hi :]):
            longest[u] = layout.time[u] + max([longest.get(home[s], 0) for a in layout.members[u] for s in layout.succs[a] if home[s] != u], default=0)
        early = [*self.atoms, *(a for u in self.collectives for a in layout.members[u])]
        return {a: t for a in early if (t := max([longest.get(home[s], 0) for s in layout.succs[a]], default=0))}


def candidates(schedule: Schedule, old: list[int], moves: frozenset[str]) -> list[Members]:
    """Sets of the atoms of units `old` that may be units: those there are, each atom alone, and what may be joined of them."""
    layout = schedule.layout
    found = dict.fromkeys(layout.members[u] for u in old)
    for name, atoms in (("fusion", _of(schedule, old, True)), ("buckets", _of(schedule, old, False))):
        if name in moves:
            found.update(dict.fromkeys((a,) for a in atoms))
            found.update(dict.fromkeys(_grown(schedule, atoms)))
    return list(found)


def _of(schedule: Schedule, units: list[int], computing: bool) -> list[int]:
    layout = schedule.layout
    return sorted(a for u in units if (layout.stream[u] == COMPUTE) == computing for a in layout.members[u])


def _grown(schedule: Schedule, atoms: list[int]) -> Iterator[Members]:
    """Joinable sets, grown atom by atom."""
    layout, inside = schedule.layout, set(atoms)
    nodes = len(layout.problem.nodes)
    level: list[Members] = [(a,) for a in atoms if a < nodes]
    seen: set[Members] = set(level)
    while level and len(seen) < SETS:
        following = []
        for members in level:
            for other in dict.fromkeys(p for a in members for p in _partners(schedule, a) if p in inside and p not in members):
                grown = tuple(sorted((*members, other)))
                if grown not in seen and layout.joinable(grown):
                    seen.add(grown)
                    following.append(grown)
                    yield grown
        level = following


def _partners(schedule: Schedule, atom: int) -> Members:
    layout = schedule.layout
    if layout.atom_stream[atom] == COMPUTE:
        return layout.problem.partners[atom]
    return layout.by_key.get(layout.problem.nodes[atom].key, ())
