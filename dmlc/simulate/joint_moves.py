"""Neighbours of a schedule: units pulled forward or pushed back, merged, split, a member moved from one to another.

A move of sets repairs the order by itself: from the first to the last unit it changes, units are put in an order that respects what they
need, else as they stood. A merged unit comes as early as its members' needs allow or as late as its last member stood.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dmlc.simulate.joint_problem import COMPUTE, Members
from dmlc.simulate.joint_state import Change, Schedule

SPREAD = 8  # places tried for a unit pulled a long way
FILLERS = 64  # units looked at behind a stall
FILLED = 2  # a collective is worth starting in an idle time that is up to so many times as long
FEW = 16  # units up to which every shift is tried

# ---------------------------------------------------------------- order


def pulled(schedule: Schedule, source: int, target: int) -> Change | None:
    """The unit at `source`, with those of its needs that stand behind `target`, moved up to position `target`."""
    layout, order, home = schedule.layout, schedule.order, schedule.home
    needed = {order[source]}
    for u in reversed(order[target : source + 1]):
        if u in needed:
            needed.update(home[p] for a in layout.members[u] for p in layout.preds[a])
    span = order[target : source + 1]
    moved = [u for u in span if u in needed]
    found = (*moved, *(u for u in span if u not in needed))
    return None if found == tuple(span) else Change(target, source + 1, found)


def pushed(schedule: Schedule, source: int, target: int) -> Change | None:
    """The unit at `source`, with those before `target` that need it, moved down to end at position `target`."""
    layout, order, home = schedule.layout, schedule.order, schedule.home
    late = {order[source]}
    for u in order[source + 1 : target + 1]:
        if any(home[p] in late for a in layout.members[u] for p in layout.preds[a]):
            late.add(u)
    span = order[source : target + 1]
    found = (*(u for u in span if u not in late), *(u for u in span if u in late))
    return None if found == tuple(span) else Change(source, target + 1, found)


def order_moves(schedule: Schedule) -> Iterator[Change]:
    """Around each stall, the longest first: hurry what is waited for, do something else meanwhile, wait later, give the stream something to do in
    the time before in which it was idle. Every shift of a few units."""
    found = _all_shifts(schedule) if len(schedule) <= FEW else _shifts_at_stalls(schedule)
    yield from (c for c in found if c is not None)


def _all_shifts(schedule: Schedule) -> Iterator[Change | None]:
    n = len(schedule)
    for i in range(n):
        for j in range(n):
            if j < i:
                yield pulled(schedule, i, j)
            elif j > i:
                yield pushed(schedule, i, j)


def _shifts_at_stalls(schedule: Schedule) -> Iterator[Change | None]:
    hurried: set[int] = set()
    fed: set[int] = set()
    for at in stalls(schedule):
        sources = [schedule.place[collective] for collective in waited_for(schedule, at)]
        for source in dict.fromkeys((*sources, *(head(schedule, source) for source in sources))):
            if source not in hurried:
                hurried.add(source)
                for target in _slots_before(schedule, source):
                    yield pulled(schedule, source, target)
        for first in dict.fromkeys(head(schedule, source) for source in sources):
            if first not in fed:
                fed.add(first)
                yield from _before_head(schedule, first)
        if at == len(schedule):
            continue
        for source in _fillers(schedule, at):
            yield pulled(schedule, source, at)
        for distance in (1, 2, 4, 8, 16):
            if at + distance < len(schedule):
                yield pushed(schedule, at, at + distance)


def stalls(schedule: Schedule) -> list[int]:
    """Positions at which computation waits, the longest wait first; the end is one if collectives outlast computation."""
    drain = schedule.makespan - schedule.states[-1][0]
    waits = [*schedule.stalls, drain]
    return sorted([p for p, w in enumerate(waits) if w > 0], key=lambda p: (-waits[p], p))


def waited_for(schedule: Schedule, at: int) -> list[int]:
    """Collectives in flight at a stall that hold it up: those needed and what stands before them in their streams."""
    layout = schedule.layout
    queues = schedule.states[at][2]
    if at == len(schedule):
        return [q[-1] for q in queues if q]
    needed = {schedule.home[a] for a in layout.waits[schedule.order[at]]}
    return [u for q in queues for u in q if u in needed]


def head(schedule: Schedule, source: int) -> int:
    """The position of the collective whose stream had been idle before, and has not been since until the one at `source` was started: what holds
    that one up may be that the first of the row began late."""
    layout, order, states = schedule.layout, schedule.order, schedule.states
    stream = layout.stream[order[source]]
    while states[source][2][stream]:
        source = next(p for p in reversed(range(source)) if layout.stream[order[p]] == stream)
    return source


def _before_head(schedule: Schedule, first: int) -> Iterator[Change | None]:
    """Collectives that stand behind `first` in its stream started in the idle time before it: as early as what they need allows, and right before it."""
    for source in _behind(schedule, first)[:SPREAD]:
        for target in dict.fromkeys((_idle_since(schedule, first), first)):
            yield pulled(schedule, source, target)


def _idle_since(schedule: Schedule, first: int) -> int:
    """The position from which on the stream of the collective at `first` was idle before it."""
    stream = schedule.layout.stream[schedule.order[first]]
    return next((p + 1 for p in reversed(range(first)) if schedule.states[p][2][stream]), 0)


def _behind(schedule: Schedule, first: int) -> list[int]:
    """Positions of the collectives behind the one at `first` in its stream."""
    stream, order = schedule.layout.stream, schedule.order
    return [p for p in range(first + 1, len(order)) if stream[order[p]] == stream[order[first]]]


def _slots_before(schedule: Schedule, source: int) -> list[int]:
    """Positions before `source` worth pulling it to: those of earlier collectives in its stream, a few evenly spread ones, the next ones."""
    layout, order = schedule.layout, schedule.order
    stream = layout.stream[order[source]]
    queued = [p for p in range(source) if layout.stream[order[p]] == stream][-SPREAD:]
    near = [source - d for d in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if d <= source]
    return sorted({*queued, *near, *(source * k // SPREAD for k in range(SPREAD) if source)}, reverse=True)


def _fillers(schedule: Schedule, at: int) -> list[int]:
    """Positions behind `at` of units that could run there without waiting for what it waits for."""
    layout, home, order = schedule.layout, schedule.home, schedule.order
    blocked = {order[at]}
    found = []
    for p in range(at + 1, min(at + 1 + FILLERS, len(order))):
        u = order[p]
        if any(home[q] in blocked for a in layout.members[u] for q in layout.preds[a]):
            blocked.add(u)
        else:
            found.append(p)
    return found


# ---------------------------------------------------------------- sets


def regrouped(schedule: Schedule, old: Sequence[int], new: Sequence[Members], late: bool = False) -> Change | None:
    """Units `old` replaced by units of the same atoms, with the order repaired between; None where that closes a cycle."""
    layout, place, order = schedule.layout, schedule.place, schedule.order
    at = [place[u] for u in old]
    lo, hi = min(at), max(at) + 1
    gone, choose = set(old), max if late else min
    units = [u for u in order[lo:hi] if u not in gone]
    key = [place[u] for u in units]
    for members in new:
        units.append(layout.unit(members))
        key.append(choose([place[schedule.home[a]] for a in members]))
    found = layout.arranged(units, key)
    return None if found is None else Change(lo, hi, tuple(found))


def merges(schedule: Schedule, atom: int) -> Iterator[Change]:
    """The atom's unit with each that it may share a kernel or a bucket with."""
    layout, home = schedule.layout, schedule.home
    mine = home[atom]
    for other in dict.fromkeys(home[p] for p in neighbours(schedule, atom)):
        if other != mine and other >= 0:
            yield from _both(schedule, (mine, other), [_union(layout.members[mine], layout.members[other])])


def neighbours(schedule: Schedule, atom: int) -> Members:
    """Atoms of other units that the atom's could be joined with: partners of a computation, the collectives of its key next in order."""
    layout = schedule.layout
    if atom >= len(layout.problem.nodes):
        return ()
    if layout.atom_stream[atom] == COMPUTE:
        return layout.problem.partners[atom]
    key = layout.problem.nodes[atom].key
    return () if key is None else _same_key(schedule, atom)


def _same_key(schedule: Schedule, atom: int) -> Members:
    """Of the collectives of the atom's key, those issued next before and after it; all of a few."""
    layout, place, home = schedule.layout, schedule.place, schedule.home
    key = layout.problem.nodes[atom].key
    mine = place[home[atom]]
    others = [(place[home[a]], a) for a in layout.by_key[key] if home[a] != home[atom]]
    if len(others) <= SPREAD:
        return tuple(a for _, a in others)
    before, after = max((o for o in others if o[0] < mine), default=None), min((o for o in others if o[0] > mine), default=None)
    return tuple(o[1] for o in (before, after) if o is not None)


def _union(a: Members, b: Members) -> Members:
    return tuple(sorted((*a, *b)))


def _both(schedule: Schedule, old: Sequence[int], new: Sequence[Members]) -> Iterator[Change]:
    """The change with merged units early and late, if the sets may be units."""
    if not all(schedule.layout.joinable(m) for m in new):
        return
    early = regrouped(schedule, old, new)
    if early is not None:
        yield early
        late = regrouped(schedule, old, new, late=True)
        if late is not None and late != early:
            yield late


def splits(schedule: Schedule, atom: int) -> Iterator[Change]:
    """The atom's unit cut in two before it, the atom taken out, and the unit taken apart."""
    members = schedule.layout.members[schedule.home[atom]]
    if len(members) < 2:
        return
    unit = schedule.home[atom]
    at = members.index(atom)
    if 1 < at < len(members) - 1:
        yield from _both(schedule, (unit,), [members[:at], members[at:]])
    rest = tuple(a for a in members if a != atom)
    yield from _both(schedule, (unit,), [rest, (atom,)])
    if at == 0 and len(members) > 2:
        yield from _both(schedule, (unit,), [(a,) for a in members])


def transfers(schedule: Schedule, atom: int) -> Iterator[Change]:
    """The atom taken out of its unit into another."""
    layout, home = schedule.layout, schedule.home
    members = layout.members[home[atom]]
    if len(members) < 2:
        return
    rest = tuple(a for a in members if a != atom)
    for other in dict.fromkeys(home[p] for p in neighbours(schedule, atom)):
        if other != home[atom] and other >= 0:
            yield from _both(schedule, (home[atom], other), [rest, _union((atom,), layout.members[other])])


def ahead(schedule: Schedule) -> Iterator[Change]:
    """Members of buckets that need the least before them, taken out and started in the idle time before a busy row of their stream, as early as
    what they need allows; of those that would fill some of that time. Neither half of the move gains by itself."""
    problem, states = schedule.layout.problem, schedule.states
    sources = [schedule.place[c] for at in stalls(schedule) for c in waited_for(schedule, at)]
    for first in dict.fromkeys(head(schedule, source) for source in sources):
        idle = _idle_since(schedule, first)
        buckets = [schedule.layout.members[schedule.order[p]] for p in (first, *_behind(schedule, first))]
        enough = (states[first][0] - states[idle][0]) // FILLED
        atoms = [a for members in buckets if len(members) > 1 for a in members if problem.nodes[a].time > enough]
        for atom in sorted(atoms, key=lambda a: (problem.ancestors[a].bit_count(), a))[:SPREAD]:
            yield _taken_ahead(schedule, atom, idle)


def _taken_ahead(schedule: Schedule, atom: int, target: int) -> Change:
    layout, order, home = schedule.layout, schedule.order, schedule.home
    at = schedule.place[home[atom]]
    span = order[target:at]
    needed = {home[p] for p in layout.preds[atom]}
    for u in reversed(span):
        if u in needed:
            needed.update(home[p] for a in layout.members[u] for p in layout.preds[a])
    moved = [u for u in span if u in needed]
    rest = tuple(a for a in layout.members[home[atom]] if a != atom)
    return Change(target, at + 1, (*moved, layout.unit((atom,)), *(u for u in span if u not in needed), layout.unit(rest)))


def set_moves(schedule: Schedule, atom: int) -> Iterator[Change]:
    yield from merges(schedule, atom)
    yield from splits(schedule, atom)
    yield from transfers(schedule, atom)
