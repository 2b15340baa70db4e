"""A whole step of a per-rank program: its time, how much of its communication is exposed, what its memory is taken by.

The program is walked as it is written, with the clocks of `dmlc.simulate.engine`: one of computation and one for each set of mesh axes,
which loops hand on, so that a collective started before a loop still holds its link inside. A loop's body is walked until an
iteration leaves the clocks as it found them; the others are equal to it and are only counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dmlc.cost import CostModel
from dmlc.ir.attributes import AttrDict
from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Block, Module, Op, Value
from dmlc.ops.comm import base_name, is_start
from dmlc.simulate.categories import memory_at_peak

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind in a step: how many, the bytes a rank sends in them, the picoseconds they take one by one."""

    count: int = 0
    bytes: int = 0
    time: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.count + other.count, self.bytes + other.bytes, self.time + other.time)

    def times(self, count: int) -> Traffic:
        return Traffic(self.count * count, self.bytes * count, self.time * count)


@dataclass(frozen=True)
class StepReport:
    """Times in picoseconds, sizes in bytes, all of one rank.

    time           of the step
    computation    the compute stream's busy time
    communication  the streams' busy times, added up
    exposed        time in which computation waits for communication: time - computation
    peak           most bytes alive at a time
    memory         what these bytes are, by category (`dmlc.simulate.categories`); adds up to the peak
    traffic        collectives by kind ("all_reduce"), `Traffic` each
    streams        busy time by stream: mesh axes joined by commas
    """

    time: int
    computation: int
    communication: int
    exposed: int
    peak: int
    memory: AttrDict
    traffic: AttrDict
    streams: AttrDict

    @property
    def exposed_share(self) -> float:
        """Part of the communication that is not hidden behind computation, 0 to 1; 0 where nothing is communicated."""
        return min(self.exposed / self.communication, 1.0) if self.communication else 0.0


def simulate_step(module: Module, cost: CostModel) -> StepReport:
    """One run of a per-rank program's main function, with the numbers of iterations that its loops name."""
    walk = _Walk(cost)
    walk.block(module.main.body)
    memory = memory_at_peak(module.main)
    time = max([walk.now, *walk.free.values()])
    streams = AttrDict((",".join(axes), busy) for axes, busy in walk.totals.busy.items())
    computation = walk.totals.computation
    return StepReport(
        time, computation, sum(streams.values()), time - computation, sum(memory.values()), AttrDict(memory), AttrDict(walk.totals.traffic), streams
    )


@dataclass
class _Totals:
    """What has been done so far."""

    computation: int = 0
    busy: dict[Axes, int] = field(default_factory=dict)
    traffic: dict[str, Traffic] = field(default_factory=dict)

    def copy(self) -> _Totals:
        return _Totals(self.computation, dict(self.busy), dict(self.traffic))

    def repeat_since(self, before: _Totals, count: int) -> None:
        """Add `count` times what has been added since `before`."""
        self.computation += (self.computation - before.computation) * count
        for axes, busy in self.busy.items():
            self.busy[axes] += (busy - before.busy.get(axes, 0)) * count
        for kind, now in self.traffic.items():
            self.traffic[kind] = now + now.times(count) + before.traffic.get(kind, Traffic()).times(-count)


class _Walk:
    """The clocks: `now` of the rank, `free` of each stream, `done` of each collective in flight (by its future)."""

    def __init__(self, cost: CostModel):
        self.cost = cost
        self.now = 0
        self.free: dict[Axes, int] = {}
        self.done: dict[Value, int] = {}
        self.totals = _Totals()

    def block(self, block: Block) -> None:
        for op in block:
            if op.name not in TERMINATORS:
                self._op(op)

    def _op(self, op: Op) -> None:
        if op.regions and op.name != "kernel.fused":
            self._regions(op)
        elif op.name == "comm.wait":
            self.now = max(self.now, self.done.pop(op.operands[0], 0))
        elif op.dialect == "comm" and op.name != "comm.axis_index":
            self._communicate(op)
        else:
            time = self.cost.op(op).time
            self.now += time
            self.totals.computation += time

    def _communicate(self, op: Op) -> None:
        """A start only queues; a synchronous collective, or a message, is waited for."""
        axes = tuple(op.attrs.get("axes") or (op.attrs["axis"],))
        price = self.cost.op(op)
        begin = max(self.now, self.free.get(axes, 0))
        self.free[axes] = end = begin + price.time
        if is_start(op):
            self.done[op.results[0]] = end
        else:
            self.now = end
        kind = base_name(op).removeprefix("comm.")
        self.totals.busy[axes] = self.totals.busy.get(axes, 0) + price.time
        self.totals.traffic[kind] = self.totals.traffic.get(kind, Traffic()) + Traffic(1, price.bytes, price.time)

    # -------------------------------------------------- loops, branches

    def _regions(self, op: Op) -> None:
        if op.name == "dmlc.cond" or op.name == "pipe.schedule":
            self._slowest([r.block for r in op.regions])
            return
        count = op.attrs.get("count", 1)
        for done in range(1, count + 1):
            state, now, totals = self._relative(), self.now, self.totals.copy()
            self.block(op.region.block)
            if self._relative() == state:
                self._skip(count - done, self.now - now, totals)
                return

    def _relative(self) -> tuple[int, ...]:
        """How long each stream is still busy: all that the time of what follows depends on."""
        return tuple(max(0, end - self.now) for end in self.free.values())

    def _skip(self, count: int, time: int, before: _Totals) -> None:
        """`count` more iterations like the last, which took `time` and found `before`."""
        self.totals.repeat_since(before, count)
        self.now += time * count
        self.free = {axes: end + time * count for axes, end in self.free.items()}
        self.done = {future: end + time * count for future, end in self.done.items()}

    def _slowest(self, blocks: Sequence[Block]) -> None:
        """A rank takes one of the blocks: the one that ends last."""
        start = (self.now, self.free, self.done, self.totals)
        ends = []
        for block in blocks:
            self.now, self.free, self.done, self.totals = start[0], dict(start[1]), dict(start[2]), start[3].copy()
            self.block(block)
            ends.append((self.now, self.free, self.done, self.totals))
        self.now, self.free, self.done, self.totals = max(ends, key=lambda e: e[0])
