"""Tensors from nothing: constants and index ranges. Their result types are given; every dim is new, so they are made in the wanted sharding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.dims import Dim
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ops.base import REQUIRED, OpDef, Sample, attribute
from dmlc.ops.folding import moved
from dmlc.ops.pointwise import triton_dtype

if TYPE_CHECKING:
    import numpy


class Source(OpDef):
    given = True


class Full(Source):
    """Every element is `value`. Scalars in formulas are rank-0 fulls."""

    name = "dmlc.full"
    rule = "-> ..."
    attributes = {"value": REQUIRED}
    torch = "torch.full({r0.shape}, {value}, dtype={r0.dtype})"
    triton = staticmethod(lambda op: f"tl.full([], {{value}}, {triton_dtype(op.result.dtype)})")
    cost = "free"

    @classmethod
    def check(cls, op: Op) -> None:
        value, dtype = op.attrs["value"], op.result.dtype
        fits = isinstance(value, bool) if dtype == "i1" else isinstance(value, (int, float)) if op.result.tensor.is_float else isinstance(value, (int, Dim))
        if op.operands or not fits:
            raise DmlcError(f"'dmlc.full' of {dtype} cannot hold {value!r}", op.loc)

    @staticmethod
    def vjp(b: Any, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        return []

    @staticmethod
    def fold(op: Op, operands: Sequence[numpy.ndarray]) -> list[numpy.ndarray] | None:
        """Any dtype but bf16 and 8-bit floats, whose arrays hold bits."""
        if op.result.dtype == "bf16" or op.result.dtype.startswith("f8") or isinstance(op.attrs["value"], Dim):
            return None
        return moved("np.full({r0.shape}, {value})")(op, operands)

    @staticmethod
    def samples() -> list[Sample]:
        kinds = [((5, 3), "f32", 1.5), ((1,), "f32", float("-inf")), ((0, 4), "f32", 0.0), ((), "f32", -2.0), ((5,), "i64", 1 << 40), ((3,), "i1", True), ((3,), "bf16", 0.5), ((3,), "i32", -7)]
        return [Sample((), AttrDict(value=v), (TensorType(s, d),)) for s, d, v in kinds]


class Iota(Source):
    """start + index * step along `dim`, equal along the others; `start` (i64, rank 0) is optional.

    A rank that holds a part of `dim` gets its offset, times the step, through `start`.
    """

    name = "dmlc.iota"
    rule = staticmethod(lambda op: "() -> ..." if op.operands else "-> ...")
    attributes = {"dim": 0, "step": 1}
    starts = "dim"
    torch = staticmethod(lambda op: "iota({r0.shape}, {dim}, {step}, {r0.dtype}" + (", {0})" if op.operands else ")"))
    no_vjp = "made of integers only"

    @classmethod
    def check(cls, op: Op) -> None:
        dim, rank, dtype = attribute(op, "dim"), op.result.tensor.rank, op.result.dtype
        if not 0 <= dim < rank or dtype == "i1":
            raise DmlcError(f"'dmlc.iota' along dim {dim} of a {op.result.type}", op.loc)
        if [v.type for v in op.operands] not in ([], [TensorType((), "i64")]):
            raise DmlcError("the start of 'dmlc.iota' is one tensor<i64>", op.loc)

    @staticmethod
    def fold(op: Op, operands: Sequence[numpy.ndarray]) -> list[numpy.ndarray] | None:
        if op.result.dtype in ("bf16", "f16") or op.result.dtype.startswith("f8"):
            return None
        dim, shape = attribute(op, "dim"), op.result.shape
        line = tuple(n if d == dim else 1 for d, n in enumerate(shape))
        text = f"np.broadcast_to((np.arange({shape[dim]}) * {{step}}{' + {0}' if operands else ''}).reshape({line}), {{r0.shape}})"
        return moved(text)(op, operands)

    @staticmethod
    def samples() -> list[Sample]:
        start = AttrDict({"0": lambda rng, shape, dtype: rng.integers(3, 9, shape)})
        plain = [((5,), "i64", AttrDict()), ((4, 5), "f32", AttrDict(dim=1, step=3)), ((5, 3), "i32", AttrDict(step=-2)), ((1,), "i64", AttrDict()), ((0, 3), "i64", AttrDict())]
        return [Sample((), a, (TensorType(s, d),)) for s, d, a in plain] + [Sample((TensorType((), "i64"),), AttrDict(dim=1, step=2), (TensorType((2, 5), "i64"),), start)]
