"""Gradients of activations as ops: each has a library function of one pass, where its formula takes many. In a kernel they are their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ops.base import Sample, attribute, own_attrs
from dmlc.ops.emit import f32
from dmlc.ops.pointwise import SHAPES_1, Pointwise
from dmlc.ops.terms import Term

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder


class ActivationGrad(Pointwise):
    """Base. Operands: the gradient of the result, then what was activated; both of one shape."""

    arity = 2
    rule = "..., ... -> ..."
    linear = [{0}]
    no_vjp = "gradients of this gradient are not taken"

    @staticmethod
    def formula(g: Term, x: Term, **attributes: Any) -> Term:
        raise AssertionError("of a subclass")

    @classmethod
    def decompose(cls, b: Builder, op: Op) -> list[Value]:
        g, x = (Term(b, v) for v in op.operands)
        return [cls.formula(g, x, **{key: attribute(op, key) for key in cls.attributes}).value]

    @classmethod
    def samples(cls) -> list[Sample]:
        plain = [Sample((f32(*s), f32(*s)), cls.variants()[0]) for (s,) in SHAPES_1]
        return plain + [Sample((f32(7, 3), f32(7, 3)), a) for a in cls.variants()[1:]]

    @classmethod
    def variants(cls) -> list[AttrDict]:
        return [AttrDict()]


def by_op(name: str) -> Callable[..., list[Value | None]]:
    """The vjp that is one op `name` of the gradient and the operand, with the op's own attributes."""
    return lambda b, op, grads: [b.op(name, [grads[0], op.operands[0]], own_attrs(op)).result]


class GeluGrad(ActivationGrad):
    """Gradient of `dmlc.gelu`: Phi(x) + x Phi'(x), or the same for the tanh approximation (Hendrycks, Gimpel, arXiv:1606.08415)."""

    name = "dmlc.gelu_grad"
    attributes = {"approximate": "none"}
    torch = "torch.ops.aten.gelu_backward({0}, {1}, approximate={approximate})"

    @staticmethod
    def formula(g: Term, x: Term, **attributes: Any) -> Term:
        if attributes["approximate"] == "none":
            density = (x * x * -0.5).exp() * (1 / math.sqrt(2 * math.pi))
            return g * (((x * math.sqrt(0.5)).erf() + 1) * 0.5 + x * density)
        root, cubic = math.sqrt(2 / math.pi), 0.044715
        t = ((x + x * x * x * cubic) * root).tanh()
        return g * ((t + 1) * 0.5 + x * 0.5 * (1 - t * t) * ((x * x * (3 * cubic) + 1) * root))

    @classmethod
    def variants(cls) -> list[AttrDict]:
        return [AttrDict(approximate="none"), AttrDict(approximate="tanh")]


class ReluGrad(ActivationGrad):
    """Gradient of `dmlc.relu`: g where x is positive. As x serves the result too: what was activated is not kept."""

    name = "dmlc.relu_grad"
    torch = "torch.ops.aten.threshold_backward({0}, {1}, 0)"
    in_place_operands = (0,)
    in_place = "torch.ops.aten.threshold_backward.grad_input({0}, {1}, 0, grad_input={outs})"

    @staticmethod
    def formula(g: Term, x: Term, **attributes: Any) -> Term:
        return (x <= 0).select(0, g)


class SiluGrad(ActivationGrad):
    """Gradient of `dmlc.silu`: s (1 + x (1 - s)) with s the sigmoid of x."""

    name = "dmlc.silu_grad"
    torch = "torch.ops.aten.silu_backward({0}, {1})"

    @staticmethod
    def formula(g: Term, x: Term, **attributes: Any) -> Term:
        s = x.sigmoid()
        return g * s * (x * (1 - s) + 1)
