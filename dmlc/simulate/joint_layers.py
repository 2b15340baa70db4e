"""Repeated layers decided once: nodes that do the same in equal surroundings share a role, and a move is made at all its instances together.

An instance of a merge is a pair of partners with
the same two roles; of a shift, the k-th unit of one role and the k-th of the other. All instances are one change, so that one trial decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dmlc.simulate.joint_layout import Layout
from dmlc.simulate.joint_moves import stalls, waited_for
from dmlc.simulate.joint_problem import COMPUTE, Members
from dmlc.simulate.joint_state import Change, Schedule

FEWEST = 2  # instances that make a pattern
STALLS = 12


def layer_moves(schedule: Schedule, moves: frozenset[str]) -> Iterator[tuple[str, Change]]:
    """(kind of move, change of all instances at once) for the kinds in `moves`."""
    if "fusion" in moves:
        yield from (("fusion", c) for c in _merges(schedule, _partner_pairs(schedule)))
    if "buckets" in moves:
        yield from (("buckets", c) for c in _merges(schedule, _collective_pairs(schedule)))
    yield from ((name, c) for name, c in _splits(schedule) if name in moves)
    if "order" in moves:
        yield from (("order", c) for c in _shifts(schedule))


# ---------------------------------------------------------------- sets

Pairs = dict[tuple[int, int], list[tuple[int, int]]]


def _partner_pairs(schedule: Schedule) -> Pairs:
    """Roles of two computations -> pairs of them that may share a kernel."""
    problem, layout = schedule.layout.problem, schedule.layout
    roles = problem.roles
    found: Pairs = {}
    for a in layout.atoms:
        if a < len(roles) and layout.atom_stream[a] == COMPUTE:
            for b in problem.partners[a]:
                if a < b:
                    found.setdefault((roles[a], roles[b]), []).append((a, b))
    return found


def _collective_pairs(schedule: Schedule) -> Pairs:
    """Roles of two collectives of a key -> pairs of them issued one after the other."""
    layout, roles = schedule.layout, schedule.layout.problem.roles
    found: Pairs = {}
    for atoms in layout.by_key.values():
        listed = sorted(atoms, key=lambda a: (schedule.place[schedule.home[a]], a))
        for a, b in zip(listed, listed[1:]):
            found.setdefault((roles[a], roles[b]), []).append((a, b))
    return found


def _merges(schedule: Schedule, pairs: Pairs) -> Iterator[Change]:
    for instances in pairs.values():
        if len(instances) >= FEWEST:
            for late in (False, True):
                change = merged_together(schedule, instances, late)
                if change is not None:
                    yield change


def merged_together(schedule: Schedule, pairs: list[tuple[int, int]], late: bool) -> Change | None:
    """The units of each pair become one, where they may; None if none may, or if together they need one another."""
    layout, home = schedule.layout, schedule.home
    joined: dict[int, Members] = {}  # a unit there is -> members of the one it becomes part of
    for a, b in pairs:
        one, two = (joined.get(home[x], layout.members[home[x]]) for x in (a, b))
        union = tuple(sorted({*one, *two}))
        if one != two and layout.joinable(union):
            joined.update((home[x], union) for x in union)
    return rebuilt(schedule, dict.fromkeys(joined.values()), late) if joined else None


def rebuilt(schedule: Schedule, new: dict[Members, None], late: bool) -> Change | None:
    """The schedule with the new sets of atoms as units, those they were part of gone, in an order as near to the present one as can be."""
    layout, home, place = schedule.layout, schedule.home, schedule.place
    choose = max if late else min
    gone = {home[a] for members in new for a in members}
    units = [u for u in schedule.order if u not in gone]
    key = [place[u] for u in units]
    for members in new:
        units.append(layout.unit(members))
        key.append(choose([place[home[a]] for a in members]))
    return _change(schedule, layout.arranged(units, key))


def _change(schedule: Schedule, order: list[int] | None) -> Change | None:
    """What differs between the schedule and an order."""
    if order is None or order == schedule.order:
        return None
    old, lo, same = schedule.order, 0, 0
    while old[lo] == order[lo]:
        lo += 1
    while same < min(len(old), len(order)) - lo and old[-1 - same] == order[-1 - same]:
        same += 1
    return Change(lo, len(old) - same, tuple(order[lo : len(order) - same]))


def _splits(schedule: Schedule) -> Iterator[tuple[str, Change]]:
    """Units of the same roles cut before the same member, or apart."""
    layout = schedule.layout
    for units in _alike(schedule).values():
        members = [layout.members[u] for u in units]
        name = "fusion" if layout.stream[units[0]] == COMPUTE else "buckets"
        for at in range(1, len(members[0])):
            parts = dict.fromkeys(part for m in members for part in (m[:at], m[at:]))
            if all(layout.joinable(p) for p in parts):
                change = rebuilt(schedule, parts, False)
                if change is not None:
                    yield name, change


def _alike(schedule: Schedule) -> dict[Members, list[int]]:
    """Roles of the members of units of at least two -> such units, where there are several."""
    layout, roles = schedule.layout, schedule.layout.problem.roles
    found: dict[Members, list[int]] = {}
    for u in schedule.order:
        if len(layout.members[u]) > 1:
            found.setdefault(tuple(roles[a] for a in layout.members[u]), []).append(u)
    return {key: units for key, units in found.items() if len(units) >= FEWEST}


# ---------------------------------------------------------------- order


def _shifts(schedule: Schedule) -> Iterator[Change]:
    """At the longest stalls: what is waited for moved before, and others moved behind, what stands near, at every instance."""
    signature = _signatures(schedule.layout)
    ranks = _ranks(schedule, signature)
    for at in stalls(schedule)[:STALLS]:
        for unit in waited_for(schedule, at):
            source = schedule.place[unit]
            for distance in (1, 2, 4, 8, 16, 32):
                if distance <= source:
                    yield from _shifted(schedule, signature, ranks, unit, schedule.order[source - distance], -1)
        if at < len(schedule):
            for distance in (1, 2, 4, 8, 16):
                if at + distance < len(schedule):
                    yield from _shifted(schedule, signature, ranks, schedule.order[at + distance], schedule.order[at], -1)
                    yield from _shifted(schedule, signature, ranks, schedule.order[at], schedule.order[at + distance], 1)


def _signatures(layout: Layout) -> Callable[[int], object]:
    """What a unit is: the roles of its members, the part of a cut collective."""
    roles = layout.problem.roles

    def signature(unit: int) -> object:
        described = layout.described(unit)
        return tuple(roles[n] for n in described.nodes), described.part

    return signature


def _ranks(schedule: Schedule, signature: Callable[[int], object]) -> dict[object, list[int]]:
    """Signature -> units of it in order."""
    found: dict[object, list[int]] = {}
    for u in schedule.order:
        found.setdefault(signature(u), []).append(u)
    return found


def _shifted(schedule: Schedule, signature: Callable[[int], object], ranks: dict[object, list[int]], unit: int, anchor: int, side: int) -> Iterator[Change]:
    """Each unit like `unit` goes to one side of the unit like `anchor` that stands to it as those two do."""
    mine, theirs = ranks[signature(unit)], ranks[signature(anchor)]
    offset = theirs.index(anchor) - mine.index(unit)
    if len(mine) < FEWEST or unit == anchor:
        return
    key = {u: 2 * p for p, u in enumerate(schedule.order)}
    for k, u in enumerate(mine):
        if 0 <= k + offset < len(theirs) and theirs[k + offset] != u:
            key[u] = 2 * schedule.place[theirs[k + offset]] + side
    change = _change(schedule, schedule.layout.arranged(schedule.order, [key[u] for u in schedule.order]))
    if change is not None:
        yield change
