"""Kinds of nodes of random ONNX graphs: pointwise, reductions, movement, lookups. Each picks operands that fit and adds a node, or does nothing."""

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


# ---------------------------------------------------------------- movement


def reshape(g: Graph) -> None:
    v = g.pick(lambda v: v.rank > 0)
    if v is None:
        return
    way, shape = g.rng.randrange(5), list(v.shape)
    if way == 0:
        total = math.prod(shape)
        first = g.rng.choice([k for k in range(1, total + 1) if total % k == 0])
        g.emit("Reshape", [v, g.const(g.rng.choice(([first, -1], [-1, first])), "int64")], exact=True)
    elif way == 1:
        g.emit("Reshape", [v, g.const([0] * (v.rank - 1) + [-1, 1], "int64")], exact=True)
    elif way == 2:
        g.emit("Flatten", [v], exact=True, axis=g.rng.randrange(-v.rank, v.rank + 1))
    elif way == 3 and v.rank < 5:
        _axes(g, "Unsqueeze", v, [g.rng.randrange(-v.rank - 1, v.rank + 1)])
    elif 1 in shape:
        _axes(g, "Squeeze", v, [shape.index(1)])


def _axes(g: Graph, operator: str, v: Val, axes: list[int]) -> None:
    if g.opset >= 13:
        g.emit(operator, [v, g.const(axes, "int64")], exact=True)
    else:
        g.emit(operator, [v], exact=True, axes=axes)


def transpose(g: Graph) -> None:
    if (v := g.pick(lambda v: v.rank > 1)) is not None:
        g.emit("Transpose", [v], exact=True, **({"perm": g.rng.sample(range(v.rank), v.rank)} if g.rng.random() < 0.8 else {}))


def cut(g: Graph) -> None:
    """Slices with steps of either sign and bounds from either end or beyond."""
    v = g.pick(lambda v: v.rank > 0)
    if v is None:
        return
    d = axis(g, v.rank)
    n = v.shape[d]
    step = g.rng.choice((1, 1, 2, -1, -2))
    start, stop = (g.rng.choice((0, 1, -n, n // 2)), g.rng.choice((n, -1, 1 << 40))) if step > 0 else (g.rng.choice((n - 1, -1, 1 << 40)), g.rng.choice((0, -(1 << 40), -n - 1)))
    g.emit("Slice", [v, *(g.const([x], "int64") for x in (start, stop, d, step))], exact=True)


def split(g: Graph) -> None:
    v = g.pick(lambda v: v.rank > 0 and max(v.shape) > 1)
    if v is None:
        return
    d = v.shape.index(max(v.shape))
    first = g.rng.randint(1, v.shape[d] - 1)
    sizes = [first, v.shape[d] - first]
    if g.opset >= 13:
        g.emit("Split", [v, g.const(sizes, "int64")], 2, exact=True, axis=d)
    else:
        g.emit("Split", [v], 2, exact=True, axis=d, split=sizes)


def concat(g: Graph) -> None:
    v = g.pick(lambda v: v.rank > 0)
    if v is None:
        return
    d = g.rng.randrange(v.rank)
    rest = [w for w in g.values if w.dtype == v.dtype and w.rank == v.rank and all(a == b for i, (a, b) in enumerate(zip(v.shape, w.shape)) if i != d)]
    g.emit("Concat", [v, *g.rng.choices(rest, k=g.rng.randint(1, 2))], exact=True, axis=d)


def widen(g: Graph) -> None:
    v = g.pick(lambda v: v.array.size < 300)
    if v is None:
        return
    way = g.rng.randrange(2)
    if way == 0:
        g.emit("Expand", [v, g.const([2, *(g.rng.choice((1, 3)) if n == 1 else n for n in v.shape)], "int64")], exact=True)
    elif v.rank:
        g.emit("Tile", [v, g.const([g.rng.choice((1, 2)) for _ in v.shape], "int64")], exact=True)


def pad(g: Graph) -> None:
    v = g.pick(lambda v: v.rank > 0 and v.dtype in NUMERIC and min(v.shape) > 2)
    if v is None:
        return
    mode = g.rng.choice(("constant", "reflect", "edge", *(("wrap",) if g.opset >= 19 else ())))
    pads = [g.rng.choice((0, 1, 2, -1) if mode == "constant" else (0, 1, 2)) for _ in range(2 * v.rank)]
    value = [g.const(0.5 if v.floating else 3, v.dtype)] if mode == "constant" and g.rng.random() < 0.5 else []
    g.emit("Pad", [v, g.const(pads, "int64"), *value], exact=True, mode=mode)


def deal(g: Graph) -> None:
    """Between depth and space; triangles; rows turned round."""
    way = g.rng.randrange(4)
    if way == 0 and (v := g.pick(lambda v: v.rank == 4 and v.shape[1] % 4 == 0 and v.floating)) is not None:
        g.emit("DepthToSpace", [v], exact=True, blocksize=2, mode=g.rng.choice(("DCR", "CRD")))
    elif way == 1 and (v := g.pick(lambda v: v.rank == 4 and not v.shape[2] % 2 and not v.shape[3] % 2 and v.floating)) is not None:
        g.emit("SpaceToDepth", [v], exact=True, blocksize=2)
    elif way == 2 and (v := g.pick(lambda v: v.rank > 1 and v.dtype in NUMERIC)) is not None:
        g.emit("Trilu", [v, g.const(g.rng.choice((-1, 0, 1)), "int64")], exact=True, upper=g.rng.randrange(2))
    elif way == 3 and (v := g.pick(lambda v: v.rank > 1 and v.shape[1] > 1)) is not None:
        lengths = [g.rng.randint(1, v.shape[0]) for _ in range(v.shape[1])]
        g.emit("ReverseSequence", [v, g.const(lengths, "int64")], exact=True, batch_axis=1, time_axis=0)


# ---------------------------------------------------------------- lookups


def indices(g: Graph, shape: tuple[int, ...], size: int, dtype: str = "int64") -> np.ndarray:
    return np.array([g.rng.randrange(-size, size) for _ in range(math.prod(shape))], dtype).reshape(shape)


def gather(g: Graph) -> None:
    v = g.pick(lambda v: v.rank > 0)
    if v is None:
        return
    d, way = axis(g, v.rank), g.rng.randrange(3)
    n = v.shape[d]
    if way == 0:
        shape = g.rng.choice(((), (3,), (2, 2)))
        g.emit("Gather", [v, _index(g, indices(g, shape, n, g.rng.choice(("int64", "int32"))))], exact=True, axis=d)
    elif way == 1:
        shape = tuple(2 if i == d % v.rank else g.rng.randint(1, m) for i, m in enumerate(v.shape))
        g.emit("GatherElements", [v, _index(g, indices(g, shape, n))], exact=True, axis=d)
    else:
        depth = g.rng.randint(1, v.rank)
        rows = np.stack([indices(g, (3,), m) for m in v.shape[:depth]], -1)
        g.emit("GatherND", [v, _index(g, rows)], exact=True)


def _index(g: Graph, array: np.ndarray) -> Val | str:
    """At times given at run time."""
    return g.input(array) if g.rng.random() < 0.3 else g.const(array)


def scatter(g: Graph) -> None:
    v = g.pick(lambda v: v.rank > 0 and v.dtype in ("float32", "int64", "float64"))
    if v is None:
        return
    reduction_ = g.rng.choice(("none", "add", "mul", "max", "min")) if g.opset >= 18 else "none"
    attributes = {} if reduction_ == "none" else {"reduction": reduction_}
    if g.rng.random() < 0.5:
        d = g.rng.randrange(v.rank)
        shape = tuple(min(2, n) if i == d else n for i, n in enumerate(v.shape))
        order_ = np.array(g.rng.sample(range(v.shape[d]), shape[d]))  # without repetition, where the last one would win
        places = np.broadcast_to(order_.reshape([-1 if i == d else 1 for i in range(v.rank)]), shape)
        g.emit("ScatterElements", [v, g.const(places, "int64"), g.const(g.numbers(*shape, dtype=v.dtype))], exact=True, axis=d, **attributes)
    else:
        rows = np.array(g.rng.sample(range(v.shape[0]), min(2, v.shape[0]))).reshape(-1, 1)
        g.emit("ScatterND", [v, g.const(rows, "int64"), g.const(g.numbers(len(rows), *v.shape[1:], dtype=v.dtype))], exact=True, **attributes)


def one_hot(g: Graph) -> None:
    v = g.pick(lambda v: v.dtype == "int64" and v.rank < 3 and v.largest < 20)
    if v is not None:
        g.emit("OneHot", [v, g.const(5, "int64"), g.const(g.numbers(2))], exact=True, axis=g.rng.choice((-1, 0)))


def formula(g: Graph) -> None:
    """From a shape: the shape itself, an identity, a filled tensor."""
    v = g.pick(lambda v: v.rank > 0)
    if v is None:
        return
    way = g.rng.randrange(3)
    if way == 0 and v.rank == 2:
        g.emit("EyeLike", [v], exact=True, k=g.rng.choice((-1, 0, 1)), dtype=1)
    elif way == 1:
        for made in g.emit("Shape", [v], **({"start": -1} if g.opset >= 15 and g.rng.random() < 0.3 else {})):
            g.emit("ConstantOfShape", [made], exact=True)
    else:
        g.emit("Size", [v])


KINDS: list[tuple[Kind, int]] = [
    *((kind, 3) for kind in (smooth, binary, reduction, reshape)),
    *((kind, 2) for kind in (exact, transpose, cut, gather, comparison, softmax, order, cast, widen_float, concat, pad, scatter)),
    *((kind, 1) for kind in (jumping, clip, logic, bits, microsoft, split, widen, deal, one_hot, formula)),
]
