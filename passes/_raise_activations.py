"""Activations and softmax, found in their spelled-out forms."""

from __future__ import annotations

import math

from dmlc.ir.core import Op, Value
from dmlc.ir.rewriter import Rewriter, pattern
from dmlc.ops.base import attribute
from dmlc.passes._match import Match, near, number_of

TANH_SCALE, TANH_CUBE = math.sqrt(2 / math.pi), 0.044715  # Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415


@pattern("dmlc.mul")
def gelu(op: Op, rewriter: Rewriter) -> bool:
    """0.5 x (1 + erf(x / sqrt 2)) and 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³))), factors in any order."""
    for value in _factors(op):
        m = Match(op)
        inner = m.plus_one(value)
        made = None if inner is None else m.made(inner, "erf", "tanh")
        if made is None:
            continue
        x = (_inside_erf if made.name == "dmlc.erf" else _inside_tanh)(m, made.operands[0])
        if x is None or x.type != op.result.type:
            continue
        number, factors = m.product(op.result, stop=(x, value))
        if near(number, 0.5, op.result.dtype) and _same(factors, [x, value]) and m.is_private:
            rewriter.replace_op(op, "dmlc.gelu", [x], {} if made.name == "dmlc.erf" else {"approximate": "tanh"})
            return True
    return False


def _factors(op: Op) -> list[Value]:
    """Operands of a chain of products that are sums."""
    found, todo = [], list(op.operands)
    while todo:
        v = todo.pop()
        if v.op is not None and v.op.name in ("dmlc.mul", "dmlc.div"):
            todo += v.op.operands
        elif v.op is not None and v.op.name == "dmlc.add":
            found.append(v)
    return found


def _same(factors: list[Value], wanted: list[Value]) -> bool:
    left = list(factors)
    for w in wanted:
        if w not in left:
            return False
        left.remove(w)
    return not left


def _scaled(m: Match, value: Value, wanted: float) -> Value | None:
    """x of `wanted` times x, or x over its reciprocal."""
    op = m.made(value, "mul", "div")
    if op is None:
        return None
    left, right = op.operands
    if op.name == "dmlc.div":
        scalar = number_of(right)
        return left if scalar and near(1 / scalar, wanted, value.dtype) else None
    return left if near(number_of(right), wanted, value.dtype) else right if near(number_of(left), wanted, value.dtype) else None


def _inside_erf(m: Match, argument: Value) -> Value | None:
    return _scaled(m, argument, math.sqrt(0.5))


def _inside_tanh(m: Match, argument: Value) -> Value | None:
    """x of sqrt(2 / pi) (x + 0.044715 x³), or of sqrt(2 / pi) x (1 + 0.044715 x²)."""
    total = _scaled(m, argument, TANH_SCALE)
    added = m.made(total, "add") if total is not None else None
    if added is not None:
        for x, cube in (added.operands, added.operands[::-1]):
            if _is_power(m, cube, x, 3):
                return x
    number, factors = m.product(argument)
    sums = [f for f in factors if (square := m.plus_one(f)) is not None and any(_is_power(m, square, x, 2) for x in factors)]
    rest = [f for f in factors if f not in sums]
    return rest[0] if len(sums) == 1 and len(rest) == 1 and near(number, TANH_SCALE, argument.dtype) else None


def _is_power(m: Match, value: Value, x: Value, power: int) -> bool:
    """Whether `value` is 0.044715 x^power, as products or powers of x."""
    number, factors = m.product(value, stop=(x,))
    total = 0
    for f in factors:
        op = m.made(f, "pow") if f is not x else None
        exponent = number_of(op.operands[1]) if op is not None and op.operands[0] is x else None
        if f is not x and exponent is None:
            return False
        total += 1 if exponent is None else exponent
    return total == power and near(number, TANH_CUBE, value.dtype)


@pattern("dmlc.mul", "dmlc.div")
def silu(op: Op, rewriter: Rewriter) -> bool:
    """x sigmoid(x), and x / (1 + exp(-x))."""
    left, right = op.operands
    for x, gate in ((left, right), (right, left)):
        m = Match(op)
        if op.name == "dmlc.mul":
            made = m.made(gate, "sigmoid")
            inner = made.operands[0] if made is not None else None
        else:
            exponential = m.plus_one(gate) if gate is right else None
            made = m.made(exponential, "exp") if exponential is not None else None
            negated = m.made(made.operands[0], "neg") if made is not None else None
            inner = negated.operands[0] if negated is not None else None
        if inner is x and op.attrs.get("rounding", "none") == "none" and x.type == op.result.type and m.is_private:
            rewriter.replace_op(op, "dmlc.silu", [x])
            return True
    return False


@pattern("dmlc.div")
def sigmoid(op: Op, rewriter: Rewriter) -> bool:
    """1 / (1 + exp(-x))."""
    m = Match(op)
    exponential = m.plus_one(op.operands[1]) if number_of(op.operands[0]) == 1 else None
    made = m.made(exponential, "exp") if exponential is not None else None
    negated = m.made(made.operands[0], "neg") if made is not None else None
    if negated is None or negated.operands[0].type != op.result.type or op.attrs.get("rounding", "none") != "none" or not m.is_private:
        return False
    rewriter.replace_op(op, "dmlc.sigmoid", [negated.operands[0]])
    return True


@pattern("dmlc.div", "dmlc.mul")
def softmax(op: Op, rewriter: Rewriter) -> bool:
    """exp(x - max x) over its own sum along the same single dim. Without the maximum it stays: it overflows where a softmax does not."""
    m = Match(op)
    exponential, total = op.operands
    if op.name == "dmlc.mul":
        inverse = m.made(total, "reciprocal") or m.made(exponential, "reciprocal")
        if inverse is None:
            return False
        exponential, total = (exponential if inverse.result is total else total), inverse.operands[0]
    power, summed = m.made(exponential, "exp"), m.made(total, "reduce_sum")
    shifted = m.made(power.operands[0], "sub") if power is not None else None
    if shifted is None or summed is None or summed.operands[0] is not exponential:
        return False
    x, largest = shifted.operands
    top = m.made(largest, "reduce_max")
    if top is None or top.operands[0] is not x or x.type != op.result.type or not m.is_private:
        return False
    dims = {tuple(o.attrs["dims"]) for o in (top, summed)}
    if len(dims) != 1 or len(next(iter(dims))) != 1 or not all(attribute(o, "keepdim") for o in (top, summed)):
        return False
    rewriter.replace_op(op, "dmlc.softmax", [x], {"dim": summed.attrs["dims"][0]})
    return True


PATTERNS = (gelu, silu, sigmoid, softmax)
