"""The atoms of a problem under a choice of chunks: its nodes, and for each cut collective its pieces and what makes and joins them.

Units are sets of atoms, interned: equal sets get equal numbers, so that prices and needs are found once.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dmlc.simulate.joint_problem import COMPUTE, CUT, JOIN, Members, Plan, Problem, Unit

ABSENT: Members = ()


@dataclass(frozen=True)
class Place:
    """A buffer in atoms: alive from the first maker on (none: from the start) to the last release of makers and users."""

    bytes: int
    makers: Members
    users: Members
    kept: bool


class Layout:
    """Atoms 0..nodes-1 are the nodes; further ones belong to cut collectives, whose own atoms are absent.

    preds, succs       atom -> atoms
    needs              atom -> collectives among its preds: what it waits for
    members, time, stream, host, call, scratch, waits   by unit number
    """

    def __init__(self, problem: Problem, chunks: Mapping[int, int]):
        self.problem, self.chunks = problem, dict(sorted(chunks.items()))
        count = len(problem.nodes)
        self.unit_of: list[Unit] = [Unit((i,)) for i in range(count)]
        self.atom_stream = [n.stream for n in problem.nodes]
        self.atom_scratch = [n.scratch for n in problem.nodes]
        self._atom_price: list[tuple[int, int, int] | None] = [None] * count  # None: the problem's
        self.pieces: dict[int, Members] = {}  # collective -> its pieces
        self.gives: list[Members] = [(i,) for i in range(count)]  # node -> atoms that deliver it
        self.takes: list[int] = list(range(count))  # node -> the atom that reads its operands, or -1 where all pieces do
        for c, n in self.chunks.items():
            self._cut(c, n)
        self._link()
        self.members: list[Members] = []
        self.time: list[int] = []
        self.stream: list[int] = []
        self.host: list[int] = []
        self.call: list[int] = []
        self.scratch: list[int] = []
        self.waits: list[Members] = []
        self._numbers: dict[Members, int] = {}

    # -------------------------------------------------- atoms

    def _cut(self, c: int, n: int) -> None:
        way, node = self.problem.chunks[c][n], self.problem.nodes[c]
        self.takes[c] = self._atom(Unit((c,), CUT), COMPUTE, way.cut, node.host) if way.cut else -1
        self.pieces[c] = tuple(self._atom(Unit((c,), k), node.stream, time, node.host, way.call) for k, time in enumerate(way.times))
        self.gives[c] = (self._atom(Unit((c,), JOIN), COMPUTE, way.join, node.host),) if way.join else self.pieces[c]

    def _atom(self, unit: Unit, stream: int, time: int, host: int, call: int = 0) -> int:
        self.unit_of.append(unit)
        self.atom_stream.append(stream)
        self.atom_scratch.append(0)
        self._atom_price.append((time, host, call))
        return len(self.unit_of) - 1

    def _link(self) -> None:
        before: list[dict[int, None]] = [{} for _ in self.unit_of]
        for i, node in enumerate(self.problem.nodes):
            inputs = dict.fromkeys(a for p in node.preds for a in self.gives[p])
            if i not in self.pieces:
                before[i] = inputs
                continue
            cut = self.takes[i]
            if cut >= 0:
                before[cut], inputs = inputs, {cut: None}
            for piece in self.pieces[i]:
                before[piece] = dict(inputs)
            if self.gives[i] != self.pieces[i]:
                before[self.gives[i][0]] = dict.fromkeys(self.pieces[i])
        self.preds = [tuple(b) for b in before]
        self.needs = [tuple(p for p in b if self.atom_stream[p] != COMPUTE) for b in before]
        after: list[list[int]] = [[] for _ in before]
        for atom, inputs in enumerate(self.preds):
            for p in inputs:
                after[p].append(atom)
        self.succs = [tuple(a) for a in after]
        self.atoms = [a for a in range(len(before)) if a not in self.pieces]

    @cached_property
    def buffers(self) -> list[Place]:
        """The problem's buffers in atoms. Pieces share their collective's buffers; what is joined is copied."""
        found = []
        for b in self.problem.buffers:
            users = dict.fromkeys(a for u in b.users for a in self._readers(u))
            makers = (b.maker,) if b.maker >= 0 else ()
            if b.maker in self.pieces:
                pieces = self.pieces[b.maker]
                makers = self.gives[b.maker]
                if makers != pieces:
                    found.append(Place(b.bytes, pieces, makers, False))
            found.append(Place(b.bytes, makers, tuple(users), b.kept))
        return found

    def parts(self, collective: int) -> Members:
        """Atoms of a cut collective: what cuts, pieces, what joins."""
        pieces = self.pieces[collective]
        cut = (self.takes[collective],) if self.takes[collective] >= 0 else ()
        return cut + pieces + (self.gives[collective] if self.gives[collective] != pieces else ())

    def _readers(self, node: int) -> Members:
        if node not in self.pieces:
            return (node,)
        return (self.takes[node],) if self.takes[node] >= 0 else self.pieces[node]

    @cached_property
    def touched(self) -> list[Members]:
        """Atom -> buffers it makes or reads."""
        found: list[list[int]] = [[] for _ in self.unit_of]
        for i, place in enumerate(self.buffers):
            for a in dict.fromkeys((*place.makers, *place.users)):
                found[a].append(i)
        return [tuple(f) for f in found]

    @cached_property
    def by_key(self) -> dict[Hashable, Members]:
        """Key -> whole collectives that may share a bucket."""
        found: dict[Hashable, list[int]] = {}
        for a in self.atoms:
            if a < len(self.problem.nodes) and self.problem.nodes[a].key is not None and self.atom_stream[a] != COMPUTE:
                found.setdefault(self.problem.nodes[a].key, []).append(a)
        return {key: tuple(atoms) for key, atoms in found.items()}

    # -------------------------------------------------- units

    def unit(self, members: Members) -> int:
        """Number of the unit of these atoms (ascending)."""
        number = self._numbers.get(members)
        return self._new_unit(members) if number is None else number

    def _new_unit(self, members: Members) -> int:
        price = self._atom_price[members[0]]
        time, host, call = self.problem.price(members) if price is None else price
        self.members.append(members)
        self.time.append(time)
        self.stream.append(self.atom_stream[members[0]])
        self.host.append(host)
        self.call.append(call)
        self.scratch.append(max([self.atom_scratch[a] for a in members]))
        self.waits.append(tuple(dict.fromkeys(c for a in members for c in self.needs[a])))
        self._numbers[members] = len(self.members) - 1
        return len(self.members) - 1

    def joinable(self, members: Members) -> bool:
        """Whether atoms may be one unit; pieces of collectives stay alone."""
        return len(members) == 1 or (self._atom_price[members[-1]] is None and self.problem.joinable(members))

    def number(self, unit: Unit) -> int:
        """The number of a plan's unit."""
        if unit.part is None:
            return self.unit(tuple(sorted(unit.nodes)))
        return self.unit((self._by_unit[unit],))

    @cached_property
    def _by_unit(self) -> dict[Unit, int]:
        return {u: a for a, u in enumerate(self.unit_of) if u.part is not None}

    def plan(self, order: Iterable[int]) -> Plan:
        """Unit numbers as a plan."""
        return Plan(tuple(self.described(u) for u in order), self.chunks)

    def described(self, unit: int) -> Unit:
        members = self.members[unit]
        return self.unit_of[members[0]] if len(members) == 1 else Unit(members)

    # -------------------------------------------------- arranging

    def arranged(self, units: Sequence[int], key: Sequence[int]) -> list[int] | None:
        """The units in an order that respects what they need of each other, else by `key`; None where they need one another."""
        home = {a: i for i, u in enumerate(units) for a in self.members[u]}
        missing = [0] * len(units)
        after: list[list[int]] = [[] for _ in units]
        for i, u in enumerate(units):
            before = {home[p] for a in self.members[u] for p in self.preds[a] if p in home}
            before.discard(i)
            missing[i] = len(before)
            for j in before:
                after[j].append(i)
        ready = [(key[i], i) for i, n in enumerate(missing) if n == 0]
        heapq.heapify(ready)
        order = []
        while ready:
            _, i = heapq.heappop(ready)
            order.append(units[i])
            for j in after[i]:
                missing[j] -= 1
                if missing[j] == 0:
                    heapq.heappush(ready, (key[j], j))
        return order if len(order) == len(units) else None


def decoded(problem: Problem, sets: Sequence[Members], chunks: Mapping[int, int], order: Sequence[int] | None) -> Plan:
    """See `Plan.of`."""
    layout = Layout(problem, chunks)
    rank = {n: i for i, n in enumerate(order if order is not None else range(len(problem.nodes)))}
    inside = {n: members for members in sets if len(members) > 1 for n in members}
    if sum(len(set(m)) for m in sets if len(m) > 1) != len(inside) or any(n in inside for n in layout.pieces):
        raise ValueError("a node is in two sets, or in one and cut")
    units = list(dict.fromkeys(layout.unit(inside.get(a, (a,))) for a in layout.atoms))
    key = [min(rank[n] for a in layout.members[u] for n in layout.unit_of[a].nodes) for u in units]
    found = layout.arranged(units, key)
    if found is None:
        raise ValueError("the sets, taken together, need one another")
    return layout.plan(found)
