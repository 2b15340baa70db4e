"""Merge ops that compute the same value: equal names, own attributes, operands, result types and regions.

Before: two equal matrix products.   After: one, used twice.
Never merges what is random or communicates, and never across the border of a function or a fused region.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from dmlc.ir.core import Block, Module, Op, Value
from dmlc.ir.registry import lookup
from dmlc.passmanager.base import Numerics, Pass
from dmlc.passmanager.context import Context

LABELS = frozenset({"dmlc.id", "dmlc.name", "dmlc.of", "dmlc.times"})  # tell ops apart without saying anything about their values
COMMUTATIVE = frozenset(
    {"dmlc.add", "dmlc.mul", "dmlc.maximum", "dmlc.minimum", "dmlc.eq", "dmlc.ne", "dmlc.logical_and", "dmlc.logical_or", "dmlc.logical_xor"}
    | {"dmlc.bitwise_and", "dmlc.bitwise_or", "dmlc.bitwise_xor"}
)
ISOLATED = frozenset({"kernel.fused", "func.func"})  # their regions see no value from outside
LARGEST_BLOCK = 1 << 32
Known = dict[Hashable, Op]


@dataclass(frozen=True)
class Cse(Pass):
    name: ClassVar[str] = "cse"
    numerics: ClassVar[Numerics] = "exact"

    def run(self, module: Module, context: Context) -> bool:
        numbers: dict[Value, int] = {}
        return any([merge_in(f.body, {}, numbers) for f in module.functions])


def merge_in(block: Block, outer: Known, numbers: dict[Value, int]) -> bool:
    """Merge the ops of a block with earlier ones of it and of the blocks around it."""
    known, changed = dict(outer), False
    for op in block:
        for region in op.regions:
            for inner in region.blocks:
                changed |= merge_in(inner, {} if op.name in ISOLATED else known, numbers)
        if not mergeable(op):
            continue
        key = key_of(op, numbers)
        first = known.setdefault(key, op)
        if first is not op:
            if "dmlc.name" in op.attrs:
                first.attrs.setdefault("dmlc.name", op.attrs["dmlc.name"])
            op.replace(first.results)
            changed = True
    return changed


def mergeable(op: Op) -> bool:
    """Pure ops, and barriers: two on the same value and trigger are one."""
    if not op.results or any(not mergeable(o) for r in op.regions for b in r.blocks for o in b if o is not b.last):
        return False
    definition = lookup(op.name)
    return definition is not None and definition.effects in ("", "order")


def key_of(op: Op, numbers: dict[Value, int], depth: int = 0) -> Hashable:
    """Equal for two ops exactly when they compute the same. `numbers` gives every value met a number."""
    operands = [_number(v, numbers) for v in op.operands]
    if op.name in COMMUTATIVE:
        operands.sort()
    attrs = tuple(sorted(((k, type(v).__name__, repr(v)) for k, v in op.attrs.items() if k not in LABELS)))
    regions = tuple(_region_key(b, numbers, depth + 1) for r in op.regions for b in r.blocks)
    return op.name, tuple(operands), attrs, tuple(r.type for r in op.results), regions


def _region_key(block: Block, numbers: dict[Value, int], depth: int) -> Hashable:
    """Values from outside are told apart by their number, those made inside by depth and place in the block (as negative numbers)."""
    local, free = dict(numbers), -depth * LARGEST_BLOCK
    for arg in block.args:
        local[arg] = free = free - 1
    keys: list[Hashable] = [tuple(a.type for a in block.args)]
    for op in block:
        for v in op.operands:
            if v not in local:
                local[v] = _number(v, numbers)
        keys.append(key_of(op, local, depth))
        for r in op.results:
            local[r] = free = free - 1
    return tuple(keys)


def _number(value: Value, numbers: dict[Value, int]) -> int:
    return numbers.setdefault(value, len(numbers))
