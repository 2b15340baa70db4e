"""The gradient of a scan: the loop backwards over what the forward one saved.

The backward loop carries the gradients of what the loop carries, and sums for what the body reads from outside. Its rows are those that the
loop scanned, the gradients of those it stacked, and what the loop now stacks for it: the values carried into each iteration and the
results of contractions, those of them that are read. The rest of the body is computed again. A sum over the iterations of a product, as a
weight's gradient is, is no sum in the loop but one product over stacks behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dmlc.ir.attributes import AttrDict
from dmlc.ir.builder import Builder
from dmlc.ir.core import Block, BlockArgument, Op, OpResult, Region, Value
from dmlc.ir.types import TensorType
from dmlc.ops.base import attribute, flops_of
from dmlc.ops.contraction import terms_of
from dmlc.ops.control import parts, row_type, stack_type
from dmlc.ops.terms import full
from dmlc.passes._reverse import Reverse, activity, block_builder, captured, copy_ops
from dmlc.passes.dce import erase_unused

if TYPE_CHECKING:
    from dmlc.passes._reverse_regions import Grads

INDEX = TensorType((), "i64")


class ScanReverse:
    """Builds the backward loop of `op`; `grads` are those of its results."""

    def __init__(self, outer: Reverse, op: Op, grads: Grads):
        self.outer, self.op, self.grads = outer, op, grads
        self.count, self.body, self.b = op.attrs["count"], op.region.block, outer.b
        self.carried, self.scanned, self.shared = parts(op, op.operands)
        self.states, self.rows, self.same = parts(op, self.body.args[1:])
        self.active = [k for k, a in enumerate(self.states) if a in outer.active]
        shared = [v for a, v in zip(self.same, self.shared) if a in outer.active]
        self.outside = list(dict.fromkeys([*(v for v in captured(op) if v in outer.active), *shared]))
        self.block = Block([INDEX, *(self.states[k].type for k in self.active)])
        self.row_args: list[tuple[BlockArgument, Value]] = []  # argument of the block, the stack it is a row of
        self.later: list[tuple[Value, Op, list[Value]]] = []  # value from outside, op that makes its gradient, that op's operands

    def run(self) -> None:
        inner, clones = self._swept()
        carried = [_or_zeros(inner.b, inner.grads.get(self.again[k]), self.states[k]) for k in self.active]
        totals, sums = self._totals(inner)
        scanned = [(x, g) for x, arg in zip(self.scanned, self.row_of_scanned) if (g := inner.grads.get(arg)) is not None]
        sources = dict(self.row_args)
        stacked = list(dict.fromkeys([g for _, g in scanned] + [v for *_, values in self.later for v in values if v not in sources]))
        inner.b.op("dmlc.yield", [*carried, *sums, *stacked], result_types=[])
        self._keep_products(clones)
        made = self._emit(list(totals), stacked)
        results = [*(self.carried[k] for k in self.active), *totals]
        for value, grad in zip(results, made.results):
            self.outer.add(value, grad)
        stacks = dict(zip(stacked, made.results[len(results) :]))
        for x, grad in scanned:
            self.outer.add(x, stacks[grad])
        for value, op, operands in self.later:
            self.outer.add(value, self._summed(op, [self._source(sources[v]) if v in sources else stacks[v] for v in operands]))

    # -------------------------------------------------- the body

    def _row(self, stack: Value) -> BlockArgument:
        arg = self.block.add_arg(row_type(stack.tensor))
        self.row_args.append((arg, stack))
        return arg

    def _saved(self, value: Value) -> BlockArgument:
        """A row of a stack that the forward loop will make of a value of its body."""
        stack = Value(stack_type(value.tensor, self.count))
        self.to_save.append((value, stack))
        return self._row(stack)

    def _swept(self) -> tuple[Reverse, list[tuple[Op, Op]]]:
        """The forward ops once more, then the backward ones."""
        outer, op, block = self.outer, self.op, self.block
        self.to_save: list[tuple[Value, Value]] = []
        self.again = [self._saved(a) for a in self.states]
        self.row_of_scanned = [self._row(x) for x in self.scanned]
        outer.active.update(self.again[k] for k in self.active)
        outer.active.update(r for r, arg in zip(self.row_of_scanned, self.rows) if arg in outer.active)
        mapping: dict[Value, Value] = {
            self.body.args[0]: block.args[0],
            **dict(zip(self.states, self.again)),
            **dict(zip(self.rows, self.row_of_scanned)),
            **dict(zip(self.same, self.shared)),
        }
        forward = [o for o in self.body if o is not self.body.terminator]
        assert outer.b.ids is not None
        ops = copy_ops(forward, block, mapping, outer.b.ids, op.id)
        inner = Reverse(block_builder(block, outer.b), activity(ops, set(outer.active)))
        given = self.body.terminator.operands
        for k, grad in zip(self.active, block.args[1:]):
            inner.add(mapping.get(given[k], given[k]), grad)
        for value, grad in zip(given[len(self.states) :], self.grads[len(self.states) :]):
            if grad is not None:
                inner.add(mapping.get(value, value), self._row(grad))
        inner.sweep(ops)
        return inner, list(zip(forward, ops))

    def _keep_products(self, clones: list[tuple[Op, Op]]) -> None:
        """What a contraction gave is saved, not computed again."""
        erase_unused(self.block)
        for op, clone in clones:
            if clone.block is not None and not op.regions and flops_of(op):
                for value, again in zip(op.results, clone.results):
                    if again.uses:
                        again.replace_uses(self._saved(value))
        erase_unused(self.block)

    # -------------------------------------------------- sums over the iterations

    def _totals(self, inner: Reverse) -> tuple[dict[Value, BlockArgument], list[Value]]:
        """Of what is read from outside: the argument with the sum so far, and the sum with this iteration's part. Products are left for later."""
        totals: dict[Value, BlockArgument] = {}
        sums: list[Value] = []
        for value in self.outside:
            if (found := inner.grads.get(value)) is None:
                continue
            now = [t for t in self._terms(found) if not self._is_left(value, t)]
            if now:
                totals[value] = self.block.add_arg(value.type)
                sums.append(totals[value])
                for t in now:
                    sums[-1] = inner.b.emit("dmlc.add", sums[-1], t)
        return totals, sums

    def _terms(self, value: Value) -> list[Value]:
        op = value.op
        if op is None or op.block is not self.block or op.name != "dmlc.add" or op.operands[0].type != op.operands[1].type:
            return [value]
        return [t for v in op.operands for t in self._terms(v)]

    def _is_left(self, value: Value, term: Value) -> bool:
        op = term.op
        if op is None or op.block is not self.block or op.name not in ("dmlc.contract", "dmlc.reduce_sum"):
            return False
        if any(not self._varies(v) for v in op.operands):
            return False
        self.later.append((value, op, list(op.operands)))
        return True

    def _varies(self, value: Value) -> bool:
        """Whether a value is made in the loop."""
        return (value.block if isinstance(value, BlockArgument) else value.op.block if value.op is not None else None) is self.block

    def _summed(self, op: Op, stacks: list[Value]) -> Value:
        """The sum over all iterations of what `op` gives."""
        if op.name == "dmlc.reduce_sum":
            dims = (0, *(d + 1 for d in attribute(op, "dims")))
            keep = attribute(op, "keepdim")
            total = self.b.emit("dmlc.reduce_sum", *stacks, dims=dims, keepdim=keep)
            return self.b.emit("dmlc.reshape", total, types=[op.result.type]) if keep else total
        terms, result = terms_of(op.attrs["equation"])
        letter = next(c for c in "tsuvwxyzabcdefghijklmnopqrTSUVWXYZ" if c not in op.attrs["equation"])
        equation = ",".join(letter + term for term in terms) + "->" + result
        return self.b.emit("dmlc.contract", *stacks, equation=equation)

    # -------------------------------------------------- the loops

    def _emit(self, totals: list[Value], stacked: list[Value]) -> Op:
        """The backward loop, with the rows that it reads; the forward loop stacks what is missing of them."""
        read = [(arg, stack) for arg, stack in self.row_args if arg.uses]
        sources = [self._source(stack) for _, stack in read]
        rows = {arg for arg, _ in self.row_args}
        first = [a for a in self.block.args if a not in rows]
        self.block.args = [*first, *(arg for arg, _ in read)]
        for i, arg in enumerate(self.block.args):
            arg.index = i
        starts = [_or_zeros(self.b, self.grads[k], self.carried[k]) for k in self.active] + [full(self.b, v.tensor, 0) for v in totals]
        types = [*(v.type for v in starts), *(stack_type(v.tensor, self.count) for v in stacked)]
        attrs = AttrDict(count=self.count, **({"scanned": len(read)} if read else {}), **({} if attribute(self.op, "reverse") else {"reverse": True}))
        return self.b.op("dmlc.scan", [*starts, *sources], dict(attrs), types, tag="grad", regions=[Region([self.block])])

    def _source(self, stack: Value) -> Value:
        """What stands for a stack; the forward loop makes it now if it has not yet."""
        value = next((v for v, stand_in in self.to_save if stand_in is stack), None)
        return stack if value is None else _saved(self.op, value)


def _saved(op: Op, value: Value) -> Value:
    """The stack, which the forward loop now gives, of a value of its body."""
    last = op.region.block.terminator
    carried = len(parts(op, op.operands)[0])
    for given, result in zip(last.operands[carried:], op.results[carried:]):
        if given is value:
            return result
    last.operands = [*last.operands, value]
    op.results.append(OpResult(stack_type(value.tensor, op.attrs["count"]), op, len(op.results)))
    return op.results[-1]


def _or_zeros(b: Builder, grad: Value | None, like: Value) -> Value:
    return grad if grad is not None else full(b, like.tensor, 0)
