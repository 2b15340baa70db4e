"""Operators whose results are known from shapes and attributes alone."""

from __future__ import annotations

import math

import numpy as np

from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.tensors import array_from, dtype_of_element, python_value, to_torch
from dmlc.frontend.onnx.values import Known, Tensor
from dmlc.frontend.onnx.versions import REFINED, checked_sizes
from dmlc.ir.dims import Dim, Size, ceildiv
from dmlc.ir.location import DmlcError
from dmlc.ir.open_sizes import UnknownSize


@op("Constant", 1, 9, 11, 12, 13, 19, *REFINED, static=True)
def constant(n: Node) -> Known:
    given = [name for name in n.attributes if name in ("value", "value_float", "value_floats", "value_int", "value_ints", "sparse_value", "value_string", "value_strings")]
    if len(given) != 1:
        raise DmlcError(f"a constant has one value, not {len(given)}")
    if given[0] == "value":
        known = n.constant_attr(n.attr("value"))
        known.literal = True
        return known
    if given[0] in ("sparse_value", "value_string", "value_strings"):
        raise Unsupported(f"a constant given as {given[0]}")
    return Known(array_from(n.attr(given[0]), "f32" if "float" in given[0] else "i64"), "f32" if "float" in given[0] else "i64")


@op("ConstantOfShape", 9, 20, *REFINED, static=True)
def constant_of_shape(n: Node) -> Tensor:
    """One number repeated: kept as a view of one element, however large; of an open size an op of the program."""
    value = n.constant_attr(n.attr("value")) if "value" in n.attributes else Known.of(0.0, "f32")
    if value.array.size != 1:
        raise DmlcError(f"attribute 'value' has {value.array.size} elements, 1 is needed")
    wanted = checked_sizes(n.ints(0, "the shape"))
    if any(isinstance(s, Dim) for s in wanted):
        return n.full(python_value(value.array, value.dtype), value.dtype, wanted)
    return Known(np.broadcast_to(value.array.reshape(()), wanted), value.dtype)


@op("Range", 11, 27, static=True)
def range_(n: Node) -> Tensor:
    given = [n.sizes(i) for i in range(3)]
    if any(given):
        return _open_range(n, *(g[0] if g else int(n.known(i, "a limit").reshape(-1)[0]) for i, g in enumerate(given)))
    start, limit, delta = (to_torch(n.known(i, what).reshape(-1)[0], n.dtype(i)).item() for i, what in enumerate(("start", "limit", "delta")))
    if not delta:
        raise DmlcError("delta is 0")
    count = max(0, math.ceil((limit - start) / delta))
    _check_size(count)
    return Known.of(start + np.arange(count) * delta, n.dtype(0))


def _open_range(n: Node, start: Size, limit: Size, delta: Size) -> Tensor:
    """Counting up from or to an open size is an op of the program."""
    if not isinstance(delta, int) or delta < 1:
        raise UnknownSize.of(next(x for x in (start, limit, delta) if isinstance(x, Dim)), f"a range by {delta} has to know its limits")
    count = ceildiv(limit - start, delta)
    places = n.emit_as((count if isinstance(count, int) else max(count, 0),), "i64", "dmlc.iota", **({"step": delta} if delta != 1 else {}))
    return n.cast(places if start == 0 else n.pointwise("dmlc.add", places, n.sizes_value(Known.of(start))), n.dtype(0))


@op("EyeLike", 9, 22, static=True)
def eye_like(n: Node) -> Known:
    rows, columns = n.shape(0)
    dtype = dtype_of_element(n.attr("dtype"), "the result") if "dtype" in n.attributes else n.dtype(0)
    _check_size(rows * columns)
    return Known(array_from(np.eye(rows, columns, n.attr("k", 0)), dtype), dtype)


def _check_size(numel: int) -> None:
    if numel > 1 << 26:
        raise Unsupported(f"a constant of {numel} elements made from a formula")


@op("Shape", 1, 13, 15, 19, *REFINED, static=True)
def shape(n: Node) -> Known:
    dims = n.shape(0)
    return Known.of(dims[slice(n.attr("start", 0), n.attr("end", len(dims)))])


@op("Size", 1, 13, 19, *REFINED, static=True)
def size(n: Node) -> Known:
    return Known.of(math.prod(n.shape(0)))


@op("Identity", 1, 13, 14, 16, 19, *REFINED, static=True)
def identity(n: Node) -> Tensor:
    return n[0]
