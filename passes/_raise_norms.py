"""Layer norm and RMS norm, found in their spelled-out forms.

First the core, x over the root of its mean square, becomes a norm with weight 1 (and bias 0); then a product and a sum with vectors move into it.
A cast between core and weight stays where it is, so what was computed in float32 stays so.
"""

from __future__ import annotations

import math

from dmlc.ir.core import Op, Value
from dmlc.ir.rewriter import Rewriter, pattern
from dmlc.ops.base import attribute
from dmlc.passes._canonical import uniform
from dmlc.passes._match import Match, last_dims, near, number_of


@pattern("dmlc.mul", "dmlc.div")
def norm_core(op: Op, rewriter: Rewriter) -> bool:
    """x rsqrt(mean(x²) + eps) over the last dim; over the last dims when x is a difference from its own mean."""
    for x, inverse in ((op.operands[0], op.operands[1]), (op.operands[1], op.operands[0])):
        m = Match(op)
        under = _under_root(m, inverse, op.name == "dmlc.div") if op.name == "dmlc.mul" or inverse is op.operands[1] else None
        found = _mean_square(m, under, x) if under is not None else None
        if found is None or x.type != op.result.type:
            continue
        eps, dims = found
        b, shape, type_ = rewriter.builder(op), x.shape[-len(dims) :], x.tensor
        source = _centered(m, x, dims)
        if not m.is_private or (source is None and len(dims) > 1):
            continue
        ones = b.emit("dmlc.full", types=[type_.with_shape(shape)], value=1.0, tag="weight")
        if source is None:
            rewriter.replace_op(op, "dmlc.rms_norm", [x, ones], {"eps": eps})
        else:
            zeros = b.emit("dmlc.full", types=[type_.with_shape(shape)], value=0.0, tag="bias")
            rewriter.replace_op(op, "dmlc.layer_norm", [source, ones, zeros], {"eps": eps} | ({"dims": len(dims)} if len(dims) > 1 else {}))
        return True
    return False


def _under_root(m: Match, value: Value, divides: bool) -> Value | None:
    """What stands under the root of 1 / sqrt(y), or of sqrt(y) in a divisor."""
    if not divides:
        root = m.made(value, "rsqrt")
        if root is None and (inverse := _inverse(m, value)) is not None:
            root = m.made(inverse, "sqrt")
        return root.operands[0] if root is not None else _powered(m, value, -0.5)
    root = m.made(value, "sqrt")
    return root.operands[0] if root is not None else _powered(m, value, 0.5)


def _inverse(m: Match, value: Value) -> Value | None:
    """y of 1 / y."""
    op = m.made(value, "reciprocal", "div")
    if op is None or op.name == "dmlc.reciprocal":
        return op.operands[0] if op is not None else None
    return op.operands[1] if number_of(op.operands[0]) == 1 and op.attrs.get("rounding", "none") == "none" else None


def _powered(m: Match, value: Value, exponent: float) -> Value | None:
    power = m.made(value, "pow")
    return power.operands[0] if power is not None and number_of(power.operands[1]) == exponent else None


def _mean_square(m: Match, value: Value, x: Value) -> tuple[float, tuple[int, ...]] | None:
    """eps and dims of mean(x²) + eps over last dims with sizes kept."""
    added = m.made(value, "add")
    if added is None:
        return None
    for mean, constant in (added.operands, added.operands[::-1]):
        eps = number_of(constant)
        summed = _mean(m, mean) if eps is not None and eps > 0 else None
        if summed is not None and _is_square(m, summed.operands[0], x):
            return float(eps), tuple(sorted(summed.attrs["dims"]))  # type: ignore[arg-type]
    return None


def _mean(m: Match, value: Value) -> Op | None:
    """The sum behind a sum times 1/n over last dims, sizes kept."""
    number, factors = m.product(value)
    summed = m.made(factors[0], "reduce_sum") if len(factors) == 1 else None
    if summed is None or not attribute(summed, "keepdim") or not last_dims(summed, summed.attrs["dims"]):
        return None
    count = math.prod(summed.operands[0].shape[d] for d in summed.attrs["dims"])
    return summed if count and near(number, 1 / count, value.dtype) else None


def _is_square(m: Match, value: Value, x: Value) -> bool:
    op = m.made(value, "mul", "pow")
    if op is None or op.operands[0] is not x:
        return False
    return op.operands[1] is x if op.name == "dmlc.mul" else number_of(op.operands[1]) == 2


def _centered(m: Match, x: Value, dims: tuple[int, ...]) -> Value | None:
    """y of y - mean(y) over the same dims."""
    seen = dict(m.inside)
    difference = m.made(x, "sub")
    if difference is not None:
        y, mean = difference.operands
        summed = _mean(m, mean)
        if summed is not None and summed.operands[0] is y and tuple(sorted(summed.attrs["dims"])) == dims and y.type == x.type:
            return y
    m.inside = seen
    return None


def _is_vector(value: Value, shape: tuple) -> bool:
    """Whether a value varies along the normalised dims only and covers them."""
    lead = len(value.shape) - len(shape)
    return lead >= 0 and value.shape[lead:] == shape and all(n == 1 for n in value.shape[:lead]) and uniform(value) is None


@pattern("dmlc.mul", "dmlc.add")
def norm_affine(op: Op, rewriter: Rewriter) -> bool:
    """A vector times a norm without weight is its weight; a vector added to a layer norm without bias is its bias."""
    for normed, vector in (op.operands, op.operands[::-1]):
        m = Match(op)
        norm = m.made(normed, "rms_norm", "layer_norm")
        if norm is None or not m.is_private or normed.type != op.result.type or vector.dtype != normed.dtype:
            continue
        if norm.name == "dmlc.rms_norm" and op.name == "dmlc.add":
            continue
        index, neutral = (1, 1) if op.name == "dmlc.mul" else (2, 0)
        operands = list(norm.operands)
        unbiased = norm.name == "dmlc.rms_norm" or uniform(operands[2]) == 0
        if uniform(operands[index]) != neutral or (index == 1 and not unbiased) or not _is_vector(vector, operands[1].shape):
            continue
        if vector.shape != operands[1].shape:
            vector = rewriter.builder(op).emit("dmlc.reshape", vector, types=[operands[1].type])
        operands[index] = vector
        own = {k: v for k, v in norm.attrs.items() if "." not in k}
        rewriter.replace_op(op, norm.name, operands, own)
        rewriter.erase(norm)
        return True
    return False


PATTERNS = (norm_core, norm_affine)
