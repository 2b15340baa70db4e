"""Rules of `canonicalize` about arithmetic: neutral elements, constant conditions, operands that broadcast by themselves.

Floats keep their bits: x*0 stays (NaN, infinity), x+0.0 stays (it turns -0.0 into 0.0), and nothing goes that changes the dtype or the shape.
"""

from __future__ import annotations

from dmlc.ir.builder import Builder, infer_types
from dmlc.ir.core import Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.registry import lookup
from dmlc.ir.types import FLOATS
from dmlc.ops.pointwise import Pointwise
from dmlc.passes._canonical import is_number, made_by, rounded, rule, uniform


def _kept(op: Op, neutral: float, swaps: bool = True) -> Value | None:
    """The operand that the other one, being `neutral`, leaves as it is, if it has the result's type."""
    left, right = op.operands
    if is_number(right, neutral) and left.type == op.result.type:
        return left
    return right if swaps and is_number(left, neutral) and right.type == op.result.type else None


@rule("dmlc.mul")
def multiply_by_one(op: Op, b: Builder) -> Value | None:
    return _kept(op, 1)


@rule("dmlc.div")
def divide_by_one(op: Op, b: Builder) -> Value | None:
    rounds = op.attrs.get("rounding", "none") != "none" and op.result.dtype in FLOATS
    return None if rounds else _kept(op, 1, swaps=False)


@rule("dmlc.pow")
def first_power(op: Op, b: Builder) -> Value | None:
    return _kept(op, 1, swaps=False)


@rule("dmlc.pow")
def second_power(op: Op, b: Builder) -> Value | None:
    """x to the power 2 is x times x, which fuses and has one rounding."""
    x, exponent = op.operands
    return b.emit("dmlc.mul", x, x) if is_number(exponent, 2) and x.type == op.result.type else None


@rule("dmlc.add")
def add_nothing(op: Op, b: Builder) -> Value | None:
    """The neutral element of addition is 0 for integers and -0.0 for floats."""
    return _kept(op, -0.0 if op.result.dtype in FLOATS else 0)


@rule("dmlc.sub")
def subtract_nothing(op: Op, b: Builder) -> Value | None:
    return _kept(op, 0, swaps=False)


@rule("dmlc.mul")
def multiply_integers_by_zero(op: Op, b: Builder) -> Value | None:
    zero = any(is_number(v, 0) for v in op.operands) and op.result.dtype not in FLOATS
    return b.emit("dmlc.full", types=[op.result.type], value=0) if zero else None


@rule("dmlc.logical_and", "dmlc.logical_or")
def boolean_neutral(op: Op, b: Builder) -> Value | None:
    return _kept(op, op.name == "dmlc.logical_and")


@rule("dmlc.logical_not")
def double_negation(op: Op, b: Builder) -> Value | None:
    inner = made_by(op.operands[0], "dmlc.logical_not")
    return inner.operands[0] if inner is not None and inner.operands[0].dtype == "i1" else None


@rule("dmlc.select")
def known_choice(op: Op, b: Builder) -> Value | None:
    """A constant condition, or two equal branches."""
    condition, yes, no = op.operands
    known = uniform(condition)
    if known is None and yes is not no:
        return None
    chosen = yes if known in (None, True) else no
    return chosen if chosen.type == op.result.type else b.emit("dmlc.broadcast", chosen, types=[op.result.type])


@rule("dmlc.clamp")
def clamp_without_bounds(op: Op, b: Builder) -> Value | None:
    return op.operands[0] if op.attrs.get("min") is None and op.attrs.get("max") is None else None


@rule("dmlc.cast")
def cast_constant(op: Op, b: Builder) -> Value | None:
    """A constant that its own dtype holds exactly is made in the new dtype; 0.1, which float32 rounds, is not."""
    number = uniform(op.operands[0])
    if number is None or rounded(number, op.operands[0].dtype) != number:
        return None
    value = number if op.result.dtype in FLOATS else rounded(number, op.result.dtype)
    return b.emit("dmlc.full", types=[op.result.type], value=value) if value is not None else None


def use_operands_before_broadcast(op: Op, b: Builder) -> Value | None:
    """A pointwise op broadcasts by itself: it takes what was broadcast for it, as long as its result stays the same."""
    definition = lookup(op.name)
    if definition is None or not issubclass(definition, Pointwise) or len(op.operands) < 2:
        return None
    operands = list(op.operands)
    for i, value in enumerate(op.operands):
        inner = made_by(value, "dmlc.broadcast")
        if inner is not None and _gives([*operands[:i], inner.operands[0], *operands[i + 1 :]], op):
            operands[i] = inner.operands[0]
    own = {k: v for k, v in op.attrs.items() if "." not in k}
    return b.op(op.name, operands, own).result if operands != list(op.operands) else None


def shrink_constants(op: Op, b: Builder) -> Value | None:
    """A constant operand of a pointwise op has rank 0, as long as the result stays the same."""
    definition = lookup(op.name)
    if definition is None or not issubclass(definition, Pointwise) or len(op.operands) < 2:
        return None
    for i, value in enumerate(op.operands):
        number = uniform(value)
        if number is None or not value.shape:
            continue
        small = Value(value.tensor.with_shape(()))
        if _gives([*op.operands[:i], small, *op.operands[i + 1 :]], op):
            scalar = b.emit("dmlc.full", types=[small.type], value=number)
            own = {k: v for k, v in op.attrs.items() if "." not in k}
            return b.op(op.name, [*op.operands[:i], scalar, *op.operands[i + 1 :]], own).result
    return None


def _gives(operands: list[Value], op: Op) -> bool:
    try:
        return infer_types(op.name, operands, op.attrs, op.loc) == [op.result.type]
    except DmlcError:
        return False


ANY_POINTWISE = (use_operands_before_broadcast, shrink_constants)
