"""What a simulated class of ranks has done: its events with their names and rows, its memory over time, sums by kind."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from dmlc.ir.sharding import Mesh
from dmlc.simulate.events import Engine
from dmlc.simulate.events_classes import RankClass
from dmlc.simulate.events_lanes import Lane, RawEvent
from dmlc.simulate.events_program import COMPUTE, NO_OP, POST, Item
from dmlc.simulate.kinds import COMPUTATION
from dmlc.simulate.memory import Held, MemoryMap

EVENTS_SHOWN = 200_000  # iterations past so many events are left out of a list of them


class Event(NamedTuple):
    """A run of an op, times in picoseconds.

    op      its `dmlc.id`; `name` the model's name for it, or its kind
    stream  the row of a trace: "compute", "comm data"
    wait    it only waited, for the collective with the same `number`
    number  counts the rank's collectives and messages; -1 for computation
    issued  when the host had issued it; 0 where the host is the device
    item    what else is known: `item.cost` is its price alone and at full speed, `item.op` the op
    """

    op: str
    name: str
    stream: str
    begin: int
    end: int
    source: str
    wait: bool
    number: int
    issued: int
    item: Item


class Run:
    """A lane that has run to its end."""

    def __init__(self, engine: Engine, lane: Lane, ranks: RankClass, memory: MemoryMap, mesh: Mesh):
        self.lane, self.ranks, self.map, self.mesh, self.end = lane, ranks, memory, mesh, engine.now
        self.repeats = [r for r in engine.repeats if r.lane == lane.number]
        self.items = lane.program.items

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """Shown events in the order of their begin; iterations that repeat are written out up to `EVENTS_SHOWN` events."""
        shown = [e for e in self._raw if e[0] != NO_OP and self.items[e[0]].shown]
        shown.sort(key=lambda e: (e[1], e[2], e[0]))
        return tuple(self._event(*e) for e in shown)

    def _event(self, item: int, begin: int, end: int, number: int, issued: int) -> Event:
        known = self.items[item]
        return Event(known.id, known.name, known.row, begin, end, known.cost.source, known.kind == "wait", number, issued, known)

    @cached_property
    def _raw(self) -> list[RawEvent]:
        return [*self.lane.events, *self._repeated(EVENTS_SHOWN - len(self.lane.events))]

    def _repeated(self, room: int) -> Iterator[RawEvent]:
        for r in self.repeats:
            body = self.lane.events[slice(*r.events)]
            for i in range(1, r.count + 1):
                room -= len(body)
                if room < 0:
                    return
                later, issued, more = i * r.period, i * r.host, i * r.serials
                yield from ((item, b + later, e + later, n if n == NO_OP else n + more, h + issued) for item, b, e, n, h in body)

    @property
    def exposed(self) -> list[tuple[int, int]]:
        """Begin and end of each time in which computation waits for communication."""
        waits = [(b, e) for item, b, e, number, _ in self._raw if number != NO_OP and e > b and (item == NO_OP or self.items[item].kind == "wait")]
        computed = max((e for item, _, e, number, _ in self._raw if number == NO_OP or item == NO_OP or self.items[item].kind == "wait"), default=0)
        return sorted(waits) + ([(computed, self.end)] if computed < self.end else [])

    @cached_property
    def memory(self) -> tuple[tuple[int, Held], ...]:
        """(time, bytes by category from then on), in the order of time."""
        found = list(self.lane.marks)
        room = EVENTS_SHOWN - len(found)
        for r in self.repeats:
            body = self.lane.marks[slice(*r.marks)]
            for i in range(1, min(r.count, room // max(len(body), 1)) + 1):
                found += [(time + i * r.period, mark) for time, mark in body]
        found.sort(key=lambda m: m[0])
        return tuple((time, self.map.held[mark]) for time, mark in found)

    @cached_property
    def peak_time(self) -> int | None:
        """When the op with the most bytes alive begins; None where it is in a branch that was not taken."""
        mark = self.map.marks.get(self.map.at) if self.map.at is not None else None
        return min((time for time, m in self.lane.marks if m == mark), default=None)

    # -------------------------------------------------- sums

    @cached_property
    def computation(self) -> int:
        return sum(busy for kind, busy in self.by_kind.items() if kind in COMPUTATION)

    @cached_property
    def by_kind(self) -> dict[str, int]:
        """Kind of op -> time, computation first; "host": computation waits for the host."""
        found = dict.fromkeys(COMPUTATION, 0)
        for i, item in enumerate(self.items):
            if item.kind != "wait":
                found[item.kind] = found.get(item.kind, 0) + self.lane.busy(i)
        return {**{kind: busy for kind, busy in found.items() if busy}, **({"host": self.lane.starved} if self.lane.starved else {})}

    def counted(self) -> Iterator[tuple[Item, int]]:
        """Each item but waits, and how often it runs."""
        return ((item, self.lane.runs(i)) for i, item in enumerate(self.items) if item.kind != "wait")

    def loads(self) -> tuple[int, dict[int, int]]:
        """Picoseconds at full speed of all computation, and of each link's traffic."""
        computing, links = 0, {s.link: 0 for s in self.lane.program.streams}
        for instruction in self.lane.code:
            if instruction[0] == COMPUTE:
                computing += instruction[2] * self.lane.runs(instruction[1])
            elif instruction[0] == POST:
                links[self.lane.program.streams[instruction[3]].link] += instruction[4] * self.lane.runs(instruction[1])
        return computing, links
