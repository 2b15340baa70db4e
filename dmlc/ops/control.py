"""Control flow: a branch, a loop of known length that may scan tensors, a loop that ends when its condition says so.

Operands come as carried values, scanned tensors, shared values. Values from outside that a region reads without being told of are captured;
`isolate` makes them shared operands, so that a plan can say how each lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Block, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.registry import lookup
from dmlc.ir.types import TensorType
from dmlc.ops.base import REQUIRED, attribute, flops_of
from dmlc.ops.rule import Rule
from dmlc.ops.structural import INDEX, RegionOp, check_yield

T = TypeVar("T")
BOOL = TensorType((), "i1")
TRIPS = 8  # iterations that a loop is priced with whose length depends on the data, unless its text says otherwise


def _rule(op: Op) -> Rule:
    from dmlc.ops.region_rule import region_rule

    return region_rule(op)


def _flops(op: Op) -> int:
    """Of a branch's longer side; of a loop's body as often as it runs."""
    found = [sum(flops_of(o) for o in region.block if o.name not in TERMINATORS) for region in op.regions]
    return max(found) if op.name == "dmlc.cond" else sum(found) * trips(op)


class Control(RegionOp):
    """An op with regions whose factors are those that all ops inside let through."""

    rule = staticmethod(_rule)
    flops = staticmethod(_flops)
    cost = "bytes"


class Cond(Control):
    """The first region when operand 0 (i1, rank 0) is true, else the second. Further operands are the regions' arguments."""

    name = "dmlc.cond"

    @classmethod
    def check(cls, op: Op) -> None:
        if len(op.regions) != 2 or not op.operands or op.operands[0].type != BOOL:
            raise DmlcError("'dmlc.cond' takes a tensor<i1> and two regions", op.loc)
        for region in op.regions:
            if [a.type for a in region.block.args] != [v.type for v in op.operands[1:]]:
                raise DmlcError("the regions of 'dmlc.cond' take its operands after the first", op.loc)
            check_yield(op, region.block)


class Scan(Control):
    """A loop of `count` iterations: region (index, carried..., rows..., shared...) -> (carried..., rows...).

    The last `shared` operands are the same in every iteration; the `scanned` ones before them have a leading dim of `count`, of which
    each iteration takes its row; the others are what the first iteration carries. Results: what the last one gives on, then the rows that
    the iterations give, stacked along a new leading dim. With `reverse` the index runs from `count` - 1 down to 0.
    """

    name = "dmlc.scan"
    attributes = {"count": REQUIRED, "scanned": 0, "shared": 0, "reverse": False}

    @classmethod
    def check(cls, op: Op) -> None:
        count = op.attrs["count"]
        if count < 0:
            raise DmlcError("'dmlc.scan' cannot run a negative number of times", op.loc)
        carried, scanned, shared = parts(op, op.operands)
        if any(not v.tensor.rank or v.shape[0] != count for v in scanned):
            raise DmlcError(f"what 'dmlc.scan' scans has a leading dim of {count}, its number of iterations", op.loc)
        types = [*(v.type for v in carried), *(row_type(v.tensor) for v in scanned), *(v.type for v in shared)]
        if [a.type for a in op.region.block.args] != [INDEX, *types]:
            raise DmlcError("the region of 'dmlc.scan' takes the index, the carried values, a row of each scanned one, and the shared values", op.loc)
        stacks = op.results[len(carried) :]
        if [r.type for r in op.results[: len(carried)]] != [v.type for v in carried] or any(not r.tensor.rank or r.shape[0] != count for r in stacks):
            raise DmlcError(f"'dmlc.scan' gives what it carries, in its operands' types, then stacks of {count} rows", op.loc)
        given = [*(v.type for v in carried), *(row_type(r.tensor) for r in stacks)]
        check_yield(op, op.region.block, types=given)
        _refuse_random(op)


class While(Control):
    """Regions (carried..., shared...) -> i1 and (carried..., shared...) -> carried...: while the first gives true, the second gives the next values.

    The last `shared` operands are the same in every iteration. `count` is how often it is taken to run where a number is needed (prices).
    """

    name = "dmlc.while"
    attributes = {"count": TRIPS, "shared": 0}
    no_vjp = "the number of its iterations depends on the data, so what they computed is not kept"

    @classmethod
    def check(cls, op: Op) -> None:
        if len(op.regions) != 2 or attribute(op, "count") < 0:
            raise DmlcError("'dmlc.while' has two regions, its condition and its body, and a count of at least 0", op.loc)
        carried = parts(op, op.operands)[0]
        types = [v.type for v in op.operands]
        if any([a.type for a in region.block.args] != types for region in op.regions):
            raise DmlcError("the regions of 'dmlc.while' take its operands", op.loc)
        if [r.type for r in op.results] != [v.type for v in carried]:
            raise DmlcError("'dmlc.while' gives what it carries: its results have its operands' types", op.loc)
        check_yield(op, op.regions[0].block, types=[BOOL])
        check_yield(op, op.regions[1].block)
        _refuse_random(op)


LOOPS = ("dmlc.scan", "dmlc.while")


def parts(op: Op, values: Sequence[T]) -> tuple[list[T], list[T], list[T]]:
    """A loop's operands, or its regions' arguments without the index, as carried, scanned and shared ones."""
    shared, scanned = op.attrs.get("shared", 0), op.attrs.get("scanned", 0)
    first, second = len(values) - shared - scanned, len(values) - shared
    if min(first, shared, scanned) < 0:
        raise DmlcError(f"'{op.name}' has {len(values)} operands but says that {scanned} are scanned and {shared} shared", op.loc)
    return list(values[:first]), list(values[first:second]), list(values[second:])


def arguments(op: Op, block: Block) -> Sequence[Value]:
    """Arguments of a region in the order of the operands they stand for: without the index of a scan."""
    return block.args[1:] if op.name == "dmlc.scan" else block.args


def bodies(op: Op) -> list[Block]:
    """The blocks whose terminator gives the results (all but the condition of a while)."""
    return [region.block for region in (op.regions[1:] if op.name == "dmlc.while" else op.regions)]


def passed(op: Op) -> Sequence[Value]:
    """Operands that regions take as arguments."""
    return op.operands[1:] if op.name == "dmlc.cond" else op.operands


def trips(op: Op) -> int:
    """How often the body of a region op runs, or is taken to run where that depends on the data."""
    return attribute(op, "count") if "count" in getattr(lookup(op.name), "attributes", {}) else 1


def row_type(stack: TensorType) -> TensorType:
    return stack.with_shape(stack.shape[1:])


def stack_type(row: TensorType, count: int) -> TensorType:
    return row.with_shape((count, *row.shape))


def _refuse_random(op: Op) -> None:
    """Random numbers are functions of seed, stream, step and element: an iteration has no part in them."""
    for inner in op.walk():
        if inner is not op and getattr(lookup(inner.name), "effects", "") == "random":
            where: Any = inner.loc if inner.loc.known else op.loc
            raise DmlcError(f"'{inner.name}' in the body of '{op.name}' would draw the same numbers in every iteration", where)
