"""Normalisation over the last dims: layer norm, RMS norm. Weights are always operands; statistics are taken in f32 at least."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.types import TensorType
from dmlc.ops import strategies
from dmlc.ops.base import REQUIRED, InferError, OpDef, Sample, attribute
from dmlc.ops.emit import cast, f32, wide
from dmlc.ops.terms import Term, unbroadcast

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder


class Norm(OpDef):
    """Base: the result has the first operand's type; the other operands scale or shift it."""

    precision = "high"

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        return [types[0]]


def mean(x: Term, dims: tuple[int, ...]) -> Term:
    """Mean over `dims`, kept as size 1. NaN over nothing, as in PyTorch."""
    count = 1
    for d in dims:
        count *= x.value.shape[d]
    return x.reduce_sum(dims=dims, keepdim=True) * (1.0 / count if count else float("nan"))


def standardised(x: Term, dims: tuple[int, ...], eps: float) -> tuple[Term, Term]:
    """(x - mean) / std over `dims`, and 1 / std."""
    centred = x - mean(x, dims)
    rstd = (mean(centred * centred, dims) + eps).rsqrt()
    return centred * rstd, rstd


def standardised_grad(g: Term, y: Term, rstd: Term, dims: tuple[int, ...]) -> Term:
    """Gradient through `standardised`, whose result is y."""
    return (g - mean(g, dims) - y * mean(g * y, dims)) * rstd


def _cast_sum(b: Builder, term: Term, to: Value) -> Value:
    """A gradient summed over the dims along which `to` was broadcast, in its dtype."""
    return cast(b, unbroadcast(b, term.value, to.tensor), to.dtype)


class LayerNorm(Norm):
    """(x - mean) / sqrt(variance + eps) * w + b over the last `dims` dims, whose shape w and b have (Ba, Kiros, Hinton 2016)."""

    name = "dmlc.layer_norm"
    attributes = {"eps": REQUIRED, "dims": 1}
    torch = "F.layer_norm({0}, {o1.shape}, {1}, {2}, {eps})"
    strategies = strategies.sharded_layer_norm

    @staticmethod
    def rule(op: Any) -> str:
        last = " ".join(f"d{i}!" for i in range(attribute(op, "dims")))
        return f"... {last}, {last}, {last} -> ... {last}"

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, dims = types[0], attrs["dims"]
        if len(types) != 3 or not 1 <= dims <= x.rank or any(t.shape != x.shape[-dims:] for t in types[1:]):
            raise InferError(f"'dmlc.layer_norm' over {dims} dims takes x, a weight and a bias of its last sizes, not ({', '.join(map(str, types))})")
        return [x]

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        x, w, shift = (Term(b, wide(b, v)) for v in op.operands)
        y, _ = standardised(x, last_dims(op), attribute(op, "eps"))
        return [cast(b, (y * w + shift).value, op.result.dtype)]

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        g, x, w = (Term(b, wide(b, v)) for v in (grads[0], *op.operands[:2]))
        dims = last_dims(op)
        y, rstd = standardised(x, dims, attribute(op, "eps"))
        dx = standardised_grad(g * w, y, rstd, dims)
        return [cast(b, dx.value, op.result.dtype), _cast_sum(b, g * y, op.operands[1]), _cast_sum(b, g, op.operands[2])]

    @staticmethod
    def samples() -> list[Sample]:
        def case(*shape: int, dims: int = 1) -> Sample:
            last = f32(*shape[len(shape) - dims :])
            return Sample((f32(*shape), last, last), AttrDict(eps=1e-5, dims=dims) if dims != 1 else AttrDict(eps=1e-5))

        return [case(5, 7), case(2, 3, 4, dims=2), case(6), case(1, 1), case(0, 4)]


def last_dims(op: Op) -> tuple[int, ...]:
    """The dims a layer norm works over."""
    rank = len(op.operands[0].shape)
    return tuple(range(rank - attribute(op, "dims"), rank))


class RmsNorm(Norm):
    """x / sqrt(mean(x^2) + eps) * w over the last dim (Zhang, Sennrich 2019)."""

    name = "dmlc.rms_norm"
    rule = "... d!, d! -> ... d!"
    attributes = {"eps": REQUIRED}
    torch = "F.rms_norm({0}, {o1.shape}, {1}, {eps})"
    strategies = strategies.sharded_rms_norm

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if len(types) != 2 or types[0].rank < 1 or types[1].shape != types[0].shape[-1:]:
            raise InferError(f"'dmlc.rms_norm' takes x and a weight of its last size, not ({', '.join(map(str, types))})")
        return [types[0]]

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        x, w = (Term(b, wide(b, v)) for v in op.operands)
        dims = (len(op.result.shape) - 1,)
        return [cast(b, (x * (mean(x * x, dims) + attribute(op, "eps")).rsqrt() * w).value, op.result.dtype)]

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        g, x, w = (Term(b, wide(b, v)) for v in (grads[0], *op.operands))
        dims = (len(op.result.shape) - 1,)
        r = (mean(x * x, dims) + attribute(op, "eps")).rsqrt()
        y, gw = x * r, g * w
        dx = (gw - y * mean(gw * y, dims)) * r
        return [cast(b, dx.value, op.result.dtype), _cast_sum(b, g * y, op.operands[1])]

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((f32(*s), f32(s[-1])), AttrDict(eps=1e-6)) for s in ((5, 7), (2, 3, 4), (6,), (1, 1), (0, 4))]
