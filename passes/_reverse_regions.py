"""Gradients of ops with regions: conditions and loops of a fixed length. The forward part of a region is computed again in the backward one."""

from __future__ import annotations

from collections.abc import Callable

from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Block, Op, OpResult, Region, Value
from dmlc.ir.types import TensorType
from dmlc.ops.terms import full
from dmlc.passes._reverse import Reverse, activity, block_builder, captured, copy_ops
from dmlc.passes.dce import erase_unused

INDEX = TensorType((), "i64")
Grads = list["Value | None"]


def reverse_cond(outer: Reverse, op: Op, grads: Grads) -> None:
    """A condition on the same value: each region computes its forward part again, then the gradients of what both regions read."""
    wanted = [v for v in captured(op) if v in outer.active]
    branches = [_branch(outer, op, region, grads, wanted) for region in op.regions]
    kept = [i for i in range(len(wanted)) if any(found[i] is not None for _, found in branches)]
    if not kept:
        return
    regions = []
    for block, found in branches:
        b = block_builder(block, outer.b)
        b.op("dmlc.yield", [_or_zeros(b, found[i], wanted[i]) for i in kept], result_types=[])
        erase_unused(block)
        regions.append(Region([block]))
    made = outer.b.op("dmlc.cond", op.operands, {}, [wanted[i].type for i in kept], tag="grad", regions=regions)
    for i, grad in zip(kept, made.results):
        outer.add(wanted[i], grad)


def _branch(outer: Reverse, op: Op, region: Region, grads: Grads, wanted: list[Value]) -> tuple[Block, Grads]:
    """A block with the forward ops and the backward ones, and the gradients it makes."""
    block, mapping = Block(), {}
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
    """The loop backwards. It carries the gradients of what the loop carries, and sums for what the body reads from outside.

    The values carried into each iteration are stacked in the forward loop, those of them that the backward body reads.
    """
    body, b, count = op.region.block, outer.b, op.attrs["count"]
    outside = [v for v in captured(op) if v in outer.active]
    carried = [k for k, a in enumerate(body.args[1:]) if a in outer.active]
    types = [*(op.operands[k].type for k in carried), *(v.type for v in outside)]
    block = Block([INDEX, *types])
    inside = block_builder(block, b)
    last = inside.emit("dmlc.full", types=[INDEX], value=count - 1)
    index = inside.emit("dmlc.sub", last, block.args[0])
    stacks = [Value(v.tensor.with_shape((count, *v.shape))) for v in op.operands]
    reads = [inside.emit("dmlc.index", stack, index) for stack in stacks]
    outer.active.update(reads[k] for k in carried)
    mapping: dict[Value, Value] = dict(zip(body.args, [index, *reads]))
    before = len(block)
    inner = _recomputed(outer, body, block, mapping, op)
    for k, grad in zip(carried, block.args[1:]):
        target = body.terminator.operands[k]
        inner.add(mapping.get(target, target), grad)
    inner.sweep(block.ops[before:])
    given: list[Value] = [_or_zeros(inside, inner.grads.get(reads[k]), reads[k]) for k in carried]
    for v, total in zip(outside, block.args[1 + len(carried) :]):
        more = inner.grads.get(v)
        given.append(total if more is None else inside.emit("dmlc.add", total, more))
    inside.op("dmlc.yield", given, result_types=[])
    erase_unused(block)
    _save(op, stacks, b.ids)
    starts = [_or_zeros(b, grads[k], op.operands[k]) for k in carried] + [full(b, v.tensor, 0) for v in outside]
    made = b.op("dmlc.scan", starts, {"count": count}, types, tag="grad", regions=[Region([block])])
    for value, grad in zip([*(op.operands[k] for k in carried), *outside], made.results):
        outer.add(value, grad)


def _save(op: Op, stacks: list[Value], ids: IdPool | None) -> None:
    """Let the forward loop carry, for each stack that is read, a tensor [count, ...] of the values carried into each iteration."""
    body, before = op.region.block, Builder.before(op, ids)
    inside = Builder(body, body.terminator, ids, op)
    yielded = list(body.terminator.operands)
    for k, stack in enumerate(stacks):
        if not stack.uses:
            continue
        op.operands = [*op.operands, full(before, stack.tensor, 0)]
        held = body.add_arg(stack.type)
        yielded.append(inside.emit("dmlc.index_put", held, body.args[1 + k], body.args[0], tag="save"))
        op.results.append(OpResult(stack.type, op, len(op.results)))
        stack.replace_uses(op.results[-1])
    body.terminator.operands = yielded


def _or_zeros(b: Builder, grad: Value | None, like: Value) -> Value:
    return grad if grad is not None else full(b, like.tensor, 0)


REGIONS: dict[str, Callable[[Reverse, Op, Grads], None]] = {"dmlc.cond": reverse_cond, "dmlc.scan": reverse_scan}
