"""Microbatch loops out of a flat per-rank program.

In the flat program the sequential axis is an axis like the others: its index is `comm.axis_index`, and a sum over it is an all-reduce. Here
each such sum becomes what a `dmlc.microbatch` region yields. What depends on the index goes into the regions, everything else stays
outside. Sums that the computation needs complete (a count of valid targets) come in earlier loops that hold only their own slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dmlc.ir.builder import IdPool
from dmlc.ir.core import Block, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import TensorType
from dmlc.ops.base import definition
from dmlc.planner.batch import second_pass
from dmlc.simulate.liveness import outside_values

INDEX = TensorType((), "i64")
SINK = "dmlc.sink"  # on an op of the flat program: runs in every iteration though nothing in it depends on the index
LOW = ("f16", "bf16")


@dataclass(frozen=True)
class Loop:
    """One loop: the sums it makes and the ops of its body, in order."""

    exits: list[Op]
    body: list[Op]


def form_loops(flat: Block, mesh: Mesh, ids: IdPool, count: Value, peel: bool) -> Block:
    """The program with loops, in a new block (`flat` is left empty). `count`: the argument with the number of iterations.

    `peel` takes the last iteration out of the last loop, so that what its sums are for can begin while it runs.
    Raises `DmlcError` for a result that is one a microbatch, and where an earlier loop would repeat expensive work.
    """
    former = _Former(flat, mesh, ids, count, peel)
    block = former.run()
    for op in reversed(flat.ops):
        op.erase()
    return block


class _Former:
    def __init__(self, flat: Block, mesh: Mesh, ids: IdPool, count: Value, peel: bool):
        self.flat, self.mesh, self.ids, self.count, self.peel = flat, mesh, ids, count, peel
        self.axis = mesh.axes.sequential[0]
        self.ops = [op for op in flat if op is not flat.last]
        self.reads = {op: outside_values(op) for op in flat}
        self.exits = [op for op in self.ops if self._is_exit(op)]
        self.inside = self._inside()
        self.block = Block()
        self.mapping: dict[Value, Value] = {a: self.block.add_arg(a.type, a.name, dict(a.attrs)) for a in flat.args}
        self._last_index: Value | None = None

    def run(self) -> Block:
        for v in self.flat.last.operands:  # type: ignore[union-attr]
            if v.op in self.inside:
                raise DmlcError(f"a result of '{v.op.name}' is another in every microbatch; only sums over the batch leave them", v.op.loc)  # type: ignore[union-attr]
        loops = self._loops()
        stage = self._stages(loops)
        for s in range(len(loops) + 1):
            for op in self.ops:
                if stage.get(op) == s:
                    self.block.append(op.clone(self.mapping))
            if s < len(loops):
                self._emit(loops[s], last=s == len(loops) - 1, suffix="" if s == len(loops) - 1 else f"#first{s or ''}")
        self.block.append(self.flat.last.clone(self.mapping))  # type: ignore[union-attr]
        for op in self.block.ops:
            for inner in op.walk():
                inner.attrs.pop(SINK, None)
        return self.block

    # -------------------------------------------------- analysis

    def _is_exit(self, op: Op) -> bool:
        return op.name == "comm.all_reduce" and tuple(op.attrs["axes"]) == (self.axis,)

    def _is_index(self, op: Op) -> bool:
        return op.name == "comm.axis_index" and op.attrs["axis"] == self.axis

    def _inside(self) -> set[Op]:
        """Ops that run in every iteration."""
        inside: set[Op] = set()
        for op in self.ops:
            if not self._is_exit(op) and (self._is_index(op) or SINK in op.attrs or any(v.op in inside for v in self.reads[op])):
                inside.add(op)
        return inside

    def _loops(self) -> list[Loop]:
        """The loops in order. A sum is made as late as those that need it allow."""
        needs: dict[Op, frozenset[Op]] = {}  # op -> the sums it depends on
        for op in self.ops:
            found: set[Op] = set()
            for v in self.reads[op]:
                if v.op is not None:
                    found |= needs[v.op] | ({v.op} if self._is_exit(v.op) else set())
            needs[op] = frozenset(found)
        level: dict[Op, int] = {}
        for e in reversed(self.exits):
            level[e] = min((level[x] - 1 for x in self.exits if e in needs[x]), default=0)
        loops = []
        for at in sorted(set(level.values())):
            exits = [e for e in self.exits if level[e] == at]
            loops.append(Loop(exits, self._slice([e.operands[0] for e in exits])))
        for loop in loops[:-1]:
            self._check_cheap(loop)
        return loops

    def _slice(self, values: Sequence[Value]) -> list[Op]:
        """The inside ops that the values are made of."""
        wanted, work = set(), [v.op for v in values]
        while work:
            op = work.pop()
            if op is not None and op in self.inside and op not in wanted:
                wanted.add(op)
                work += [v.op for v in self.reads[op]]
        return [op for op in self.ops if op in wanted]

    @staticmethod
    def _check_cheap(loop: Loop) -> None:
        heavy = next((op for op in loop.body if definition(op).precision == "low"), None)
        if heavy is not None:
            raise second_pass(heavy)

    def _stages(self, loops: list[Loop]) -> dict[Op, int]:
        """Outside op -> the loop it comes before (the number of loops: after all of them), as late as its users allow."""
        first: dict[Op, int] = {}
        for s, loop in reversed(list(enumerate(loops))):
            first.update(dict.fromkeys((*loop.body, *loop.exits), s))
        stage: dict[Op, int] = {}
        latest: dict[Op, int] = {}
        for op in reversed(self.ops):
            if op in first or op in self.inside:
                at = first.get(op)
            else:
                at = stage[op] = latest.get(op, len(loops))
            for v in self.reads[op] if at is not None else ():
                if v.op is not None:
                    latest[v.op] = min(latest.get(v.op, at), at)  # type: ignore[type-var]
        return stage

    # -------------------------------------------------- emission

    def _emit(self, loop: Loop, last: bool, suffix: str) -> None:
        peel, planned = self.peel and last, self.mesh.sizes[self.axis]
        count = self._one_less() if peel else self.mapping[self.count]
        op = Op("dmlc.microbatch", [count], [e.results[0].type for e in loop.exits], {"count": planned - 1 if peel else planned})
        op.attrs["dmlc.id"] = self.ids.fresh("loop")
        if any(e.results[0].dtype in LOW for e in loop.exits):
            op.attrs["acc"] = tuple("f32" if e.results[0].dtype in LOW else e.results[0].dtype for e in loop.exits)
        body = op.add_region().add_block()
        inner = self._body(loop, body, body.add_arg(INDEX, "micro"), suffix)
        body.append(Op("dmlc.yield", [self._value(inner, e.operands[0]) for e in loop.exits], ()))
        self.block.append(op)
        totals: list[Value] = list(op.results)
        if peel:
            outer = self._body(loop, self.block, count, "#peel")
            totals = [self._add(e, t, self._value(outer, e.operands[0])) for e, t in zip(loop.exits, totals)]
        self.mapping.update(zip((e.results[0] for e in loop.exits), totals))

    def _value(self, inner: dict[Value, Value], value: Value) -> Value:
        return inner.get(value) or self.mapping[value]

    def _body(self, loop: Loop, block: Block, index: Value, suffix: str) -> dict[Value, Value]:
        """The ops of one iteration at the end of `block`; gives the new values of the old."""
        mapping = dict(self.mapping)
        for op in loop.body:
            if self._is_index(op):
                mapping[op.results[0]] = index
                continue
            copy = op.clone(mapping, suffix)
            for new in copy.walk() if suffix else ():
                if "dmlc.of" in new.attrs:
                    new.attrs["dmlc.of"] += suffix
                if suffix == "#peel" and new.dialect == "comm":
                    new.attrs["dmlc.iteration"] = "peel"
            block.append(copy)
        return mapping

    def _add(self, exit_: Op, total: Value, more: Value) -> Value:
        op = Op("dmlc.add", [total, more], [total.type], {"dmlc.id": self.ids.fresh(f"{exit_.id}.last")}, loc=exit_.loc)
        self.block.append(op)
        return op.results[0]

    def _one_less(self) -> Value:
        """The index of the last iteration."""
        if self._last_index is None:
            one = Op("dmlc.full", (), [INDEX], {"value": 1, "dmlc.id": self.ids.fresh("loop.one")})
            last = Op("dmlc.sub", [self.mapping[self.count], one.results[0]], [INDEX], {"dmlc.id": self.ids.fresh("loop.last")})
            self.block.append(one)
            self.block.append(last)
            self._last_index = last.results[0]
        return self._last_index
