"""A block's ops gathered into units, in an order that stays topological while units merge.

The order is kept as Pearce and Kelly do for inserted edges (A dynamic topological sort algorithm, JEA 2006): merging a and b only
reorders what stands between them. Ops that a kernel recomputes (`is_free`) are no units: whoever reads one depends on what it is made of.
"""

from __future__ import annotations

from collections.abc import Sequence

from dmlc.ir.core import Block, Op, Value
from dmlc.ops.base import definition
from dmlc.ops.kernel import is_free
from dmlc.simulate.liveness import outside_values


def root(value: Value) -> Value:
    """The value itself, or what a chain of free ops makes it of; a constant's root is the constant."""
    while value.op is not None and is_free(value.op) and value.op.operands:
        value = value.op.operands[0]
    return value


def is_constant(value: Value) -> bool:
    """A root that a kernel makes itself."""
    return value.op is not None and is_free(value.op)


def communicates(op: Op) -> bool:
    return definition(op).effects == "comm"


class Unit:
    """Ops that run together; `preds` and `succs` in order of first mention."""

    __slots__ = ("ops", "preds", "succs", "position", "waits")

    def __init__(self, op: Op, position: int):
        self.ops = [op]
        self.preds: dict[Unit, None] = {}
        self.succs: dict[Unit, None] = {}
        self.position = position
        self.waits = 0  # bits of the collectives it has to wait for

    @property
    def communicates(self) -> bool:
        return len(self.ops) == 1 and communicates(self.ops[0])


class Quotient:
    """The units of one block, first all ops alone."""

    def __init__(self, block: Block):
        self.block = block
        ops = [op for op in block if not is_free(op)]
        self.number = {op: i for i, op in enumerate(block)}
        self.order = [Unit(op, i) for i, op in enumerate(ops)]
        self.home = {unit.ops[0]: unit for unit in self.order}
        self.readers: dict[Value, dict[Op, None]] = {}
        self.reads = {op: [(v, root(v)) for v in outside_values(op)] for op in ops}  # values, and what they are made of
        for op, reads in self.reads.items():
            for _, made in reads:
                self.readers.setdefault(made, {})[op] = None
        self._link()
        self._mark_waits()

    def _link(self) -> None:
        """Edges of data, and a chain through the collectives, whose order all ranks share."""
        last = None
        for unit in self.order:
            op = unit.ops[0]
            for _, origin in self.reads[op]:
                if origin.op in self.home:
                    self._edge(self.home[origin.op], unit)
            if communicates(op):
                if last is not None:
                    self._edge(last, unit)
                last = unit

    @staticmethod
    def _edge(before: Unit, after: Unit) -> None:
        if before is not after:
            before.succs[after] = None
            after.preds[before] = None

    def _mark_waits(self) -> None:
        """Every collective that reads computed values is one bit; gathers of stored weights can be done ahead and are none."""
        works: dict[Unit, bool] = {}
        bits: dict[Unit, int] = {}
        for unit in self.order:
            op = unit.ops[0]
            before = [self.home[made] for v in self._awaited(op) if (made := v.op) in self.home]
            works[unit] = any(works[p] for p in before) or not (communicates(op) or op.name in ("dmlc.barrier", "comm.axis_index"))
            for p in before:
                unit.waits |= p.waits | bits.get(p, 0)
            if unit.communicates and any(works[p] for p in before):
                bits[unit] = 1 << len(bits)

    def _awaited(self, op: Op) -> Sequence[Value]:
        """What the op's inputs are made of. A barrier's trigger orders it but is no input."""
        return [root(op.operands[0])] if op.name == "dmlc.barrier" else [made for _, made in self.reads[op]]

    # -------------------------------------------------- merging

    def between(self, a: Unit, b: Unit) -> dict[Unit, None] | None:
        """Units that stand between a and b and depend on a; None when b depends on one of them, so that a and b cannot merge."""
        found: dict[Unit, None] = {}
        pending = [u for u in a.succs if u is not b]
        while pending:
            unit = pending.pop()
            if unit.position > b.position or unit in found:
                continue
            if b in unit.succs:
                return None
            found[unit] = None
            pending.extend(unit.succs)
        return found

    def merge(self, a: Unit, b: Unit, later: dict[Unit, None]) -> Unit:
        """One unit of a and b (a stands first), before the units `later` that `between` gave."""
        low, high = a.position, b.position
        window = self.order[low : high + 1]
        for op in b.ops:
            self.home[op] = a
        a.ops = sorted([*a.ops, *b.ops], key=self.number.__getitem__)
        a.waits |= b.waits
        self._adopt(a, b)
        before = [u for u in window if u not in later and u is not a and u is not b]
        self.order[low : high + 1] = [*before, a, *later_in_order(window, later)]
        for i in range(low, len(self.order)):
            self.order[i].position = i
        return a

    def _adopt(self, a: Unit, b: Unit) -> None:
        for p in b.preds:
            del p.succs[b]
            self._edge(p, a)
        for s in b.succs:
            del s.preds[b]
            self._edge(a, s)
        a.preds.pop(b, None)
        a.succs.pop(b, None)

    def unite(self, ops: Sequence[Op]) -> Unit | None:
        """Merge the units of some ops; None when that would be a cycle."""
        units = list(dict.fromkeys(self.home[op] for op in ops))
        whole = min(units, key=lambda u: u.position)
        rest = [u for u in units if u is not whole]
        while rest:
            for other in sorted(rest, key=lambda u: u.position):
                first, second = sorted((whole, other), key=lambda u: u.position)
                later = self.between(first, second)
                if later is not None:
                    whole = self.merge(first, second, later)
                    rest.remove(other)
                    break
            else:
                return None
        return whole

    def escaping(self, ops: Sequence[Op]) -> list[Value]:
        """Results that somebody outside of `ops` reads, also through free ops."""
        inside = set(ops)
        return [r for op in ops for r in op.results if any(reader not in inside for reader in self.readers.get(r, ()))]

    def inputs(self, ops: Sequence[Op]) -> list[Value]:
        """What `ops` read from outside, constants left out, in order of first use."""
        inside = set(ops)
        roots = dict.fromkeys(root(v) for op in ops for v in op.operands)
        return [v for v in roots if v.op not in inside and not is_constant(v)]


def later_in_order(window: Sequence[Unit], later: dict[Unit, None]) -> list[Unit]:
    return [u for u in window if u in later]
