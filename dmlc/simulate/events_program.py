"""A rank's program as instructions for the event engine (`dmlc.simulate.events`): prices, streams and jumps, no IR left to look at.

Loops become a head and a jump back, a branch the one that takes longest alone, `pipe.schedule` the region of the rank's stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from dmlc.cost import Cost, CostModel
from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Block, Op, Value
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import FutureType
from dmlc.ops.comm import is_start
from dmlc.ops.control import LOOPS, arguments, bodies, parts, trips
from dmlc.simulate.kinds import COPIES, kind_of
from dmlc.simulate.rows import COMPUTE_ROW, axes_of, id_of, is_shown, is_traffic, name_of, row_of

# Instructions are tuples that begin with one of these.
COMPUTE = 0  # op, time, host, mark
POST = 1  # op, slot, stream, time, host, mark, channel
WAIT = 2  # op, slot, mark
ALIAS = 3  # ((slot, slot it takes the future of), ...)
ENTER = 4  # loop, where it ends, mark
HEAD = 5  # loop
BACK = 6  # loop, its head
FINISH = 7
UNLESS_FIRST = 8  # loop, where to go in its first iteration
NO_OP = -1

Instruction = tuple
Channel = tuple  # what the ranks that meet in a collective or a message have in common; () where a rank meets only ranks like itself


@dataclass(frozen=True)
class Item:
    """What the report says of an op: its id, `row` and `name` on a trace, whether it is shown there, `kind` (`dmlc.simulate.kinds`), its price.
    The sums of a loop are items of its `dmlc.yield`."""

    op: Op
    id: str
    row: str
    name: str
    shown: bool
    kind: str
    cost: Cost
    host: int = 0  # picoseconds in which the host issues it

    @property
    def moves(self) -> bool:
        """Whether it is a collective or a message."""
        return self.row != COMPUTE_ROW


@dataclass(frozen=True)
class Stream:
    """Communication along mesh axes: its physical link, percent of full speed of both sides while it moves beside computation."""

    axes: tuple[str, ...]
    link: int
    computing: int = 100
    moving: int = 100


@dataclass
class Program:
    """Instructions over `items` and `streams`; `slots` futures, `counts` of the loops' iterations (an outer loop before those inside)."""

    code: list[Instruction] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    slots: int = 0
    counts: list[int] = field(default_factory=list)


Marks = Mapping[Op, int]


class Compiler:
    """Compiles the program of the ranks at `coordinates` (mesh axis -> index): `factor` slows all computation, `marks` are the ops whose
    begin is to be recorded, `channel(op, axes)` says whom a collective meets."""

    def __init__(
        self,
        cost: CostModel,
        mesh: Mesh,
        coordinates: Mapping[str, int],
        factor: Fraction = Fraction(1),
        marks: Marks | None = None,
        channel: Callable[[Op, tuple[str, ...]], Channel] = lambda op, axes: (),
    ):
        self.cost, self.mesh, self.coordinates, self.factor, self.marks, self.channel = cost, mesh, coordinates, factor, marks or {}, channel
        self.program = Program()
        self._slot: dict[Value, int] = {}
        self._stream: dict[tuple[str, ...], int] = {}

    def compile(self, block: Block) -> Program:
        self._block(block)
        self._emit(FINISH)
        return self.program

    def _block(self, block: Block) -> None:
        for op in block:
            if op.name not in TERMINATORS:
                self._op(op)

    def _op(self, op: Op) -> None:
        if op.regions and op.name != "kernel.fused":
            self._regions(op)
        elif op.name == "comm.wait":
            self._emit(WAIT, self._item(op, Cost()), self._slot_of(op.operands[0]), self._mark(op))
            if (start := op.operands[0].op) is not None:
                self._copy(start, self.cost.copies(start)[1])
        elif is_traffic(op):
            self._traffic(op)
        else:
            self._computation(op, op)

    def _computation(self, op: Op, priced: Op) -> None:
        """A run of `op` at the price of `priced`."""
        price, host = self.cost.op(priced), self.cost.host(priced)
        self._emit(COMPUTE, self._item(op, price, host), self._delayed(price.time), host, self._mark(op))

    def _delayed(self, time: int) -> int:
        return -(-time * self.factor.numerator // self.factor.denominator)

    def _traffic(self, op: Op) -> None:
        """A start, or a collective or message that is waited for at once."""
        axes, price, host = axes_of(op), self.cost.op(op), self.cost.host(op)
        before, after = self.cost.copies(op)
        self._copy(op, before)
        item, slot = self._item(op, price, host), self._slot_of(op.results[0]) if is_start(op) else self._new_slot()
        self._emit(POST, item, slot, self._stream_of(axes), price.time, host, self._mark(op), self.channel(op, axes))
        if not is_start(op):
            self._emit(WAIT, NO_OP, slot, NO_OP)
            self._copy(op, after)

    def _copy(self, op: Op, time: int) -> None:
        """What a collective takes of its own rank; no op of the program, so not shown by itself."""
        if time:
            self.program.items.append(Item(op, id_of(op), COMPUTE_ROW, name_of(op), False, COPIES, Cost(time, source="measured")))
            self._emit(COMPUTE, len(self.program.items) - 1, self._delayed(time), 0, NO_OP)

    def _stream_of(self, axes: tuple[str, ...]) -> int:
        if axes not in self._stream:
            self._stream[axes] = len(self.program.streams)
            self.program.streams.append(Stream(axes, self.cost.link_index(axes, self.mesh), *self.cost.slow_down(axes, self.mesh)))
        return self._stream[axes]

    def _new_slot(self) -> int:
        self.program.slots += 1
        return self.program.slots - 1

    def _slot_of(self, future: Value) -> int:
        if future not in self._slot:
            self._slot[future] = self._new_slot()
        return self._slot[future]

    def _item(self, op: Op, cost: Cost, host: int = 0) -> int:
        self.program.items.append(Item(op, id_of(op), row_of(op), name_of(op), is_shown(op), kind_of(op), cost, host))
        return len(self.program.items) - 1

    def _mark(self, op: Op) -> int:
        return self.marks.get(op, NO_OP)

    def _emit(self, *instruction: object) -> None:
        self.program.code.append(instruction)

    # -------------------------------------------------- regions

    def _regions(self, op: Op) -> None:
        if op.name == "pipe.schedule":
            self._branch(op, op.regions[self.coordinates[op.attrs["axis"]]].block)
        elif op.name == "dmlc.cond":
            self._branch(op, max((r.block for r in op.regions), key=self._alone))
        else:
            self._loop(op)

    def _branch(self, op: Op, block: Block) -> None:
        self._block(block)
        self._alias(op.results, block.terminator.operands)

    def _alone(self, block: Block) -> int:
        """How long a branch takes on a rank by itself."""
        from dmlc.simulate.events import makespan

        return makespan(Compiler(self.cost, self.mesh, self.coordinates, self.factor).compile(block))

    def _loop(self, op: Op) -> None:
        """The head is where an iteration begins; carried futures move from a yield's operands to the block's arguments."""
        block, code = bodies(op)[0], self.program.code
        loop = len(self.program.counts)
        self.program.counts.append(trips(op))
        carried = arguments(op, block) if op.name in LOOPS else ()
        self._alias(carried, op.operands)
        enter = len(code)
        self._emit(ENTER)
        self._emit(HEAD, loop)
        for region in op.regions:
            self._block(region.block)
        if op.name == "dmlc.microbatch":
            self._sums(op, block.terminator, loop)
        elif op.name == "dmlc.scan":
            self._rows(op, block.terminator)
        self._alias(carried, block.terminator.operands)
        self._emit(BACK, loop, enter + 1)
        code[enter] = (ENTER, loop, len(code), self._mark(op))
        self._alias(op.results, carried)

    def _sums(self, op: Op, last: Op, loop: int) -> None:
        """What the body yields is brought to its accumulator's dtype and, from the second iteration on, added to it."""
        kept = op.attrs.get("acc", ()) or [v.dtype for v in last.operands]
        totals = [(v.tensor, v.tensor.with_dtype(dtype)) for v, dtype in zip(last.operands, kept)]
        for given, total in totals:
            if given != total:
                self._computation(last, Op("dmlc.cast", [Value(given)], [total], {"to": total.dtype}))
        jump = len(self.program.code)
        self._emit(UNLESS_FIRST)
        for _, total in totals:
            self._computation(last, Op("dmlc.add", [Value(total), Value(total)], [total]))
        self.program.code[jump] = (UNLESS_FIRST, loop, len(self.program.code))

    def _rows(self, op: Op, last: Op) -> None:
        """Each row is copied into its stack."""
        for row in last.operands[len(parts(op, op.operands)[0]) :]:
            self._computation(last, Op("dmlc.copy", [Value(row.type)], [row.type]))

    def _alias(self, names: Sequence[Value], sources: Sequence[Value]) -> None:
        pairs = tuple((self._slot_of(n), self._slot_of(s)) for n, s in zip(names, sources) if isinstance(s.type, FutureType) and n is not s)
        if pairs:
            self._emit(ALIAS, pairs)
