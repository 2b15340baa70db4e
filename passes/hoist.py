"""hoist: what a loop computes in every iteration from values that do not change in it is computed once, before it.

Before: `dmlc.scan %h { … %t = dmlc.transpose %w … }`.   After: `%t = dmlc.transpose %w`, then the loop.
Stays inside: constants (kernels take them in), what is random, communicates or orders, what holds regions, and reads by index, which may be
out of range where the loop runs no time.
The product of each row that a scan takes with the same matrix is one product of all rows before it, of which the scan takes the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Block, Module, Op, Value
from dmlc.ops.base import definition, index_of
from dmlc.ops.control import LOOPS, arguments, parts, row_type, stack_type
from dmlc.passmanager.base import Numerics, Pass
from dmlc.passmanager.context import Context

PRODUCTS = ("dmlc.linear", "dmlc.matmul")  # by a matrix on the right: dims on the left are all the same to them


@dataclass(frozen=True)
class Hoist(Pass):
    name: ClassVar[str] = "hoist"
    numerics: ClassVar[Numerics] = "reordered"

    def run(self, module: Module, context: Context) -> bool:
        loops = [op for function in module.functions for op in function.ops() if op.name in LOOPS]
        return any([_hoist(op) | _products(op) for op in reversed(loops)])  # inner ones first: what leaves them may leave the outer ones too


def _hoist(loop: Op) -> bool:
    assert loop.block is not None
    inside = {r for region in loop.regions for o in region.block.walk() for r in o.results}
    inside |= {a for o in loop.walk() for region in o.regions for a in region.block.args}
    same = {a: v for region in loop.regions for a, v in _shared(loop, region.block)}
    changed = False
    for op in [o for region in loop.regions for o in region.block]:
        operands = [same.get(v, v) for v in op.operands]
        if not _movable(op) or any(v in inside for v in operands):
            continue
        op.remove()
        op.operands = operands
        loop.block.insert_before(loop, op)
        inside.difference_update(op.results)
        changed = True
    return changed


def _shared(loop: Op, block: Block) -> list[tuple[Value, Value]]:
    """Arguments that are the same in every iteration, with what they are outside."""
    return list(zip(parts(loop, arguments(loop, block))[2], parts(loop, loop.operands)[2]))


def _products(loop: Op) -> bool:
    """Products of rows with one matrix, as one of the stack."""
    if loop.name != "dmlc.scan" or not loop.attrs["count"]:
        return False
    body = loop.region.block
    _, stacks, outer = parts(loop, loop.operands)
    _, rows, inner = parts(loop, arguments(loop, body))
    of_row, same = dict(zip(rows, stacks)), dict(zip(inner, outer))
    made = {r for o in loop.walk() if o is not loop for r in o.results} | set(body.args)
    changed = False
    for op in [o for o in body if o.name in PRODUCTS]:
        stack, matrix = of_row.get(op.operands[0]), same.get(op.operands[1], op.operands[1])
        if stack is None or matrix in made or matrix.tensor.rank != 2 or op.operands[0].tensor.rank < 2:
            continue
        attrs = dict(op.attrs)
        product = Op(op.name, [stack, matrix], [stack_type(op.result.tensor, loop.attrs["count"])], attrs, loc=op.loc)
        assert loop.block is not None
        loop.block.insert_before(loop, product)
        op.result.replace_uses(_scanned(loop, product.result))
        op.erase()
        changed = True
    return changed


def _scanned(loop: Op, stack: Value) -> Value:
    """The row of one more scanned operand."""
    body = loop.region.block
    carried, scanned, _ = parts(loop, loop.operands)
    place = len(carried) + len(scanned)
    loop.operands = [*loop.operands[:place], stack, *loop.operands[place:]]
    loop.attrs["scanned"] = len(scanned) + 1
    row = body.add_arg(row_type(stack.tensor))
    body.args.insert(1 + place, body.args.pop())
    for i, arg in enumerate(body.args):
        arg.index = i
    return row


def _movable(op: Op) -> bool:
    if op.name in TERMINATORS or op.dialect != "dmlc" or op.regions or op.name == "dmlc.barrier" or not op.operands:
        return False
    return not definition(op).effects and not index_of(op)
