"""Loops and branches that are none: a predicate that is a number, a loop that runs once or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from dmlc.ir.core import Block, Op, Value
from dmlc.ir.rewriter import Pattern, Rewriter
from dmlc.ops.base import attribute
from dmlc.ops.control import parts, row_type
from dmlc.ops.structural import INDEX


class InlineKnown(Pattern):
    """The body in place of the op."""

    ops = ("dmlc.cond", "dmlc.scan")

    def rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        if "dmlc.place" in op.attrs:
            return False
        return _cond(op, rewriter) if op.name == "dmlc.cond" else _scan(op, rewriter)


def _cond(op: Op, rewriter: Rewriter) -> bool:
    predicate = op.operands[0].op
    if predicate is None or predicate.name != "dmlc.full":
        return False
    block = op.regions[0 if attribute(predicate, "value") else 1].block
    rewriter.replace(op, _inlined(op, block, op.operands[1:], rewriter))
    return True


def _scan(op: Op, rewriter: Rewriter) -> bool:
    carried, scanned, shared = parts(op, op.operands)
    if op.attrs["count"] == 0 and len(op.results) == len(carried):
        rewriter.replace(op, carried)
        return True
    if op.attrs["count"] != 1:
        return False
    b = rewriter.builder(op)
    rows = [b.emit("dmlc.reshape", v, types=[row_type(v.tensor)]) for v in scanned]
    values = _inlined(op, op.region.block, [b.emit("dmlc.full", types=[INDEX], value=0), *carried, *rows, *shared], rewriter)
    stacks = [b.emit("dmlc.reshape", v, types=[r.tensor]) for v, r in zip(values[len(carried) :], op.results[len(carried) :])]
    rewriter.replace(op, [*values[: len(carried)], *stacks])
    return True


def _inlined(op: Op, block: Block, given: Sequence[Value], rewriter: Rewriter) -> list[Value]:
    """The block's ops before `op`, its arguments being what is given; what it yields."""
    assert op.block is not None
    for arg, value in zip(block.args, given, strict=True):
        arg.replace_uses(value)
    for inner in block.ops[:-1]:
        inner.remove()
        op.block.insert_before(op, inner)
        rewriter.touch(inner)
    return list(block.terminator.operands)
