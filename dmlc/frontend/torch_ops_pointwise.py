"""aten operators that work element by element.

Operands are cast to the dtype the operator computes in, as PyTorch's promotion says: the result's dtype for arithmetic, the promoted
operand dtype for comparisons. Plain numbers become rank-0 constants.
"""

from __future__ import annotations

import math

import torch

from dmlc.frontend.torch_graph import Call, aten, dtype_name
from dmlc.interpret.evaluate import DTYPES
from dmlc.ir.core import Value

SAME_NAME = (
    "neg", "abs", "sign", "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "sigmoid", "relu", "silu", "hardswish", "mish", "floor", "ceil", "trunc",
    "bitwise_not", "atan2", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor", "pow",
)  # fmt: skip
PREDICATES = ("isnan", "isinf", "logical_not")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor")
OTHER_NAMES = {
    "__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor", "bitwise_left_shift": "shift_left", "bitwise_right_shift": "shift_right",
    "__lshift__": "shift_left", "__rshift__": "shift_right", "absolute": "abs", "negative": "neg", "multiply": "mul",
}  # fmt: skip
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805  # Klambauer et al. 2017, https://arxiv.org/abs/1706.02515


def _arithmetic(name: str):
    def handler(c: Call) -> Value:
        return c.emit(name, *(c.value(a, c.type.dtype) for a in c.arguments if a in ("self", "input", "other", "exponent")))

    return handler


def _predicate(name: str):
    return lambda c: c.emit(name, c.x("i1" if name == "logical_not" and c.x().dtype == "i1" else None))


def _comparison(name: str):
    def handler(c: Call) -> Value:
        dtype = "i1" if name.startswith("logical") else compared_dtype(c)
        if dtype == "i1" and not name.startswith("logical"):
            return c.emit(name, c.value("self", "ui8"), c.value("other", "ui8"))
        return c.emit(name, as_bool(c, "self"), as_bool(c, "other")) if dtype == "i1" else c.emit(name, c.value("self", dtype), c.value("other", dtype))

    return handler


def as_bool(c: Call, name: str) -> Value:
    """A tensor argument as i1: non-zero (NaN too) is true."""
    x = c.value(name)
    return x if x.dtype == "i1" else c.emit("ne", x, c.full(0, x.dtype))


def compared_dtype(c: Call) -> str:
    """The dtype PyTorch compares in."""
    sample = [torch.empty((0,) * c.value(a).tensor.rank, dtype=DTYPES[c.dtype_of(a)]) if c.is_tensor(a) else c[a] for a in ("self", "other")]
    return dtype_name(torch.result_type(*sample))


for _name in SAME_NAME:
    aten(_name)(_arithmetic(_name))
for _name in PREDICATES:
    aten(_name)(_predicate(_name))
for _name in COMPARISONS:
    aten(_name)(_comparison(_name))
for _name, _ours in OTHER_NAMES.items():
    aten(_name)(_arithmetic(_ours))


@aten("add", "sub", "subtract")
def add(c: Call) -> Value:
    """a + alpha b, a - alpha b."""
    dtype = c.type.dtype
    return c.emit("add" if "aten.add" in str(c.node.target) else "sub", c.value("self", dtype), _scaled(c, c.value("other", dtype)))


@aten("rsub")
def rsub(c: Call) -> Value:
    """b - alpha a."""
    dtype = c.type.dtype
    return c.emit("sub", c.value("other", dtype), _scaled(c, c.value("self", dtype)))


def _scaled(c: Call, x: Value) -> Value:
    return x if c["alpha"] in (None, 1) else c.emit("mul", x, c.full(c["alpha"], x.dtype), label="alpha")


@aten("mul")
def mul(c: Call) -> Value:
    dtype = c.type.dtype
    return c.emit("logical_and" if dtype == "i1" else "mul", c.value("self", dtype), c.value("other", dtype))


@aten("div", "true_divide", "divide", "floor_divide")
def div(c: Call) -> Value:
    rounding = "floor" if "floor_divide" in str(c.node.target) else c["rounding_mode"] or "none"
    dtype = c.type.dtype
    return c.emit("div", c.value("self", dtype), c.value("other", dtype), rounding=rounding)


@aten("remainder", "fmod")
def remainder(c: Call) -> Value:
    dtype = c.type.dtype
    return c.emit("rem", c.value("self", dtype), c.value("other", dtype), sign="divisor" if "remainder" in str(c.node.target) else "dividend")


@aten("round")
def round_(c: Call) -> Value:
    if not c["decimals"]:
        return c.emit("round", c.x(c.type.dtype))
    scale = c.full(10.0 ** c["decimals"], c.type.dtype)
    return c.emit("div", c.emit("round", c.emit("mul", c.x(), scale)), scale)


@aten("square")
def square(c: Call) -> Value:
    return c.emit("mul", c.x(), c.x())


@aten("hypot")
def hypot(c: Call) -> Value:
    a, b = (c.value(name, c.type.dtype) for name in ("self", "other"))
    return c.emit("sqrt", c.emit("add", c.emit("mul", a, a), c.emit("mul", b, b)))


@aten("log10")
def log10(c: Call) -> Value:
    return c.emit("mul", c.emit("log", c.x(c.type.dtype)), c.full(1 / math.log(10), c.type.dtype))


@aten("erfc")
def erfc(c: Call) -> Value:
    return c.emit("sub", c.full(1, c.type.dtype), c.emit("erf", c.x(c.type.dtype)))


@aten("gelu")
def gelu(c: Call) -> Value:
    return c.emit("gelu", c.x(), approximate=c["approximate"])


@aten("elu", "celu")
def elu(c: Call) -> Value:
    if "celu" in str(c.node.target):  # alpha (exp(x / alpha) - 1) below zero
        alpha = c.full(c["alpha"], c.type.dtype)
        inner = c.emit("elu", c.emit("div", c.x(), alpha, rounding="none"), alpha=1.0)
        return c.emit("mul", inner, alpha)
    x = c.x() if c["input_scale"] in (None, 1) else c.emit("mul", c.x(), c.full(c["input_scale"], c.type.dtype))
    y = c.emit("elu", x, alpha=float(c["alpha"]))
    return y if c["scale"] in (None, 1) else c.emit("mul", y, c.full(c["scale"], c.type.dtype))


@aten("selu")
def selu(c: Call) -> Value:
    return c.emit("mul", c.emit("elu", c.x(), alpha=SELU_ALPHA), c.full(SELU_SCALE, c.type.dtype))


@aten("leaky_relu")
def leaky_relu(c: Call) -> Value:
    return c.emit("leaky_relu", c.x(), slope=float(c["negative_slope"]))


@aten("prelu", "_prelu_kernel")
def prelu(c: Call) -> Value:
    x, weight = c.x(), c.value("weight")
    if weight.tensor.rank and weight.tensor.rank != x.tensor.rank:
        weight = c.reshape(weight, (*weight.shape, *(1,) * max(x.tensor.rank - 2, 0)))
    return c.emit("select", c.emit("gt", x, c.full(0, x.dtype)), x, c.emit("mul", x, weight))


@aten("softplus")
def softplus(c: Call) -> Value:
    """log(1 + exp(beta x)) / beta; PyTorch's threshold only saves time where the result is x anyway."""
    if c["beta"] == 1:
        return c.emit("softplus", c.x())
    beta = c.full(c["beta"], c.type.dtype)
    return c.emit("div", c.emit("softplus", c.emit("mul", c.x(), beta)), beta, rounding="none")


@aten("log_sigmoid")
def log_sigmoid(c: Call) -> Value:
    return c.emit("neg", c.emit("softplus", c.emit("neg", c.x())))


@aten("hardsigmoid")
def hardsigmoid(c: Call) -> Value:
    return c.emit("hardsigmoid", c.x(), alpha=1 / 6, beta=0.5)


@aten("clamp", "clamp_min", "clamp_max", "clip")
def clamp(c: Call) -> Value:
    """Bounds may be numbers or tensors."""
    x = c.x(c.type.dtype)
    for name, kind in (("min", "maximum"), ("max", "minimum")):
        if c.is_tensor(name):
            x = c.emit(kind, x, c.value(name, c.type.dtype))
    return _clamped(c, x, *(None if c.is_tensor(name) else c[name] for name in ("min", "max")))


@aten("hardtanh")
def hardtanh(c: Call) -> Value:
    return _clamped(c, c.x(), c["min_val"], c["max_val"])


@aten("relu6")
def relu6(c: Call) -> Value:
    return _clamped(c, c.x(), 0, 6)


def _clamped(c: Call, x: Value, low: float | None, high: float | None) -> Value:
    if low is None and high is None:
        return x
    number = float if x.tensor.is_float else int
    return c.emit("clamp", x, min=None if low is None else number(low), max=None if high is None else number(high))


@aten("where")
def where(c: Call) -> Value:
    dtype = c.type.dtype
    return c.emit("select", as_bool(c, "condition"), c.value("self", dtype), c.value("other", dtype))


@aten("masked_fill")
def masked_fill(c: Call) -> Value:
    return c.emit("select", c.value("mask"), c.value("value", c.type.dtype), c.x(c.type.dtype))


@aten("nan_to_num")
def nan_to_num(c: Call) -> Value:
    """NaN, +inf and -inf replaced; by 0 and the dtype's extremes when not given."""
    x, info = c.x(), torch.finfo(DTYPES[c.type.dtype])
    bounds = {"nan": 0.0, "posinf": info.max, "neginf": info.min}
    given = {k: c.get(k, v) for k, v in bounds.items()}
    y = c.emit("select", c.emit("isnan", x), c.full(given["nan"], x.dtype), x)
    y = c.emit("select", c.emit("eq", x, c.full(math.inf, x.dtype)), c.full(given["posinf"], x.dtype), y)
    return c.emit("select", c.emit("eq", x, c.full(-math.inf, x.dtype)), c.full(given["neginf"], x.dtype), y)


@aten("lerp")
def lerp(c: Call) -> Value:
    dtype = c.type.dtype
    a = c.value("self", dtype)
    return c.emit("add", a, c.emit("mul", c.value("weight", dtype), c.emit("sub", c.value("end", dtype), a)))


@aten("addcmul", "addcdiv")
def addcmul(c: Call) -> Value:
    """self + value * tensor1 * tensor2 (or / tensor2)."""
    dtype, divides = c.type.dtype, "addcdiv" in str(c.node.target)
    a, b = c.value("tensor1", dtype), c.value("tensor2", dtype)
    y = c.emit("div", a, b, rounding="none") if divides else c.emit("mul", a, b)
    y = y if c["value"] == 1 else c.emit("mul", y, c.full(c["value"], dtype))
    return c.emit("add", c.value("self", dtype), y)


@aten("_to_copy", "to", "type_as", "_cast_Float")
def to(c: Call) -> Value:
    return c.cast(c.x(), c.type.dtype) if c.type.dtype != "i1" or c.x().dtype == "i1" else as_bool(c, "self")


@aten("detach")
def detach(c: Call) -> Value:
    return c.stopped(c.x())


@aten("clone", "alias", "contiguous", "lift_fresh_copy", "lift_fresh", "_conj", "resolve_conj", "resolve_neg", "positive")
def identity(c: Call) -> Value:
    return c.x()
