"""Elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx

from dmlc.frontend.onnx.emit import type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.table import op
from dmlc.frontend.onnx.tensors import to_torch
from dmlc.frontend.onnx.unsigned import quotient, remainder, shifted_right, to_float
from dmlc.frontend.onnx.values import Known, Tensor
from dmlc.ir.core import Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import FLOATS

UINT64 = onnx.TensorProto.UINT64

# operator: (op of the IR, schema versions); float operands only where the op says so
UNARY: dict[str, tuple[str, tuple[int, ...]]] = {
    "Abs": ("abs", (6, 13)), "Neg": ("neg", (6, 13)), "Sign": ("sign", (9, 13)), "Sqrt": ("sqrt", (6, 13)), "Reciprocal": ("reciprocal", (6, 13)),
    "Exp": ("exp", (6, 13)), "Log": ("log", (6, 13)), "Sin": ("sin", (7, 22)), "Cos": ("cos", (7, 22)), "Tan": ("tan", (7, 22)),
    "Asin": ("asin", (7, 22)), "Acos": ("acos", (7, 22)), "Atan": ("atan", (7, 22)), "Sinh": ("sinh", (9, 22)), "Cosh": ("cosh", (9, 22)),
    "Tanh": ("tanh", (6, 13)), "Asinh": ("asinh", (9, 22)), "Acosh": ("acosh", (9, 22)), "Atanh": ("atanh", (9, 22)), "Erf": ("erf", (9, 13)),
    "Sigmoid": ("sigmoid", (6, 13)), "Relu": ("relu", (6, 13, 14)), "Softplus": ("softplus", (1, 22)), "HardSwish": ("hardswish", (14, 22)),
    "Mish": ("mish", (18, 22)), "Floor": ("floor", (6, 13)), "Ceil": ("ceil", (6, 13)), "Round": ("round", (11, 22)),
    "Not": ("logical_not", (1,)), "BitwiseNot": ("bitwise_not", (18,)), "IsNaN": ("isnan", (9, 13, 20)),
}  # fmt: skip

BINARY: dict[str, tuple[str, tuple[int, ...]]] = {
    "Add": ("add", (7, 13, 14)), "Sub": ("sub", (7, 13, 14)), "Mul": ("mul", (7, 13, 14)), "And": ("logical_and", (7,)), "Or": ("logical_or", (7,)),
    "Xor": ("logical_xor", (7,)), "BitwiseAnd": ("bitwise_and", (18,)), "BitwiseOr": ("bitwise_or", (18,)), "BitwiseXor": ("bitwise_xor", (18,)),
    "Equal": ("eq", (7, 11, 13, 19)), "Less": ("lt", (7, 9, 13)), "Greater": ("gt", (7, 9, 13)), "LessOrEqual": ("le", (12, 16)), "GreaterOrEqual": ("ge", (12, 16)),
}  # fmt: skip

LEGACY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor", "Equal": "eq", "Less": "lt", "Greater": "gt", "Pow": "pow"}


def _unary(name: str) -> Callable[[Node], Value]:
    return lambda n: n.emit(f"dmlc.{name}", n[0])


def _binary(name: str) -> Callable[[Node], Value]:
    return lambda n: n.pointwise(f"dmlc.{name}", *_weights(n, name))


for _operator, (_name, _versions) in UNARY.items():
    op(_operator, *_versions)(_unary(_name))
for _operator, (_name, _versions) in BINARY.items():
    op(_operator, *_versions)(_binary(_name))


def _weights(n: Node, name: str) -> list[Tensor]:
    """Both operands; a float initializer that is added is a bias or a table of positions, one that multiplies a scale."""
    operands = [n[0], n[1]]
    for i, t in enumerate(operands):
        if name in ("add", "sub", "mul", "div") and n.is_weight(t) and _looks_learned(n, t, name):
            operands[i] = n.param(i)
    return operands


def _looks_learned(n: Node, t: Tensor, name: str) -> bool:
    """A vector along one dim, or for sums also a table [1, positions, channels]; masks and rotary tables have another shape."""
    wide = [size for size in type_of(t).shape if size != 1]
    return len(wide) == 1 or (name == "add" and len(wide) == 2 and len(type_of(t).shape) <= 3)


# ---------------------------------------------------------------- arithmetic with a choice


@op("Div", 7, 13, 14)
def div(n: Node) -> Value:
    """Integers are cut towards zero."""
    if UINT64 in n.elements:
        return n.value(quotient(n, n[0], n[1]))
    return n.pointwise("dmlc.div", *_weights(n, "div"), rounding="none" if n.dtype(0) in FLOATS else "trunc")


@op("Mod", 10, 13, 28)
def mod(n: Node) -> Value:
    """fmod=0 takes the sign of the divisor (floats since version 28 only), fmod=1 that of the dividend."""
    fmod = n.attr("fmod", 0)
    if not fmod and n.dtype(0) in FLOATS and n.since < 28:
        raise DmlcError("floats need the attribute fmod = 1")
    if UINT64 in n.elements:
        return n.value(remainder(n, n[0], n[1]))
    return n.pointwise("dmlc.rem", n[0], n[1], sign="dividend" if fmod else "divisor")


@op("Pow", 7, 12, 13, 15)
def power(n: Node) -> Tensor:
    """The exponent may have another dtype; the result has the base's. An integer base with a float exponent is computed in float."""
    base, exponent, dtype = n[0], n[1], n.dtype(0)
    if len(n.elements) > 1 and n.elements[1] == UINT64 and dtype in FLOATS:
        exponent = to_float(n, exponent, dtype)
        return n.pointwise("dmlc.pow", base, exponent)
    if dtype not in FLOATS and n.dtype(1) in FLOATS:
        return n.cast(n.pointwise("dmlc.pow", n.cast(base, "f64"), n.cast(exponent, "f64")), dtype)
    return n.pointwise("dmlc.pow", base, _cast_known(n, exponent, dtype))


def _cast_known(n: Node, t: Tensor, dtype: str) -> Tensor:
    """A cast that is carried out at once on a single known number."""
    known = n.single(t)
    if known is None:
        return n.cast(t, dtype)
    return Known.of(to_torch(known.array, known.dtype).double().numpy(), dtype)


@op("BitShift", 11, 28)
def bit_shift(n: Node) -> Value:
    """Signed integers keep their sign when they go right (since version 28)."""
    direction = n.attr("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise DmlcError(f"direction '{direction}' is neither LEFT nor RIGHT")
    if UINT64 in n.elements and direction == "RIGHT":
        return n.value(shifted_right(n, n[0], n[1]))
    return n.pointwise(f"dmlc.shift_{direction.lower()}", n[0], n[1])


def _variadic(name: str) -> Callable[[Node], Tensor]:
    def handler(n: Node) -> Tensor:
        result = n[0]
        for i in range(1, len(n.operands)):
            result = n.pointwise(f"dmlc.{name}", result, n[i])
        return result

    return handler


op("Sum", 6, 8, 13)(_variadic("add"))
op("Max", 6, 8, 12, 13)(_variadic("maximum"))
op("Min", 6, 8, 12, 13)(_variadic("minimum"))


@op("Mean", 6, 8, 13)
def mean(n: Node) -> Value:
    return n.pointwise("dmlc.mul", _variadic("add")(n), 1.0 / len(n.operands))


def _legacy(name: str) -> Callable[[Node], Value]:
    """Before version 7: shapes equal, or with broadcast=1 the second is aligned at `axis` (default: on the right)."""

    def handler(n: Node) -> Value:
        a, b = n[0], n[1]
        shape_a, shape_b = type_of(a).shape, type_of(b).shape
        if n.attr("broadcast", 0):
            axis = n.attr("axis", len(shape_a) - len(shape_b))
            b = n.reshape(b, (*shape_b, *(1,) * (len(shape_a) - axis - len(shape_b))))
        elif shape_a != shape_b:
            raise DmlcError(f"shapes {list(shape_a)} and {list(shape_b)} differ and broadcast is not set")
        attrs = {"rounding": "none" if n.dtype(0) in FLOATS else "trunc"} if name == "div" else {}
        return n.pointwise(f"dmlc.{name}", a, b, **attrs)

    return handler


for _operator, _name in LEGACY.items():
    op(_operator, *((1, 6) if _operator in ("Add", "Sub", "Mul", "Div") else (1,)))(_legacy(_name))

# ---------------------------------------------------------------- choice and dtype


@op("Where", 9, 16)
def where(n: Node) -> Value:
    return n.select(n[0], n[1], n[2])


@op("IsInf", 10, 20)
def is_inf(n: Node) -> Value:
    positive, negative = n.attr("detect_positive", 1), n.attr("detect_negative", 1)
    if positive and negative:
        return n.emit("dmlc.isinf", n[0])
    if positive or negative:
        return n.pointwise("dmlc.eq", n[0], math.inf if positive else -math.inf)
    return n.full(False, "i1", n.shape(0))


@op("Clip", 6)
def clip_attributes(n: Node) -> Tensor:
    return _clamp(n, n.attr("min", None), n.attr("max", None))


@op("Clip", 11, 12, 13)
def clip(n: Node) -> Tensor:
    """min and max are optional, each by itself; bounds that depend on the data become maximum and minimum, in that order."""
    low, high = n.number(1), n.number(2)
    x = _clamp(n, low, high if low is not None or not n.has(1) else None)
    if n.has(1) and low is None:
        x = n.pointwise("dmlc.maximum", x, n[1])
        return _minimum(n, x, high)
    return n.pointwise("dmlc.minimum", x, n[2]) if n.has(2) and high is None else x


def _minimum(n: Node, x: Tensor, high: Any) -> Tensor:
    if not n.has(2):
        return x
    return n.pointwise("dmlc.minimum", x, high if high is not None else n[2])


def _clamp(n: Node, low: Any, high: Any) -> Tensor:
    if low is None and high is None:
        return n[0]
    return n.emit("dmlc.clamp", n[0], min=low, max=high)


# ---------------------------------------------------------------- activations


@op("Gelu", 20)
def gelu(n: Node) -> Value:
    approximate = n.attr("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise DmlcError(f"approximate '{approximate}' is neither none nor tanh")
    return n.emit("dmlc.gelu", n[0], approximate=approximate)


@op("Elu", 6, 22)
def elu(n: Node) -> Value:
    return n.emit("dmlc.elu", n[0], alpha=n.attr("alpha", 1.0))


@op("Celu", 12, 28)
def celu(n: Node) -> Value:
    """max(x, 0) + min(alpha (e^(x / alpha) - 1), 0)"""
    alpha = n.attr("alpha", 1.0)
    below = n.pointwise("dmlc.mul", n.emit("dmlc.expm1", n.pointwise("dmlc.div", n[0], alpha)), alpha)
    return n.pointwise("dmlc.add", n.emit("dmlc.relu", n[0]), n.emit("dmlc.clamp", below, max=0.0))


@op("Selu", 6, 22)
def selu(n: Node) -> Value:
    alpha, gamma = n.attr("alpha", 1.6732632423543772), n.attr("gamma", 1.0507009873554805)
    return n.pointwise("dmlc.mul", n.emit("dmlc.elu", n[0], alpha=alpha), gamma)


@op("LeakyRelu", 6, 16)
def leaky_relu(n: Node) -> Value:
    return n.emit("dmlc.leaky_relu", n[0], slope=n.attr("alpha", 0.01))


@op("PRelu", 7, 9, 16)
def prelu(n: Node) -> Value:
    return n.select(n.pointwise("dmlc.lt", n[0], 0), n.pointwise("dmlc.mul", n[0], n.param(1)), n[0])


@op("HardSigmoid", 6, 22)
def hard_sigmoid(n: Node) -> Value:
    return n.emit("dmlc.hardsigmoid", n[0], alpha=n.attr("alpha", 0.2), beta=n.attr("beta", 0.5))


@op("Softsign", 1, 22)
def softsign(n: Node) -> Value:
    return n.pointwise("dmlc.div", n[0], n.pointwise("dmlc.add", n.emit("dmlc.abs", n[0]), 1))


@op("ThresholdedRelu", 10, 22)
def thresholded_relu(n: Node) -> Value:
    return n.select(n.pointwise("dmlc.gt", n[0], n.attr("alpha", 1.0)), n[0], 0)


@op("Shrink", 9)
def shrink(n: Node) -> Value:
    bias, lambd = n.attr("bias", 0.0), n.attr("lambd", 0.5)
    below = n.select(n.pointwise("dmlc.lt", n[0], -lambd), n.pointwise("dmlc.add", n[0], bias), 0) if bias or lambd else n[0]
    return n.select(n.pointwise("dmlc.gt", n[0], lambd), n.pointwise("dmlc.sub", n[0], bias), below)


@op("Swish", 24)
def swish(n: Node) -> Value:
    alpha = n.attr("alpha", 1.0)
    if alpha == 1.0:
        return n.emit("dmlc.silu", n[0])
    return n.pointwise("dmlc.mul", n[0], n.emit("dmlc.sigmoid", n.pointwise("dmlc.mul", n[0], alpha)))


