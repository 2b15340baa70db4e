"""Random programs for tests: 10 to 25 ops over shapes that divide badly, with shared values, several outputs, and outputs that are used again.

A graph of n ops is the beginning of the graph of n + 1 ops of the same seed, so a failing one is made smaller by asking for fewer ops.
Nothing in a graph is ill-conditioned: magnitudes are kept small, divisors away from zero, and norms have a large epsilon.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from dmlc.ir.attributes import DenseResource
from dmlc.ir.builder import Builder
from dmlc.ir.core import Module, Value
from dmlc.ir.types import TensorType
from dmlc.tools.random_kinds import DIMS, IDS, KINDS, LARGEST, f32


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

    def parameter(self, *shape: int, role: str = "param") -> Value:
        """A stored value; a buffer is positive, as variances are."""
        name = f"w{len(self.function.args)}"
        attrs = {"dmlc.role": role, "dmlc.names": (name,), "dmlc.value": DenseResource(name, f32(*shape))}
        value = self.function.body.add_arg(f32(*shape), name, attrs)
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
        return self.prepared(*(1 if self.rng.random() < 0.2 else n for n in tail))

    def prepared(self, *shape: int) -> Value:
        """A parameter, at times one that the program first computes from another: a recipe for the loader."""
        if not shape or self.rng.random() < 0.6:
            return self.parameter(*shape)
        flat = self.b.emit("dmlc.exp", self.b.emit("dmlc.tanh", self.parameter(*reversed(shape))))
        self.magnitude[value := self.b.emit("dmlc.transpose", flat, perm=tuple(reversed(range(len(shape)))))] = 3.0
        return value

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
