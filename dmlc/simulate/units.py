"""What a schedule orders: units, and which must precede which.

A `UnitGraph` is built once from a block of ops. A `Choice` groups its nodes into units: a fused group is one, a bucket of collectives
is one, every other op is one; a start and its wait are one node, since waits have no place of their own (each goes before its
first consumer). `Units` is the plain data that the simulator and the searches work on.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dmlc.cost import Cost, CostModel
from dmlc.cost.model import bytes_of
from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Block, Function, Op
from dmlc.ir.sharding import Mesh
from dmlc.ops.comm import base_name, is_collective, is_start, result_types_of
from dmlc.ops.control import trips
from dmlc.simulate.arrays import COMPUTE, Units
from dmlc.simulate.choice import Choice, region_id
from dmlc.simulate.clocks import Streams
from dmlc.simulate.liveness import outside_values, replaced_arguments, storages

Cycle = tuple[str, ...]
Prices = dict[Op, tuple[Cost, int]]  # an op's cost, and picoseconds in which the host issues it


@dataclass(frozen=True)
class CommKey:
    """Collectives with equal keys may share a bucket. `stream` (kind of traffic: the axes) is where it queues."""

    kind: str
    combiner: str
    axes: tuple[str, ...]
    dtype: str
    region: str


def comm_key(op: Op, region: str) -> CommKey:
    """Key of a collective (or of its start)."""
    return CommKey(base_name(op), op.attrs.get("combiner", ""), tuple(op.attrs["axes"]), op.operands[0].dtype, region)


@dataclass
class Node:
    """One op, or a start with its wait."""

    op: Op
    ops: tuple[Op, ...]
    cost: Cost
    key: CommKey | None = None
    preds: dict[int, None] = field(default_factory=dict)
    host: int = 0

    @property
    def id(self) -> str:
        return self.op.id


class UnitGraph:
    """Nodes of one block in program order and what each depends on.

    `explicit_waits` keeps waits as nodes of their own (no time): the program exactly as it is written. `prices` are known already and learn
    what is not: for graphs of one block between which no op changes.
    """

    def __init__(self, block: Block, cost: CostModel, explicit_waits: bool = False, prices: Prices | None = None):
        self.block, self.cost, self.prices = block, cost, prices if prices is not None else {}
        owner = block.region.op if block.region is not None else None
        self.region = region_id(owner, owner.regions.index(block.region)) if owner is not None and block.region is not None else ""
        self.mesh = Mesh.around(owner) if owner is not None else Mesh.make()
        self.nodes = self._make_nodes(explicit_waits)
        self.index = {op: i for i, node in enumerate(self.nodes) for op in node.ops}
        self.by_id = {node.id: i for i, node in enumerate(self.nodes)}
        self._link()

    @classmethod
    def of(cls, function: Function, cost: CostModel, explicit_waits: bool = False) -> UnitGraph:
        """The graph of a function's body; loops in it are single nodes."""
        return cls(function.body, cost, explicit_waits)

    def _make_nodes(self, explicit_waits: bool) -> list[Node]:
        nodes = []
        for op in self.block:
            if op.name in TERMINATORS or (op.name == "comm.wait" and not explicit_waits and self._start(op) is not None):
                continue
            waiting = self._wait(op) if is_start(op) and not explicit_waits else None
            key = comm_key(op, self.region) if is_collective(op) else None
            if op not in self.prices:
                self.prices[op] = (self._price(op), self._host(op))
            price, host = self.prices[op]
            nodes.append(Node(op, (op,) if waiting is None else (op, waiting), price, key, host=host))
            if explicit_waits and key is not None and not is_start(op):  # a synchronous collective waits for itself
                nodes.append(Node(op, (), Cost(), preds={len(nodes) - 1: None}))
        return nodes

    def _start(self, wait: Op) -> Op | None:
        start = wait.operands[0].op
        return start if start is not None and start.block is self.block else None

    def _wait(self, start: Op) -> Op | None:
        return next((u for u in start.results[0].users if u.name == "comm.wait" and u.block is self.block), None)

    def _price(self, op: Op) -> Cost:
        """A loop costs what its body's simulation says, so that communication hidden inside is not counted twice."""
        if not op.regions or op.name == "kernel.fused":
            return self.cost.op(op)
        from dmlc.simulate.engine import makespan_of

        total = self.cost.op(op)
        times = [makespan_of(b, self.cost) for r in op.regions for b in r.blocks]
        time = max(times) if op.name == "dmlc.cond" else sum(times) * trips(op)
        return Cost(time, total.bytes, total.flops, total.source)

    def _host(self, op: Op) -> int:
        """Views too are issued (`CostModel.host`), waits do not count; what the host issues inside a loop is part of the loop's time."""
        return 0 if op.name == "comm.wait" or (op.regions and op.name != "kernel.fused") else self.cost.host(op)

    def _link(self) -> None:
        """Edges: data, and the order among ops that must keep theirs (messages between two ranks)."""
        last_ordered = None
        for i, node in enumerate(self.nodes):
            for op in node.ops:
                for value in outside_values(op):
                    made = self.index.get(value.op) if value.op is not None else None
                    if made is not None and made != i:
                        node.preds[made] = None
            if node.op.name in ("comm.send", "comm.recv"):
                if last_ordered is not None:
                    node.preds[last_ordered] = None
                last_ordered = i

    # -------------------------------------------------- choices

    def _sets(self, choice: Choice) -> list[tuple[int, ...]]:
        """Groups and buckets with at least two nodes here, as node indices."""
        found = []
        for ids in (*choice.groups, *choice.buckets):
            members = tuple(sorted(self.by_id[i] for i in ids if i in self.by_id))
            if len(members) > 1:
                found.append(members)
        return found

    def _quotient(self, choice: Choice) -> tuple[list[list[int]], list[dict[int, None]]]:
        """Units as lists of nodes, by first node, and each one's predecessors; they may form a cycle."""
        home = list(range(len(self.nodes)))
        for members in self._sets(choice):
            for m in members:
                home[m] = home[members[0]]
        numbers: dict[int, int] = {}
        units: list[list[int]] = []
        for node, first in enumerate(home):
            if first not in numbers:
                numbers[first] = len(units)
                units.append([])
            units[numbers[first]].append(node)
        of = [numbers[h] for h in home]
        preds: list[dict[int, None]] = [{} for _ in units]
        for node, entry in enumerate(self.nodes):
            for p in entry.preds:
                if of[p] != of[node]:
                    preds[of[node]][of[p]] = None
        return units, preds

    def legal(self, choice: Choice) -> Cycle | None:
        """None when the quotient by all groups and buckets together has no cycle and every bucket has one key; else the ids of one.

        A bucket's members must not depend on each other either: what would go round inside the bucket is reported too.
        """
        wrong = self._wrong_bucket(choice)
        if wrong is not None:
            return wrong
        units, preds = self._quotient(choice)
        _, rest = topological(preds)
        if not rest:
            return None
        walk, seen = rest[0], {}
        while walk not in seen:
            seen[walk] = len(seen)
            walk = next(p for p in preds[walk] if p in set(rest))
        cycle = [u for u, at in seen.items() if at >= seen[walk]]
        return tuple(self.nodes[units[u][0]].id for u in reversed(cycle))

    def _wrong_bucket(self, choice: Choice) -> Cycle | None:
        for ids in choice.buckets:
            members = [self.by_id[i] for i in ids if i in self.by_id]
            if len({self.nodes[m].key for m in members}) > 1 or any(self.nodes[m].key is None for m in members):
                return tuple(ids)
            inside = set(members)
            if any(self.reaches(m, inside - {m}) for m in members):
                return tuple(ids)
        return None

    def reaches(self, node: int, targets: set[int]) -> bool:
        """Whether one of `targets` must come before `node`."""
        lowest = min(targets, default=len(self.nodes))
        pending, seen = [node], {node}
        while pending:
            for p in self.nodes[pending.pop()].preds:
                if p in targets:
                    return True
                if p not in seen and p > lowest:
                    seen.add(p)
                    pending.append(p)
        return False

    def units(self, choice: Choice | None = None, memory: bool = True) -> Units:
        """The units under a legal choice, in the program's order as far as that is possible; without `memory` no buffers and scratch."""
        choice = choice or Choice()
        groups, preds = self._quotient(choice)
        order, rest = topological(preds)
        assert not rest, "the choice is not legal"
        place = {u: i for i, u in enumerate(order)}
        members = [groups[u] for u in order]
        streams = tuple(dict.fromkeys(k.axes for n in self.nodes if (k := n.key) is not None))
        last = self.block.last
        kept = last.operands if last is not None and last.name in TERMINATORS else ()
        arguments, replaced = list(self.block.args), replaced_arguments(self.block) if memory else {}
        leaving = [*kept, *(a for a in arguments if a not in replaced)]
        return Units(
            ids=tuple(self.nodes[m[0]].id for m in members),
            time=tuple(self._unit_cost(m).time for m in members),
            stream=tuple(self._stream(m, streams) for m in members),
            preds=tuple(tuple(sorted(place[p] for p in preds[u])) for u in order),
            streams=streams,
            storages=tuple(storages([[op for n in m for op in self.nodes[n].ops] for m in members], arguments, leaving)) if memory else (),
            scratch=tuple(self._scratch(m) for m in members) if memory else (),
            nodes=tuple(map(tuple, members)),
            host=tuple(max(self.nodes[n].host for n in m) for m in members),
            call=tuple(self._start_time(m) for m in members) if streams else (),
            rates=self._rates(streams),
        )

    def _rates(self, streams: tuple[tuple[str, ...], ...]) -> Streams:
        slow = [self.cost.slow_down(axes, self.mesh) for axes in streams]
        return Streams(tuple(c for c, _ in slow), tuple(m for _, m in slow), tuple(self.cost.link_index(axes, self.mesh) for axes in streams))

    def _start_time(self, members: list[int]) -> int:
        """Picoseconds of computation that a collective's start takes of its rank."""
        return 0 if self.nodes[members[0]].key is None else self.cost.starting([self.nodes[n].op for n in members])

    def _stream(self, members: list[int], streams: tuple[tuple[str, ...], ...]) -> int:
        key = self.nodes[members[0]].key
        return COMPUTE if key is None else streams.index(key.axes)

    def _unit_cost(self, members: list[int]) -> Cost:
        if len(members) == 1:
            return self.nodes[members[0]].cost
        ops = [self.nodes[n].op for n in members]
        key = self.nodes[members[0]].key
        if key is not None:
            return self.bucket_cost(ops)
        inside = set(ops)
        reads = [v for op in ops for v in op.operands if v.op not in inside]
        writes = [r for op in ops for r in op.results if any(u not in inside for u in r.users)]
        return self.cost.group(ops, reads, writes)

    def bucket_cost(self, ops: Sequence[Op]) -> Cost:
        """One collective that carries all operands of `ops`."""
        total = sum(max(bytes_of(op.operands), _delivered_bytes(op)) for op in ops)
        return self.cost.collective(base_name(ops[0]).split(".")[1], total, ops[0].attrs["axes"], self.mesh)

    def _scratch(self, members: list[int]) -> int:
        from dmlc.simulate.liveness import region_bytes

        return max(region_bytes(self.nodes[n].op) for n in members)

    def price(self, choice: Choice | None = None) -> Cost:
        """Simulated time of the block under `choice`: its explicit order if it has one, else the one that a short search finds."""
        from dmlc.simulate.engine import replay
        from dmlc.simulate.ordering import order_of, price

        units = self.units(choice)
        given = order_of(units, choice.order.get(self.region)) if choice is not None else None
        total = sum((self._unit_cost(list(m)) for m in units.nodes), Cost())
        return Cost(price(units) if given is None else replay(units, given), total.bytes, total.flops, total.source)


def _delivered_bytes(op: Op) -> int:
    from dmlc.cost.model import type_bytes

    return sum(type_bytes(t) for t in result_types_of(op))


def topological(preds: Sequence[Iterable[int]]) -> tuple[list[int], list[int]]:
    """An order that puts predecessors first and else keeps the numbers' order, and what is left on cycles."""
    waiting = [len(list(p)) for p in preds]
    succs: list[list[int]] = [[] for _ in preds]
    for u, before in enumerate(preds):
        for p in before:
            succs[p].append(u)
    ready = [u for u, n in enumerate(waiting) if n == 0]
    order: list[int] = []
    while ready:
        u = heapq.heappop(ready)
        order.append(u)
        for s in succs[u]:
            waiting[s] -= 1
            if waiting[s] == 0:
                heapq.heappush(ready, s)
    done = set(order)
    return order, [u for u in range(len(preds)) if u not in done]
