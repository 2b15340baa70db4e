"""Quantisation: integers with a scale and a zero point, as explicit casts, products and sums.

Products of 8-bit integers are summed in a float dtype wide enough to be exact.
"""

from __future__ import annotations

import math

from dmlc.frontend.onnx.carried import Kind, converted, is_float
from dmlc.frontend.onnx.emit import type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.ops.contraction import exact_float, product
from dmlc.frontend.onnx.ops.windows import window_attributes
from dmlc.frontend.onnx.table import op
from dmlc.frontend.onnx.tensors import INTEGER_CARRIED, INTEGER_LIMITS, dtype_of_element
from dmlc.frontend.onnx.values import Tensor
from dmlc.ir.location import DmlcError

VERSIONS = (10, 13, 19, 21, 23, 24, 25, 28)


def _along(n: Node, t: Tensor, x: Tensor) -> Tensor:
    """A scale or zero point shaped to go with x: one for all, one a place of `axis`, or one a block of places."""
    shape, rank = type_of(x).shape, len(type_of(x).shape)
    source = type_of(t).shape
    if math.prod(source) == 1:
        return n.reshape(t, ())
    axis = n.axis(n.attr("axis", 1), rank)
    block = n.attr("block_size", 0)
    if len(source) == 1:
        return n.reshape(t, [source[0] if d == axis else 1 for d in range(rank)])
    if not block or len(source) != rank:
        raise DmlcError(f"a scale of shape {list(source)} for a tensor of shape {list(shape)}")
    wide = (*source[: axis + 1], block, *source[axis + 1 :])
    spread = n.broadcast(n.reshape(t, (*source[: axis + 1], 1, *source[axis + 1 :])), wide)
    return n.slice(n.reshape(spread, (*source[:axis], source[axis] * block, *source[axis + 1 :])), axis, 0, shape[axis])


@op("DequantizeLinear", *VERSIONS)
def dequantize_linear(n: Node) -> Tensor:
    """(x - zero point) * scale"""
    dtype = n.dtype(1)
    x = centred(n, n[0], _along(n, n[2], n[0]) if n.has(2) else None, "f32" if dtype not in ("f64",) else dtype)
    y = n.pointwise("dmlc.mul", x, n.cast(_along(n, n[1], n[0]), type_of(x).dtype))
    target = n.attr("output_dtype", 0)
    n.result_elements = [None]
    return n.cast(y, dtype_of_element(target, "the result") if target else dtype)


def centred(n: Node, x: Tensor, zero: Tensor | None, dtype: str) -> Tensor:
    """x - zero point in a float dtype; 32-bit integers are subtracted before they are converted."""
    known = n.single(zero) if zero is not None else None
    if zero is None or (known is not None and not known.array.any()):
        return n.cast(x, dtype)
    if type_of(x).dtype == "i32":
        return n.cast(n.pointwise("dmlc.sub", x, zero), dtype)
    return n.pointwise("dmlc.sub", n.cast(x, dtype), n.cast(zero, dtype))


@op("QuantizeLinear", *VERSIONS)
def quantize_linear(n: Node) -> Tensor:
    """saturate(round(x / scale) + zero point)"""
    target = n.attr("output_dtype", 0)
    to = n.kind(2) if n.has(2) else Kind.of(target, "the result") if target else Kind(None, "ui8")
    n.result_elements = [to.element]
    x = n.cast(n[0], "f32")
    scaled = n.pointwise("dmlc.div", x, n.cast(_along(n, n[1], n[0]), "f32"))
    if is_float(to):  # their zero point is always 0
        return converted(n, scaled, to, bool(n.attr("saturate", 1)))
    return saturated(n, scaled, _along(n, n[2], n[0]) if n.has(2) else None, to.dtype, to.element)


def saturated(n: Node, scaled: Tensor, zero: Tensor | None, dtype: str, element: int | None = None) -> Tensor:
    """round(scaled) + zero point, clamped to the integer's range."""
    rounded: Tensor = n.emit("dmlc.round", scaled)
    known = n.single(zero) if zero is not None else None
    if zero is not None and (known is None or known.array.any()):
        rounded = n.pointwise("dmlc.add", rounded, n.cast(zero, type_of(rounded).dtype))
    low, high = INTEGER_CARRIED[element] if element else INTEGER_LIMITS[dtype]
    return n.cast(n.emit("dmlc.clamp", rounded, min=float(low), max=float(high)), dtype)


@op("DynamicQuantizeLinear", 11)
def dynamic_quantize_linear(n: Node) -> list[Tensor]:
    return list(dynamically_quantized(n, n[0]))


def dynamically_quantized(n: Node, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x in ui8 with scale and zero point from its range, 0 included; a range of one point has scale 1."""
    dims = tuple(range(len(type_of(x).shape)))
    high = n.pointwise("dmlc.maximum", n.reduce("max", x, dims, False), 0)
    low = n.pointwise("dmlc.minimum", n.reduce("min", x, dims, False), 0)
    span = n.pointwise("dmlc.div", n.pointwise("dmlc.sub", high, low), 255)
    scale = n.select(n.pointwise("dmlc.eq", span, 0), 1, span)
    zero = n.emit("dmlc.clamp", n.emit("dmlc.round", n.pointwise("dmlc.div", n.emit("dmlc.neg", low), scale)), min=0.0, max=255.0)
    y = n.pointwise("dmlc.add", n.emit("dmlc.round", n.pointwise("dmlc.div", x, scale)), zero)
    return n.cast(n.emit("dmlc.clamp", y, min=0.0, max=255.0), "ui8"), scale, n.cast(zero, "ui8")


# ---------------------------------------------------------------- integer products


def _zero_point(n: Node, i: int, rank: int, dim: int) -> Tensor | None:
    """Operand i as a zero point: a number, or a vector along `dim`."""
    if not n.has(i):
        return None
    size = math.prod(n.shape(i))
    return n.reshape(n[i], ()) if size == 1 else n[i] if n.rank(i) > 1 else n.reshape(n[i], [size if d == dim else 1 for d in range(rank)])


def integer_product(n: Node, a: int, b: int, zero_a: int, zero_b: int) -> Tensor:
    """The exact product of two centred integer matrices (or vectors, as numpy.matmul has them), as integers in a float dtype."""
    dtype = exact_float(n.shape(a)[-1] if n.shape(a) else 1)
    left = centred(n, n[a], _zero_point(n, zero_a, n.rank(a), n.rank(a) - 2), dtype)
    right = centred(n, n[b], _zero_point(n, zero_b, n.rank(b), n.rank(b) - 1), dtype)
    return product(n, left, right)


@op("MatMulInteger", 10)
def matmul_integer(n: Node) -> Tensor:
    return n.cast(integer_product(n, 0, 1, 2, 3), "i32")


@op("QLinearMatMul", 10, 21)
def qlinear_matmul(n: Node) -> Tensor:
    """Operands: a, its scale and zero point, b, its scale and zero point, the result's scale and zero point."""
    product = integer_product(n, 0, 3, 2, 5)
    dtype = type_of(product).dtype
    scale_a = n.cast(_zero_point(n, 1, n.rank(0), n.rank(0) - 2) or n[1], dtype)
    scale_b = n.cast(_zero_point(n, 4, n.rank(3), n.rank(3) - 1) or n[4], dtype)
    factor = n.pointwise("dmlc.div", n.pointwise("dmlc.mul", scale_a, scale_b), n.cast(n.reshape(n[6], ()), dtype))
    return saturated(n, n.pointwise("dmlc.mul", product, factor), n.reshape(n[7], ()), n.dtype(7))


def _integer_convolution(n: Node, x: int, w: int, zero_x: int, zero_w: int) -> Tensor:
    kernel = n.shape(w)[2:]
    dtype = exact_float(math.prod(n.shape(w)[1:]))
    left = centred(n, n[x], _zero_point(n, zero_x, n.rank(x), 1), dtype)
    right = centred(n, n[w], _zero_point(n, zero_w, n.rank(w), 0), dtype)
    return n.emit("dmlc.conv", left, right, groups=n.attr("group", 1), **window_attributes(n, n.shape(x)[2:], kernel))


@op("ConvInteger", 10)
def conv_integer(n: Node) -> Tensor:
    return n.cast(_integer_convolution(n, 0, 1, 2, 3), "i32")


@op("QLinearConv", 10)
def qlinear_conv(n: Node) -> Tensor:
    """Operands: x, scale, zero point, w, scale (one, or one a channel), zero point, the result's scale and zero point, bias in i32."""
    y = _integer_convolution(n, 0, 3, 2, 5)
    dtype, rank = type_of(y).dtype, n.rank(0)
    if n.has(8):
        y = n.pointwise("dmlc.add", y, n.cast(n.reshape(n[8], (n.shape(8)[0], *(1,) * (rank - 2))), dtype))
    scale_w = _zero_point(n, 4, rank - 1, 0)
    assert scale_w is not None
    factor = n.pointwise("dmlc.mul", n.cast(n.reshape(n[1], ()), dtype), n.cast(scale_w, dtype))
    factor = n.pointwise("dmlc.div", factor, n.cast(n.reshape(n[6], ()), dtype))
    return saturated(n, n.pointwise("dmlc.mul", y, factor), n.reshape(n[7], ()), n.dtype(7))


