"""Ops of a training step that mark where something is complete: gradients, sums of squares over all parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ops.base import REQUIRED, OpDef, Sample
from dmlc.ops.emit import f32
from dmlc.ops.terms import Term

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder


class Gradient(OpDef):
    """The gradient of parameter `param`: operand 0, all its uses added up; operand 1 is the parameter itself.

    An identity on the whole program. In `partition` it is where the gradient is accumulated over microbatches and reduced over ranks:
    `dmlc.accumulate` on the op says how the accumulator lies, `dmlc.storage` how the gradient lies afterwards.
    """

    name = "dmlc.gradient"
    rule = "..., ... -> ..."
    linear = [{0}]
    torch = "{0}"
    cost = "free"
    attributes = {"param": REQUIRED}
    no_vjp = "made by autodiff"

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        if len(op.operands) != 2 or op.operands[0].type != op.operands[1].type:
            raise DmlcError(f"'{op.name}' takes a gradient and its parameter, of one type", op.loc)

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((f32(*s), f32(*s)), AttrDict(param="w")) for s in ((5, 3), (7,), (1,), (0, 4), ())]


class SquareSum(OpDef):
    """Sum of the squares of all elements of a float tensor, taken in its dtype."""

    name = "dmlc.square_sum"
    precision = "high"
    torch = "square_sum({0})"
    no_vjp = "made after autodiff"

    @staticmethod
    def rule(op: Any) -> str:
        return (" ".join(f"d{d}" for d in range(len(op.operands[0].shape))) or "()") + " -> ()"

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        if not op.operands[0].tensor.is_float:
            raise DmlcError(f"'{op.name}' takes a float tensor, not {op.operands[0].type}", op.loc)

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        x = Term(b, op.operands[0])
        rank = op.operands[0].tensor.rank
        return [(x * x).reduce_sum(dims=tuple(range(rank))).value if rank else (x * x).value]

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((f32(*s),)) for s in ((5, 3), (7,), (2, 3, 4), (1,), (0, 4), ())]


class AddN(OpDef):
    """Sum of any number of scalars. `partition` adds those that are unreduced over the same axes first, then reduces once an axis."""

    name = "dmlc.add_n"
    torch = "sum(({*},))"
    precision = "high"
    no_vjp = "made after autodiff"

    @staticmethod
    def rule(op: Any) -> str:
        return ", ".join(["()"] * len(op.operands)) + " -> ()"

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        if not op.operands or any(v.tensor.rank for v in op.operands):
            raise DmlcError(f"'{op.name}' takes one or more scalars", op.loc)

    @staticmethod
    def linear(op: Op) -> list[frozenset[int]]:
        return [frozenset(range(len(op.operands)))]

    @staticmethod
    def samples() -> list[Sample]:
        scalar = TensorType((), "f32")
        return [Sample((scalar,) * n) for n in (1, 2, 5)]
