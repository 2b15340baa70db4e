"""Loops and branches as ops with regions: a subgraph, or what a recurrent layer does in one step, becomes a region's body.

Short loops are written out instead, and so is one whose body needs to know at import in which iteration it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dmlc.frontend.onnx.emit import type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.program import discard
from dmlc.frontend.onnx.table import Unsupported
from dmlc.frontend.onnx.values import Tensor
from dmlc.ir.core import Block, Region, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ops.control import row_type, stack_type

WRITTEN_OUT = 8  # iterations up to which a loop is written out
MAX_ITERATIONS = 1024  # of a loop that has to be written out
INDEX = TensorType((), "i64")

Body = Callable[[Tensor, list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]]  # index, carried, rows -> carried, rows


class NotThisWay(Exception):
    """The attempt does not work out; the text says why."""


def attempted(n: Node, build: Callable[[], list[Tensor]]) -> list[Tensor] | NotThisWay:
    """What `build` makes; when it cannot, why, and nothing of the attempt is left."""
    importer, block = n.importer, n.importer.program.builder.block
    listed, remarks, kinds, last = len(importer.unsupported), len(importer.remarks), dict(importer.kinds), block.last
    try:
        found = build()
        if len(importer.unsupported) == listed:
            return found
        why = NotThisWay("")
    except (Unsupported, DmlcError, NotThisWay) as e:
        why = NotThisWay(e.message if isinstance(e, DmlcError) else str(e))
    if len(importer.unsupported) > listed:
        operator, name, reason = importer.unsupported[listed]
        why = NotThisWay(f"{operator} ({name}): {reason}")
    del importer.unsupported[listed:], importer.remarks[remarks:]
    importer.kinds = kinds
    while block.last is not last:
        assert block.last is not None
        block.last.erase()
    return why


def loop(n: Node, count: int, carried: Sequence[Tensor], scanned: Sequence[Tensor], body: Body, reverse: bool = False) -> list[Tensor]:
    """`count` iterations over the rows of `scanned` (dim 0), from the last one on if `reverse`. Results: the carried values, then the stacks (rows by index).

    Raises `Unsupported` when it can neither be a loop of the program nor be written out.
    """
    if 0 < count <= WRITTEN_OUT:
        return written_out(n, count, carried, scanned, body, reverse)
    found = attempted(n, lambda: counted(n, count, carried, scanned, body, reverse))
    if isinstance(found, list):
        return found
    if 0 < count <= MAX_ITERATIONS:
        return written_out(n, count, carried, scanned, body, reverse)
    raise Unsupported(f"a loop of {count} iterations that cannot be one of the program: {found}")


def written_out(n: Node, count: int, carried: Sequence[Tensor], scanned: Sequence[Tensor], body: Body, reverse: bool = False) -> list[Tensor]:
    from dmlc.frontend.onnx.values import Known

    carried, columns = list(carried), []
    for step in reversed(range(count)) if reverse else range(count):
        carried, rows = body(Known.of(step), carried, [n.pick(t, 0, step) for t in scanned])
        columns.append(rows)
    if reverse:
        columns.reverse()
    return [*carried, *(stacked(n, column, 0) for column in zip(*columns))]


def counted(n: Node, count: int, carried: Sequence[Tensor], scanned: Sequence[Tensor], body: Body, reverse: bool = False) -> list[Tensor]:
    """A `dmlc.scan`."""
    starts, sources = [n.value(t) for t in carried], [n.value(t) for t in scanned]
    types = [v.tensor for v in starts]
    rows: list[TensorType] = []

    def inside(args: Sequence[Value]) -> list[Value]:
        index, states, places = args[0], list(args[1 : 1 + len(starts)]), list(args[1 + len(starts) :])
        after, given = body(index, states, places)
        values = same_types(n, after, types) + [n.value(t) for t in given]
        rows.extend(v.tensor for v in values[len(starts) :])
        return values

    block = region(n, [INDEX, *types, *(row_type(v.tensor) for v in sources)], inside)
    attrs = {"count": count, **({"scanned": len(sources)} if sources else {}), **({"reverse": True} if reverse else {})}
    results = [*types, *(stack_type(t, count) for t in rows)]
    return list(n.importer.program.region_op("dmlc.scan", [*starts, *sources], attrs, results, [Region([block])]).results)


def while_loop(n: Node, carried: Sequence[Tensor], condition: Callable[[list[Tensor]], Tensor], body: Callable[[list[Tensor]], list[Tensor]]) -> list[Tensor]:
    """A `dmlc.while`."""
    starts = [n.value(t) for t in carried]
    types = [v.tensor for v in starts]
    first = region(n, types, lambda args: [n.value(n.reshape(condition(list(args)), ()))])
    try:
        second = region(n, types, lambda args: same_types(n, body(list(args)), types))
    except BaseException:
        discard(first)
        raise
    return list(n.importer.program.region_op("dmlc.while", starts, {}, types, [Region([first]), Region([second])]).results)


def region(n: Node, types: Sequence[TensorType], inside: Callable[[Sequence[Value]], Sequence[Value]]) -> Block:
    """A block with what `inside` emits and gives."""
    with n.importer.program.region(types) as block:
        values = inside(block.args)
        n.importer.program.builder.op("dmlc.yield", values, result_types=())
    return block


def same_types(n: Node, values: Sequence[Tensor], types: Sequence[TensorType]) -> list[Value]:
    """The values as those that go into the next iteration, whose types must be the same."""
    for value, type_ in zip(values, types, strict=True):
        if type_of(value) != type_:
            raise Unsupported(f"a value carried by the loop changes its type from {type_} to {type_of(value)}")
    return [n.value(v) for v in values]


def stacked(n: Node, rows: Sequence[Tensor], dim: int) -> Tensor:
    """Tensors of one shape side by side along a new dim."""
    shape = type_of(rows[0]).shape
    return n.concat([n.reshape(r, (*shape[:dim], 1, *shape[dim:])) for r in rows], dim)
