"""The kinds of ops in random programs: each adds a few ops to a graph, or nothing where no value fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from dmlc.ir.core import Value
from dmlc.ir.types import TensorType

if TYPE_CHECKING:
    from dmlc.tools.random_graphs import Graph

DIMS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12)
LARGEST = 4000  # elements of a value
IDS = 5  # integer inputs lie below
BOUNDED = ("tanh", "sigmoid", "erf", "sin", "cos")
FREE = ("neg", "abs", "relu", "gelu", "silu", "softplus", "elu", "leaky_relu", "hardswish", "mish", "hardsigmoid")


def f32(*shape: int) -> TensorType:
    return TensorType(shape, "f32")


# ---------------------------------------------------------------- pointwise


def unary(g: Graph) -> None:
    v = g.pick()
    if v is None:
        return
    name = g.rng.choice(BOUNDED + FREE)
    extra = {"slope": 0.1} if name == "leaky_relu" else {}
    g.emit(name, v, magnitude=1.0 if name in BOUNDED else g.magnitude[v] + 1.0, **extra)


def exponential(g: Graph) -> None:
    if (v := g.pick()) is not None:
        g.emit("exp", g.emit("tanh", v, magnitude=1.0), magnitude=3.0)


def binary(g: Graph) -> None:
    a = g.pick()
    if a is None:
        return
    b = g.partner(a)
    name = g.rng.choice(("add", "sub", "mul", "maximum", "minimum", "atan2"))
    sizes = g.magnitude[a], g.magnitude[b]
    magnitude = {"mul": math.prod(sizes), "atan2": 4.0}.get(name, sum(sizes))
    g.emit(name, *((a, b) if g.rng.random() < 0.7 else (b, a)), magnitude=magnitude)


def division(g: Graph) -> None:
    a = g.pick()
    if a is None:
        return
    positive = g.b.emit("dmlc.add", g.b.emit("dmlc.softplus", g.partner(a)), g.number(0.5))
    g.emit("div", a, positive, magnitude=2 * g.magnitude[a])


def choice(g: Graph) -> None:
    """Where a is larger than a number that nothing is equal to."""
    a = g.pick()
    if a is None:
        return
    condition = g.b.emit("dmlc.gt", a, g.number(0.12345))
    g.emit("select", condition, a, g.partner(a))


def clamp(g: Graph) -> None:
    if (v := g.pick()) is not None:
        g.emit("clamp", v, magnitude=2.0, min=-1.5, max=g.rng.choice((0.75, None)))


def positions(g: Graph) -> None:
    """Add a number that grows along the last dim."""
    v = g.pick(lambda v: v.tensor.rank > 0)
    if v is None:
        return
    count = g.b.emit("dmlc.iota", types=[TensorType(v.shape[-1:], "i64")], dim=0)
    scaled = g.b.emit("dmlc.mul", g.b.emit("dmlc.cast", count, to="f32"), g.number(0.1))
    g.emit("add", v, scaled)


def twin(g: Graph) -> None:
    """The same op twice, and their difference from a third."""
    v = g.pick()
    if v is None:
        return
    first, second = (g.b.emit("dmlc.sin", v) for _ in range(2))
    g.emit("sub", g.b.emit("dmlc.add", first, second), v, magnitude=2 + g.magnitude[v])


# ---------------------------------------------------------------- reductions


def reduction(g: Graph) -> None:
    v = g.pick(lambda v: v.tensor.rank > 0)
    if v is None:
        return
    dims = tuple(sorted(g.rng.sample(range(len(v.shape)), g.rng.randint(1, min(2, len(v.shape))))))
    name = g.rng.choice(("reduce_sum", "reduce_sum", "reduce_max", "reduce_min", "logsumexp"))
    count = math.prod(v.shape[d] for d in dims) if name == "reduce_sum" else 1
    g.emit(name, v, magnitude=count * g.magnitude[v] + 2, dims=dims, keepdim=g.rng.random() < 0.5)


def running(g: Graph) -> None:
    if (v := g.pick(lambda v: v.tensor.rank > 0)) is not None:
        d = g.dim(v)
        g.emit("cumsum", v, magnitude=v.shape[d] * g.magnitude[v], dim=d, reverse=g.rng.random() < 0.5)


def ordered(g: Graph) -> None:
    """The largest values along a dim; which ones they are is open between equal ones."""
    v = g.pick(lambda v: v.tensor.rank > 0)
    if v is None:
        return
    d = g.dim(v)
    op = g.b.op("dmlc.topk", [v], {"k": g.rng.randint(1, v.shape[d]), "dim": d})
    g.keep(op.results[0], g.magnitude[v])


def softmax(g: Graph) -> None:
    if (v := g.pick(lambda v: v.tensor.rank > 0)) is not None:
        name = g.rng.choice(("softmax", "log_softmax"))
        g.emit(name, v, magnitude=1.0 if name == "softmax" else 2 * g.magnitude[v] + 3, dim=g.dim(v))


def norm(g: Graph) -> None:
    v = g.pick(lambda v: v.tensor.rank > 1)
    if v is None:
        return
    width = v.shape[-1]
    if g.rng.random() < 0.5:
        g.emit("rms_norm", v, g.parameter(width), magnitude=4.0, eps=0.1)
    else:
        g.emit("layer_norm", v, g.parameter(width), g.parameter(width), magnitude=5.0, eps=0.1)


# ---------------------------------------------------------------- contractions


def product(g: Graph) -> None:
    v = g.pick(lambda v: v.tensor.rank > 1)
    if v is None:
        return
    k, n = v.shape[-1], g.rng.choice(DIMS)
    weight = (n, k) if g.rng.random() < 0.5 else (k, n)
    if math.prod(v.shape[:-1]) * n <= LARGEST:
        name = "linear" if weight == (n, k) else "matmul"
        g.emit(name, v, g.prepared(*weight), magnitude=g.magnitude[v] * k)


def self_product(g: Graph) -> None:
    """Scores of a value's rows with each other."""
    v = g.pick(lambda v: v.tensor.rank > 1 and g.magnitude[v] < 30 and math.prod(v.shape[:-1]) * v.shape[-2] <= LARGEST)
    if v is None:
        return
    perm = (*range(len(v.shape) - 2), len(v.shape) - 1, len(v.shape) - 2)
    g.emit("matmul", v, g.b.emit("dmlc.transpose", v, perm=perm), magnitude=g.magnitude[v] ** 2 * v.shape[-1])


def over_the_batch(g: Graph) -> None:
    """Two values' columns, summed over their first dim, as in the gradient of a weight."""
    v = g.pick(lambda v: v.tensor.rank == 2)
    if v is None:
        return
    w = g.pick(lambda w: w.tensor.rank == 2 and w.shape[0] == v.shape[0]) or v
    g.emit("contract", v, w, magnitude=v.shape[0] * g.magnitude[v] * g.magnitude[w], equation="bi,bj->ij")


def attention(g: Graph) -> None:
    """Projections of a [batch, sequence, width] value, heads (grouped at times), attention, heads merged, projection."""
    v = g.pick(lambda v: v.tensor.rank == 3)
    if v is None:
        return
    batch, sequence, width = v.shape
    heads = g.rng.choice((1, 2, 3, 4, 6))
    kept = g.rng.choice([n for n in (1, 2, 3, 4, 6) if heads % n == 0])
    size = g.rng.choice((2, 3, 4))

    def split(count: int) -> Value:
        flat = g.b.emit("dmlc.linear", v, g.parameter(count * size, width))
        apart = g.b.emit("dmlc.reshape", flat, types=[f32(batch, sequence, count, size)])
        return g.b.emit("dmlc.transpose", apart, perm=(0, 2, 1, 3))

    mixed = g.b.emit("dmlc.attention", split(heads), split(kept), split(kept), scale=0.3, causal=g.rng.random() < 0.5)
    merged = g.b.emit("dmlc.reshape", g.b.emit("dmlc.transpose", mixed, perm=(0, 2, 1, 3)), types=[f32(batch, sequence, heads * size)])
    g.emit("linear", merged, g.parameter(width, heads * size), magnitude=20 * g.magnitude[v])


def convolution(g: Graph) -> None:
    """Over one or two spatial dims, at times with as many groups as channels, then what follows convolutions."""
    v = g.pick(lambda v: v.tensor.rank in (3, 4))
    if v is None:
        return
    spatial, channels = len(v.shape) - 2, v.shape[1]
    kernel = [g.rng.choice((1, 2, 3)) for _ in range(spatial)]
    groups = channels if g.rng.random() < 0.3 else 1
    out = channels * g.rng.choice((1, 2)) if groups > 1 else g.rng.choice((1, 2, 3, 4, 6))
    weight = g.parameter(out, channels // groups, *kernel)
    size = g.magnitude[v] * channels // groups * math.prod(kernel) + 1
    padding = tuple(p for k in kernel for p in (k - 1, 1))
    y = g.emit("conv", v, weight, magnitude=size, stride=(g.rng.choice((1, 2)),) * spatial, padding=padding, groups=groups)
    _after_convolution(g, y, out)


def _after_convolution(g: Graph, y: Value, channels: int) -> None:
    way, spatial = g.rng.randrange(4), len(y.shape) - 2
    if way == 0:
        statistics = g.parameter(channels), g.parameter(channels, role="buffer")
        g.emit("batch_norm", y, g.parameter(channels), g.parameter(channels), *statistics, magnitude=3 * g.magnitude[y], eps=0.1)
    elif way == 1:
        groups = next(k for k in (3, 2, 1) if channels % k == 0)
        g.emit("group_norm", y, g.parameter(channels), g.parameter(channels), magnitude=5.0, groups=groups, eps=0.1)
    elif way == 2 and min(y.shape[2:]) > 1:
        name = g.rng.choice(("max_pool", "avg_pool"))
        g.emit(name, y, magnitude=g.magnitude[y], kernel=(2,) * spatial, stride=(2,) * spatial, padding=(0, 1) * spatial)


# ---------------------------------------------------------------- movement


def reshape(g: Graph) -> None:
    """Neighbouring dims merged, a dim split, or the elements dealt out anew."""
    v = g.pick(lambda v: v.tensor.rank > 0)
    if v is None:
        return
    shape, way, d = list(v.shape), g.rng.randrange(4), g.dim(v)
    divisors = [k for k in range(2, shape[d]) if shape[d] % k == 0]
    if way == 0 and divisors:
        k = g.rng.choice(divisors)
        shape[d : d + 1] = [k, shape[d] // k]
    elif way == 1 and d + 1 < len(shape):
        shape[d : d + 2] = [shape[d] * shape[d + 1]]
    elif way == 2:
        total = math.prod(shape)
        first = g.rng.choice([k for k in range(1, total + 1) if total % k == 0])
        shape = [first, total // first]
    else:
        shape.insert(d, 1)
    if len(shape) <= 5:
        g.emit("reshape", v, types=[f32(*shape)])


def transpose(g: Graph) -> None:
    if (v := g.pick(lambda v: v.tensor.rank > 1)) is not None:
        g.emit("transpose", v, perm=tuple(g.rng.sample(range(len(v.shape)), len(v.shape))))


def cut(g: Graph) -> None:
    v = g.pick(lambda v: v.tensor.rank > 0)
    if v is None:
        return
    d = g.dim(v)
    start = g.rng.randrange(v.shape[d])
    g.emit("slice", v, dim=d, start=start, stop=g.rng.randint(start + 1, v.shape[d]), step=g.rng.choice((1, 1, 2)))


def concat(g: Graph) -> None:
    v = g.pick(lambda v: v.tensor.rank > 0)
    if v is None:
        return
    d = g.dim(v)
    rest = [w for w in g.values if len(w.shape) == len(v.shape) and all(a == b for i, (a, b) in enumerate(zip(w.shape, v.shape)) if i != d)]
    if v.tensor.numel * 3 <= LARGEST:
        g.emit("concat", v, *g.rng.choices(rest, k=g.rng.randint(1, 2)), dim=d)


def pad(g: Graph) -> None:
    v = g.pick(lambda v: v.tensor.rank > 0)
    if v is None:
        return
    low, high = (tuple(g.rng.choice((0, 0, 1, 2)) for _ in v.shape) for _ in range(2))
    if math.prod(n + a + b for n, a, b in zip(v.shape, low, high)) <= LARGEST:
        g.emit("pad", v, low=low, high=high, mode="constant", value=g.rng.choice((0.0, 0.25)))


def turn(g: Graph) -> None:
    v = g.pick(lambda v: v.tensor.rank > 0)
    if v is None:
        return
    d = g.dim(v)
    if g.rng.random() < 0.5:
        g.emit("flip", v, dims=(d,))
    else:
        g.emit("roll", v, shift=g.rng.randrange(v.shape[d] + 1), dim=d)


def widen(g: Graph) -> None:
    """Size-1 dims and a new leading dim repeated."""
    v = g.pick(lambda v: v.tensor.rank < 4 and v.tensor.numel * 30 <= LARGEST)
    if v is not None:
        shape = [g.rng.choice((1, 3, 5)) if n == 1 else n for n in v.shape]
        g.emit("broadcast", v, types=[f32(*([g.rng.choice((2, 3))] if g.rng.random() < 0.5 else []), *shape)])


def triangle(g: Graph) -> None:
    if (v := g.pick(lambda v: v.tensor.rank > 1)) is not None:
        g.emit(g.rng.choice(("tril", "triu")), v, diagonal=g.rng.choice((-1, 0, 1)))


# ---------------------------------------------------------------- lookups


def embedding(g: Graph) -> None:
    width = g.rng.choice(DIMS)
    g.emit("embedding", g.parameter(g.rng.choice((5, 7, 9)), width), g.rng.choice(g.ids), magnitude=2.0)


def take(g: Graph) -> None:
    v = g.pick(lambda v: any(n >= IDS for n in v.shape))
    if v is None:
        return
    ids = g.rng.choice(g.ids)
    if v.tensor.numel * ids.tensor.numel <= LARGEST:
        g.emit("take", v, ids, magnitude=g.magnitude[v], dim=next(d for d, n in enumerate(v.shape) if n >= IDS))


def loss(g: Graph) -> None:
    """Of logits made for the ids' shape out of an embedding."""
    ids, classes = g.rng.choice(g.ids), g.rng.choice((5, 6, 7))
    logits = g.b.emit("dmlc.embedding", g.parameter(IDS, classes), ids)
    g.emit("cross_entropy", logits, ids, magnitude=8.0)


def along(g: Graph) -> None:
    """Elements picked, or sums gathered, along a dim by integers that lie below its size."""
    v = g.pick(lambda v: v.tensor.rank > 0 and v.shape[-1] >= IDS and v.tensor.numel * IDS <= LARGEST)
    if v is None:
        return
    count, last = g.rng.choice((3, 5)), len(v.shape) - 1
    row = g.b.emit("dmlc.iota", types=[TensorType((count,), "i64")], dim=0)
    index = g.b.emit("dmlc.broadcast", row, types=[TensorType((*v.shape[:-1], count), "i64")])
    picked = g.emit("take_along", v, index, magnitude=g.magnitude[v], dim=last)
    if g.rng.random() < 0.5:
        g.emit("scatter", v, index, picked, dim=last, reduce="add")


def one_hot(g: Graph) -> None:
    ids = g.rng.choice(g.ids)
    classes = g.b.emit("dmlc.iota", types=[TensorType((IDS,), "i64")], dim=0)
    column = g.b.emit("dmlc.reshape", ids, types=[TensorType((*ids.shape, 1), "i64")])
    g.emit("cast", g.b.emit("dmlc.eq", column, classes), magnitude=1.0, to="f32")


KINDS: list[tuple[Callable[[Graph], None], int]] = [
    *((kind, 3) for kind in (unary, binary, product, reshape, reduction)),
    *((kind, 2) for kind in (softmax, norm, transpose, cut, concat, self_product, positions, embedding, convolution)),
    *((kind, 1) for kind in (exponential, division, choice, clamp, running, ordered, over_the_batch, attention, pad, turn, widen, triangle, take, loss, twin, along, one_hot)),
]
