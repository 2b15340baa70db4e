"""Memory plans: proofs with z3, random programs, wrong plans refused, liveness by definition."""

from __future__ import annotations

import random

import pytest

import dmlc.ops  # noqa: F401
from dmlc.ir.builder import Builder
from dmlc.ir.core import Module, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.parser import parse_module
from dmlc.ir.types import FutureType, TensorType
from dmlc.passes import plan_memory
from dmlc.simulate.arena import Buffer, aligned, arena_size, overlaps, place
from dmlc.simulate.liveness import block_liveness


def random_buffers(seed: int, count: int) -> list[Buffer]:
    draw = random.Random(seed)
    begins = [draw.randint(0, count) for _ in range(count)]
    return [Buffer(b, b + draw.randint(0, 5), draw.choice((0, 8, 256, 300, 4096, 5000))) for b in begins]


def z3_refutes_overlap(buffers: list[Buffer], offsets: list[int]) -> bool:
    """z3 finds no position and byte that two buffers share."""
    import z3

    position, byte = z3.Ints("position byte")
    held = [z3.And(position >= b.begin, position <= b.end, byte >= o, byte < o + b.bytes) for b, o in zip(buffers, offsets)]
    solver = z3.Solver()
    solver.add(z3.Or([z3.And(held[i], held[j]) for i in range(len(held)) for j in range(i)] or [z3.BoolVal(False)]))
    return solver.check() == z3.unsat


@pytest.mark.parametrize("seed", range(20))
def test_z3_proves_small_plans(seed):
    buffers = random_buffers(seed, 8)
    offsets = place(buffers)
    assert z3_refutes_overlap(buffers, offsets) and not overlaps(buffers, offsets)
    assert all(o == aligned(o) for o in offsets)


@pytest.mark.parametrize("seed", range(20))
def test_z3_and_the_checker_find_the_same_faults(seed):
    """Plans made wrong on purpose: one offset moved to 0."""
    buffers = random_buffers(seed, 8)
    offsets = place(buffers)
    offsets[max(range(8), key=lambda i: offsets[i])] = 0
    assert z3_refutes_overlap(buffers, offsets) == (not overlaps(buffers, offsets))


@pytest.mark.parametrize("seed", range(6))
def test_arena_near_the_least_possible(seed):
    """z3 minimises the arena over all placements; best fit stays within a third of it."""
    import z3

    buffers = [b for b in random_buffers(seed, 6) if b.bytes]
    offsets = [z3.Int(f"o{i}") for i in range(len(buffers))]
    size = z3.Int("size")
    optimizer = z3.Optimize()
    for i, b in enumerate(buffers):
        optimizer.add(offsets[i] >= 0, offsets[i] + b.bytes <= size)
        for j in range(i):
            if b.meets(buffers[j]):
                optimizer.add(z3.Or(offsets[i] + b.bytes <= offsets[j], offsets[j] + buffers[j].bytes <= offsets[i]))
    optimizer.minimize(size)
    assert optimizer.check() == z3.sat
    least = optimizer.model()[size].as_long()
    assert least <= arena_size(buffers, place(buffers, alignment=1)) <= least * 4 / 3


# ---------------------------------------------------------------- programs


def random_program(seed: int, length: int = 14) -> Module:
    """Element-wise ops, views, products, collectives in flight."""
    draw = random.Random(seed)
    module = parse_module("builtin.module {\n  dmlc.mesh {sym_name = \"mesh\", axes = #dmlc.axes<[\"data\"=2]>} : () -> ()\n}")
    function = module.add_function("main", [TensorType((8, 8), "f32")], ["x"])
    b = Builder.at_end(function.body)
    values: list[Value] = list(function.args)
    flying: list[Value] = []
    for _ in range(length):
        kind = draw.choice(("dmlc.exp", "dmlc.add", "dmlc.matmul", "dmlc.transpose", "start", "wait"))
        if kind == "start":
            v = draw.choice(values)
            flying.append(b.op("comm.all_reduce_start", [v], {"axes": ("data",), "combiner": "sum"}, [FutureType((v.type,))]).result)
        elif kind == "wait" and flying:
            future = flying.pop(0)
            values.append(b.op("comm.wait", [future], {}, list(future.type.types)).result)  # type: ignore[attr-defined]
        elif kind in ("dmlc.exp", "dmlc.add", "dmlc.matmul"):
            values.append(b.emit(kind, *[draw.choice(values[-4:]) for _ in range(1 if kind == "dmlc.exp" else 2)]))
        elif kind == "dmlc.transpose":
            values.append(b.emit(kind, draw.choice(values[-4:]), perm=(1, 0)))
    for future in flying:
        values.append(b.op("comm.wait", [future], {}, list(future.type.types)).result)  # type: ignore[attr-defined]
    b.op("func.return", [values[-1]], {}, [])
    return module


def last_read(ops: list[Op], value: Value) -> int:
    """By definition: the last op that reads the value or a view of it; a start reads until its wait."""
    last = -1
    for i, op in enumerate(ops):
        if value in op.operands:
            last = max(last, i)
            if op.name.endswith("_start"):
                last = max(last, next(j for j, o in enumerate(ops) if o.name == "comm.wait" and o.operands[0] is op.results[0]))
            if op.name == "dmlc.transpose":
                last = max(last, last_read(ops, op.result))
    return last


@pytest.mark.parametrize("seed", range(30))
def test_liveness_by_definition(seed):
    module = random_program(seed)
    live = block_liveness(module.main.body, with_arguments=False)
    for r in live.ranges:
        if not r.storage.kept:
            assert r.end == max(last_read(list(live.ops), r.storage.value), r.begin, _delivered_at(live.ops, r.storage.value))


def _delivered_at(ops, value: Value) -> int:
    return next((i for i, op in enumerate(ops) if op.name == "comm.wait" and value in op.results), -1)


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_pass_the_checker_and_z3(seed):
    module = random_program(seed)
    plan = plan_memory.decide(module.main.body)
    plan_memory.check(plan)
    assert z3_refutes_overlap(plan.buffers, plan.offsets)
    assert plan.size <= sum(aligned(b.bytes) for b in plan.buffers)


def test_a_wrong_plan_is_refused():
    refused = 0
    for seed in range(20):
        plan = plan_memory.decide(random_program(seed).main.body)
        plan.offsets = [0] * len(plan.offsets)
        try:
            plan_memory.check(plan)
        except DmlcError as e:
            refused += "still needed" in e.message
    assert refused > 10


def test_in_place_never_touches_views_outputs_or_values_in_flight():
    taken = 0
    for seed in range(60):
        module = random_program(seed)
        plan = plan_memory.decide(module.main.body)
        ops = list(plan.liveness.ops)
        for op, i in plan.in_place.items():
            v = op.operands[i]
            assert last_read(ops, v) == ops.index(op) and v.op is not None and v.op.name != "dmlc.transpose"
            assert op.result not in module.main.results and v not in module.main.results
            taken += 1
    assert taken > 20


def test_loop_bodies_have_an_arena_inside_the_outer_one():
    text = """
builtin.module {
  func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %a = dmlc.exp %x : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %g = dmlc.microbatch {count = 2 : i64} {
    ^bb0(%i: tensor<i64>):
      %m = dmlc.matmul %a, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      %n = dmlc.matmul %m, %a : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      dmlc.yield %n : (tensor<8x8xf32>) -> ()
    } : () -> tensor<8x8xf32>
    %y = dmlc.matmul %g, %g : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    func.return %y : tensor<8x8xf32>
  }
}
"""
    module = parse_module(text)
    plan = plan_memory.decide(module.main.body)
    plan_memory.check(plan)
    plan_memory.apply(module, plan)
    loop = next(op for op in module.main.body if op.name == "dmlc.microbatch")
    values = {o for op in module.main.body for o in op.attrs.get("dmlc.offset", ())}
    assert loop.attrs["dmlc.scratch"] not in values
    assert module.main.op.attrs["dmlc.arena"] == 3 * 256  # a, the loop's result, and one value inside
