"""A batch norm behind a convolution scales the convolution's weight and becomes a bias. Inference only.

Before: conv, batch_norm.   After: conv with a weight w s, add of (b - mean) s + beta, where s = gamma / sqrt(variance + eps); both have a recipe.
Stays when the convolution's output is used elsewhere, when any of the numbers is an input, and under training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dmlc.ir.builder import Builder
from dmlc.ir.core import Module, Op, Value
from dmlc.ops.base import attribute, own_attrs
from dmlc.passes._canonical import made_by
from dmlc.passes._derive import derived_argument, is_stored
from dmlc.passes.dce import erase_unused
from dmlc.passmanager.base import Numerics, Pass
from dmlc.passmanager.context import Context

ROLES = ("param", "buffer", "const")


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    name: ClassVar[str] = "fold-batch-norm"
    numerics: ClassVar[Numerics] = "reordered"
    requires: ClassVar[tuple[str, ...]] = ("global",)

    def run(self, module: Module, context: Context) -> bool:
        if module.attrs.get("dmlc.mode") == "train":
            return False
        norms = [op for op in module.main.body if op.name == "dmlc.batch_norm"]
        changed = any([fold(module, op) for op in norms])
        if changed:
            erase_unused(module.main.body)
        return changed


def fold(module: Module, norm: Op) -> bool:
    """Fold one batch norm if what is before it is a convolution of its own, with or without a bias."""
    convolution, bias = _convolution(norm.operands[0])
    gamma, beta, mean, variance = norm.operands[1:]
    extra = [] if bias is None else [bias]
    if convolution is None or not all(is_stored(v, ROLES) for v in (convolution.operands[1], gamma, beta, mean, variance, *extra)):
        return False
    weight, eps = convolution.operands[1], attribute(norm, "eps")
    name = convolution.attrs.get("dmlc.name", convolution.name)
    scaled = derived_argument(module, [weight, gamma, variance], lambda b, w, g, v: _scaled(b, convolution, w, _scale(b, g, v, eps)), f"{name}.weight")
    shifted = derived_argument(module, [beta, gamma, mean, variance, *extra], lambda b, *values: _shift(b, eps, *values), f"{name}.bias")
    b = Builder.before(norm)
    y = b.op(convolution.name, [convolution.operands[0], scaled], {**own_attrs(convolution), "dmlc.name": name}, tag="conv").result
    column = b.emit("dmlc.reshape", shifted, types=[shifted.tensor.with_shape((shifted.shape[0], *(1,) * (y.tensor.rank - 2)))], tag="bias")
    kept = {k: v for k, v in norm.attrs.items() if k.startswith("dmlc.")}
    norm.replace([b.op("dmlc.add", [y, column], kept).result])
    return True


def _convolution(value: Value) -> tuple[Op | None, Value | None]:
    """The convolution behind `value` and the vector added to its channels, if only this norm uses them."""
    added = made_by(value, "dmlc.add")
    if len(value.uses) != 1:
        return None, None
    if added is None:
        return made_by(value, "dmlc.conv") or made_by(value, "dmlc.conv_transpose"), None
    for y, column in (added.operands, added.operands[::-1]):
        convolution, spread = made_by(y, "dmlc.conv") or made_by(y, "dmlc.conv_transpose"), made_by(column, "dmlc.reshape")
        if convolution is None or spread is None or len(y.uses) != 1:
            continue
        bias = spread.operands[0]
        if bias.shape == value.shape[1:2] and column.shape == (value.shape[1], *(1,) * (value.tensor.rank - 2)):
            return convolution, bias
    return None, None


def _scale(b: Builder, gamma: Value, variance: Value, eps: float) -> Value:
    number = b.emit("dmlc.full", types=[variance.tensor.with_shape(())], value=eps)
    return b.emit("dmlc.mul", gamma, b.emit("dmlc.rsqrt", b.emit("dmlc.add", variance, number)))


def _scaled(b: Builder, convolution: Op, weight: Value, scale: Value) -> Value:
    """The weight times the scale of its output channels: dim 0, or for a transposed convolution dim 1 within each group of dim 0."""
    spatial = (1,) * (weight.tensor.rank - 2)
    if convolution.name == "dmlc.conv":
        return b.emit("dmlc.mul", weight, b.emit("dmlc.reshape", scale, types=[scale.tensor.with_shape((weight.shape[0], 1, *spatial))]))
    groups, (inputs, outputs) = attribute(convolution, "groups"), weight.shape[:2]
    grouped = b.emit("dmlc.reshape", weight, types=[weight.tensor.with_shape((groups, inputs // groups, *weight.shape[1:]))])
    column = b.emit("dmlc.reshape", scale, types=[scale.tensor.with_shape((groups, 1, outputs, *spatial))])
    return b.emit("dmlc.reshape", b.emit("dmlc.mul", grouped, column), types=[weight.type])


def _shift(b: Builder, eps: float, beta: Value, gamma: Value, mean: Value, variance: Value, bias: Value | None = None) -> Value:
    """beta + (bias - mean) scale."""
    scale = _scale(b, gamma, variance, eps)
    offset = b.emit("dmlc.neg", mean) if bias is None else b.emit("dmlc.sub", bias, mean)
    return b.emit("dmlc.add", beta, b.emit("dmlc.mul", offset, scale))
