"""aten operators that read or write at indices. Negative indices, which PyTorch counts from the end, are made positive here."""

from __future__ import annotations

from dmlc.frontend.torch_graph import Call, aten
from dmlc.frontend.torch_ops_pointwise import as_bool
from dmlc.ir.core import Op, Value

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
    return c.emit("embedding", c.value("weight"), c.cast(c.value("indices"), "i64"))


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
    x, given = c.x(), c.arguments["indices"]
    if any(i is None for i in given[: len(given)]):
        raise c.error("writing through an index that leaves out a leading dim is not supported")
    indices = [wrapped(c, c.importer.env[i], x.shape[d]) for d, i in enumerate(given)]
    return c.emit("index_put", x, c.value("values", x.dtype), *indices, accumulate=bool(c["accumulate"]))


@aten("gather", "take_along_dim")
def gather(c: Call) -> Value:
    x, dim = c.x(), c.dim()
    at = c.value("index" if "index" in c.arguments else "indices")
    for d, n in enumerate(at.shape):  # along other dims the index may cover a part only
        x = c.slice(x, d, 0, n) if d != dim else x
    return c.emit("take_along", x, wrapped(c, at, x.shape[dim]), dim=dim)


@aten("scatter", "scatter_add", "scatter_reduce")
def scatter(c: Call) -> Value:
    x, dim = c.x(), c.dim()
    at = wrapped(c, c.value("index"), x.shape[dim])
    source = c.value("src", x.dtype) if "src" in c else c.broadcast(c.value("value", x.dtype), at.shape)
    name = "add" if "scatter_add" in str(c.node.target) else c["reduce"]
    if name not in REDUCES or c["include_self"] is False:
        raise c.error(f"scatter with reduce={name!r}, include_self={c['include_self']} is not supported")
    return _scattered(c, x, at, _cut_to(c, source, at.shape), dim, REDUCES[name])


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
