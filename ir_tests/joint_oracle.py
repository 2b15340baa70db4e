"""The exhaustive optimum of a small joint problem, written from the definition and without the search's code.

All connected kernels, all buckets of one key and all orders at once: a sequence is grown by any set of nodes that may be a unit and whose
needs are there. Clocks are floating-point and stepped from event to event by their definition; memory is counted over whole lives.
A branch is left if the cheapest division of what remains cannot end earlier than the best, or if the same nodes have been issued before
in a state that can do all that this one can, not later.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from joint_cases import Case

Set = frozenset[int]
EPSILON = 1e-6


@dataclass(frozen=True)
class State:
    now: float
    host: float
    flight: tuple[tuple[Set, float], ...]  # collectives in flight, in order, with what is left of each


class Oracle:
    """`best` is the least makespan below `limit`, or `limit`."""

    def __init__(self, case: Case, limit: float):
        self.case, self.problem, self.best = case, case.problem, float(limit)
        nodes = self.problem.nodes
        self.count = len(nodes)
        self.comm = frozenset(i for i, n in enumerate(nodes) if n.stream >= 0)
        self.readers = [frozenset(j for j, n in enumerate(nodes) if i in n.preds) for i in range(self.count)]
        self.computing, self.moving = self.problem.streams.computing[0] / 100, self.problem.streams.moving[0] / 100
        self.plain = self.computing == self.moving == 1
        self.sets = [frozenset(s) for s in self._all_sets()]
        self.time = {s: float(self.problem.price(tuple(sorted(s)))[0]) for s in self.sets}
        self.host = {s: float(self.problem.price(tuple(sorted(s)))[1]) for s in self.sets}
        self.needs = {s: frozenset(p for i in s for p in nodes[i].preds) - s for s in self.sets}
        self.cheapest: dict[Set, float] = {frozenset(): 0.0}
        self.seen: dict[tuple, list[tuple[float, ...]]] = {}

    def _all_sets(self) -> list[tuple[int, ...]]:
        """Every subset, tried."""
        kinds = (sorted(set(range(self.count)) - self.comm), sorted(self.comm))
        return [c for nodes in kinds for k in range(1, len(nodes) + 1) for c in combinations(nodes, k) if self.problem.joinable(c)]

    def run(self) -> float:
        self.grow(frozenset(), State(0.0, 0.0, ()), ())
        return self.best

    # -------------------------------------------------- clocks

    def idle(self, state: State, until: float) -> State:
        """Computation stands still until `until`."""
        now, flight = state.now, list(state.flight)
        while flight and now < until:
            step = min(flight[0][1], until - now)
            now += step
            flight[0] = (flight[0][0], flight[0][1] - step)
            if flight[0][1] <= EPSILON:
                flight.pop(0)
        return State(max(now, until), state.host, tuple(flight))

    def end_of(self, state: State, member: int) -> float:
        """When a collective of which `member` is part is done if computation stands still."""
        at = state.now
        for nodes, left in state.flight:
            at += left
            if member in nodes:
                return at
        return state.now

    def issue(self, state: State, unit: Set) -> State:
        until = max([state.now, *(self.end_of(state, p) for p in self.needs[unit] & self.comm)])
        state = self.idle(state, until)
        host = state.host + self.host[unit]
        state = self.idle(State(state.now, host, state.flight), max(state.now, host))
        if unit <= self.comm:
            return State(state.now, host, (*state.flight, (unit, self.time[unit])))
        return self.compute(state, self.time[unit])

    def compute(self, state: State, work: float) -> State:
        now, flight = state.now, list(state.flight)
        while flight and work > EPSILON:
            step = min(work / self.computing, flight[0][1] / self.moving)
            now += step
            work -= step * self.computing
            flight[0] = (flight[0][0], flight[0][1] - step * self.moving)
            if flight[0][1] <= EPSILON:
                flight.pop(0)
        return State(now + max(work, 0.0), state.host, tuple(flight))

    # -------------------------------------------------- search

    def grow(self, issued: Set, state: State, path: tuple[Set, ...]) -> None:
        if len(issued) == self.count:
            end = state.now + sum(left for _, left in state.flight)
            if end < self.best - EPSILON and self.fits(path):
                self.best = end
            return
        for unit in self.sets:
            if unit & issued or not self.needs[unit] <= issued:
                continue
            after, grown = self.issue(state, unit), issued | unit
            if self.bound(grown, after) < self.best - EPSILON and not self.repeated(grown, after, (*path, unit)):
                self.grow(grown, after, (*path, unit))

    def bound(self, issued: Set, state: State) -> float:
        rest = frozenset(range(self.count)) - issued
        flying = sum(left for _, left in state.flight)
        return state.now + max(self.division(rest - self.comm), flying + self.division(rest & self.comm))

    def division(self, rest: Set) -> float:
        """Time of the cheapest division of nodes of one stream into units."""
        if rest not in self.cheapest:
            first = min(rest)
            self.cheapest[rest] = min(self.time[s] + self.division(rest - s) for s in self.sets if first in s and s <= rest)
        return self.cheapest[rest]

    def repeated(self, issued: Set, state: State, path: tuple[Set, ...]) -> bool:
        """Whether a state that is nowhere later was here before.

        Without slow-down a rank that is ahead can wait, so clocks are compared one by one. With it that is not certain: what is in flight must be
        the same. Under a cap, what counts beside the nodes is which buckets still hold their operands; a peak above the cap ends a branch.
        """
        key: tuple = (issued,)
        if self.case.cap:
            if not self.fits(path):
                return True
            key += tuple(sorted(tuple(sorted(u)) for u in path if u <= self.comm and not any(self.readers[i] & issued for i in u)))
        if self.plain:
            ends, at = dict.fromkeys(self.comm & issued, state.now), state.now
            for nodes, left in state.flight:
                at += left
                ends.update(dict.fromkeys(nodes, at))
            mine = (state.now, state.host, at, *(ends[i] for i in sorted(ends)))
        else:
            key += tuple((tuple(sorted(nodes)), round(left, 3)) for nodes, left in state.flight)
            mine = (state.now, state.host)
        known = self.seen.setdefault(key, [])
        if any(all(a <= b + EPSILON for a, b in zip(k, mine)) for k in known):
            return True
        known[:] = [k for k in known if not all(a <= b for a, b in zip(mine, k))] + [mine]
        return False

    # -------------------------------------------------- memory

    def fits(self, path: tuple[Set, ...]) -> bool:
        return not self.case.cap or self.peak(path) <= self.case.cap

    def peak(self, path: tuple[Set, ...]) -> int:
        """Most bytes at one position, over those units of a sequence that are known; a collective lets go when it is first read."""
        at = {i: p for p, unit in enumerate(path) for i in unit}
        never = len(path) + 1

        def release(node: int) -> int:
            if node not in at:
                return never
            if node not in self.comm:
                return at[node]
            return min([at.get(r, never) for i in path[at[node]] for r in self.readers[i]], default=never)

        alive = [0] * len(path)
        for b in self.problem.buffers:
            if b.maker not in at or (b.users and not b.kept and set(b.users) <= path[at[b.maker]]):
                continue
            last = never if b.kept else max(release(i) for i in (b.maker, *b.users))
            for p in range(at[b.maker], min(last + 1, len(path))):
                alive[p] += b.bytes
        return max(alive, default=0)
