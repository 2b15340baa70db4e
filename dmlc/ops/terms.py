"""Gradients written as formulas: a `Term` is a value whose arithmetic emits ops, so that a family's gradients fit on one screen.

    gradient(lambda g, x, y: g * (1 - y * y))        # tanh
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dmlc.ir.core import Op, Value
from dmlc.ir.types import TensorType
from dmlc.ops.base import attribute, definition

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder


def scalar(b: Builder, dtype: str, value: float) -> Value:
    """A rank-0 constant; it broadcasts in pointwise ops."""
    return full(b, TensorType((), dtype), value)


def full(b: Builder, type_: TensorType, value: float) -> Value:
    """A constant tensor."""
    number = float(value) if type_.is_float else bool(value) if type_.dtype == "i1" else int(value)
    return b.emit("dmlc.full", types=[type_], value=number)


class Term:
    """A value under a builder. Operators and methods emit ops (`x.exp()` is `dmlc.exp`); numbers become rank-0 constants.

    A number takes the dtype of the first tensor among the arguments, or of the term itself: `mask.select(x, 0)` is zero in x's dtype.
    """

    __slots__ = ("b", "value")

    def __init__(self, b: Builder, value: Value):
        self.b, self.value = b, value

    def emit(self, name: str, *others: Any, **attrs: Any) -> Term:
        dtype = next((o.value.dtype for o in others if isinstance(o, Term)), self.value.dtype)
        operands = [o.value if isinstance(o, Term) else scalar(self.b, dtype, o) for o in others]
        return Term(self.b, self.b.emit(name, self.value, *operands, **attrs))

    def number(self, value: float) -> Term:
        """A rank-0 constant of this term's dtype."""
        return Term(self.b, scalar(self.b, self.value.dtype, value))

    def __getattr__(self, name: str) -> Callable[..., Term]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *others, **attrs: self.emit(f"dmlc.{name}", *others, **attrs)

    def __add__(self, other: Any) -> Term:
        return self.emit("dmlc.add", other)

    def __sub__(self, other: Any) -> Term:
        return self.emit("dmlc.sub", other)

    def __mul__(self, other: Any) -> Term:
        return self.emit("dmlc.mul", other)

    def __truediv__(self, other: Any) -> Term:
        return self.emit("dmlc.div", other)

    def __radd__(self, other: float) -> Term:
        return self.number(other) + self

    def __rsub__(self, other: float) -> Term:
        return self.number(other) - self

    def __rmul__(self, other: float) -> Term:
        return self.number(other) * self

    def __rtruediv__(self, other: float) -> Term:
        return self.number(other) / self

    def __neg__(self) -> Term:
        return self.emit("dmlc.neg")

    def __gt__(self, other: Any) -> Term:
        return self.emit("dmlc.gt", other)

    def __ge__(self, other: Any) -> Term:
        return self.emit("dmlc.ge", other)

    def __lt__(self, other: Any) -> Term:
        return self.emit("dmlc.lt", other)

    def __le__(self, other: Any) -> Term:
        return self.emit("dmlc.le", other)


Gradients = Sequence["Term | None"]


def gradient(formula: Callable[..., Term | Gradients | None]) -> Callable[..., list[Value | None]]:
    """A vjp from a formula over (g, *operands, result, **attributes) that gives one term (or None) an operand.

    Gradients are summed over the dims along which an operand was broadcast.
    """

    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        terms = [Term(b, v) for v in (grads[0], *op.operands, op.result)]
        attrs = {key: attribute(op, key) for key in definition(op).attributes}
        found = formula(*terms, **attrs)
        each = [found] if found is None or isinstance(found, Term) else found
        assert len(each) == len(op.operands), op.name
        return [None if t is None else unbroadcast(b, t.value, v.tensor) for t, v in zip(each, op.operands)]

    return vjp


def unbroadcast(b: Builder, value: Value, to: TensorType) -> Value:
    """Sum over the dims along which a tensor of type `to` was broadcast (right-aligned)."""
    extra = len(value.shape) - to.rank
    if extra:
        value = b.emit("dmlc.reduce_sum", value, dims=tuple(range(extra)))
    ones = tuple(d for d, (n, m) in enumerate(zip(to.shape, value.shape)) if n == 1 and m != 1)
    return b.emit("dmlc.reduce_sum", value, dims=ones, keepdim=True) if ones else value


def zero_gradient(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
    """The vjp of a step function (floor, sign): zero wherever it is defined."""
    return [None] * len(op.operands)
