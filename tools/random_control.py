"""Random programs of loops and branches inside one another: through all passes on ranks, cut at random, differentiated.

    python -m dmlc.tools.random_control 200 [--first 0]

Results agree within 1e-9 of their scale, with every float in float64 and NaN in all padding; gradients agree with differences of the loss.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import dmlc.ops  # noqa: F401
from dmlc.interpret.run import run
from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Block, Module, Op, Region, Value
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import TensorType
from dmlc.ir.verifier import verify
from dmlc.ops.control import row_type, stack_type
from dmlc.passes.isolate import Isolate
from dmlc.passes.partition import Partition
from dmlc.passmanager.check import relative_error, seeded_inputs
from dmlc.passmanager.context import Context
from dmlc.passmanager.manager import PassManager
from dmlc.passmanager.pipeline import parse_pipeline
from dmlc.tools.fuzz_graphs import compiled
from dmlc.tools.random_plans import place_randomly

ROWS, BATCH, WIDTH = 3, 6, 3
VECTOR, WEIGHT, SQUARE, SCALAR, FLAG, INDEX = (
    TensorType((BATCH, WIDTH), "f32"), TensorType((WIDTH,), "f32"), TensorType((WIDTH, WIDTH), "f32"), TensorType((), "f32"), TensorType((), "i1"), TensorType((), "i64"),
)  # fmt: skip
STACK = stack_type(VECTOR, ROWS)
DEEPEST = 3
Pool = dict[TensorType, list[Value]]


class Nest:
    """Makes one program. `whiles`: also loops that their data ends, which have no gradient; else two arguments are parameters."""

    def __init__(self, seed: int, whiles: bool = True):
        self.rng, self.whiles = random.Random(seed), whiles
        self.module = Module()
        self.function = self.module.add_function("main")
        self.b = Builder(self.function.body, None, IdPool(self.function))

    def make(self) -> Module:
        pool: Pool = {SCALAR: []}
        weight = "input" if self.whiles else "param"
        for name, type_, role, batch in (
            ("x", VECTOR, "input", 0),
            ("y", VECTOR, "input", 0),
            ("s", STACK, "input", 1),
            ("w", WEIGHT, weight, None),
            ("m", SQUARE, weight, None),
        ):
            attrs: dict[str, Any] = {"dmlc.role": role} | ({} if batch is None else {"dmlc.batch_dim": batch})
            pool.setdefault(type_, []).append(self.function.body.add_arg(type_, name, attrs))
        self.ops(pool, 0, 8)
        self.region_op(pool, 0)
        loss = self.b.emit("dmlc.add", self.summed(pool[VECTOR][-1]), self.summed(pool[STACK][-1]))
        self.b.op("func.return", [loss, pool[VECTOR][-1], pool[STACK][-1]], result_types=[])
        self.function.result_attrs[:] = [{"dmlc.name": n} for n in ("loss", "y", "s")]
        verify(self.module)
        return self.module

    def some(self, pool: Pool, type_: TensorType) -> Value:
        return self.rng.choice(pool[type_])

    # ------------------------------------------------------------ ops

    def ops(self, pool: Pool, depth: int, count: int) -> None:
        """Ops that add to the pool."""
        for _ in range(count):
            if depth < DEEPEST and self.rng.random() < 0.4:
                self.region_op(pool, depth)
            else:
                made = self.plain(pool)
                pool[made.tensor].append(made)

    def plain(self, pool: Pool) -> Value:
        either = self.some(pool, self.rng.choice((VECTOR, STACK)))
        vector = self.some(pool, VECTOR)
        others = [self.some(pool, VECTOR), self.some(pool, WEIGHT), *pool[SCALAR][-1:]]
        choices: list[Callable[[], Value]] = [
            lambda: self.b.emit(self.rng.choice(("dmlc.tanh", "dmlc.sin", "dmlc.sigmoid", "dmlc.neg")), either),
            lambda: self.bounded(self.b.emit(self.rng.choice(("dmlc.add", "dmlc.mul", "dmlc.sub")), vector, self.rng.choice(others))),
            lambda: self.bounded(self.b.emit("dmlc.linear", either, self.some(pool, SQUARE))),
            lambda: self.b.emit("dmlc.softmax", vector, dim=self.rng.choice((0, 1))),
            lambda: self.bounded(self.b.emit("dmlc.cumsum", vector, dim=self.rng.choice((0, 1)))),
            lambda: self.b.emit("dmlc.flip", self.some(pool, STACK), dims=(0,)),
            lambda: self.summed(either),
        ]
        return self.rng.choice(choices)()

    def bounded(self, value: Value) -> Value:
        return self.b.emit("dmlc.tanh", value)

    def summed(self, value: Value) -> Value:
        """A scalar of all elements."""
        total = self.b.emit("dmlc.reduce_sum", value, dims=tuple(range(value.tensor.rank)))
        return self.bounded(self.b.emit("dmlc.mul", total, self.b.emit("dmlc.full", types=[SCALAR], value=0.1)))

    # ------------------------------------------------------------ regions

    def region_op(self, pool: Pool, depth: int) -> None:
        self.rng.choice((self.cond, self.scan, self.scan, *((self.until,) if self.whiles else ())))(pool, depth)

    def region(self, types: Sequence[TensorType], inside: Callable[[list[Value]], Sequence[Value]]) -> Region:
        outer, block = self.b, Block(types)
        self.b = Builder(block, None, outer.ids)
        self.b.op("dmlc.yield", inside(list(block.args)), result_types=[])
        self.b = outer
        return Region([block])

    def inner(self, pool: Pool, depth: int, more: Sequence[Value], wanted: Sequence[TensorType]) -> list[Value]:
        """Some ops, and of what is there then a value of each type."""
        own = {t: list(v) for t, v in pool.items()}
        for value in more:
            own.setdefault(value.tensor, []).append(value)
        self.ops(own, depth + 1, self.rng.randint(1, 4))
        return [self.rng.choice(own[t][-3:]) for t in wanted]

    def emit(self, pool: Pool, name: str, operands: Sequence[Value], types: Sequence[TensorType], regions: Sequence[Region], **attrs: Any) -> Op:
        op = self.b.op(name, operands, attrs, types, regions=regions)
        for r in op.results:
            pool[r.tensor].append(r)
        return op

    def cond(self, pool: Pool, depth: int) -> None:
        zero = self.b.emit("dmlc.full", types=[SCALAR], value=0.0)
        flag = self.b.emit("dmlc.gt", self.summed(self.some(pool, VECTOR)), zero)
        given = [self.some(pool, VECTOR)] if self.rng.random() < 0.5 else []
        regions = [self.region([v.tensor for v in given], lambda args: self.inner(pool, depth, args, [VECTOR, STACK])) for _ in range(2)]
        self.emit(pool, "dmlc.cond", [flag, *given], [VECTOR, STACK], regions)

    def scan(self, pool: Pool, depth: int) -> None:
        """Over the rows of stacks, or a few times over nothing."""
        rows = self.rng.random() < 0.7
        count = ROWS if rows else self.rng.choice((0, 1, 4))
        carried, scanned = [self.some(pool, VECTOR)], [self.some(pool, STACK)] if rows else []
        shared = [self.some(pool, WEIGHT)] if self.rng.random() < 0.3 else []
        types = [INDEX, *(v.tensor for v in carried), *(row_type(v.tensor) for v in scanned), *(v.tensor for v in shared)]
        body = self.region(types, lambda args: self.inner(pool, depth, args[1:], [VECTOR, *([VECTOR] if rows else [])]))
        attrs = {"count": count} | ({"scanned": 1} if rows else {}) | ({"shared": 1} if shared else {}) | ({"reverse": True} if self.rng.random() < 0.4 else {})
        self.emit(pool, "dmlc.scan", [*carried, *scanned, *shared], [VECTOR, *([STACK] if rows else [])], [body], **attrs)

    def until(self, pool: Pool, depth: int) -> None:
        """Up to four times, while a sum is small."""

        def condition(args: list[Value]) -> list[Value]:
            some = self.b.emit("dmlc.lt", args[0], self.b.emit("dmlc.full", types=[INDEX], value=4))
            small = self.b.emit("dmlc.lt", self.summed(args[1]), self.b.emit("dmlc.full", types=[SCALAR], value=0.3))
            return [self.b.emit("dmlc.logical_and", some, small)]

        def body(args: list[Value]) -> list[Value]:
            after = self.b.emit("dmlc.add", args[0], self.b.emit("dmlc.full", types=[INDEX], value=1))
            return [after, *self.inner(pool, depth, args[1:], [VECTOR])]

        zero, types = self.b.emit("dmlc.full", types=[INDEX], value=0), [INDEX, VECTOR]
        op = self.b.op("dmlc.while", [zero, self.some(pool, VECTOR)], {}, types, regions=[self.region(types, condition), self.region(types, body)])
        pool[VECTOR].append(op.results[1])


# ---------------------------------------------------------------- what must hold


def values_of(module: Module, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return seeded_inputs(module, seed) | {a.name: rng.standard_normal(a.shape) for a in module.main.args if a.attrs["dmlc.role"] == "param"}


def compare(seed: int, devices: int, plan: str) -> int:
    """Raises where the compiled program, or the program cut at random, computes something else. Gives the number of ops in the deepest program."""
    module = Nest(seed).make()
    values = values_of(module, seed)
    wanted = run(module, values, promote="f64")
    through, _ = compiled(module, devices, plan)
    _same(wanted, run(through, values, promote="f64", poison_pads=True), f"seed {seed}: {devices} devices, {plan}")
    cut = module.clone()
    PassManager((Isolate(),)).run(cut, Context())
    if place_randomly(cut, Mesh.make(a=devices), random.Random(seed), eager=1.0):
        PassManager((Partition(),)).run(cut, Context())
        verify(cut)
        _same(wanted, run(cut, values, promote="f64", poison_pads=True), f"seed {seed}: cut at random over {devices}")
    return sum(1 for _ in module.main.ops())


def _same(wanted: dict[str, Any], found: dict[str, Any], what: str) -> None:
    for name, value in wanted.items():
        error = relative_error(value, found[name])
        assert error < 1e-9, f"{what}: {name} is off by {error:.1e} of its scale"


def check_gradients(seed: int) -> None:
    """Each parameter's gradient along a random direction, against a central difference."""
    module = Nest(seed, whiles=False).make()
    values = values_of(module, seed)
    backward = module.clone()
    PassManager(parse_pipeline("autodiff")).run(backward, Context())
    verify(backward)
    found, rng = run(backward, values, promote="f64"), np.random.default_rng(seed)
    for name in ("w", "m"):
        direction, step = rng.standard_normal(values[name].shape), 1e-6
        ends = [float(run(module, {**values, name: values[name] + sign * step * direction}, promote="f64")["loss"]) for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * step)
        given = float((found[f"{name}.grad"] * direction).sum()) if f"{name}.grad" in found else 0.0
        assert abs(slope - given) <= 1e-5 * max(1.0, abs(slope)), f"seed {seed}: the slope along %{name} is {slope:.8g}, its gradient gives {given:.8g}"


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("count", type=int, nargs="?", default=100)
    p.add_argument("--first", type=int, default=0, help="the first seed")
    args = p.parse_args(argv)
    for seed in range(args.first, args.first + args.count):
        devices, plan = ((2, "dp=2"), (3, "auto"), (3, "dp=3"), (2, "auto"))[seed % 4]
        ops = compare(seed, devices, plan)
        try:
            check_gradients(seed)
            slopes = "gradients agree"
        except AssertionError:
            raise
        except Exception as e:
            if "depends on no trained parameter" not in str(e):
                raise
            slopes = "nothing to differentiate"
        print(f"seed {seed}: {ops} ops on {devices} ranks ({plan}) agree; {slopes}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
