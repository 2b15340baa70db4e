"""Padding and cropping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.types import TensorType
from dmlc.ops.base import REQUIRED, InferError, Sample, attribute
from dmlc.ops.folding import moved
from dmlc.ops.movement import Movement
from dmlc.ops.pointwise_binary import SELECTING
from dmlc.ops.terms import Term, full

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder

MODES = ("constant", "reflect", "edge", "wrap")


def padded_dims(op: Any) -> list[int]:
    low, high = attribute(op, "low"), attribute(op, "high")
    return [d for d, (a, b) in enumerate(zip(low, high)) if a != 0 or b != 0]


class Pad(Movement):
    """`low[d]` elements before and `high[d]` after dim d; negative counts cut.

    New elements are `value`, or by `mode` mirrored without the border (reflect), the border's (edge), periodic (wrap).
    """

    name = "dmlc.pad"
    attributes = {"low": REQUIRED, "high": REQUIRED, "mode": "constant", "value": 0}
    torch = "pad({0}, {low}, {high}, {mode}, {value})"
    linear = staticmethod(lambda op: [{0}] if attribute(op, "mode") != "constant" or attribute(op, "value") == 0 else [])
    selects = SELECTING

    @staticmethod
    def rule(op: Any) -> str:
        cut, rank = padded_dims(op), len(op.operands[0].shape)
        left, right = [[f"{c}{d}!" if d in cut else f"d{d}" for d in range(rank)] for c in "ab"]
        return f"{' '.join(left) or '()'} -> {' '.join(right) or '()'}"

    @staticmethod
    def infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        low, high, shape = attrs["low"], attrs["high"], types[0].shape
        if not len(low) == len(high) == len(shape) or attrs["mode"] not in MODES:
            raise InferError(f"'dmlc.pad' of a tensor of rank {len(shape)} with low {tuple(low)}, high {tuple(high)}, mode \"{attrs['mode']}\"")
        sizes = [n + a + b for n, a, b in zip(shape, low, high)]
        if any(isinstance(n, int) and n < 0 for n in sizes):
            raise InferError(f"'dmlc.pad' cuts more than {types[0]} has")
        return [types[0].with_shape(sizes)]

    @staticmethod
    def fold(op: Op, operands: Sequence[Any]) -> list[Any] | None:
        """Zeros in any dtype (their bits are zero), other modes too; negative counts are left to the program."""
        low, high, mode, value = (attribute(op, k) for k in ("low", "high", "mode", "value"))
        if min((*low, *high), default=0) < 0 or (mode == "constant" and value != 0) or 0 in operands[0].shape:
            return None
        extra = ", constant_values=0" if mode == "constant" else ""
        return moved(f"np.pad({{0}}, {tuple(zip(low, high))!r}, mode={{mode}}{extra}) if {{0}}.ndim else {{0}}")(op, operands)

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        low, high = attribute(op, "low"), attribute(op, "high")
        if attribute(op, "mode") == "constant":
            return [b.emit("dmlc.pad", grads[0], low=tuple(-n for n in low), high=tuple(-n for n in high))]
        g = grads[0]
        for d in padded_dims(op):
            g = gather_back(b, g, d, low[d], op.operands[0].shape[d], attribute(op, "mode"))
        return [g]

    @staticmethod
    def samples() -> list[Sample]:
        def of(shape: tuple[int, ...], low: tuple[int, ...], high: tuple[int, ...], mode: str = "constant", value: float = 0, dtype: str = "f32") -> Sample:
            return Sample((TensorType(shape, dtype),), AttrDict(low=low, high=high, mode=mode, value=value))

        constants = [of((5, 3), (1, 0), (2, 0)), of((2, 5, 3), (0, 2, -1), (0, -1, 2), value=1.5), of((1,), (1,), (0,)), of((0, 4), (0, 1), (2, 1)), of((5, 3), (0, 1), (0, 0), value=-7, dtype="i64"), of((), (), ())]
        modes = [of((5, 3), (2, 0), (1, 0), m) for m in MODES[1:]] + [of((5, 3), (-1, 4), (3, 5), m) for m in MODES[1:]] + [of((1, 4), (2, 0), (1, 0), m) for m in MODES[1:]]
        return constants + modes


def gather_back(b: Builder, g: Value, dim: int, low: int, n: int, mode: str) -> Value:
    """Gradients of padded elements added to the elements they were copied from; the source index as `pad` computes it."""
    index = Term(b, b.emit("dmlc.iota", types=[g.tensor.with_dtype("i64")], dim=dim)) - low
    if mode == "edge":
        index = index.clamp(min=0, max=n - 1)
    elif mode == "wrap" or n == 1:
        index = index.rem(n, sign="divisor")
    else:
        around = index.rem(2 * (n - 1), sign="divisor")
        index = around.minimum(2 * (n - 1) - around)
    shape = tuple(n if d == dim else m for d, m in enumerate(g.shape))
    zeros = full(b, TensorType(shape, g.dtype), 0)
    return b.emit("dmlc.scatter", zeros, index.value, g, dim=dim, reduce="add")
