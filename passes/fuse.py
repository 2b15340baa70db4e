"""fuse: pointwise ops and row reductions that share an iteration space become one kernel, so that what passes between them stays in registers.

A greedy search over producer-consumer pairs and then over readers of one value, the largest saving first, as XLA's priority fusion does
(openxla/xla, priority_fusion): a pair merges when the kernel of both costs less than two. A kernel runs over rows and columns
(`dmlc.ops.iteration`); what it yields is what escapes. Norms and softmax count as the reductions they are made of and stay whole in
the text.

A kernel starts when all its inputs are there and delivers when it ends. So a pair is also declined when that would hold up a collective:
one that reads the producer, or one that the consumer waits for and the producer does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dmlc.cost import CostModel
from dmlc.ir.core import Block, Module, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ops.iteration import facts_of
from dmlc.ops.kernel import is_free
from dmlc.passes._gather import gather
from dmlc.passes._kernels import Kernels, Limits, fits, with_free
from dmlc.passes._quotient import Quotient, Unit, is_constant, root
from dmlc.passmanager import Context, Pass
from dmlc.simulate import Choice
from dmlc.simulate.choice import regions_of

NEEDS_ITSELF = "what stands between them cannot be in the kernel"  # no choice, so no remark
SMALL = 8  # an op may wait for a collective it does not need if its result is this many times smaller than what reads it


@dataclass(frozen=True)
class Fuse(Pass):
    """`max_ops` and `min_ops` bound the primitive ops of a kernel, `max_inputs` what it reads.

    Groups that the text gives (`dmlc.group`) are made as they are; with `given` nothing else is fused.
    """

    name = "fuse"
    decides = True
    numerics = "exact"

    max_ops: int = 32
    min_ops: int = 2
    max_inputs: int = 24
    given: bool = False

    @property
    def limits(self) -> Limits:
        return Limits(self.max_ops, self.min_ops, self.max_inputs)

    def run(self, module: Module, context: Context) -> bool:
        cost = CostModel.of(module)
        choice = Choice.of(module, order=False)
        for _, block in list(regions_of(module.main)):
            if not self.given:
                choice = decide(block, choice, cost, self, context)
        return apply(module, choice)


def decide(block: Block, choice: Choice, cost: CostModel, limits: Fuse | None = None, context: Context | None = None) -> Choice:
    """`choice` with groups for the block added to those it has."""
    search = _Search(block, cost, (limits or Fuse()).limits)
    taken = {i for ids in choice.groups for i in ids}
    search.fixed.update(op for op in block if op.id in taken)
    by_id = {op.id: op for op in block}
    for ids in choice.groups:
        _unite(search.quotient, ids, by_id)
    search.run()
    if context is not None:
        search.explain(context)
    return choice.with_(groups=(*choice.groups, *(tuple(op.id for op in group) for group in search.groups())))


def _unite(quotient: Quotient, ids: Sequence[str], by_id: dict[str, Op]) -> Unit | None:
    """Merge a given group's ops that stand in the quotient's block."""
    ops = [by_id[i] for i in ids if i in by_id]
    members = [op for op in ops if not is_free(op)]
    if not members:
        return None
    for op in members:
        if not fits(op):
            raise DmlcError(f"'{op.name}' is in group {ops[0].attrs.get('dmlc.group', 0)} but cannot stand in a kernel", op.loc)
    unit = quotient.unite(members)
    if unit is None:
        raise DmlcError(
            f"the ops of group {ops[0].attrs.get('dmlc.group', 0)} cannot run together: one of them needs what another gives to an op outside", members[0].loc
        )
    return unit


class _Search:
    """Greedy merging in one block."""

    def __init__(self, block: Block, cost: CostModel, limits: Limits):
        self.block = block
        self.quotient = Quotient(block)
        self.kernels = Kernels(self.quotient, cost, limits)
        self.able = {op: fits(op) for op in block}
        self.fixed: set[Op] = set()
        self.refused: dict[tuple[Unit, int, Unit, int], str] = {}
        self.times: dict[tuple[Unit, int], int] = {}

    def run(self) -> None:
        merged = True
        while merged:
            merged = False
            for a, b in [*self._pairs(), *self._siblings()]:
                first, second = self.quotient.home[a], self.quotient.home[b]
                if first is not second and self._try(first, second):
                    merged = True

    def groups(self) -> list[list[Op]]:
        """Ops of each kernel, with the free ops between them, kernels in program order."""
        found = [u.ops for u in self.quotient.order if self._worth(u)]
        return [sorted([*ops, *_between(ops)], key=self.quotient.number.__getitem__) for ops in found]

    def _worth(self, unit: Unit) -> bool:
        return self._open(unit) and self.kernels.is_worth(unit.ops)

    # -------------------------------------------------- candidates

    def _pairs(self) -> list[tuple[Op, Op]]:
        """Producers with their consumers, the largest values first."""
        found = [(-value.tensor.bytes, value.op, reader) for value, reader in self._readings() if value.op is not None and self.able.get(value.op)]
        return [(a, b) for _, a, b in sorted(found, key=lambda t: (t[0], self.quotient.number[t[1]], self.quotient.number[t[2]]))]

    def _siblings(self) -> list[tuple[Op, Op]]:
        """Neighbours among the readers of one value."""
        readers: dict[Value, list[Op]] = {}
        for value, reader in self._readings():
            if value.tensor.rank > 0 and not is_constant(value):
                readers.setdefault(value, []).append(reader)
        found = [(-value.tensor.bytes, a, b) for value, ops in readers.items() for a, b in zip(ops, ops[1:])]
        return [(a, b) for _, a, b in sorted(found, key=lambda t: (t[0], self.quotient.number[t[1]], self.quotient.number[t[2]]))]

    def _readings(self) -> Iterator[tuple[Value, Op]]:
        for value, readers in self.quotient.readers.items():
            for reader in readers:
                if self.able.get(reader) and reader.block is self.block:
                    yield value, reader

    # -------------------------------------------------- one pair

    def _open(self, unit: Unit) -> bool:
        return all(self.able.get(op, False) and op not in self.fixed for op in unit.ops)

    def _try(self, a: Unit, b: Unit) -> bool:
        if a.position > b.position:
            a, b = b, a
        key = (a, len(a.ops), b, len(b.ops))
        if key in self.refused or not (self._open(a) and self._open(b)):
            return False
        later = self.quotient.between(a, b)
        reason = NEEDS_ITSELF if later is None else self._objection(a, b, later)
        if reason or later is None:
            self.refused[key] = reason
            return False
        self.quotient.merge(a, b, later)
        return True

    def _objection(self, a: Unit, b: Unit, later: dict[Unit, None]) -> str:
        """Why a and b stay apart; "" when they may merge."""
        ops = sorted([*a.ops, *b.ops], key=self.quotient.number.__getitem__)
        large = self.kernels.too_large(ops)
        if large:
            return large
        delayed = next((u for u in [*later, *a.succs] if u.communicates and u not in b.succs), None)
        if delayed is not None:
            return f"'{delayed.ops[0].name}' would start later"
        if a.waits != b.waits and not self._may_wait(a, b):
            return "the first op would wait for a collective that only the second needs"
        space = self.kernels.space(ops)
        if isinstance(space, str):
            return space
        return "" if self.kernels.time(ops, space) < self._unit_time(a) + self._unit_time(b) else "the kernel would read wide rows too often"

    def _may_wait(self, a: Unit, b: Unit) -> bool:
        """What only b reads, and is small; in an update also what is made element by element from no more bytes than it is, since the kernel
        takes no longer with it, and a step ends with its updates."""
        if list(a.succs) != [b]:
            return False
        mine = max(r.tensor.numel for op in a.ops for r in op.results)
        if mine * SMALL <= max(r.tensor.numel for op in b.ops for r in op.results):
            return True
        if any(op.attrs.get("dmlc.phase") != "update" or (facts := facts_of(op)) is None or facts.reduced for op in a.ops):
            return False
        numbers = 8 * SMALL  # bytes of scalars, which a kernel reads at once
        return sum(v.tensor.bytes for v in self.quotient.inputs(a.ops)) <= sum(v.tensor.bytes for v in self.quotient.escaping(a.ops)) + numbers

    def _unit_time(self, unit: Unit) -> int:
        key = (unit, len(unit.ops))
        if key not in self.times:
            self.times[key] = self.kernels.time(unit.ops)
        return self.times[key]

    # -------------------------------------------------- reasons

    def explain(self, context: Context) -> None:
        """A remark for every producer and consumer that stay apart though both could be in kernels."""
        for a, b in self._pairs():
            first, second = sorted((self.quotient.home[a], self.quotient.home[b]), key=lambda u: u.position)
            reason = self.refused.get((first, len(first.ops), second, len(second.ops)))
            if first is not second and reason and reason != NEEDS_ITSELF:
                context.remark(b, f"'{b.name}' is not fused with '{a.name}' [{a.id}]: {reason}")


def _between(ops: Sequence[Op]) -> list[Op]:
    """Free ops made of a member's result and read by a member: they belong to the group."""
    inside = set(ops)
    return [op for op in with_free(ops) if is_free(op) and root(op.results[0]).op in inside]


def apply(module: Module, choice: Choice) -> bool:
    """Move every group into a `kernel.fused`."""
    changed = False
    for _, block in list(regions_of(module.main)):
        quotient, by_id = Quotient(block), {op.id: op for op in block}
        units = [u for ids in choice.groups if (u := _unite(quotient, ids, by_id)) is not None]
        if units:
            gather(quotient, units)
            changed = True
    return changed
