"""What mixtures of experts are made of: counts by bin, and products whose rows belong to groups."""

from __future__ import annotations

from dmlc.frontend.torch_graph import Call, aten
from dmlc.frontend.torch_ops_source import iota
from dmlc.ir.core import Value


@aten("histc")
def histc(c: Call) -> Value:
    """How many elements lie in each of equal bins between `min` and `max`, both included; others are not counted."""
    low, high, bins, x = c["min"], c["max"], c["bins"], c.x()
    if low == high:
        raise c.error("bounds that are taken from the data are not supported")
    x = c.reshape(x, (x.tensor.numel,))
    place = c.emit("div", c.emit("mul", c.emit("sub", x, c.full(low, x.dtype)), c.full(bins, x.dtype)), c.full(high - low, x.dtype), rounding="none")
    at = c.emit("clamp", c.cast(c.emit("floor", place) if x.tensor.is_float else place, "i64"), min=0, max=bins - 1)
    inside = c.emit("logical_and", c.emit("ge", x, c.full(low, x.dtype)), c.emit("le", x, c.full(high, x.dtype)))
    return c.emit("scatter", c.full(0, x.dtype, (bins,)), at, c.cast(inside, x.dtype), dim=0, reduce="add")


@aten("_grouped_mm", "transformers.grouped_mm_fallback")
def grouped_product(c: Call) -> Value:
    """Rows offs[g - 1] to offs[g] of [rows, k] times matrix g of [groups, k, n]; rows behind the last group are 0.

    One product of all rows a group, of which the group's rows are kept: the rows of a group are known only when the program runs.
    """
    x, weight = (c.importer.env[c.arguments[n]] for n in list(c.arguments)[:2])
    if "offs" not in c and x.tensor.rank == weight.tensor.rank == 3:
        return c.emit("matmul", x, weight)
    if (x.tensor.rank, weight.tensor.rank) != (2, 3) or "bias" in c:
        raise c.error("only [rows, k] times [groups, k, n] without a bias is supported")
    rows, groups, columns = x.shape[0], weight.shape[0], weight.shape[2]
    row, offsets = iota(c, 0, 1, rows, "i64"), c.cast(c.value("offs"), "i64")
    ended = c.emit("ge", c.reshape(row, (rows, 1)), c.reshape(offsets, (1, groups)), label="ended")
    group = c.emit("reduce_sum", c.cast(ended, "i64"), dims=(1,), keepdim=True, label="group")
    y = c.full(0, x.dtype, (rows, columns))
    for g in range(groups):
        matrix = c.reshape(c.slice(weight, 0, g, g + 1), weight.shape[1:])
        mine = c.emit("eq", group, c.full(g, "i64"), label=f"in_{g}")
        y = c.emit("select", mine, c.emit("matmul", x, matrix, label=f"by_{g}"), y, label=f"kept_{g}")
    return c.cast(y, c.type.dtype)
