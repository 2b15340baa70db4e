"""What a joint search decides about, as plain data: nodes, streams, buffers, and functions that price sets of nodes.

A node is a computation or a collective (a start with its wait). Sets of nodes run as one unit: computations as one kernel, collectives
of one key as one bucket. A collective may also be cut into pieces. A `Plan` says all of it: which units there are, and their sequence.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dmlc.simulate.clocks import FULL, Streams

COMPUTE = -1  # the stream of computation
CUT, JOIN = -1, -2  # parts of a cut collective that are computation: what makes its pieces, what puts them together

ROUNDS = 2  # how far a role looks around a node

Members = tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """A computation or a collective.

    time     picoseconds alone, as a unit of its own
    preds    nodes that it needs, all of smaller number
    stream   COMPUTE, or the index of the collective's stream
    key      collectives with equal keys may share a bucket; None: never
    host     picoseconds in which the host issues it
    call     picoseconds of computation that a collective's start takes of its rank: calling, packing
    scratch  bytes it needs only while it runs
    kind     what it does, to find repeated layers by; None: time and stream stand for it
    """

    time: int
    preds: Members = ()
    stream: int = COMPUTE
    key: Hashable = None
    host: int = 0
    scratch: int = 0
    kind: Hashable = None
    name: str = ""
    call: int = 0


@dataclass(frozen=True)
class Buffer:
    """`bytes` that node `maker` (-1: an argument) writes and `users` read; `kept`: to the end."""

    bytes: int
    maker: int
    users: Members
    kept: bool = False


@dataclass(frozen=True)
class Chunks:
    """A way to cut a collective: picoseconds of each piece, of the computations before the first and after the last, and of each piece's start."""

    times: tuple[int, ...]
    cut: int = 0
    join: int = 0
    call: int = 0


@dataclass(frozen=True)
class Stream:
    """Percent of full speed of computation and collective while both run; streams of one link share it (-1: a link of its own)."""

    name: str = ""
    computing: int = FULL
    moving: int = FULL
    link: int = -1


@dataclass(frozen=True, order=True)
class Unit:
    """Nodes that run as one, ascending; `part` of a cut collective: a piece's number, CUT or JOIN."""

    nodes: Members
    part: int | None = None


@dataclass(frozen=True)
class Plan:
    """A complete decision: the units in the order of issue, and into how many pieces collectives are cut (those left out: none)."""

    sequence: tuple[Unit, ...]
    chunks: Mapping[int, int] = field(default_factory=dict)

    @property
    def sets(self) -> tuple[Members, ...]:
        """Kernels and buckets of at least two nodes."""
        return tuple(u.nodes for u in self.sequence if len(u.nodes) > 1)

    @classmethod
    def of(cls, problem: Problem, sets: Iterable[Sequence[int]] = (), chunks: Mapping[int, int] | None = None, order: Sequence[int] | None = None) -> Plan:
        """Units in the order of their first nodes in `order` (program order if left out) as far as dependences allow.

        Raises ValueError where the sets, taken together, need one another.
        """
        from dmlc.simulate.joint_layout import decoded

        return decoded(problem, [tuple(sorted(s)) for s in sets], chunks or {}, order)


class Problem:
    """Nodes in program order with what sets of them cost.

    time        members (at least two, ascending) -> picoseconds as one unit
    fusable     whether computations may be one kernel (limits, shapes, connection; that no cycle arises is seen to by the search)
    bucketable  limits on buckets beside equal keys and independence
    host        members -> picoseconds in which the host issues the unit; left out: the most of one member
    call        collectives -> picoseconds of computation that the start of their bucket takes of its rank; left out: the most of one member
    chunks      collective -> number of pieces -> `Chunks`
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        streams: Sequence[Stream] = (),
        buffers: Sequence[Buffer] = (),
        time: Callable[[Members], int] | None = None,
        fusable: Callable[[Members], bool] | None = None,
        bucketable: Callable[[Members], bool] | None = None,
        host: Callable[[Members], int] | None = None,
        chunks: Mapping[int, Mapping[int, Chunks]] | None = None,
        call: Callable[[Members], int] | None = None,
    ):
        self.nodes, self.buffers = tuple(nodes), tuple(buffers)
        self.names = tuple(s.name for s in streams)
        own = max((s.link for s in streams), default=0) + 1
        links = [s.link if s.link >= 0 else own + i for i, s in enumerate(streams)]
        self.streams = Streams(tuple(s.computing for s in streams), tuple(s.moving for s in streams), tuple(links))
        self.chunks = {c: dict(sorted(ways.items())) for c, ways in sorted((chunks or {}).items())}
        self._time, self._fusable, self._bucketable, self._host = time, fusable, bucketable, host
        self._call = call
        self._prices: dict[Members, tuple[int, int, int]] = {}
        self._able: dict[Members, bool] = {}
        self._check()

    def _check(self) -> None:
        for i, node in enumerate(self.nodes):
            if any(not 0 <= p < i for p in node.preds):
                raise ValueError(f"node {i} needs one that does not stand before it")
            if not COMPUTE <= node.stream < len(self.streams):
                raise ValueError(f"node {i} runs on stream {node.stream}, of which there are {len(self.streams)}")
        for c, ways in self.chunks.items():
            if self.nodes[c].stream == COMPUTE or any(n < 2 or n != len(way.times) for n, way in ways.items()):
                raise ValueError(f"node {c} cannot be cut: only collectives can, into as many pieces as times are given for")

    def slower(self, computation: int = 0, communication: int = 0) -> Problem:
        """The same where either takes so many percent longer than it is priced; what starts take of their rank is computation."""

        def computed(time: int) -> int:
            return time + time * computation // 100

        def moved(time: int) -> int:
            return time + time * communication // 100

        def time(members: Members) -> int:
            return (computed if self.nodes[members[0]].stream == COMPUTE else moved)(self.price(members)[0])

        def cut(way: Chunks) -> Chunks:
            return Chunks(tuple(map(moved, way.times)), computed(way.cut), computed(way.join), computed(way.call))

        other = copy.copy(self)
        other.nodes = tuple(replace(n, time=(computed if n.stream == COMPUTE else moved)(n.time), call=computed(n.call)) for n in self.nodes)
        other.chunks = {c: {n: cut(way) for n, way in ways.items()} for c, ways in self.chunks.items()}
        other._time, other._call, other._prices = time, lambda members: computed(self.price(members)[2]), {}
        return other

    # -------------------------------------------------- sets

    def price(self, members: Members) -> tuple[int, int, int]:
        """Picoseconds of a unit, of the host to issue it, and of computation to start it (a collective)."""
        if members not in self._prices:
            self._prices[members] = self._priced(members)
        return self._prices[members]

    def _priced(self, members: Members) -> tuple[int, int, int]:
        host = self._host(members) if self._host is not None else max(self.nodes[n].host for n in members)
        if len(members) == 1:
            return self.nodes[members[0]].time, host, self.nodes[members[0]].call
        if self._time is None:
            raise ValueError("the problem gives no prices of sets")
        starts = self.nodes[members[0]].stream != COMPUTE
        call = self._call(members) if self._call is not None and starts else max(self.nodes[n].call for n in members)
        return self._time(members), host, call

    def joinable(self, members: Members) -> bool:
        """Whether the nodes may be one unit, as far as the set alone says."""
        if len(members) == 1:
            return True
        if members not in self._able:
            self._able[members] = self._may_join(members)
        return self._able[members]

    def _may_join(self, members: Members) -> bool:
        first = self.nodes[members[0]]
        if any(self.nodes[n].stream != first.stream for n in members):
            return False
        if first.stream == COMPUTE:
            return self._fusable is not None and self._fusable(members)
        if first.key is None or any(self.nodes[n].key != first.key for n in members) or self._dependent(members):
            return False
        return self._bucketable is None or self._bucketable(members)

    def _dependent(self, members: Members) -> bool:
        """Whether one member needs another."""
        before = 0
        for n in members:
            before |= self.ancestors[n]
        return any(before >> n & 1 for n in members)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """Node -> bit mask of all it needs."""
        found: list[int] = []
        for node in self.nodes:
            mask = 0
            for p in node.preds:
                mask |= found[p] | 1 << p
            found.append(mask)
        return tuple(found)

    @cached_property
    def roles(self) -> tuple[int, ...]:
        """Node -> number of its role: equal for those that do the same in equal surroundings, as in repeated layers.

        Labels are refined by those of needs and readers a few times (Weisfeiler and Leman 1968).
        """
        readers: list[list[int]] = [[] for _ in self.nodes]
        for i, node in enumerate(self.nodes):
            for p in node.preds:
                readers[p].append(i)
        labels = _numbered([(n.stream, n.time, n.host) if n.kind is None else (n.stream, n.kind) for n in self.nodes])
        for _ in range(ROUNDS):
            labels = _numbered([(labels[i], sorted(labels[p] for p in n.preds), sorted(labels[r] for r in readers[i])) for i, n in enumerate(self.nodes)])
        return tuple(labels)

    @cached_property
    def partners(self) -> tuple[Members, ...]:
        """Node -> nodes it may share a kernel with for a reason: those it reads, those that read it, and the next reader of the same value."""
        found: list[dict[int, None]] = [{} for _ in self.nodes]
        for i, node in enumerate(self.nodes):
            for p in node.preds:
                if self.nodes[i].stream == COMPUTE == self.nodes[p].stream:
                    found[i][p] = found[p][i] = None
        for buffer in self.buffers:
            readers = [u for u in buffer.users if self.nodes[u].stream == COMPUTE]
            for a, b in zip(readers, readers[1:]):
                found[a][b] = found[b][a] = None
        return tuple(tuple(sorted(f)) for f in found)


def _numbered(labels: list) -> list[int]:
    numbers: dict[str, int] = {}
    return [numbers.setdefault(repr(label), len(numbers)) for label in labels]
