"""The cut that places casts is optimal: on small random graphs nothing is cheaper, counted without a cut."""

from __future__ import annotations

import itertools
import random

import pytest

import dmlc.ops  # noqa: F401
from dmlc.ir.attributes import AttrDict
from dmlc.ir.builder import Builder
from dmlc.ir.core import Module, Op, Value
from dmlc.ir.printer import print_module
from dmlc.ir.types import TensorType
from dmlc.ir.verifier import verify
from dmlc.ops.base import definition
from dmlc.passes.mixed_precision import MixedPrecision, decide, participates, wanted
from dmlc.passmanager.context import Context

FOLLOW = ("relu", "exp", "tanh", "gelu")


def random_dag(seed: int, ops: int) -> Module:
    """Products with weights of other widths, softmaxes, sums, pointwise ops, views; several results."""
    rng = random.Random(seed)
    module = Module()
    module.attrs["dmlc.request"] = AttrDict(precision="bf16")
    function = module.add_function("main", [TensorType((rng.choice((4, 8)), rng.choice((4, 8, 16))), "f32") for _ in range(2)])
    b = Builder.at_end(function.body)
    values: list[Value] = list(function.args)
    for _ in range(ops):
        values.append(_grown(b, rng, values))
    results = [v for v in values if not v.uses and v.op is not None] + rng.sample(values[2:], 1)
    b.op("func.return", results, result_types=())
    return module


def _grown(b: Builder, rng: random.Random, values: list[Value]) -> Value:
    x = rng.choice(values[-4:])
    kind = rng.randrange(6)
    if kind == 0:
        weight = b.block.add_arg(TensorType((rng.choice((4, 8, 16)), x.shape[1]), "f32"), f"w{len(b.block.args)}", {"dmlc.role": "param"})
        return b.emit("dmlc.linear", x, weight)
    if kind == 1:
        return b.emit("dmlc.softmax", x, dim=1)
    if kind == 2:
        return b.emit("dmlc.transpose", x, perm=(1, 0))
    same = [v for v in values if v.shape == x.shape and v is not x]
    if kind in (3, 4) and same:
        return b.emit(rng.choice(("dmlc.add", "dmlc.mul")), x, rng.choice(same))
    return b.emit(f"dmlc.{rng.choice(FOLLOW)}", x)


def price(module: Module, low: dict[Op, bool]) -> float:
    """Bytes moved in f32 that bf16 would save, and casts: each value at most once down and once up. Ties go to f32."""
    total = 0.0
    for op, is_low in low.items():
        kind = wanted(op)
        if kind != "follow":
            total += float("inf") if (kind == "low") != is_low else 0
        elif is_low:
            total += 1
        elif definition(op).view is None and definition(op).cost != "free":
            total += 2 * sum(v.tensor.numel for v in (*op.operands, *op.results) if not is_weight(v))
    for value in values_of(module):
        made_low = low.get(value.op, False) if value.op is not None else False
        read = {low.get(user, False) for user in value.users if user is not value.op}
        total += 6 * value.tensor.numel * ((not made_low) in read)
    return total


def is_weight(value: Value) -> bool:
    return value.op is None and value.attrs.get("dmlc.role", "input") == "param"  # type: ignore[attr-defined]


def values_of(module: Module) -> list[Value]:
    return [a for a in module.main.args if not is_weight(a)] + [r for op in module.main.body for r in op.results]


def cheapest(module: Module, ops: list[Op]) -> float:
    free = [op for op in ops if wanted(op) == "follow"]
    fixed = {op: wanted(op) == "low" for op in ops if wanted(op) != "follow"}
    return min(price(module, {**fixed, **dict(zip(free, picked))}) for picked in itertools.product((False, True), repeat=len(free)))


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_cheaper_than_the_cut(seed: int) -> None:
    module = random_dag(seed, 5 + seed % 8)
    ops = [op for op in module.main.body if participates(op)]
    choice = decide(module.main)
    low = {op: choice.precision.get(op.id, "high") == "low" for op in ops}
    if not any(wanted(op) == "low" for op in ops):
        assert not choice.precision
    else:
        assert price(module, low) == cheapest(module, ops)


def test_the_graphs_have_something_to_decide() -> None:
    chosen = [decide(random_dag(seed, 12).main).precision for seed in range(30)]
    labels = [set(c.values()) for c in chosen if c]
    assert sum(len(s) == 2 for s in labels) > 15


@pytest.mark.parametrize("seed", range(20))
def test_applied_twice_is_applied_once(seed: int) -> None:
    module = random_dag(seed, 12)
    MixedPrecision().run(module, Context())
    verify(module)
    once = print_module(module)
    MixedPrecision().run(module, Context())
    verify(module)
    assert print_module(module) == once


def test_a_worse_choice_costs_more() -> None:
    """The count above notices a cast too many."""
    module = next(m for m in (random_dag(s, 12) for s in range(50)) if decide(m.main).precision)
    ops = [op for op in module.main.body if participates(op)]
    choice = decide(module.main)
    low = {op: choice.precision[op.id] == "low" for op in ops}
    flipped = next(op for op in ops if wanted(op) == "follow")
    assert price(module, {**low, flipped: not low[flipped]}) >= price(module, low)
