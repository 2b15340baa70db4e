"""Arithmetic of uint64, whose bits an i64 carries, by signed operations (H. S. Warren, Hacker's Delight, 2nd ed., 9-3)."""

from __future__ import annotations

from dmlc.frontend.onnx.emit import Emit
from dmlc.frontend.onnx.values import Tensor

TOP = -(1 << 63)  # the highest bit
REST = (1 << 63) - 1


def at_least(n: Emit, a: Tensor, b: Tensor) -> Tensor:
    """a >= b: a signed comparison with the highest bits flipped."""
    return n.pointwise("dmlc.ge", n.pointwise("dmlc.bitwise_xor", a, TOP), n.pointwise("dmlc.bitwise_xor", b, TOP))


def halved(n: Emit, a: Tensor) -> Tensor:
    return n.pointwise("dmlc.bitwise_and", n.pointwise("dmlc.shift_right", a, 1), REST)


def shifted_right(n: Emit, a: Tensor, by: Tensor) -> Tensor:
    """Zeros come in at the top; `by` is below 64."""
    further = n.pointwise("dmlc.maximum", n.pointwise("dmlc.sub", by, 1), 0)
    return n.select(n.pointwise("dmlc.eq", by, 0), a, n.pointwise("dmlc.shift_right", halved(n, a), further))


def quotient(n: Emit, a: Tensor, b: Tensor) -> Tensor:
    """a / b, cut. Twice the quotient of half of a is at most one too small; a divisor from 2^63 on goes in once or not at all."""
    near = n.pointwise("dmlc.mul", n.pointwise("dmlc.div", halved(n, a), b, rounding="trunc"), 2)
    rest = n.pointwise("dmlc.sub", a, n.pointwise("dmlc.mul", near, b))
    exact = n.pointwise("dmlc.add", near, n.cast(at_least(n, rest, b), "i64"))
    return n.select(n.pointwise("dmlc.lt", b, 0), n.cast(at_least(n, a, b), "i64"), exact)


def remainder(n: Emit, a: Tensor, b: Tensor) -> Tensor:
    return n.pointwise("dmlc.sub", a, n.pointwise("dmlc.mul", quotient(n, a, b), b))


def to_float(n: Emit, a: Tensor, dtype: str) -> Tensor:
    """Rounded once: of a large number half is converted, whose lowest bit also stands for the one that was cut."""
    wide = dtype if dtype in ("f32", "f64") else "f32"
    half = n.pointwise("dmlc.bitwise_or", halved(n, a), n.pointwise("dmlc.bitwise_and", a, 1))
    large = n.pointwise("dmlc.mul", n.cast(half, wide), 2.0)
    return n.cast(n.select(n.pointwise("dmlc.ge", a, 0), n.cast(a, wide), large), dtype)


def from_float(n: Emit, x: Tensor) -> Tensor:
    """Cut towards zero; from 2^63 on less that much, with the highest bit set."""
    wide = n.cast(x, "f64")
    large = n.pointwise("dmlc.ge", wide, 2.0**63)
    low = n.cast(n.select(large, n.pointwise("dmlc.sub", wide, 2.0**63), wide), "i64")
    return n.pointwise("dmlc.bitwise_xor", low, n.pointwise("dmlc.shift_left", n.cast(large, "i64"), 63))
