"""Rewriting the backward pass so that it makes forward values again instead of keeping them.

What the backward pass asks for is either kept, cloned, or a parameter that is to be gathered again. Clones take what they read through
`dmlc.barrier`s, one for each (value, group of segments), which gathered parameters share; a clone stands right before the first op that
needs it. The rewriting is a list of items first: the simulator prices that list, and `apply` makes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dmlc.ir.builder import IdPool
from dmlc.ir.core import BlockArgument, Op, Value
from dmlc.ops.base import definition
from dmlc.passes._placed import Placed
from dmlc.passes._segments import Step

Ref = Value | tuple[str, Value, int]  # a value as it was, or ("clone" | "barrier", value, group)


@dataclass(frozen=True)
class Item:
    """kind "op" (as it was, other operands), "clone" of `op`, or "barrier" on `value`; `group` is the clone's or barrier's."""

    kind: str
    op: Op | None
    operands: tuple[Ref, ...]
    group: int = 0
    value: Value | None = None

    @property
    def results(self) -> list[Ref]:
        if self.kind == "barrier":
            assert self.value is not None
            return [("barrier", self.value, self.group)]
        assert self.op is not None
        return [r if self.kind == "op" else ("clone", r, self.group) for r in self.op.results]


class Rewriting:
    """`recomputed`: forward ops that are cloned. `regathered`: parameters, and forward ops made from nothing but them."""

    def __init__(self, step: Step, placed: Placed, recomputed: Iterable[Op], regathered: Iterable[BlockArgument | Op] = ()):
        self.step, self.placed = step, placed
        self.recomputed = {op: None for op in recomputed if is_clonable(op) and op in step.batched}
        self.regathered = dict.fromkeys(regathered)
        self.group = self._groups()
        self.first = self._first_needs()
        self._triggers: dict[int, Value | None] = {}
        self._made: set[Ref] = set()

    def _groups(self) -> list[int]:
        """Segment -> group: segments are joined where a value that crosses their cut is recomputed."""
        segments = len(self.step.cuts) + 1
        joined = [False] * segments
        for op in self.recomputed:
            here = self.step.segment(op)
            for later in range(here + 1, segments):
                if not self.step.crosses(op, later - 1):
                    break
                joined[later] = True
        groups: list[int] = []
        for segment in range(segments):
            groups.append(groups[-1] if joined[segment] else segment)
        return groups

    def home(self, op: Op) -> int:
        """The group that a forward op belongs to."""
        return self.group[self.step.segment(op)]

    def served(self, op: Op) -> int:
        """The group that a backward op serves."""
        return self.group[self.step.backward_segment[op]]

    # -------------------------------------------------- what is needed where

    def ref(self, value: Value, group: int, barred: bool = False) -> Ref:
        """The form in which an op of the backward pass that belongs to `group` takes a value; `barred`: the op is a clone."""
        if value.op in self.recomputed:
            return ("clone", value, self.home(value.op))
        if value.op in self.regathered:
            return ("clone", value, group)
        if value in self.regathered or barred:
            return ("barrier", value, group)
        return value

    def needs(self, op: Op, group: int) -> tuple[Ref, ...]:
        """Operands of a clone."""
        if op in self.regathered:
            return tuple(self.ref(v, group) for v in op.operands)
        random = definition(op).effects == "random"
        return tuple(self.ref(v, group, random or self.step.is_batched(v)) for v in op.operands)

    def readers(self) -> Iterator[tuple[int, Op]]:
        """Backward ops that take clones, with their numbers: what was made by an earlier rewriting and marks of gradients do not."""
        for op in self.step.backward:
            if op.name not in ("dmlc.gradient", "dmlc.barrier") and not op.regions:
                yield self.step.number[op], op

    def _first_needs(self) -> dict[int, int]:
        """Group -> number of the backward op before which its first clone or barrier stands, or the first that serves it."""
        first: dict[int, int] = {}
        seen: set[Ref] = set()
        for number, op in self.readers():
            first.setdefault(self.served(op), number)
            waiting = [self.ref(v, self.served(op)) for v in op.operands]
            while waiting:
                need = waiting.pop()
                if isinstance(need, tuple) and need not in seen:
                    seen.add(need)
                    first.setdefault(need[2], number)
                    if need[0] == "clone" and need[1].op is not None:
                        waiting += self.needs(need[1].op, need[2])
        return first

    def trigger(self, group: int) -> Value | None:
        """What lets a group's barriers open: the gradient with which the backward pass of the group before (in time) begins.

        The gradient that enters the group itself would come too late for a gather to run ahead. The first group has the last
        value of the forward pass.
        """
        if group not in self._triggers:
            before = [n for g, n in self.first.items() if n < self.first[group]]
            found = self._gradient_at(max(before)) if before else None
            self._triggers[group] = found if found is not None else self._last_forward(self.first[group])
        return self._triggers[group]

    def _gradient_at(self, number: int) -> Value | None:
        for v in reversed(self.step.ops[number].operands):
            if v.op in self.step.backward and self._is_token(v):
                return v
        for op in reversed(self.step.ops[:number]):
            if op in self.step.backward and self._is_token(op.results[0]):
                return op.results[0]
        return None

    def _last_forward(self, number: int) -> Value | None:
        for op in reversed(self.step.ops[:number]):
            if op in self.step.batched and self._is_token(op.results[0]):
                return op.results[0]
        return None

    def _is_token(self, value: Value) -> bool:
        """Only what is made in every microbatch stands in the region of the barriers."""
        return value.op is not None and value.op.name != "dmlc.gradient" and self.placed.is_per_microbatch(value)

    # -------------------------------------------------- items

    def items(self) -> list[Item]:
        """The whole program's ops with the clones and barriers among them."""
        self._made = set()
        readers = {op for _, op in self.readers()}
        found: list[Item] = []
        for op in self.step.ops:
            operands = op.operands
            if op in readers:
                operands = tuple(self.ref(v, self.served(op)) for v in operands)
                for need in operands:
                    self._make(need, found)
            found.append(Item("op", op, operands))
        return found

    def _make(self, need: Ref, found: list[Item]) -> None:
        """Add the items that a reference needs, operands first."""
        waiting = [need]
        while waiting:
            need = waiting[-1]
            if not isinstance(need, tuple) or need in self._made:
                waiting.pop()
                continue
            kind, value, group = need
            operands = (value,) if kind == "barrier" else self.needs(value.op, group)  # type: ignore[arg-type]
            missing = [r for r in operands if isinstance(r, tuple) and r not in self._made]
            if missing:
                waiting += reversed(missing)
                continue
            item = Item(kind, value.op, operands, group, value)
            self._made.update(r for r in item.results if isinstance(r, tuple))
            found.append(item)
            waiting.pop()

    # -------------------------------------------------- application

    def apply(self) -> int:
        """Make the clones and barriers; returns how many ops were added."""
        ids = IdPool(self.step.function)
        new: dict[Ref, Value] = {}
        items = self.items()
        pending: list[Op] = []
        for item in items:
            operands = [new[r] if isinstance(r, tuple) else r for r in item.operands]
            if item.kind == "barrier" and self.trigger(item.group) is None:  # nothing in the loop comes before: the value itself will do
                new.update(zip(item.results, operands))
                continue
            if item.kind != "op":
                made = self._barrier(item, operands[0], ids) if item.kind == "barrier" else self._clone(item, operands, ids)
                new.update(zip(item.results, made.results))
                pending.append(made)
                continue
            assert item.op is not None and item.op.block is not None
            for made in pending:
                item.op.block.insert_before(item.op, made)
            pending = []
            for i, v in enumerate(operands):
                if v is not item.op.operands[i]:
                    item.op.set_operand(i, v)
        return len(items) - len(self.step.ops)

    def _barrier(self, item: Item, value: Value, ids: IdPool) -> Op:
        trigger = self.trigger(item.group)
        assert trigger is not None
        stem = value.name if isinstance(value, BlockArgument) else value.op.id  # type: ignore[union-attr]
        attrs = {"dmlc.id": ids.fresh(f"{stem}.bar{item.group}")}
        return Op("dmlc.barrier", [value, trigger], [value.type], attrs, loc=value.op.loc if value.op is not None else trigger.op.loc)  # type: ignore[union-attr]

    def _clone(self, item: Item, operands: list[Value], ids: IdPool) -> Op:
        op = item.op
        assert op is not None
        attrs = {k: v for k, v in op.attrs.items() if k not in ("dmlc.remat", "dmlc.id")}
        if "dmlc.name" in attrs:
            attrs["dmlc.name"] = f"{attrs['dmlc.name']}#re"
        attrs = {"dmlc.id": ids.fresh(f"{op.id}#re"), "dmlc.of": op.id, **attrs}
        return Op(op.name, operands, [r.type for r in op.results], attrs, loc=op.loc)


def is_clonable(op: Op) -> bool:
    return not op.regions and definition(op).effects in ("", "random") and op.dialect == "dmlc"
