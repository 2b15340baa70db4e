"""Loops that a handler makes: written out when short, else a `dmlc.scan` with what one iteration does as its body."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dmlc.frontend.torch_graph import Call
from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Block, Region, Value
from dmlc.ir.types import TensorType

if TYPE_CHECKING:
    from dmlc.frontend.torch_import import Importer

WRITTEN_OUT = 8  # iterations up to which a loop is written out
INDEX = TensorType((), "i64")

Body = Callable[[list[Value], list[Value]], tuple[list[Value], list[Value]]]  # carried, rows -> carried, rows


def region_of(importer: Importer, types: Sequence[Any], inside: Callable[[list[Value]], Sequence[Value]]) -> Region:
    """Ops that `inside` emits go into a new block with arguments of these types; what it gives is yielded."""
    outer = importer.builder
    if outer.ids is None:
        outer.ids = IdPool(importer.function)
    block = Block(types)
    importer.builder = Builder(block, None, outer.ids, loc=outer.loc)
    try:
        importer.builder.op("dmlc.yield", inside(list(block.args)), result_types=())
    finally:
        importer.builder = outer
    return Region([block])


def loop(c: Call, carried: Sequence[Value], scanned: Sequence[Value], body: Body, reverse: bool = False) -> tuple[list[Value], list[Value]]:
    """One iteration a row (dim 0) of the `scanned` tensors, from the last row on if `reverse`. Gives the last carried values, and what the
    iterations give stacked along a new dim 0, in the order of the rows."""
    count = scanned[0].shape[0]
    return (_written_out if 0 < count <= WRITTEN_OUT else _scan)(c, count, list(carried), list(scanned), body, reverse)


def _written_out(c: Call, count: int, carried: list[Value], scanned: list[Value], body: Body, reverse: bool) -> tuple[list[Value], list[Value]]:
    columns: list[list[Value]] = []
    for i in reversed(range(count)) if reverse else range(count):
        carried, given = body(carried, [c.reshape(c.slice(x, 0, i, i + 1), x.shape[1:]) for x in scanned])
        columns.append([c.reshape(y, (1, *y.shape)) for y in given])
    if reverse:
        columns.reverse()
    return carried, [column[0] if count == 1 else c.emit("concat", *column, dim=0, label="steps") for column in map(list, zip(*columns))]


def _scan(c: Call, count: int, carried: list[Value], scanned: list[Value], body: Body, reverse: bool) -> tuple[list[Value], list[Value]]:
    given: list[Value] = []

    def inside(args: list[Value]) -> list[Value]:
        after, rows = body(args[1 : 1 + len(carried)], args[1 + len(carried) :])
        given.extend(rows)
        return [*after, *rows]

    region = region_of(c.importer, [INDEX, *(v.type for v in carried), *(v.tensor.with_shape(v.shape[1:]) for v in scanned)], inside)
    attrs = {"count": count, "scanned": len(scanned), **({"reverse": True} if reverse else {}), "dmlc.name": c.importer.name(c.node)}
    types = [*(v.type for v in carried), *(y.tensor.with_shape((count, *y.shape)) for y in given)]
    made = c.importer.builder.op("dmlc.scan", [*carried, *scanned], attrs, types, regions=[region]).results
    return list(made[: len(carried)]), list(made[len(carried) :])
