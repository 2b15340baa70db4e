"""Kinds of nodes of random ONNX graphs: pointwise and reductions. Each picks operands that fit and adds a node, or does nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dmlc.tools.random_onnx import MICROSOFT, Graph, Val

Kind = Callable[[Graph], object]

SMOOTH = (
    "Exp Sqrt Sin Cos Tanh Sigmoid Erf Softplus Softsign Elu Selu Celu HardSigmoid HardSwish Mish Gelu Atan Sinh Asinh Log Reciprocal Swish LeakyRelu ThresholdedRelu".split()
)
EXACT = "Abs Neg Relu Identity".split()
JUMPING = "Floor Ceil Round Sign IsNaN IsInf Hardmax".split()
ATTRIBUTES = {"Elu": "alpha", "Celu": "alpha", "LeakyRelu": "alpha", "ThresholdedRelu": "alpha", "HardSigmoid": "alpha"}
NUMERIC = ("float32", "float64", "float16", "int64", "int32")
TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "float64": 11}


def axis(g: Graph, rank: int) -> int:
    """An axis, counted from either end."""
    d = g.rng.randrange(rank)
    return d if g.rng.random() < 0.5 else d - rank


# ---------------------------------------------------------------- pointwise


def smooth(g: Graph) -> None:
    operator = g.rng.choice(SMOOTH)
    v = g.pick(lambda v: v.floating and v.largest < 20)
    if v is None:
        return
    if operator in ("Log", "Sqrt", "Reciprocal"):
        positive = g.emit("Abs", [v])
        shifted = g.emit("Add", [positive[0], g.const(0.5, v.dtype)]) if positive else []
        if not shifted:
            return
        v = shifted[0]
    g.emit(operator, [v], **({ATTRIBUTES[operator]: g.rng.choice((0.25, 0.5, 1.5))} if operator in ATTRIBUTES and g.rng.random() < 0.5 else {}))


def exact(g: Graph) -> None:
    if (v := g.pick(lambda v: v.dtype in NUMERIC)) is not None:
        g.emit(g.rng.choice(EXACT), [v], exact=True)


def jumping(g: Graph) -> None:
    if (v := g.pick(lambda v: v.floating and v.exact and v.rank > 0)) is not None:
        g.emit(g.rng.choice(JUMPING), [v], exact=True)


def clip(g: Graph) -> None:
    v = g.pick(lambda v: v.dtype in NUMERIC)
    if v is None:
        return
    low, high = (g.const(x, v.dtype) if g.rng.random() < 0.7 else "" for x in (-1, 2))
    g.emit("Clip", [v, low, high] if high else [v, low] if low else [v], exact=True)


def partner(g: Graph, v: Val) -> Val | str:
    """Something that broadcasts with a value: another value, or a constant of fewer or unit dims."""
    if g.rng.random() < 0.5:
        other = g.pick(lambda w: w.dtype == v.dtype and _broadcasts(v.shape, w.shape))
        if other is not None:
            return other
    shape = [n if g.rng.random() < 0.6 else 1 for n in v.shape][g.rng.randrange(v.rank + 1) :]
    return g.const(g.numbers(*shape, dtype=v.dtype, low=-8, high=8))


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return math.prod(np.broadcast_shapes(a, b)) < 3000
    except ValueError:
        return False


def binary(g: Graph) -> None:
    operator = g.rng.choice("Add Sub Mul Div Min Max Mod Pow PRelu Sum Mean".split())
    floats_only = operator in ("Mean", "PRelu")
    v = g.pick(lambda v: v.dtype in NUMERIC and v.largest < 90 and not (floats_only and not v.floating))
    if v is None:
        return
    w = partner(g, v)
    if operator in ("Div", "Mod", "Pow") and not (isinstance(w, str)):
        return
    if isinstance(w, str) and operator in ("Div", "Mod"):
        g.constants[w] = np.where(g.constants[w] == 0, 2, g.constants[w]).astype(v.dtype)
    if operator == "Mod" and v.floating:
        if v.exact:
            g.emit("Mod", [v, w], exact=True, fmod=1)
        return
    if operator == "Pow" and isinstance(w, str):
        g.constants[w] = np.abs(np.round(g.constants[w].astype(np.float64)) % 3).astype(v.dtype)
    pair = [v, w] if g.rng.random() < 0.5 or operator in ("Div", "Mod", "Pow", "PRelu") else [w, v]
    g.emit(operator, pair, exact=operator not in ("Div", "Pow", "Mean"))


def comparison(g: Graph) -> None:
    """Then a choice by it, or logic, or a number."""
    v = g.pick(lambda v: v.dtype in NUMERIC and v.exact)
    if v is None:
        return
    w = partner(g, v)
    if isinstance(w, Val) and not w.exact:
        return
    for made in g.emit(g.rng.choice("Equal Less Greater LessOrEqual GreaterOrEqual".split()), [v, w]):
        after = g.rng.randrange(3)
        if after == 0:
            g.emit("Where", [made, v, w], exact=True)
        elif after == 1:
            g.emit("Cast", [made], exact=True, to=TYPES[v.dtype])


def logic(g: Graph) -> None:
    v = g.pick(lambda v: v.dtype == "bool")
    if v is None:
        return
    operator = g.rng.choice("And Or Xor Not Where".split())
    if operator == "Not":
        g.emit("Not", [v])
    elif operator == "Where":
        w = g.pick(lambda w: _broadcasts(v.shape, w.shape) and w.dtype in NUMERIC)
        if w is not None:
            g.emit("Where", [v, w, partner(g, w)], exact=True)
    else:
        g.emit(operator, [v, partner(g, v)])


def bits(g: Graph) -> None:
    v = g.pick(lambda v: v.dtype in ("int64", "int32", "uint8", "int8"))
    if v is None:
        return
    operator = g.rng.choice("BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift".split())
    if operator == "BitwiseNot":
        g.emit(operator, [v])
    elif operator == "BitShift":
        g.emit(operator, [v, g.const(2, v.dtype)], direction=g.rng.choice(("LEFT", "RIGHT")))
    else:
        g.emit(operator, [v, partner(g, v)])


def cast(g: Graph) -> None:
    v = g.pick(lambda v: v.exact)
    if v is None:
        return
    to = g.rng.choice(list(TYPES))
    low = 0 if to == "uint8" else -128
    if not v.floating or to not in ("uint8", "int8") or (v.array.min() >= low and v.largest < 128):
        g.emit("Cast", [v], exact=True, to=TYPES[to])


def widen_float(g: Graph) -> None:
    """Between float types, also of values that are rounded."""
    if (v := g.pick(lambda v: v.floating)) is not None:
        g.emit("Cast", [v], exact=True, to=TYPES[g.rng.choice(("float32", "float32", "float64", "float16"))])


def microsoft(g: Graph) -> None:
    v = g.pick(lambda v: v.dtype == "float32" and v.rank > 0 and v.largest < 20)
    if v is None:
        return
    operator = g.rng.choice("Gelu FastGelu QuickGelu BiasGelu FusedMatMul SkipLayerNormalization".split())
    width = v.shape[-1]
    if operator == "BiasGelu":
        g.emit(operator, [v, g.const(g.numbers(width))], domain=MICROSOFT)
    elif operator == "FusedMatMul" and v.rank > 1:
        g.emit(operator, [v, g.const(g.numbers(3, width))], domain=MICROSOFT, transB=1, alpha=0.5)
    elif operator == "SkipLayerNormalization" and v.rank == 3 and width > 1:
        g.emit(operator, [v, v, g.const(g.numbers(width)), g.const(g.numbers(width))], domain=MICROSOFT, epsilon=0.25)
    elif operator.endswith("Gelu"):
        g.emit(operator, [v], domain=MICROSOFT)


# ---------------------------------------------------------------- reductions and order


def reduction(g: Graph) -> None:
    operator = g.rng.choice("ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSumExp ReduceSumSquare".split())
    v = g.pick(lambda v: v.dtype in NUMERIC[:2] + NUMERIC[3:] and v.rank > 0 and v.largest < 30 and (v.floating or operator[6:] in ("Sum", "Max", "Min", "Prod")))
    if v is None:
        return
    axes = sorted(g.rng.sample(range(v.rank), g.rng.randint(1, v.rank)))
    axes = [a if g.rng.random() < 0.6 else a - v.rank for a in axes]
    as_input = g.opset >= (13 if operator == "ReduceSum" else 18)
    attributes = {"keepdims": g.rng.randrange(2)} if g.rng.random() < 0.7 else {}
    if g.rng.random() < 0.2:
        g.emit(operator, [v], exact=operator[6:] in ("Sum", "Max", "Min", "L1"), **attributes)
    else:
        g.emit(operator, [v, g.const(axes, "int64")] if as_input else [v], exact=operator[6:] in ("Sum", "Max", "Min", "L1"), **attributes, **({} if as_input else {"axes": axes}))


def softmax(g: Graph) -> None:
    v = g.pick(lambda v: v.floating and v.dtype != "float16" and v.rank > 0 and v.largest < 60)
    if v is not None:
        g.emit(g.rng.choice(("Softmax", "LogSoftmax", "Softmax", "LpNormalization")), [v], **({"axis": axis(g, v.rank)} if g.rng.random() < 0.7 else {}))


def order(g: Graph) -> None:
    """Places of the largest, the k largest, running sums: of distinct values, so that all agree on ties."""
    v = g.pick(lambda v: v.exact and v.rank > 0 and v.dtype in ("float32", "int64", "float64", "int32"))
    if v is None:
        return
    way, d = g.rng.randrange(3), axis(g, v.rank)
    if way == 0:
        g.emit(g.rng.choice(("ArgMax", "ArgMin")), [v], axis=d, keepdims=g.rng.randrange(2), **({"select_last_index": 1} if g.rng.random() < 0.3 else {}))
    elif way == 1:
        k = g.rng.randint(1, v.shape[d])
        for made in g.emit("TopK", [v, g.const([k], "int64")], 2, exact=True, axis=d, largest=g.rng.randrange(2))[:1]:
            made.exact = v.exact
    else:
        g.emit("CumSum", [v, g.const(d, "int64")], exact=True, exclusive=g.rng.randrange(2), reverse=g.rng.randrange(2))


KINDS: list[tuple[Kind, int]] = [
    *((kind, 3) for kind in (smooth, binary, reduction)),
    *((kind, 2) for kind in (exact, comparison, softmax, order, cast, widen_float)),
    *((kind, 1) for kind in (jumping, clip, logic, bits, microsoft)),
]
