"""aten operators that read or write at indices. Negative indices, which PyTorch counts from the end, are made positive here."""

from __future__ import annotations

import math

import torch

from dmlc.frontend.torch_graph import Call, aten, operator_name
from dmlc.frontend.torch_ops_pointwise import as_bool
from dmlc.interpret.evaluate import DTYPES
from dmlc.ir.core import Op, Value
from dmlc.ir.types import TensorType
from dmlc.ops.gather import broadcast_shape

MOVES = ("dmlc.reshape", "dmlc.broadcast", "dmlc.transpose", "dmlc.slice", "dmlc.concat", "dmlc.cast", "dmlc.copy")
REDUCES = {None: "none", "add": "add", "sum": "add", "multiply": "mul", "prod": "mul", "amax": "max", "amin": "min"}


def non_negative(value: Value) -> bool:
    """Whether an index is seen to be >= 0: counted up from zero, or made of such by moves, sums and products."""
    op = value.op
    if op is None:
        return False
    if op.name == "dmlc.iota":
        return op.attrs.get("step", 1) >= 0 and all(map(non_negative, op.operands))
    if op.name == "dmlc.full":
        return op.attrs["value"] >= 0
    known = op.name in (*MOVES, "dmlc.add", "dmlc.mul", "dmlc.argmax", "dmlc.argmin") and value.dtype.startswith("i")
    return known and (op.name.startswith("dmlc.arg") or all(map(non_negative, op.operands)))


def wrapped(c: Call, index: Value, size: int) -> Value:
    """The index with negative entries counted from the end of a dim of `size`."""
    if index.dtype == "i1":
        raise c.error("indexing with a boolean tensor has a result size that depends on data, which is not supported")
    index = c.cast(index, "i64")
    if non_negative(index):
        return index
    negative = c.emit("lt", index, c.full(0, "i64"), label="negative")
    return c.emit("select", negative, c.emit("add", index, c.full(size, "i64"), label="wrapped"), index, label="index")


@aten("embedding")
def embedding(c: Call) -> Value:
    """Rows of a table. No gradient reaches the row `padding_idx`."""
    at = c.cast(c.value("indices"), "i64")
    rows = c.emit("embedding", c.value("weight"), at)
    if not c.importer.train:
        return rows
    if c["scale_grad_by_freq"]:
        raise c.error("gradients scaled by how often a row is read are not supported")
    if c["padding_idx"] < 0:
        return rows
    counts = c.emit("ne", at, c.full(c["padding_idx"], "i64"), label="counts")
    return c.emit("select", c.reshape(counts, (*counts.shape, 1)), rows, c.stopped(rows))


@aten("index_select")
def index_select(c: Call) -> Value:
    dim = c.dim()
    return c.emit("take", c.x(), wrapped(c, c.value("index"), c.x().shape[dim]), dim=dim)


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(c: Call) -> Value:
    """x[i0, :, i1]: one index is a `take`; several are moved to the front, as PyTorch orders the result."""
    x, given = c.x(), c.arguments["indices"]
    dims = [d for d, i in enumerate(given) if i is not None]
    indices = [wrapped(c, c.importer.env[given[d]], x.shape[d]) for d in dims]
    if len(dims) == 1:
        return c.emit("take", x, indices[0], dim=dims[0])
    rest = [d for d in range(x.tensor.rank) if d not in dims]
    y = c.emit("index", c.transpose(x, dims + rest), *indices)
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    if not adjacent or dims[0] == 0:
        return y
    spread = y.tensor.rank - len(rest)  # the indices' dims go where the indexed dims were
    lead = [spread + i for i in range(dims[0])]
    return c.transpose(y, [*lead, *range(spread), *range(spread + dims[0], y.tensor.rank)])


@aten("index_put", "_unsafe_index_put")
def index_put(c: Call) -> Value:
    """x[i0, :, i1] = values: indexed dims go to the front and back. Through a mask only one value can be written, which is then a choice."""
    x, given = c.x(), c.arguments["indices"]
    dims = [d for d, i in enumerate(given) if i is not None]
    found = [c.importer.env[given[d]] for d in dims]
    if any(i.dtype == "i1" for i in found):
        return _put_where(c, x, found)
    front = [*dims, *(d for d in range(x.tensor.rank) if d not in dims)]
    y = _put(c, c.transpose(x, front), [wrapped(c, i, x.shape[d]) for i, d in zip(found, dims)], dims, bool(c["accumulate"]))
    return c.transpose(y, [front.index(d) for d in range(x.tensor.rank)])


def _put(c: Call, x: Value, indices: list[Value], dims: list[int], accumulate: bool) -> Value:
    """Values written at indices into the leading dims of x; as PyTorch has them, they lie where the first of neighbouring indexed `dims` was."""
    places = broadcast_shape([i.shape for i in indices])
    rest = x.shape[len(dims) :]
    lead = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    shape = (*rest[:lead], *places, *rest[lead:])
    values = c.broadcast(c.value("values", x.dtype), shape)
    moved = c.transpose(values, [*range(lead, lead + len(places)), *range(lead), *range(lead + len(places), len(shape))])
    return c.emit("index_put", x, moved, *indices, accumulate=accumulate)


def _put_where(c: Call, x: Value, masks: list[Value]) -> Value:
    values = c.value("values", x.dtype)
    if len(masks) > 1 or values.tensor.numel != 1:
        raise c.error("writing several values through a boolean mask takes a number of them that depends on data, which is not supported")
    mask, value = masks[0], c.reshape(values, ())
    mask = c.reshape(mask, (*mask.shape, *(1,) * (x.tensor.rank - mask.tensor.rank)))
    return c.emit("select", mask, c.emit("add", x, value) if c["accumulate"] else value, x)


@aten("index_add", "index_copy", "index_fill")
def index_along(c: Call) -> Value:
    """Slices of a dim added to, written, or filled with one value."""
    x, dim, name = c.x(), c.dim(), operator_name(c.node).split(".")[0]
    order = [dim, *(d for d in range(x.tensor.rank) if d != dim)]
    at = c.value("index")
    at = wrapped(c, c.reshape(at, (at.tensor.numel,)), x.shape[dim])
    if name == "index_fill":
        source = c.broadcast(c.value("value", x.dtype), (*at.shape, *(x.shape[d] for d in order[1:])))
    else:
        source = c.transpose(c.value("source", x.dtype), order)
        source = source if c["alpha"] in (None, 1) else c.emit("mul", source, c.full(c["alpha"], x.dtype), label="alpha")
    y = c.emit("index_put", c.transpose(x, order), source, at, accumulate=name == "index_add")
    return c.transpose(y, [order.index(d) for d in range(x.tensor.rank)])


@aten("gather", "take_along_dim")
def gather(c: Call) -> Value:
    x, dim = c.x(), c.dim()
    at = c.value("index" if "index" in c.arguments else "indices")
    for d, n in enumerate(at.shape):  # along other dims the index may cover a part only
        x = c.slice(x, d, 0, n) if d != dim else x
    return c.emit("take_along", x, wrapped(c, at, x.shape[dim]), dim=dim)


@aten("scatter", "scatter_add", "scatter_reduce", "index_reduce")
def scatter(c: Call) -> Value:
    """Without `include_self`, what is written to counts as the identity of the reduction."""
    x, dim, name = c.x(), c.dim(), operator_name(c.node).split(".")[0]
    at, source = _places(c, x, dim) if name == "index_reduce" else (c.value("index"), c.value("src", x.dtype) if "src" in c else None)
    at = wrapped(c, at, x.shape[dim])
    source = c.broadcast(c.value("value", x.dtype), at.shape) if source is None else _cut_to(c, source, at.shape)
    how = "add" if name == "scatter_add" else c["reduce"]
    if how == "mean":
        return _averaged(c, x, at, source, dim)
    if how not in REDUCES:
        raise c.error(f"scatter with reduce={how!r} is not supported")
    if c["include_self"] is False:
        x = _scattered(c, x, at, c.full(_identity(REDUCES[how], x.dtype), x.dtype, at.shape), dim, "none")
    return _scattered(c, x, at, source, dim, REDUCES[how])


def _places(c: Call, x: Value, dim: int) -> tuple[Value, Value]:
    """Index and source of index_reduce as scatter takes them: the index repeated along the other dims."""
    source = c.value("source", x.dtype)
    line = tuple(n if d == dim else 1 for d, n in enumerate(source.shape))
    return c.broadcast(c.reshape(c.value("index"), line), source.shape), source


def _identity(reduce: str, dtype: str) -> float | int:
    if reduce in ("add", "mul"):
        return 0 if reduce == "add" else 1
    info = torch.finfo(DTYPES[dtype]) if DTYPES[dtype].is_floating_point else torch.iinfo(DTYPES[dtype])
    low, high = (-math.inf, math.inf) if isinstance(info, torch.finfo) else (info.min, info.max)
    return low if reduce == "max" else high


def _averaged(c: Call, x: Value, at: Value, source: Value, dim: int) -> Value:
    """Sums over counts; where nothing is written, x stays."""
    own = c["include_self"] is not False
    counts = _scattered(c, c.full(1 if own else 0, x.dtype, x.shape), at, c.full(1, x.dtype, at.shape), dim, "add")
    totals = _scattered(c, x if own else c.full(0, x.dtype, x.shape), at, source, dim, "add")
    some = c.emit("maximum", counts, c.full(1, x.dtype))
    mean = c.emit("div", totals, some, rounding="none" if x.tensor.is_float else "floor")
    return mean if own else c.emit("select", c.emit("gt", counts, c.full(0, x.dtype)), mean, x)


def _scattered(c: Call, x: Value, at: Value, source: Value, dim: int, reduce: str) -> Value:
    """What the index does not reach along the other dims is set aside and joined on again."""
    for d, n in enumerate(at.shape):
        if d != dim and n < x.shape[d]:
            reached = _scattered(c, c.slice(x, d, 0, n), at, source, dim, reduce)
            return c.emit("concat", reached, c.slice(x, d, n, x.shape[d]), dim=d)
    return c.emit("scatter", x, at, source, dim=dim, reduce=reduce)


def _cut_to(c: Call, source: Value, shape: tuple) -> Value:
    """scatter reads only the part of its source that the index covers."""
    for d, n in enumerate(shape):
        source = c.slice(source, d, 0, n)
    return source


@aten("diagonal", "diagonal_copy")
def diagonal(c: Call) -> Value:
    """x[.., i, .., i + offset, ..] along two dims, as the last dim."""
    x, count = c.x(), c.type.shape[-1]
    first, second = (c[name] % x.tensor.rank for name in ("dim1", "dim2"))
    return _diagonal(c, x, (first, second), c["offset"], count)


def _diagonal(c: Call, x: Value, dims: tuple[int, int], offset: int, count: int) -> Value:
    starts = (max(-offset, 0), max(offset, 0))
    at = [c.op("dmlc.iota", *([c.full(s, "i64")] if s else []), types=[TensorType((count,), "i64")], dim=0, step=1).result for s in starts]
    rest = [d for d in range(x.tensor.rank) if d not in dims]
    y = c.emit("index", c.transpose(x, [*dims, *rest]), *at)
    return c.transpose(y, [*range(1, y.tensor.rank), 0])


@aten("trace")
def trace(c: Call) -> Value:
    x = c.x(c.type.dtype)
    return c.emit("reduce_sum", _diagonal(c, x, (0, 1), 0, min(x.shape)), dims=(0,), keepdim=False)


@aten("one_hot")
def one_hot(c: Call) -> Value:
    x, classes = c.x(), c.type.shape[-1]
    at: Op = c.op("dmlc.iota", types=[c.type.with_shape((classes,))], dim=0, step=1)
    return c.cast(c.emit("eq", c.reshape(x, (*x.shape, 1)), at.result), c.type.dtype)


@aten("slice_scatter", "select_scatter")
def slice_scatter(c: Call) -> Value:
    """x with one run of a dim replaced by `src`."""
    x, dim = c.x(), c.dim()
    n, src = x.shape[dim], c.value("src", x.dtype)
    if "index" in c.arguments:
        start = c["index"] % n
        stop, src = start + 1, c.reshape(src, (*x.shape[:dim], 1, *x.shape[dim + 1 :]))
    else:
        from dmlc.frontend.torch_ops_movement import bounds

        start, stop = bounds(c["start"], c["end"], n)
        if c["step"] not in (None, 1):
            raise c.error("a step other than 1 is not supported")
    parts = [c.slice(x, dim, 0, start), src, c.slice(x, dim, stop, n)]
    parts = [p for p in parts if p.shape[dim]]
    return parts[0] if len(parts) == 1 else c.emit("concat", *parts, dim=dim)


@aten("masked_select", "nonzero")
def data_dependent(c: Call) -> Value:
    as_bool(c, "self")
    raise c.error("the size of its result depends on data, which is not supported")
