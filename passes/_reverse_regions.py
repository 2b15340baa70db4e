"""Gradients of ops with regions: conditions, whose regions are computed again, and loops of known length (`_reverse_scan`)."""

from __future__ import annotations

from collections.abc import Callable

from dmlc.ir.builder import Builder
from dmlc.ir.core import Block, Op, Region, Value
from dmlc.ops.terms import full
from dmlc.passes._reverse import Reverse, activity, block_builder, captured, copy_ops
from dmlc.passes._reverse_scan import ScanReverse
from dmlc.passes.dce import erase_unused

Grads = list["Value | None"]


def reverse_cond(outer: Reverse, op: Op, grads: Grads) -> None:
    """A condition on the same value: each region computes its forward part again, then the gradients of what both regions read."""
    wanted = [v for v in dict.fromkeys([*captured(op), *op.operands[1:]]) if v in outer.active]
    branches = [_branch(outer, op, region, grads, wanted) for region in op.regions]
    kept = [i for i in range(len(wanted)) if any(found[i] is not None for _, found in branches)]
    if not kept:
        for block, _ in branches:
            for inner in reversed(block.ops):
                inner.erase()
        return
    regions = []
    for block, found in branches:
        b = block_builder(block, outer.b)
        b.op("dmlc.yield", [_or_zeros(b, found[i], wanted[i]) for i in kept], result_types=[])
        erase_unused(block)
        regions.append(Region([block]))
    made = outer.b.op("dmlc.cond", op.operands[:1], {}, [wanted[i].type for i in kept], tag="grad", regions=regions)
    for i, grad in zip(kept, made.results):
        outer.add(wanted[i], grad)


def _branch(outer: Reverse, op: Op, region: Region, grads: Grads, wanted: list[Value]) -> tuple[Block, Grads]:
    """A block with the forward ops and the backward ones, and the gradients it makes."""
    block = Block()
    mapping: dict[Value, Value] = dict(zip(region.block.args, op.operands[1:]))
    inner = _recomputed(outer, region.block, block, mapping, op)
    for value, grad in zip(region.block.terminator.operands, grads):
        if grad is not None:
            inner.add(mapping.get(value, value), grad)
    inner.sweep(block.ops)
    return block, [inner.grads.get(v) for v in wanted]


def _recomputed(outer: Reverse, forward: Block, block: Block, mapping: dict[Value, Value], op: Op) -> Reverse:
    """The forward ops at the end of `block`, ready to be swept over."""
    assert outer.b.ids is not None
    ops = copy_ops([o for o in forward if o is not forward.terminator], block, mapping, outer.b.ids, op.id)
    return Reverse(block_builder(block, outer.b), activity(ops, set(outer.active)))


def reverse_scan(outer: Reverse, op: Op, grads: Grads) -> None:
    ScanReverse(outer, op, grads).run()


def _or_zeros(b: Builder, grad: Value | None, like: Value) -> Value:
    return grad if grad is not None else full(b, like.tensor, 0)


REGIONS: dict[str, Callable[[Reverse, Op, Grads], None]] = {"dmlc.cond": reverse_cond, "dmlc.scan": reverse_scan}
