"""Reductions, positions of extrema, running sums and sorting."""

from __future__ import annotations

import math
from collections.abc import Callable

from dmlc.frontend.onnx.emit import type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.table import op
from dmlc.frontend.onnx.values import Tensor
from dmlc.ir.location import DmlcError
from dmlc.ir.types import FLOATS

Reduce = Callable[[Node, Tensor, tuple[int, ...], bool], Tensor]


def _plain(kind: str) -> Reduce:
    return lambda n, x, dims, keep: n.reduce(kind, x, dims, keep)


def _mean(n: Node, x: Tensor, dims: tuple[int, ...], keep: bool) -> Tensor:
    if type_of(x).dtype in FLOATS:
        return n.mean(x, dims, keep)
    count = math.prod(type_of(x).shape[d] for d in dims)
    return n.pointwise("dmlc.div", n.reduce("sum", x, dims, keep), count, rounding="trunc")


def _extremum(kind: str, truth: str) -> Reduce:
    """On truth values the largest is `or`, the smallest `and`."""
    return lambda n, x, dims, keep: n.reduce(truth if type_of(x).dtype == "i1" else kind, x, dims, keep)


def _square_sum(n: Node, x: Tensor, dims: tuple[int, ...], keep: bool) -> Tensor:
    return n.reduce("sum", n.pointwise("dmlc.mul", x, x), dims, keep)


def _log_sum_exp(n: Node, x: Tensor, dims: tuple[int, ...], keep: bool) -> Tensor:
    return n.emit("dmlc.logsumexp", x, dims=dims, keepdim=keep)


def _float(n: Node, x: Tensor, then: Callable[[Tensor], Tensor]) -> Tensor:
    """Through f64 and back for integers."""
    dtype = type_of(x).dtype
    return then(x) if dtype in FLOATS else n.cast(then(n.cast(x, "f64")), dtype)


REDUCTIONS: dict[str, tuple[Reduce, tuple[int, ...], tuple[int, ...]]] = {  # how, versions with axes as attribute, versions with axes as operand
    "ReduceSum": (_plain("sum"), (1, 11), (13,)),
    "ReduceMean": (_mean, (1, 11, 13), (18,)),
    "ReduceProd": (_plain("prod"), (1, 11, 13), (18,)),
    "ReduceMax": (_extremum("max", "or"), (1, 11, 12, 13), (18, 20)),
    "ReduceMin": (_extremum("min", "and"), (1, 11, 12, 13), (18, 20)),
    "ReduceL1": (lambda n, x, dims, keep: n.reduce("sum", n.emit("dmlc.abs", x), dims, keep), (1, 11, 13), (18,)),
    "ReduceL2": (lambda n, x, dims, keep: _float(n, x, lambda y: n.emit("dmlc.sqrt", _square_sum(n, y, dims, keep))), (1, 11, 13), (18,)),
    "ReduceSumSquare": (_square_sum, (1, 11, 13), (18,)),
    "ReduceLogSum": (lambda n, x, dims, keep: _float(n, x, lambda y: n.emit("dmlc.log", n.reduce("sum", y, dims, keep))), (1, 11, 13), (18, 28)),
    "ReduceLogSumExp": (lambda n, x, dims, keep: _float(n, x, lambda y: _log_sum_exp(n, y, dims, keep)), (1, 11, 13), (18, 28)),
}


def _reduction(how: Reduce, axes_are_operand: bool) -> Callable[[Node], Tensor]:
    def handler(n: Node) -> Tensor:
        rank = n.rank(0)
        axes = (n.ints(1, "the axes") if n.has(1) else ()) if axes_are_operand else n.attr("axes", ())
        if not axes and axes_are_operand and n.attr("noop_with_empty_axes", 0):
            return how(n, n[0], (), True)
        return how(n, n[0], n.axes(axes, rank) if axes else tuple(range(rank)), bool(n.attr("keepdims", 1)))

    return handler


for _operator, (_how, _attribute, _operand) in REDUCTIONS.items():
    op(_operator, *_attribute)(_reduction(_how, False))
    op(_operator, *_operand)(_reduction(_how, True))


def _position(kind: str) -> Callable[[Node], Tensor]:
    def handler(n: Node) -> Tensor:
        """The last of equals is the first of the reversed dim."""
        dim = n.axis(n.attr("axis", 0), n.rank(0))
        keep = bool(n.attr("keepdims", 1))
        if not n.attr("select_last_index", 0):
            return n.emit(f"dmlc.{kind}", n[0], dim=dim, keepdim=keep)
        reversed_ = n.emit(f"dmlc.{kind}", n.emit("dmlc.flip", n[0], dims=(dim,)), dim=dim, keepdim=keep)
        return n.pointwise("dmlc.sub", n.shape(0)[dim] - 1, reversed_)

    return handler


op("ArgMax", 1, 11, 12, 13)(_position("argmax"))
op("ArgMin", 1, 11, 12, 13)(_position("argmin"))


@op("CumSum", 11, 14)
def cumsum(n: Node) -> Tensor:
    dim = n.axis(n.ints(1, "the axis")[0], n.rank(0))
    return n.emit("dmlc.cumsum", n[0], dim=dim, exclusive=bool(n.attr("exclusive", 0)), reverse=bool(n.attr("reverse", 0)))


@op("CumProd", 26)
def cumprod(n: Node) -> Tensor:
    """`exclusive` puts a 1 before the first and leaves the last out; `reverse` goes from the end."""
    dim = n.axis(n.ints(1, "the axis")[0], n.rank(0))
    x = n.emit("dmlc.flip", n[0], dims=(dim,)) if n.attr("reverse", 0) else n[0]
    if n.attr("exclusive", 0):
        shape = n.shape(0)
        one = n.full(1, n.dtype(0), [1 if d == dim else s for d, s in enumerate(shape)])
        x = n.slice(n.concat([one, x], dim), dim, 0, shape[dim])
    y = n.emit("dmlc.cumprod", x, dim=dim)
    return n.emit("dmlc.flip", y, dims=(dim,)) if n.attr("reverse", 0) else y


@op("TopK", 1)
def topk_attribute(n: Node) -> list[Tensor]:
    return _topk(n, n.attr("k"))


@op("TopK", 10, 11, 24)
def topk(n: Node) -> list[Tensor]:
    return _topk(n, n.ints(1, "k")[0])


def _topk(n: Node, k: int) -> list[Tensor]:
    dim = n.axis(n.attr("axis", -1), n.rank(0))
    if not 0 <= k <= n.shape(0)[dim]:
        raise DmlcError(f"k = {k} of a dim of {n.shape(0)[dim]}")
    return list(n.op("dmlc.topk", [n[0]], k=k, dim=dim, largest=bool(n.attr("largest", 1)), sorted=bool(n.attr("sorted", 1))).results)


# ---------------------------------------------------------------- softmax and its kin


def _flattened(name: str) -> Callable[[Node], Tensor]:
    """Before version 13: all dims from `axis` (default 1) on are normalised together."""

    def handler(n: Node) -> Tensor:
        shape = n.shape(0)
        axis = n.axis(n.attr("axis", 1), len(shape)) if n.attr("axis", 1) != len(shape) else len(shape)
        wide = [d for d in range(axis, len(shape)) if shape[d] != 1]
        if len(wide) == 1:
            return SOFTMAX[name](n, n[0], wide[0])
        flat = n.reshape(n[0], (math.prod(shape[:axis]), math.prod(shape[axis:])))
        return n.reshape(SOFTMAX[name](n, flat, 1), shape)

    return handler


def _along(name: str) -> Callable[[Node], Tensor]:
    return lambda n: SOFTMAX[name](n, n[0], n.axis(n.attr("axis", -1), n.rank(0)))


def _hardmax(n: Node, x: Tensor, dim: int) -> Tensor:
    """1 at the first of the largest, else 0."""
    first = n.emit("dmlc.argmax", x, dim=dim, keepdim=True)
    shape = type_of(x).shape
    places = n.reshape(n.iota((shape[dim],)), [shape[d] if d == dim else 1 for d in range(len(shape))])
    return n.cast(n.pointwise("dmlc.eq", places, first), type_of(x).dtype)


SOFTMAX: dict[str, Callable[[Node, Tensor, int], Tensor]] = {
    "Softmax": lambda n, x, dim: n.emit("dmlc.softmax", x, dim=dim),
    "LogSoftmax": lambda n, x, dim: n.emit("dmlc.log_softmax", x, dim=dim),
    "Hardmax": _hardmax,
}

for _operator in SOFTMAX:
    op(_operator, 1, 11)(_flattened(_operator))
    op(_operator, 13)(_along(_operator))
