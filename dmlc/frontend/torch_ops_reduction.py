"""aten operators that reduce, scan or order along dims."""

from __future__ import annotations

import math

from dmlc.frontend.torch_graph import Call, aten
from dmlc.frontend.torch_ops_pointwise import as_bool
from dmlc.ir.core import Value
from dmlc.ir.dims import Dim


def reduced(c: Call, kind: str, x: Value, dims: tuple[int, ...] | None = None) -> Value:
    dims = c.dims() if dims is None else dims
    return x if not dims else c.emit(f"reduce_{kind}", x, dims=dims, keepdim=bool(c["keepdim"]))


@aten("sum")
def sum_(c: Call) -> Value:
    return reduced(c, "sum", c.x(c.type.dtype))


@aten("mean")
def mean(c: Call) -> Value:
    return c.mean(c.x(c.type.dtype), c.dims(), bool(c["keepdim"]))


@aten("prod")
def prod(c: Call) -> Value:
    return reduced(c, "prod", c.x(c.type.dtype))


@aten("amax", "amin", "max.default", "min.default")
def extreme(c: Call) -> Value:
    return reduced(c, "max" if "max" in str(c.node.target) else "min", c.x())


@aten("max.dim", "min.dim")
def extreme_and_index(c: Call) -> list[Value]:
    kind, dim, keepdim = "max" if "max" in str(c.node.target) else "min", c.dim(), bool(c["keepdim"])
    return [c.emit(f"reduce_{kind}", c.x(), dims=(dim,), keepdim=keepdim), c.emit(f"arg{kind}", c.x(), dim=dim, keepdim=keepdim)]


@aten("max.other", "min.other")
def pairwise(c: Call) -> Value:
    kind = "maximum" if "max" in str(c.node.target) else "minimum"
    return c.emit(kind, c.value("self", c.type.dtype), c.value("other", c.type.dtype))


@aten("argmax", "argmin")
def position(c: Call) -> Value:
    kind, x = "argmax" if "argmax" in str(c.node.target) else "argmin", c.x()
    if "dim" not in c:
        return c.reshape(c.emit(kind, c.reshape(x, (x.tensor.numel,)), dim=0, keepdim=False), c.type.shape)
    return c.emit(kind, x, dim=c.dim(), keepdim=bool(c["keepdim"]))


@aten("any", "all")
def any_or_all(c: Call) -> Value:
    return reduced(c, "or" if "any" in str(c.node.target) else "and", as_bool(c, "self"))


@aten("cumsum")
def cumsum(c: Call) -> Value:
    return c.emit("cumsum", c.x(c.type.dtype), dim=c.dim(), exclusive=False, reverse=False)


@aten("cumprod")
def cumprod(c: Call) -> Value:
    return c.emit("cumprod", c.x(c.type.dtype), dim=c.dim())


@aten("topk")
def topk(c: Call) -> list[Value]:
    return list(c.op("dmlc.topk", c.x(), k=c["k"], dim=c.dim(), largest=c["largest"], sorted=c["sorted"]).results)


@aten("sort", "sort.stable")
def sort(c: Call) -> list[Value]:
    return list(c.op("dmlc.sort", c.x(), dim=c.dim(), descending=bool(c["descending"]), stable=True).results)


@aten("argsort", "argsort.stable")
def argsort(c: Call) -> Value:
    return sort(c)[1]


@aten("logsumexp")
def logsumexp(c: Call) -> Value:
    return c.emit("logsumexp", c.x(), dims=c.dims(), keepdim=bool(c["keepdim"]))


def variance(c: Call) -> tuple[Value, Value]:
    """Mean and variance over the given dims, sizes kept: the mean of squared deviations, corrected."""
    x, dims = c.x(), c.dims()
    count = math.prod(x.shape[d] for d in dims)
    correction = c["correction"] if "correction" in c.arguments else float(c["unbiased"] is not False)
    correction = 1.0 if correction is None else correction
    center = c.mean(x, dims, keepdim=True)
    deviation = c.emit("sub", x, center)
    total = c.emit("reduce_sum", c.emit("mul", deviation, deviation), dims=dims, keepdim=True)
    if isinstance(count, Dim):
        return center, c.emit("div", total, c.full(count - int(correction), x.dtype))
    divisor = count - correction
    return center, c.emit("mul", total, c.full(1 / divisor if divisor > 0 else math.nan, x.dtype))


@aten("var", "std")
def var(c: Call) -> Value:
    spread = variance(c)[1]
    spread = c.emit("sqrt", spread) if "std" in str(c.node.target) else spread
    return c.reshape(spread, c.type.shape)


@aten("var_mean", "std_mean")
def var_mean(c: Call) -> list[Value]:
    center, spread = variance(c)
    spread = c.emit("sqrt", spread) if "std" in str(c.node.target) else spread
    return [c.reshape(v, t.shape) for v, t in zip((spread, center), c.types)]


@aten("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar")
def vector_norm(c: Call) -> Value:
    """(sum |x|^p)^(1/p) with the limits p = inf, -inf and 0."""
    order = c["ord"] if "ord" in c.arguments else c["p"]
    x, order = c.x(), 2 if order is None else order
    if order in (math.inf, -math.inf):
        return reduced(c, "max" if order > 0 else "min", c.emit("abs", x))
    if order == 0:
        return reduced(c, "sum", c.cast(c.emit("ne", x, c.full(0, x.dtype)), x.dtype))
    if order == 1:
        return reduced(c, "sum", c.emit("abs", x))
    if order == 2:
        return c.emit("sqrt", reduced(c, "sum", c.emit("mul", x, x)))
    powers = c.emit("pow", c.emit("abs", x), c.full(order, x.dtype))
    return c.emit("pow", reduced(c, "sum", powers), c.full(1 / order, x.dtype))
