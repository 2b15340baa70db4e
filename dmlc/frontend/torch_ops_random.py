"""aten operators that draw numbers: each call has a stream of its own, and what it gives is a function of seed, step, stream and element."""

from __future__ import annotations

import math

from dmlc.frontend.torch_graph import Call, aten
from dmlc.ir.core import Value
from dmlc.ir.types import TensorType

LONGEST = 2**24  # values that a uniform number of 24 bits tells apart


def drawn(c: Call, kind: str, type_: TensorType | None = None) -> Value:
    """Numbers on [0, 1) (`uniform`) or standard normal ones (`normal`), of the call's type unless another is given."""
    type_ = c.type if type_ is None else type_
    if not type_.is_float:
        raise c.error(f"random numbers of type {type_.dtype} are not supported")
    return c.emit(f"random_{kind}", *c.importer.seed_and_step(), types=[type_], shape=type_.shape, stream=c.importer.stream())


@aten("rand", "rand_like")
def rand(c: Call) -> Value:
    return drawn(c, "uniform")


@aten("randn", "randn_like")
def randn(c: Call) -> Value:
    return drawn(c, "normal")


@aten("normal_functional", "normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", "normal.float_float")
def normal(c: Call) -> Value:
    """Mean and deviation are numbers or tensors."""
    dtype = c.type.dtype
    return c.emit("add", c.emit("mul", drawn(c, "normal"), c.value("std", dtype)), c.value("mean", dtype))


@aten("uniform")
def uniform(c: Call) -> Value:
    """On [from, to)."""
    low, high = c["from"], c["to"]
    return c.emit("add", c.emit("mul", drawn(c, "uniform"), c.full(high - low, c.type.dtype)), c.full(low, c.type.dtype))


@aten("exponential")
def exponential(c: Call) -> Value:
    """-log(1 - u) / rate."""
    rest = c.emit("sub", c.full(1, c.type.dtype), drawn(c, "uniform"))
    return c.emit("mul", c.emit("log", rest), c.full(-1 / c["lambd"], c.type.dtype))


@aten("bernoulli.default", "bernoulli.p", "bernoulli.Tensor")
def bernoulli(c: Call) -> Value:
    """One where a uniform number is below p, which is a number or a tensor."""
    p = c.value("p", "f32") if "p" in c else c.x("f32")
    number = drawn(c, "uniform", TensorType(c.type.shape, "f32"))
    return c.cast(c.emit("lt", number, p), c.type.dtype)


@aten("randint", "randint.low", "randint_like", "randint_like.low_dtype")
def randint(c: Call) -> Value:
    """Integers from low on, below high."""
    low, high = c["low"] or 0, c["high"]
    if not 0 < high - low <= LONGEST:
        raise c.error(f"a range of {high - low} integers is not supported (up to 2^{int(math.log2(LONGEST))})")
    number = drawn(c, "uniform", TensorType(c.type.shape, "f64"))
    scaled = c.emit("floor", c.emit("mul", number, c.full(high - low, "f64")))
    return c.cast(c.emit("add", scaled, c.full(low, "f64")), c.type.dtype)


@aten("randperm")
def randperm(c: Call) -> Value:
    """The order of as many uniform numbers."""
    number = drawn(c, "uniform", TensorType(c.type.shape, "f32"))
    return c.cast(c.op("dmlc.sort", number, dim=0, descending=False, stable=True).results[1], c.type.dtype)
