"""Softmax, its logarithm, and the logarithm of a sum of exponentials: the dim is whole for the rule; a strategy splits it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.types import TensorType
from dmlc.ops import strategies
from dmlc.ops.base import REQUIRED, OpDef, Sample, attribute
from dmlc.ops.emit import cast, f32, wide
from dmlc.ops.reduction import Reduction, check_dims, kept, reduction_rule
from dmlc.ops.scan import whole_dim
from dmlc.ops.terms import Term

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder


class OverDim(OpDef):
    """Base: one tensor, normalised along `dim`."""

    attributes = {"dim": REQUIRED}
    precision = "high"
    strategies = strategies.sharded_softmax

    @staticmethod
    def rule(op: Any) -> str:
        dims = whole_dim(len(op.operands[0].shape), attribute(op, "dim"))
        return f"{dims} -> {dims}"

    @classmethod
    def infer(cls, types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        check_dims(cls.name, (attrs["dim"],), types[0].rank)
        return [types[0]]

    @staticmethod
    def samples() -> list[Sample]:
        cases = [((5, 7), 1), ((3, 4, 5), 1), ((2, 3), 0), ((1, 1), 1), ((5,), 0), ((3, 0), 1), ((0, 4), 1)]
        return [Sample((f32(*s),), AttrDict(dim=d)) for s, d in cases]


class Softmax(OverDim):
    """e^x divided by its sum along `dim`."""

    name = "dmlc.softmax"
    torch = "torch.softmax({0}, {dim})"

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        e, total, _ = exponentials(Term(b, wide(b, op.operands[0])), attribute(op, "dim"))
        return [cast(b, (e / total).value, op.result.dtype)]

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        g, y, dims = Term(b, wide(b, grads[0])), Term(b, wide(b, op.result)), (attribute(op, "dim"),)
        gy = g * y
        return [cast(b, (gy - y * gy.reduce_sum(dims=dims, keepdim=True)).value, op.result.dtype)]


def exponentials(x: Term, dim: int) -> tuple[Term, Term, Term]:
    """e^(x - m), its sum along `dim`, and x - m, with m the maximum."""
    shifted = x - x.reduce_max(dims=(dim,), keepdim=True)
    e = shifted.exp()
    return e, e.reduce_sum(dims=(dim,), keepdim=True), shifted


class LogSoftmax(OverDim):
    """The logarithm of softmax, computed without taking one of a rounded quotient."""

    name = "dmlc.log_softmax"
    torch = "torch.log_softmax({0}, {dim})"

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        _, total, shifted = exponentials(Term(b, wide(b, op.operands[0])), attribute(op, "dim"))
        return [cast(b, (shifted - total.log()).value, op.result.dtype)]

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        g, y, dims = Term(b, wide(b, grads[0])), Term(b, wide(b, op.result)), (attribute(op, "dim"),)
        return [cast(b, (g - y.exp() * g.reduce_sum(dims=dims, keepdim=True)).value, op.result.dtype)]


class LogSumExp(Reduction):
    """log of the sum of e^x, without overflow; -inf over nothing."""

    name = "dmlc.logsumexp"
    kind = "float"
    sample_dtypes = ("f32",)
    rule = staticmethod(lambda op: reduction_rule(op, "!"))
    precision = "high"
    strategies = strategies.sharded_logsumexp
    torch = staticmethod(lambda op: "torch.logsumexp({0}, {dims}, keepdim={keepdim})" if attribute(op, "dims") else "{0}")

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        weights = (Term(b, op.operands[0]) - Term(b, kept(b, op, op.result))).exp()
        return [(weights * Term(b, kept(b, op, grads[0]))).value]

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        """log(sum(e^(x - m))) + m; an infinite m is left out of the difference, where it would give NaN."""
        x, dims = Term(b, op.operands[0]), attribute(op, "dims")
        m = x.reduce_max(dims=dims, keepdim=True)
        m = m.isinf().select(0, m)
        total = (x - m).exp().reduce_sum(dims=dims, keepdim=True).log() + m
        return [total.value if attribute(op, "keepdim") else b.emit("dmlc.reshape", total.value, types=[op.result.type])]
