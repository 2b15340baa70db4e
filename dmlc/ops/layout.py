"""The order of a tensor's dims in memory. Every value is row-major unless this op says otherwise; what an op reads in another order it
computes alike, and pointwise ops, pools and convolutions of PyTorch hand the order on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dmlc.ir.core import Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ops.base import REQUIRED, Sample
from dmlc.ops.folding import moved
from dmlc.ops.movement import Movement, cases

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder


def _text(op: Any) -> str:
    order = tuple(op.attrs["order"])
    inverse = tuple(order.index(d) for d in range(len(order)))
    return f"{{0}}.permute({order}).contiguous().permute({inverse})"


class Relayout(Movement):
    """The same tensor, its dims laid out in `order`, slowest first: (0, 2, 3, 1) is channels-last."""

    name = "dmlc.relayout"
    rule = "... -> ..."
    attributes = {"order": REQUIRED}
    torch = staticmethod(_text)
    fold = staticmethod(moved("{0}"))

    @classmethod
    def check(cls, op: Op) -> None:
        if sorted(op.attrs["order"]) != list(range(len(op.operands[0].shape))):
            raise DmlcError(f"'{op.name}' needs each of the {len(op.operands[0].shape)} dims once in 'order'", op.loc)

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        return [grads[0]]

    @staticmethod
    def samples() -> list[Sample]:
        return cases(((2, 3, 5, 4), {"order": (0, 2, 3, 1)}), ((5, 3), {"order": (1, 0)}), ((1, 1), {"order": (0, 1)}), ((0, 4), {"order": (1, 0)}))
