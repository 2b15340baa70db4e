"""Gather, scatter and their kin. Negative indices count from the end: known ones are normalised here, others by a select."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dmlc.frontend.onnx.emit import type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.ops.parts import take_range
from dmlc.frontend.onnx.table import op
from dmlc.frontend.onnx.values import Known, Tensor, Weight
from dmlc.ir.location import DmlcError

REDUCTIONS = ("none", "add", "mul", "max", "min")


def index_tensor(n: Node, i: int, size: int) -> Tensor:
    """Operand i as non-negative i64 indices into a dim of `size`."""
    known = n.maybe_known(i)
    if known is None:
        t = n.cast(n[i], "i64")
        return n.select(n.pointwise("dmlc.lt", t, 0), n.pointwise("dmlc.add", t, size), t)
    if known.size and (known.min() < -size or known.max() >= size):
        raise DmlcError(f"index {known.min() if known.min() < -size else known.max()} is out of range for a dim of {size}")
    wide = known.astype(np.int64)
    t = n.get(i)
    return Known(np.where(wide < 0, wide + size, wide), "i64", t.name if isinstance(t, (Known, Weight)) else "")


@op("Gather", 1, 11, 13)
def gather(n: Node) -> Tensor:
    """Rows of a matrix are an embedding; known places that are evenly spaced, or all one, a slice."""
    dim = n.axis(n.attr("axis", 0), n.rank(0))
    size = n.shape(0)[dim]
    index = index_tensor(n, 1, size)
    places = _even(index.array.reshape(-1)) if isinstance(index, Known) else None
    if places is not None:
        shape = n.shape(0)
        wide = (*shape[:dim], *type_of(index).shape, *shape[dim + 1 :])
        part = take_range(n, n.param(0) if n.is_weight(n[0]) else n[0], dim, places)
        if len(places) == math.prod(type_of(index).shape):
            return n.reshape(part, wide)
        one = (*shape[:dim], *(1,) * len(type_of(index).shape), *shape[dim + 1 :])
        return n.broadcast(n.reshape(part, one), wide)
    if dim == 0 and n.rank(0) == 2 and n.is_weight(n[0]):
        return n.emit("dmlc.embedding", n.param(0), index)
    return n.emit("dmlc.take", n[0], index, dim=dim)


def _even(index: np.ndarray) -> range | None:
    """The indices as a range, when they are evenly spaced, or one place when they are all the same."""
    if not index.size:
        return None
    if (index == index[0]).all():
        return range(int(index[0]), int(index[0]) + 1)
    step = int(index[1] - index[0]) if index.size > 1 else 1
    if (np.diff(index) != step).any():
        return None
    return range(int(index[0]), int(index[-1]) + (1 if step > 0 else -1), step)


@op("GatherElements", 11, 13)
def gather_elements(n: Node) -> Tensor:
    """The index may be smaller than the data along the other dims: the data is cut to it."""
    dim = n.axis(n.attr("axis", 0), n.rank(0))
    index = index_tensor(n, 1, n.shape(0)[dim])
    return n.emit("dmlc.take_along", _cut(n, n[0], type_of(index).shape, dim), index, dim=dim)


def _cut(n: Node, x: Tensor, shape: Sequence[int], keep: int) -> Tensor:
    for d, size in enumerate(shape):
        x = x if d == keep else n.slice(x, d, 0, size)
    return x


@op("GatherND", 11, 12, 13)
def gather_nd(n: Node) -> Tensor:
    """Index tuples along the last dim pick leading dims; `batch_dims` leading dims go along with the data's own."""
    batch = n.attr("batch_dims", 0)
    data, depth = n.shape(0), n.shape(1)[-1]
    if batch + depth > len(data) or batch >= n.rank(1):
        raise DmlcError(f"index tuples of {depth} for {len(data) - batch} dims")
    parts = _tuple_parts(n, 1, data[batch : batch + depth])
    lead = n.shape(1)[:-1]
    own = [n.broadcast(_place(n, d, len(lead), data[d]), lead) for d in range(batch)]
    return n.emit("dmlc.index", n[0], *own, *parts)


def _place(n: Node, d: int, rank: int, size: int) -> Tensor:
    """0, 1, … along dim d, size 1 along the others."""
    return n.reshape(n.iota((size,)), [size if k == d else 1 for k in range(rank)])


def _tuple_parts(n: Node, i: int, sizes: Sequence[int]) -> list[Tensor]:
    """Column d of operand i's last dim as indices into a dim of sizes[d]."""
    known = n.maybe_known(i)
    if known is not None:
        wide = known.astype(np.int64)
        return [Known(np.where(wide[..., d] < 0, wide[..., d] + size, wide[..., d]), "i64") for d, size in enumerate(sizes)]
    parts = []
    for d, size in enumerate(sizes):
        t = n.cast(n.pick(n[i], n.rank(i) - 1, d), "i64")
        parts.append(n.select(n.pointwise("dmlc.lt", t, 0), n.pointwise("dmlc.add", t, size), t))
    return parts


@op("Scatter", 9, 11)
def scatter(n: Node) -> Tensor:
    return _scatter(n, "none")


@op("ScatterElements", 11, 13, 16, 18)
def scatter_elements(n: Node) -> Tensor:
    return _scatter(n, n.attr("reduction", "none"))


def _scatter(n: Node, reduce: str) -> Tensor:
    if reduce not in REDUCTIONS:
        raise DmlcError(f"reduction '{reduce}' is not known")
    dim = n.axis(n.attr("axis", 0), n.rank(0))
    return _scattered(n, n[0], index_tensor(n, 1, n.shape(0)[dim]), dim, reduce)


def _scattered(n: Node, x: Tensor, index: Tensor, dim: int, reduce: str) -> Tensor:
    """The index may be smaller than the data along other dims: what lies beyond it stays."""
    shape, wanted = type_of(x).shape, type_of(index).shape
    if len(shape) != len(wanted) or any(w > s for d, (s, w) in enumerate(zip(shape, wanted)) if d != dim):
        raise DmlcError(f"indices of shape {list(wanted)} for a tensor of shape {list(shape)}")
    cut = next((d for d, (s, w) in enumerate(zip(shape, wanted)) if d != dim and w < s), None)
    if cut is None:
        return n.emit("dmlc.scatter", x, index, n[2], dim=dim, reduce=reduce)
    inner = _scattered(n, n.slice(x, cut, 0, wanted[cut]), index, dim, reduce)
    return n.concat([inner, n.slice(x, cut, wanted[cut], shape[cut])], cut)


@op("ScatterND", 11, 13, 16, 18)
def scatter_nd(n: Node) -> Tensor:
    """Sums and plain writes index leading dims; other reductions go through a scatter along the flattened leading dims."""
    reduction = n.attr("reduction", "none")
    if reduction not in REDUCTIONS:
        raise DmlcError(f"reduction '{reduction}' is not known")
    data, depth = n.shape(0), n.shape(1)[-1]
    if depth > len(data):
        raise DmlcError(f"index tuples of {depth} for {len(data)} dims")
    parts = _tuple_parts(n, 1, data[:depth])
    if reduction in ("none", "add") and depth:
        return n.emit("dmlc.index_put", n[0], n[2], *parts, accumulate=reduction == "add")
    return _flat_scatter(n, parts, reduction)


def _flat_scatter(n: Node, parts: Sequence[Tensor], reduction: str) -> Tensor:
    data, depth = n.shape(0), len(parts)
    rows, inner, count = math.prod(data[:depth]), math.prod(data[depth:]), math.prod(n.shape(1)[:-1])
    flat: Tensor = Known.of(np.zeros(n.shape(1)[:-1], np.int64))
    for part, size in zip(parts, data):
        flat = n.pointwise("dmlc.add", n.pointwise("dmlc.mul", flat, size), part)
    index = n.broadcast(n.reshape(flat, (count, 1)), (count, inner))
    source = n.reshape(n[2], (count, inner))
    return n.reshape(n.emit("dmlc.scatter", n.reshape(n[0], (rows, inner)), index, source, dim=0, reduce=reduction), data)


@op("OneHot", 9, 11, 28)
def one_hot(n: Node) -> Tensor:
    """[off, on] values; an index out of range gives a row of off."""
    depth = int(n.known(1, "the depth").reshape(-1)[0])
    rank = n.rank(0) + 1
    axis = n.axis(n.attr("axis", -1), rank)
    index = n.cast(n[0], "i64")
    index = n.select(n.pointwise("dmlc.lt", index, 0), n.pointwise("dmlc.add", index, depth), index)
    shape = n.shape(0)
    hit = n.pointwise("dmlc.eq", n.reshape(index, (*shape[:axis], 1, *shape[axis:])), _place(n, axis, rank, depth))
    off, on = n.pick(n[2], 0, 0), n.pick(n[2], 0, 1)
    return n.select(hit, on, off)


@op("NonZero", 9, 13, static=True)
def non_zero(n: Node) -> Known:
    """How many there are depends on the data, so the data must be known."""
    return Known.of(np.array(np.nonzero(np.atleast_1d(n.known(0, "the data (its number of non-zeros is a shape)"))), np.int64))


@op("Compress", 9, 11, 28)
def compress(n: Node) -> Tensor:
    kept = np.flatnonzero(n.known(1, "the condition (its number of trues is a shape)"))
    flat = "axis" not in n.attributes
    x = n.reshape(n[0], (math.prod(n.shape(0)),)) if flat else n[0]
    return n.emit("dmlc.take", x, Known.of(kept), dim=0 if flat else n.axis(n.attr("axis"), n.rank(0)))


@op("TensorScatter", 24)
def tensor_scatter(n: Node) -> Tensor:
    """An update written into a cache from each sequence's own position on (`linear`), or around its end (`circular`)."""
    dim, mode = n.axis(n.attr("axis", -2), n.rank(0)), n.attr("mode", "linear")
    cache, update = n.shape(0), n.shape(1)
    start: Tensor = n[2] if n.has(2) else Known.of(np.zeros(cache[0], np.int64))
    places = n.pointwise("dmlc.add", _place(n, dim, len(cache), update[dim]), n.reshape(n.cast(start, "i64"), (cache[0], *(1,) * (len(cache) - 1))))
    if mode == "circular":
        places = n.pointwise("dmlc.rem", places, cache[dim])
    return n.emit("dmlc.scatter", n[0], n.broadcast(places, update), n[1], dim=dim, reduce="none")


