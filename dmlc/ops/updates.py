"""Update rules of optimizers as ops: many passes over a parameter and its state that a library or a kernel makes few."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.types import TensorType
from dmlc.ops.base import REQUIRED, InferError, OpDef, Sample, attribute
from dmlc.ops.emit import f32
from dmlc.ops.terms import Term

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder


class AdamUpdate(OpDef):
    """A step of Adam (Kingma, Ba 2015) or AdamW: the new parameter and moments.

    Operands: parameter p, gradient g, moments m and v, all alike, then rank-0 numbers: what g is multiplied by first, what p is multiplied by
    first, the step size lr / (1 - beta1^t), and sqrt(1 - beta2^t). m' = m + (1 - beta1)(g - m), v' = beta2 v + (1 - beta2) g^2,
    p' = shrink p - step m' / (sqrt(v') / root + eps).
    """

    name = "dmlc.adam_update"
    rule = "..., ..., ..., ..., (), (), (), () -> ..., ..., ..."
    results = 3
    attributes = {"beta1": REQUIRED, "beta2": REQUIRED, "eps": REQUIRED}
    precision = "high"
    torch = "adam_update({0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {beta1}, {beta2}, {eps})"
    in_place_operands = (0, 2, 3)
    in_place = "adam_update({0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {beta1}, {beta2}, {eps}, ({outs}))"
    no_vjp = "made after autodiff"

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if len(types) != 8 or any(t != types[0] for t in types[1:4]) or any(t.rank for t in types[4:]) or not types[0].is_float:
            raise InferError(f"'dmlc.adam_update' takes four float tensors alike and four scalars, not ({', '.join(map(str, types))})")
        return types[:1] * 3

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        p, g, m, v, scale, shrink, step, root = (Term(b, x) for x in op.operands)
        beta1, beta2 = attribute(op, "beta1"), attribute(op, "beta2")
        g = g * scale
        m = m + (g - m) * (1 - beta1)
        v = v * beta2 + g * g * (1 - beta2)
        new = p * shrink - m / (v.sqrt() / root + attribute(op, "eps")) * step
        return [new.value, m.value, v.value]

    @staticmethod
    def samples() -> list[Sample]:
        positive = {str(i): lambda rng, shape, dtype: rng.uniform(0.3, 2.0, shape) for i in range(3, 8)}
        attrs = AttrDict(beta1=0.9, beta2=0.99, eps=1e-6)
        return [Sample((*[f32(*s)] * 4, *[f32()] * 4), attrs, values=AttrDict(positive)) for s in ((5, 3), (7,), (1,), (0, 4), ())]
