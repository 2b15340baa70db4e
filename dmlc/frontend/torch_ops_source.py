"""aten operators that make tensors out of nothing."""

from __future__ import annotations

from dmlc.frontend.torch_graph import Call, aten
from dmlc.ir.core import Value


@aten("full", "full_like", "new_full", "scalar_tensor")
def full(c: Call) -> Value:
    number = c["fill_value"] if "fill_value" in c else c["s"]
    return c.emit("full", types=[c.type], value=_number(number, c))


@aten("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")
def zeros(c: Call) -> Value:
    """Uninitialised memory is taken as zeros."""
    return c.emit("full", types=[c.type], value=_number(0, c))


@aten("ones", "ones_like", "new_ones")
def ones(c: Call) -> Value:
    return c.emit("full", types=[c.type], value=_number(1, c))


def _number(number: complex, c: Call) -> bool | int | float:
    if isinstance(number, complex):
        raise c.error("a complex number is not supported here")
    return float(number) if c.type.is_float else bool(number) if c.type.dtype == "i1" else int(number)


@aten("arange")
def arange(c: Call) -> Value:
    return iota(c, c["start"] or 0, c.get("step", 1), c.type.shape[0], c.type.dtype)


def iota(c: Call, start: float, step: float, count: int, dtype: str) -> Value:
    """start, start + step, … as [count]; counted in integers and scaled afterwards when start or step is no integer."""
    if float(start).is_integer() and float(step).is_integer():
        operands = [c.full(int(start), "i64")] if start else []
        counted = c.emit("iota", *operands, types=[c.type.with_shape((count,)).with_dtype("i64")], dim=0, step=int(step))
        return c.cast(counted, dtype)
    counted = c.cast(c.emit("iota", types=[c.type.with_shape((count,)).with_dtype("i64")], dim=0, step=1), dtype)
    return c.emit("add", c.emit("mul", counted, c.full(step, dtype)), c.full(start, dtype))


@aten("linspace")
def linspace(c: Call) -> Value:
    count = c["steps"]
    return iota(c, c["start"], (c["end"] - c["start"]) / max(count - 1, 1), count, c.type.dtype)


@aten("eye")
def eye(c: Call) -> Value:
    rows, columns = c.type.shape
    row, column = iota(c, 0, 1, rows, "i64"), iota(c, 0, 1, columns, "i64")
    return c.cast(c.emit("eq", c.reshape(row, (rows, 1)), c.reshape(column, (1, columns))), c.type.dtype)
