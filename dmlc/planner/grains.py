"""Grains worth trying: where a dim is later viewed as (heads, head size) and the heads do not divide evenly, splitting at head
boundaries from the start saves a gather."""

from __future__ import annotations

import math
from collections import defaultdict

from dmlc.ir.core import Function, Op, Value
from dmlc.ir.open_sizes import representative
from dmlc.ir.sharding import Mesh
from dmlc.ops.base import rule_of

Grains = dict[Op, dict[str, tuple[int, ...]]]


def grains_of(function: Function, mesh: Mesh, axes: tuple[str, ...]) -> Grains:
    """For each op, factor -> grains that some view asks of a dim that the factor reaches. Empty where all splits are even."""
    wanted: dict[tuple[Value, int], set[int]] = defaultdict(set)
    ops = [op for op in function.body if op.name != "func.return"]
    work: list[tuple[Value, int, int]] = []
    for op in ops:
        work += _proposals(op, mesh, axes)
    at: dict[Value, list[Op]] = defaultdict(list)
    for op in ops:
        for v in (*op.operands, *op.results):
            at[v].append(op)
    while work:
        value, dim, grain = work.pop()
        if grain in wanted[value, dim]:
            continue
        wanted[value, dim].add(grain)
        for op in at[value]:
            work += _carried(op, value, dim, grain)
    return {op: g for op in ops if (g := _of_op(op, wanted))}


def _proposals(op: Op, mesh: Mesh, axes: tuple[str, ...]) -> list[tuple[Value, int, int]]:
    if op.name != "dmlc.reshape":
        return []
    rule = rule_of(op)
    found = []
    for value, dims in ((op.operands[0], rule.operands[0]), (op.results[0], rule.results[0])):
        for d, factors in enumerate(dims):
            grain = math.prod(rule.sizes[f] for f in factors[1:])
            if len(factors) > 1 and grain != 1 and not mesh.is_even(value.shape[d], axes, grain):
                found.append((value, d, grain))
    return found


def _carried(op: Op, value: Value, dim: int, grain: int) -> list[tuple[Value, int, int]]:
    """The same grain on every dim that a lone factor ties to this one."""
    rule = rule_of(op)
    sides = [*zip(op.operands, rule.operands), *zip(op.results, rule.results)]
    factors = {dims[dim] for v, dims in sides if v is value and len(dims[dim]) == 1}
    return [(v, d, grain) for v, dims in sides for d, fs in enumerate(dims) if fs in factors and fs[0] not in rule.whole]


def _of_op(op: Op, wanted: dict[tuple[Value, int], set[int]]) -> dict[str, tuple[int, ...]]:
    rule = rule_of(op)
    found: dict[str, set[int]] = defaultdict(set)
    for value, dims in [*zip(op.operands, rule.operands), *zip(op.results, rule.results)]:
        for d, fs in enumerate(dims):
            if len(fs) == 1 and fs[0] not in rule.whole:
                found[fs[0]] |= wanted.get((value, d), set())
    return {f: tuple(sorted((g for g in gs if rule.sizes[f] % g == 0 and rule.sizes[f] != g), key=representative)) for f, gs in found.items() if gs}
