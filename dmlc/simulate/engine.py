"""Event simulation of one rank: a stream of computation and one of communication for each set of mesh axes.

The rank issues units in order. A computation runs when the one before is done. A start costs the rank nothing: its collective runs
once everything issued before it is done and its stream is free. The first unit that needs a collective's result waits for it,
and so does everything issued after that unit. Both sides slow each other down, and the host issues one unit after another (`clocks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dmlc.cost import CostModel
from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Block, Module
from dmlc.simulate.clocks import FULL, Clocks, Streams
from dmlc.simulate.liveness import block_liveness
from dmlc.simulate.units import COMPUTE, Prices, UnitGraph, Units


@dataclass(frozen=True)
class Event:
    """A unit's run: begin and end in picoseconds; `stream` is "compute" or the axes of a collective, joined by commas."""

    unit: str
    stream: str
    begin: int
    end: int


@dataclass(frozen=True)
class Bounds:
    """What no order can beat (picoseconds): each side's work at full speed, the longest chain, what the host takes to issue all, and the
    work of both sides where they slow each other down."""

    computation: int
    communication: int
    critical_path: int
    host: int = 0
    overlap: int = 0

    @property
    def best(self) -> int:
        return max(self.computation, self.communication, self.critical_path, self.host, self.overlap)

    def __str__(self) -> str:
        """Each in microseconds, by name."""
        names = {"computation": self.computation, "communication": self.communication, "critical path": self.critical_path}
        more = {"host": self.host, "both sides overlapped": self.overlap}
        return ", ".join(f"{name} {time / 1e6:.1f} us" for name, time in (*names.items(), *((n, t) for n, t in more.items() if t)))


@dataclass(frozen=True)
class Simulation:
    """makespan and busy times in picoseconds, peak memory in bytes.

    busy     how long each stream is at work, slowed down or not
    exposed  time in which the compute stream waits for communication
    starved  time in which it waits for the host
    """

    makespan: int
    busy: AttrDict
    exposed: int
    peak: int
    timeline: tuple[Event, ...]
    bounds: Bounds
    starved: int = 0

    @property
    def gap(self) -> float:
        """How far the makespan is above the bound: 0.1 = ten percent."""
        return self.makespan / self.bounds.best - 1 if self.bounds.best else 0.0


def bounds(units: Units) -> Bounds:
    """Streams of one link are one load: at any time they move as much together as one alone."""
    rates = _rates(units)
    computation, loads = sum(units.call), dict.fromkeys(rates.link, 0)
    for time, stream in zip(units.time, units.stream):
        if stream == COMPUTE:
            computation += time
        else:
            loads[rates.link[stream]] += time
    together = overlapped(computation, loads, list(zip(rates.link, rates.computing, rates.moving)))
    return Bounds(computation, max(loads.values(), default=0), max(tails(units), default=0), sum(units.host), together)


def overlapped(work: int, loads: Mapping[int, int], streams: Iterable[tuple[int, int, int]]) -> int:
    """The least time for the computation W and a link's communication C where they slow each other down; 0 where none does.

    `loads` is by link, `streams` (link, computing, moving). If side by side both run at rates c and m (of the link's streams the fastest), a time x
    of both leaves W - cx and C - mx to be done alone: it takes W + C - (c + m - 1)x, and x is at most W/c and C/m.
    """
    found, streams = 0, list(streams)
    for link, load in loads.items():
        c = max((p for k, p, _ in streams if k == link), default=FULL)
        m = max((p for k, _, p in streams if k == link), default=FULL)
        if c < FULL or m < FULL:
            both = min(work * FULL // c, load * FULL // m) + 1
            found = max(found, work + load - max(c + m - FULL, 0) * both // FULL - 1)
    return found


def _rates(units: Units) -> Streams:
    return units.rates if units.rates is not None else Streams.plain(len(units.streams))


def tails(units: Units) -> list[int]:
    """Unit -> time of the longest chain that begins with it, what starts take of their rank included."""
    tail = [time + call for time, call in zip(units.time, units.call)] if units.call else list(units.time)
    for u in reversed(range(len(units))):
        tail[u] += max((tail[s] for s in units.succs[u]), default=0)
    return tail


def replay(units: Units, order: Sequence[int]) -> int:
    """Makespan of `order` in picoseconds."""
    if not units.plain:
        return _run(units, order).finish()
    time, stream, waits = units.time, units.stream, units.waits
    done = [0] * len(units)
    free = [0] * (len(units.streams) + 1)  # the last entry is the compute stream's
    for u in order:
        clock = free[COMPUTE]
        for p in waits[u]:
            if done[p] > clock:
                clock = done[p]
        free[COMPUTE] = clock
        s = stream[u]
        begin = clock if clock > free[s] else free[s]
        free[s] = done[u] = begin + time[u]
    return max(free)


def clocks_of(units: Units, record: bool = False) -> Clocks:
    """Clocks at zero for runs of `units`."""
    return Clocks(_rates(units), units.time, units.call, record)


def _run(units: Units, order: Sequence[int], record: bool = False) -> Clocks:
    clocks = clocks_of(units, record)
    stream, waits, host = units.stream, units.waits, units.host or (0,) * len(units)
    for u in order:
        clocks.issue(u, stream[u], waits[u], host[u])
    return clocks


def timeline(units: Units, order: Sequence[int]) -> list[Event]:
    """What runs when, in order of issue; the same account as `replay`."""
    clocks = _run(units, order, record=True)
    clocks.finish()
    return _events(units, order, clocks)


def _events(units: Units, order: Sequence[int], clocks: Clocks) -> list[Event]:
    names = ["compute" if s == COMPUTE else ",".join(units.streams[s]) for s in units.stream]
    assert clocks.begins is not None
    return [Event(units.ids[u], names[u], clocks.begins[u], clocks.ends[u]) for u in order]


def simulate(units: Units, order: Sequence[int] | None = None, peak: int | None = None) -> Simulation:
    """Run the units in `order` (as listed when left out)."""
    order = range(len(units)) if order is None else order
    clocks = _run(units, order, record=True)
    issued = clocks.now
    makespan = clocks.finish()
    events = _events(units, order, clocks)
    busy: dict[str, int] = {"compute": clocks.called}
    for e in events:
        busy[e.stream] = busy.get(e.stream, 0) + e.end - e.begin
    exposed = clocks.stalled + makespan - issued
    peak = units.peak(order) if peak is None else peak
    return Simulation(makespan, AttrDict(busy), exposed, peak, tuple(events), bounds(units), clocks.starved)


def simulate_block(block: Block, cost: CostModel, prices: Prices | None = None) -> Simulation:
    """The block exactly as it is written: in its order, waiting where its waits stand. `prices` as of a `UnitGraph`."""
    units = UnitGraph(block, cost, True, prices).units(memory=False)
    return simulate(units, peak=block_liveness(block).peak)


def makespan_of(block: Block, cost: CostModel) -> int:
    """The time that `simulate_block` finds."""
    units = UnitGraph(block, cost, explicit_waits=True).units(memory=False)
    return replay(units, range(len(units)))


def simulate_module(module: Module, cost: CostModel) -> Simulation:
    """The main function of a per-rank program as written."""
    return simulate_block(module.main.body, cost)
