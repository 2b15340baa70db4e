"""Losses. A loss is per row; what is averaged over what is written as sums, so that it means the same however rows are split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import INTEGERS, TensorType
from dmlc.ops import strategies
from dmlc.ops.base import InferError, OpDef, Sample, attribute
from dmlc.ops.emit import cast, f32, i64, reshaped, wide
from dmlc.ops.residual import residual
from dmlc.ops.softmax import exponentials
from dmlc.ops.terms import Term

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder


class CrossEntropy(OpDef):
    """-log softmax(logits)[target] of each row: logits [..., v], integer targets [...]; 0 where the target is `ignore`.

    Label smoothing takes that share of the weight off the target and spreads it evenly over all classes, as in PyTorch.
    """

    name = "dmlc.cross_entropy"
    attributes = {"ignore": -100, "label_smoothing": 0.0, "residuals": ()}
    residuals = ("lse",)
    index = (1,)
    same_dtype = False
    precision = "high"
    strategies = strategies.vocabulary_cross_entropy

    @staticmethod
    def rule(op: Any) -> str:
        return "... v!, ... -> " + ", ".join(["..."] * (1 + len(attribute(op, "residuals"))))

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if len(types) != 2 or types[0].rank < 1 or types[1].shape != types[0].shape[:-1]:
            raise InferError(f"'dmlc.cross_entropy' takes logits and a target a row, not ({', '.join(map(str, types))})")
        return [types[0].with_shape(types[1].shape)] * (1 + len(attrs["residuals"]))

    @staticmethod
    def residual_type(op: Op, name: str) -> TensorType:
        return op.results[0].tensor

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        logits, targets = (v.tensor for v in op.operands)
        if not logits.is_float or targets.dtype not in INTEGERS:
            raise DmlcError(f"'{op.name}' takes float logits and integer targets, not {logits} and {targets}", op.loc)
        if attribute(op, "residuals") not in ((), ("lse",)):
            raise DmlcError(f"'{op.name}' has the residual lse (log-sum-exp of a row)", op.loc)

    @staticmethod
    def torch(op: Op) -> str:
        if attribute(op, "residuals"):
            return "cross_entropy_and_lse({0}, {1}, {ignore}, {label_smoothing})"
        smoothing = ", label_smoothing={label_smoothing}" if attribute(op, "label_smoothing") else ""
        rows = "{0}.reshape(-1, {0}.shape[-1])"
        return f'F.cross_entropy({rows}, {{1}}.reshape(-1).long(), reduction="none", ignore_index={{ignore}}{smoothing}).reshape({{r0.shape}})'

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        """With x the logits less their row's maximum: log(sum e^x) - x[target]; the target's logit is found by comparing, not by indexing."""
        dtype, smoothing = op.results[0].dtype, attribute(op, "label_smoothing")
        last = len(op.operands[0].shape) - 1
        x = Term(b, wide(b, op.operands[0]))
        _, total, shifted = exponentials(x, last)
        picked = target_mask(b, op).select(shifted, 0).reduce_sum(dims=(last,), keepdim=True)
        if smoothing:
            picked = picked * (1 - smoothing) + shifted.reduce_sum(dims=(last,), keepdim=True) * (smoothing / op.operands[0].shape[last])
        loss = is_ignored(b, op).select(0, total.log() - picked)
        results = [reshaped(b, cast(b, loss.value, dtype), op.results[0].shape)]
        if attribute(op, "residuals"):
            lse = total.log() + x.reduce_max(dims=(last,), keepdim=True)
            results.append(reshaped(b, cast(b, lse.value, dtype), op.results[1].shape))
        return results

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value | None]) -> list[Value | None]:
        """Through the loss by one op, with the kept log-sum-exp; through that, where it is used: softmax g."""
        logits, targets = op.operands
        lse, total = residual(op, "lse"), None
        if grads[0] is not None:
            counted = Term(b, targets).eq(attribute(op, "ignore")).select(0, Term(b, grads[0]))
            total = Term(b, b.emit("dmlc.cross_entropy_grad", logits, targets, lse, counted.value, label_smoothing=attribute(op, "label_smoothing")))
        for g in grads[1:]:
            if g is not None:
                through = Term(b, cast(b, (_softmax(b, logits, lse) * column(b, g)).value, logits.dtype))
                total = through if total is None else total + through
        assert total is not None
        return [total.value, None]

    @staticmethod
    def samples() -> list[Sample]:
        def targets(rng: Any, shape: Any, dtype: str) -> Any:
            t = rng.integers(0, 5, shape)
            return t if t.ndim == 0 else rng.choice([True, False], shape, p=[0.75, 0.25]) * t

        def case(lead: tuple[int, ...], v: int = 5, **attrs: Any) -> Sample:
            make = targets if v > 1 else (lambda rng, shape, dtype: rng.integers(0, 1, shape))
            return Sample((f32(*lead, v), i64(*lead)), AttrDict(attrs), values=AttrDict({"1": make}))

        return [case((7,), ignore=0), case((2, 3), 6), case((4,), label_smoothing=0.2), case((5,), residuals=("lse",)), case(()), case((1,), 1), case((0, 3))]


class CrossEntropyGrad(OpDef):
    """Gradient of `dmlc.cross_entropy` in the logits: (softmax - wanted) g, with softmax from the kept log-sum-exp.

    Operands: logits [..., v], targets [...], lse [...], g [...], which is 0 already where a target does not count. A target outside
    0 ... v - 1 is no class here; `classes` is the number that label smoothing spreads over, where logits holds a part of them (left out: v).
    """

    name = "dmlc.cross_entropy_grad"
    rule = "... v!, ..., ..., ... -> ... v!"
    attributes = {"label_smoothing": 0.0, "classes": None}
    same_dtype = False
    precision = "high"
    linear = [{3}]
    strategies = strategies.vocabulary_cross_entropy_grad
    torch = "cross_entropy_grad({0}, {1}, {2}, {3}, {label_smoothing}, {classes})"
    in_place_operands = (0,)
    in_place = "cross_entropy_grad({0}, {1}, {2}, {3}, {label_smoothing}, {classes}, {outs})"
    no_vjp = "gradients of this gradient are not taken"

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if len(types) != 4 or types[0].rank < 1 or any(t.shape != types[0].shape[:-1] for t in types[1:]):
            raise InferError(f"'dmlc.cross_entropy_grad' takes logits and a target, lse and gradient a row, not ({', '.join(map(str, types))})")
        return [types[0]]

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        logits, targets, *rows = (v.tensor for v in op.operands)
        if not logits.is_float or targets.dtype not in INTEGERS or any(t.dtype != logits.dtype for t in rows):
            raise DmlcError(f"'{op.name}' takes float logits, integer targets, and lse and gradient like the logits", op.loc)

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        logits, _, lse, g = op.operands
        smoothing = attribute(op, "label_smoothing")
        p = _softmax(b, logits, lse)
        spread = p - smoothing / (attribute(op, "classes") or logits.shape[-1]) if smoothing else p
        wanted = target_mask(b, op).select(spread - (1.0 - smoothing), spread)
        return [cast(b, (wanted * column(b, g)).value, logits.dtype)]

    @staticmethod
    def samples() -> list[Sample]:
        def made(sample: Sample) -> Sample:
            logits, targets = sample.operands
            rows = logits.with_shape(targets.shape)
            attrs = {k: v for k, v in sample.attrs.items() if k == "label_smoothing"}
            return Sample((logits, targets, rows, rows), AttrDict(attrs), values=sample.values)

        return [made(s) for s in CrossEntropy.samples()]


def column(b: Builder, v: Value) -> Term:
    """One number a row, ready to broadcast along the classes."""
    return Term(b, reshaped(b, wide(b, v), (*v.shape, 1)))


def _softmax(b: Builder, logits: Value, lse: Value) -> Term:
    return (Term(b, wide(b, logits)) - column(b, lse)).exp()


def target_mask(b: Builder, op: Op) -> Term:
    """Whether a class is its row's target: [..., v]."""
    targets = op.operands[1]
    classes = Term(b, b.emit("dmlc.iota", types=[i64(op.operands[0].shape[-1])], dim=0))
    return Term(b, reshaped(b, cast(b, targets, "i64"), (*targets.shape, 1))).eq(classes)


def is_ignored(b: Builder, op: Op) -> Term:
    """Whether a row does not count: [..., 1]."""
    targets = op.operands[1]
    return Term(b, reshaped(b, targets, (*targets.shape, 1))).eq(attribute(op, "ignore"))
