"""Bags of embeddings: rows of a table looked up and pooled, a bag of ids at a time."""

from __future__ import annotations

import math

from dmlc.frontend.torch_graph import Call, aten
from dmlc.ir.core import Value

MODES = ("sum", "mean", "max")


@aten("embedding_bag.padding_idx", "embedding_bag.default", "_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(c: Call) -> list[Value]:
    """The pooled bags; further results (each id's bag, counts) serve PyTorch's own gradient only."""
    ids, table = c.cast(c.value("indices"), "i64"), c.value("weight")
    mode = MODES[c.get("mode", 0)]
    if c["padding_idx"] is not None and c["padding_idx"] >= 0:
        raise c.error("padding_idx is not supported")
    size = equal_bags(c, ids)
    return [_equal(c, ids, table, mode, size) if size else _ragged(c, ids, table, mode)]


def equal_bags(c: Call, ids: Value) -> int:
    """The size of all bags where the offsets are seen to be 0, size, 2 size, …, as they are for ids of rank 2; 0 otherwise."""
    offsets = c.value("offsets")
    count, op = offsets.shape[0], offsets.op
    op = op.operands[0].op if op is not None and op.name == "dmlc.cast" else op
    size = op.attrs.get("step", 1) if op is not None and op.name == "dmlc.iota" and not op.operands else 0
    return size if count * size == ids.shape[0] and not c["include_last_offset"] else 0


def _rows(c: Call, ids: Value, table: Value) -> Value:
    """The looked-up rows, each times its own weight where there are some."""
    rows = c.emit("embedding", table, ids)
    if "per_sample_weights" not in c:
        return rows
    weights = c.reshape(c.value("per_sample_weights", table.dtype), (*ids.shape, 1))
    return c.emit("mul", rows, weights, label="weighted")


def _equal(c: Call, ids: Value, table: Value, mode: str, size: int) -> Value:
    rows = _rows(c, c.reshape(ids, (ids.shape[0] // size, size)), table)
    if mode == "mean":
        return c.mean(rows, (1,), keepdim=False)
    return c.emit(f"reduce_{mode}", rows, dims=(1,), keepdim=False)


def _ragged(c: Call, ids: Value, table: Value, mode: str) -> Value:
    """Each id's bag is the number of offsets up to it; empty bags are zero."""
    offsets, count = c.cast(c.value("offsets"), "i64"), c.type.shape[0]
    offsets = c.slice(offsets, 0, 0, count)  # without the last one, where that is the end
    rows, shape = _rows(c, ids, table), (count, table.shape[1])
    place = c.op("dmlc.iota", types=[ids.tensor.with_shape((ids.shape[0], 1))], dim=0, step=1).result
    reached = c.cast(c.emit("le", c.reshape(offsets, (1, count)), place), "i64")
    bag = c.emit("sub", c.emit("reduce_sum", reached, dims=(1,), keepdim=False), c.full(1, "i64"), label="bag")
    if mode == "max":
        least, at = c.full(-math.inf, table.dtype, shape), c.broadcast(c.reshape(bag, (*bag.shape, 1)), rows.shape)
        most = c.emit("scatter", least, at, rows, dim=0, reduce="max")
        return c.emit("select", c.emit("eq", most, least), c.full(0, table.dtype), most)
    total = c.emit("index_add", rows, bag, types=[table.tensor.with_shape(shape)])
    if mode == "sum":
        return total
    number = c.emit("index_add", c.full(1, table.dtype, ids.shape), bag, types=[table.tensor.with_shape((count,))])
    some = c.emit("maximum", number, c.full(1, table.dtype))
    return c.emit("div", total, c.reshape(some, (count, 1)), rounding="none")
