"""Event simulation of one rank: a stream of computation and one of communication for each set of mesh axes.

The rank issues units in order. A computation runs when the one before is done. A start costs the rank nothing: its collective runs
once everything issued before it is done and its stream is free. The first unit that needs a collective's result waits for it,
and so does everything issued after that unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dmlc.cost import CostModel
from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Block, Module
from dmlc.simulate.liveness import block_liveness
from dmlc.simulate.units import COMPUTE, UnitGraph, Units


@dataclass(frozen=True)
class Event:
    """A unit's run: begin and end in picoseconds; `stream` is "compute" or the axes of a collective, joined by commas."""

    unit: str
    stream: str
    begin: int
    end: int


@dataclass(frozen=True)
class Bounds:
    """What no order can beat (picoseconds)."""

    computation: int
    communication: int
    critical_path: int

    @property
    def best(self) -> int:
        return max(self.computation, self.communication, self.critical_path)


@dataclass(frozen=True)
class Simulation:
    """makespan and busy times in picoseconds, peak memory in bytes; exposed = time in which the compute stream waits for communication."""

    makespan: int
    busy: AttrDict
    exposed: int
    peak: int
    timeline: tuple[Event, ...]
    bounds: Bounds

    @property
    def gap(self) -> float:
        """How far the makespan is above the bound: 0.1 = ten percent."""
        return self.makespan / self.bounds.best - 1 if self.bounds.best else 0.0


def bounds(units: Units) -> Bounds:
    loads = [0] * (len(units.streams) + 1)
    for time, stream in zip(units.time, units.stream):
        loads[stream] += time
    return Bounds(loads[COMPUTE], max(loads[:-1], default=0), max(tails(units), default=0))


def tails(units: Units) -> list[int]:
    """Unit -> time of the longest chain that begins with it."""
    tail = list(units.time)
    for u in reversed(range(len(units))):
        tail[u] += max((tail[s] for s in units.succs[u]), default=0)
    return tail


def replay(units: Units, order: Sequence[int]) -> int:
    """Makespan of `order` in picoseconds."""
    time, stream, preds = units.time, units.stream, units.preds
    done = [0] * len(units)
    free = [0] * (len(units.streams) + 1)  # the last entry is the compute stream's
    for u in order:
        clock = free[COMPUTE]
        for p in preds[u]:
            if done[p] > clock:
                clock = done[p]
        free[COMPUTE] = clock
        s = stream[u]
        begin = clock if clock > free[s] else free[s]
        free[s] = done[u] = begin + time[u]
    return max(free)


def timeline(units: Units, order: Sequence[int]) -> list[Event]:
    """What runs when, in order of issue; the same account as `replay`."""
    names = ["compute" if s == COMPUTE else ",".join(units.streams[s]) for s in units.stream]
    done = [0] * len(units)
    free = [0] * (len(units.streams) + 1)
    events = []
    for u in order:
        free[COMPUTE] = max([free[COMPUTE], *(done[p] for p in units.preds[u])])
        begin = max(free[COMPUTE], free[units.stream[u]])
        free[units.stream[u]] = done[u] = begin + units.time[u]
        events.append(Event(units.ids[u], names[u], begin, done[u]))
    return events


def simulate(units: Units, order: Sequence[int] | None = None, peak: int | None = None) -> Simulation:
    """Run the units in `order` (as listed when left out)."""
    order = range(len(units)) if order is None else order
    events = timeline(units, order)
    busy: dict[str, int] = {"compute": 0}
    for e in events:
        busy[e.stream] = busy.get(e.stream, 0) + e.end - e.begin
    makespan = max((e.end for e in events), default=0)
    return Simulation(makespan, AttrDict(busy), makespan - busy["compute"], units.peak(order) if peak is None else peak, tuple(events), bounds(units))


def simulate_block(block: Block, cost: CostModel) -> Simulation:
    """The block exactly as it is written: in its order, waiting where its waits stand."""
    units = UnitGraph(block, cost, explicit_waits=True).units()
    return simulate(units, peak=block_liveness(block).peak)


def simulate_module(module: Module, cost: CostModel) -> Simulation:
    """The main function of a per-rank program as written."""
    return simulate_block(module.main.body, cost)
