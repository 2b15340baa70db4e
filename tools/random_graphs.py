"""Random programs for tests: 10 to 25 ops over shapes that divide badly, with shared values, several outputs, and outputs that are used again.

A graph of n ops is the beginning of the graph of n + 1 ops of the same seed, so a failing one is made smaller by asking for fewer ops.
Nothing in a graph is ill-conditioned: magnitudes are kept small, divisors away from zero, and norms have a large epsilon.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from dmlc.ir.builder import Builder
from dmlc.ir.core import Module, Value
from dmlc.ir.types import TensorType

DIMS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12)
LARGEST = 4000  # elements of a value
IDS = 5  # integer inputs lie below
BOUNDED = ("tanh", "sigmoid", "erf", "sin", "cos")
FREE = ("neg", "abs", "relu", "gelu", "silu", "softplus", "elu", "leaky_relu", "hardswish", "mish", "hardsigmoid")


def f32(*shape: int) -> TensorType:
    return TensorType(shape, "f32")


class Graph:
    """A program under construction. `magnitude` estimates how large a value's elements get."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.module = Module()
        self.function = self.module.add_function("main")
        self.b = Builder.at_end(self.function.body)
        self.values: list[Value] = []
        self.ids: list[Value] = []
        self.magnitude: dict[Value, float] = {}
        batch = self.rng.choice(DIMS)
        for n in range(self.rng.choice((1, 1, 2))):
            self.input(f"x{n}", (batch, *(self.rng.choice(DIMS) for _ in range(self.rng.randint(1, 3)))))
        self.input("ids", (batch, self.rng.choice(DIMS))[: self.rng.choice((1, 2))], "i64")

    # -------------------------------------------------- making values

    def input(self, name: str, shape: tuple[int, ...], dtype: str = "f32") -> None:
        while math.prod(shape) > LARGEST:
            shape = (*shape[:-1], 2)
        attrs = {"dmlc.role": "input", "dmlc.batch_dim": 0}
        if dtype == "i64":
            self.ids.append(self.function.body.add_arg(TensorType(shape, dtype), name, {**attrs, "dmlc.range": (0, IDS)}))
        else:
            self.keep(self.function.body.add_arg(f32(*shape), name, attrs), 4.0)

    def parameter(self, *shape: int) -> Value:
        value = self.function.body.add_arg(f32(*shape), f"w{len(self.function.args)}", {"dmlc.role": "param"})
        self.magnitude[value] = 2.0
        return value

    def number(self, x: float) -> Value:
        return self.b.emit("dmlc.full", types=[f32()], value=x)

    def keep(self, value: Value, magnitude: float) -> Value:
        """A value that later ops may read; one that has grown too large is squashed first."""
        if magnitude > 1e4:
            value, magnitude = self.b.emit("dmlc.tanh", value), 1.0
        self.magnitude[value] = magnitude
        self.values.append(value)
        return value

    def emit(self, name: str, *operands: Value, magnitude: float | None = None, types: Sequence[TensorType] | None = None, **attrs) -> Value:
        """An op on kept values; as large as its operands together unless said otherwise."""
        value = self.b.emit(f"dmlc.{name}", *operands, types=types, **attrs)
        return self.keep(value, sum(self.magnitude.get(v, 1.0) for v in operands) if magnitude is None else magnitude)

    # -------------------------------------------------- picking values

    def pick(self, fits: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """A value that fits, more often a recent one; sometimes an old one, which is then shared."""
        found = [v for v in self.values if v.tensor.numel and fits(v)]
        if not found:
            return None
        return self.rng.choice(found[-4:] if self.rng.random() < 0.6 else found)

    def partner(self, value: Value) -> Value:
        """Something that broadcasts to `value`: another value, or a parameter."""
        shape = value.shape
        found = [v for v in self.values if v is not value and _broadcasts(v.shape, shape)]
        if found and self.rng.random() < 0.6:
            return self.rng.choice(found)
        tail = shape[self.rng.randint(0, len(shape)) :]
        return self.parameter(*(1 if self.rng.random() < 0.2 else n for n in tail))

    def dim(self, value: Value) -> int:
        return self.rng.randrange(len(value.shape))

    # -------------------------------------------------- whole graphs

    def grow(self, ops: int) -> None:
        """Until at least `ops` ops are there."""
        kinds = [kind for kind, weight in KINDS for _ in range(weight)]
        while sum(1 for _ in self.function.body) < ops:
            self.rng.choice(kinds)(self)

    def finish(self, seed: int) -> Module:
        """Return most values that nothing reads (the others are dead), one that is read, and now and then one of them twice."""
        rng = random.Random(seed ^ 0x5EED)
        loose = [v for v in self.values if not v.uses and v.op is not None and rng.random() < 0.9]
        used = [v for v in self.values if v.uses]
        results = loose + ([rng.choice(used)] if used and rng.random() < 0.6 else [])
        results = results or self.values[-1:]
        if rng.random() < 0.1:
            results.append(rng.choice(results))
        self.b.op("func.return", results, result_types=())
        return self.module


def _broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    tail = target[len(target) - len(shape) :]
    return len(shape) <= len(target) and all(a in (1, b) for a, b in zip(shape, tail))


def random_graph(seed: int, ops: int | None = None) -> Module:
    """A program of f32 inputs, parameters and integer ids; `ops` (10 to 25 unless given) is how many ops it has at least."""
    graph = Graph(seed)
    drawn = graph.rng.randint(10, 25)
    graph.grow(drawn if ops is None else ops)
    return graph.finish(seed)


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
        g.emit("linear" if weight == (n, k) and n != k else "matmul", v, g.parameter(*(weight if n != k else (k, n))), magnitude=g.magnitude[v] * k)


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
    v = g.pick(lambda v: v.tensor.rank == 3)
    if v is None:
        return
    out, kernel = g.rng.choice((1, 2, 3, 4, 6)), g.rng.choice((1, 2, 3))
    g.emit("conv", v, g.parameter(out, v.shape[1], kernel), magnitude=g.magnitude[v] * v.shape[1] * kernel, stride=(g.rng.choice((1, 2)),), padding=(kernel - 1, 1))


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


KINDS: list[tuple[Callable[[Graph], None], int]] = [
    *((kind, 3) for kind in (unary, binary, product, reshape, reduction)),
    *((kind, 2) for kind in (softmax, norm, transpose, cut, concat, self_product, positions, embedding)),
    *((kind, 1) for kind in (exponential, division, choice, clamp, running, ordered, over_the_batch, attention, convolution, pad, turn, widen, triangle, take, loss)),
]
