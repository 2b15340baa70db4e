"""Kinds of nodes of random ONNX graphs that move elements, or look them up."""

from __future__ import annotations

import math

import numpy as np

from dmlc.tools.random_onnx import Graph, Val
from dmlc.tools.random_onnx_kinds import NUMERIC, Kind, axis

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


MOVEMENT: list[tuple[Kind, int]] = [
    (reshape, 3),
    *((kind, 2) for kind in (transpose, cut, gather, concat, pad, scatter)),
    *((kind, 1) for kind in (split, widen, deal, one_hot, formula)),
]
