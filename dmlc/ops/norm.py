"""Normalisation over the last dims: layer norm, RMS norm. Weights are always operands; statistics are taken in f32 at least."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, OpResult, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ops import strategies
from dmlc.ops.base import REQUIRED, InferError, OpDef, Sample, attribute
from dmlc.ops.emit import NARROW, cast, f32, reshaped, wide
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
    """(x - mean) / sqrt(variance + eps) * w + b over the last `dims` dims, whose shape w and b have (Ba, Kiros, Hinton 2016).

    Residuals: the mean and 1 / sqrt(variance + eps) of each row, in f32 at least.
    """

    name = "dmlc.layer_norm"
    attributes = {"eps": REQUIRED, "dims": 1, "residuals": ()}
    residuals = ("mean", "rstd")
    strategies = strategies.sharded_layer_norm

    @staticmethod
    def rule(op: Any) -> str:
        last = _last(op)
        return f"... {last}, {last}, {last} -> " + ", ".join([f"... {last}", *["..."] * len(attribute(op, "residuals"))])

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, dims = types[0], attrs["dims"]
        if len(types) != 3 or not 1 <= dims <= x.rank or any(t.shape != x.shape[-dims:] for t in types[1:]):
            raise InferError(f"'dmlc.layer_norm' over {dims} dims takes x, a weight and a bias of its last sizes, not ({', '.join(map(str, types))})")
        return [x] + [row_type(x, dims)] * len(attrs["residuals"])

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        if attribute(op, "residuals") not in ((), ("mean", "rstd")):
            raise DmlcError(f"'{op.name}' has the residuals mean and rstd, both or none", op.loc)

    @staticmethod
    def torch(op: Op) -> str:
        if attribute(op, "residuals"):
            return "layer_norm_and_statistics({0}, {o1.shape}, {1}, {2}, {eps})"
        return "F.layer_norm({0}, {o1.shape}, {1}, {2}, {eps})"

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        x, w, shift = (Term(b, wide(b, v)) for v in op.operands)
        centre = mean(x, last_dims(op))
        y, rstd = standardised(x, last_dims(op), attribute(op, "eps"))
        statistics = [reshaped(b, t.value, r.shape) for t, r in zip((centre, rstd), op.results[1:])]
        return [cast(b, (y * w + shift).value, op.results[0].dtype), *statistics]

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value | None]) -> list[Value | None]:
        """Nothing but these gradients reads the statistics: through them there is none."""
        g, (x, w, shift) = grads[0], op.operands
        if g is None:
            return [None] * 3
        statistics, dims = residuals_of(op), {"dims": attribute(op, "dims")}
        dx = b.op("dmlc.layer_norm_grad", [g, x, w, *statistics], dims).result
        dw = b.op("dmlc.layer_norm_weight_grad", [g, x, *statistics], dims).result
        return [dx, dw, _cast_sum(b, Term(b, wide(b, g)), shift)]

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((x, w, w), attrs) for x, w, attrs in _cases()] + [Sample((f32(5, 7), f32(7), f32(7)), AttrDict(eps=1e-5, residuals=("mean", "rstd")), vjp=False, why=KEPT)]


KEPT = "the statistics are kept for gradients, and have none"


def _cases() -> list[tuple[TensorType, TensorType, AttrDict]]:
    """x, weight, attributes."""
    cases = [((5, 7), 1), ((2, 3, 4), 2), ((6,), 1), ((1, 1), 1), ((0, 4), 1)]
    return [(f32(*s), f32(*s[len(s) - d :]), AttrDict(eps=1e-5, dims=d) if d != 1 else AttrDict(eps=1e-5)) for s, d in cases]


def _last(op: Any) -> str:
    """The factors of the dims a layer norm works over, in a rule."""
    return " ".join(f"d{i}!" for i in range(attribute(op, "dims")))


def row_type(x: TensorType, dims: int) -> TensorType:
    """One number a row, f32 at least."""
    return TensorType(x.shape[: x.rank - dims], "f32" if x.dtype in NARROW else x.dtype)


def residuals_of(op: Op) -> list[Value]:
    """A layer norm's statistics, asked for if they are not there."""
    if not attribute(op, "residuals"):
        op.attrs["residuals"] = ("mean", "rstd")
        kind = row_type(op.operands[0].tensor, attribute(op, "dims"))
        op.results.extend(OpResult(kind, op, 1 + i) for i in range(2))
    return list(op.results[1:])


class LayerNormGradient(OpDef):
    """Base. Operands: the gradient of the result, x, then more, then the mean and rstd of x's rows."""

    precision = "high"
    linear = [{0}]
    same_dtype = False
    attributes = {"dims": 1}
    no_vjp = "gradients of this gradient are not taken"
    weights = 0  # operands between x and the mean

    @classmethod
    def infer(cls, types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        dims = attrs["dims"]
        if len(types) != 4 + cls.weights or types[1] != types[0] or not 1 <= dims <= types[0].rank or any(t != row_type(types[0], dims) for t in types[-2:]):
            raise InferError(f"'{cls.name}' takes a gradient, x, and at last the mean and rstd of x's rows, not ({', '.join(map(str, types))})")
        if cls.weights and types[2] != types[0].with_shape(types[0].shape[-dims:]):
            raise InferError(f"'{cls.name}' over {dims} dims takes a weight of x's last sizes, not {types[2]}")
        return [types[0] if cls.weights else types[0].with_shape(types[0].shape[-dims:])]

    @classmethod
    def terms(cls, b: Builder, op: Op) -> tuple[Term, Term, Term]:
        """The gradient, x standardised, and rstd, ready for arithmetic."""
        g, x = (Term(b, wide(b, v)) for v in op.operands[:2])
        kept = (*op.operands[-1].shape, *[1] * attribute(op, "dims"))
        centre, rstd = (Term(b, reshaped(b, v, kept)) for v in op.operands[-2:])
        return g, (x - centre) * rstd, rstd

    @classmethod
    def samples(cls) -> list[Sample]:
        made = []
        for x, w, attrs in _cases():
            rows = row_type(x, attrs.get("dims", 1))
            made.append(Sample((x, x, *[w] * cls.weights, rows, rows), AttrDict({k: v for k, v in attrs.items() if k == "dims"})))
        return made


class LayerNormGrad(LayerNormGradient):
    """Gradient of `dmlc.layer_norm` in x. Operands: the result's gradient, x, the weight, the rows' mean and rstd."""

    name = "dmlc.layer_norm_grad"
    weights = 1
    torch = "layer_norm_grad({0}, {1}, {2}, {3}, {4})"
    strategies = strategies.sharded_layer_norm_grad

    @staticmethod
    def rule(op: Any) -> str:
        last = _last(op)
        return f"... {last}, ... {last}, {last}, ..., ... -> ... {last}"

    @classmethod
    def decompose(cls, b: Builder, op: Op) -> list[Value]:
        g, y, rstd = cls.terms(b, op)
        rank, dims = op.operands[1].tensor.rank, attribute(op, "dims")
        dx = standardised_grad(g * Term(b, wide(b, op.operands[2])), y, rstd, tuple(range(rank - dims, rank)))
        return [cast(b, dx.value, op.result.dtype)]


class LayerNormWeightGrad(LayerNormGradient):
    """Gradient of `dmlc.layer_norm` in the weight. Operands: the result's gradient, x, the rows' mean and rstd."""

    name = "dmlc.layer_norm_weight_grad"
    torch = "layer_norm_weight_grad({0}, {1}, {2}, {3}, {r0.shape})"

    @staticmethod
    def rule(op: Any) -> str:
        last = _last(op).replace("!", "")
        return f"... {last}, ... {last}, ..., ... -> {last}"

    @classmethod
    def decompose(cls, b: Builder, op: Op) -> list[Value]:
        g, y, _ = cls.terms(b, op)
        lead = tuple(range(op.operands[1].tensor.rank - attribute(op, "dims")))
        summed = (g * y).reduce_sum(dims=lead) if lead else g * y
        return [cast(b, summed.value, op.result.dtype)]


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
