"""Short names for ops that gradients and decompositions emit often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dmlc.ir.core import Value
from dmlc.ir.types import Size, TensorType

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder

NARROW = ("f16", "bf16", "f8E4M3FN", "f8E5M2")


def f32(*shape: Size) -> TensorType:
    """Type of a float tensor; samples use it throughout, since the generic tests promote it to float64 where they need to."""
    return TensorType(tuple(shape), "f32")


def i64(*shape: Size) -> TensorType:
    return TensorType(tuple(shape), "i64")


def i1(*shape: Size) -> TensorType:
    return TensorType(tuple(shape), "i1")


def scalar(b: Builder, value: float | int | bool, dtype: str) -> Value:
    """A rank-0 constant."""
    return b.emit("dmlc.full", types=[TensorType((), dtype)], value=value)


def scaled(b: Builder, x: Value, factor: float) -> Value:
    """x * factor."""
    return x if factor == 1.0 else b.emit("dmlc.mul", x, scalar(b, factor, x.dtype))


def cast(b: Builder, x: Value, dtype: str) -> Value:
    return x if x.dtype == dtype else b.emit("dmlc.cast", x, to=dtype)


def wide(b: Builder, x: Value) -> Value:
    """x in a dtype that sums and squares are safe in: narrow floats become f32."""
    return cast(b, x, "f32") if x.dtype in NARROW else x


def reshaped(b: Builder, x: Value, shape: Sequence[int]) -> Value:
    return x if x.shape == tuple(shape) else b.emit("dmlc.reshape", x, types=[x.tensor.with_shape(shape)])


def widened(b: Builder, x: Value, shape: Sequence[int]) -> Value:
    """x broadcast (right-aligned) to `shape`."""
    return x if x.shape == tuple(shape) else b.emit("dmlc.broadcast", x, types=[x.tensor.with_shape(shape)])


def spread(b: Builder, x: Value, dim: int, rank: int) -> Value:
    """A vector as a rank-`rank` tensor that lies along `dim`: ready to broadcast."""
    return reshaped(b, x, (1,) * dim + x.shape + (1,) * (rank - dim - 1))
