"""isolate: what a loop or a branch reads from outside becomes an operand of it, so that a plan can say how it lies.

Before: `dmlc.scan %h {…} { … %w … }`.   After: `dmlc.scan %h, %w {…, shared = 1} { ^bb0(%i, %c, %v): … %v … }`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dmlc.ir.core import Module, Op, Value
from dmlc.ops.control import LOOPS
from dmlc.passes._reverse import captured
from dmlc.passmanager.base import Numerics, Pass
from dmlc.passmanager.context import Context

ISOLATED = ("dmlc.cond", *LOOPS)


@dataclass(frozen=True)
class Isolate(Pass):
    name: ClassVar[str] = "isolate"
    numerics: ClassVar[Numerics] = "exact"

    def run(self, module: Module, context: Context) -> bool:
        ops = [op for function in module.functions for op in function.ops() if op.name in ISOLATED]
        return any([_isolate(op) for op in reversed(ops)])  # inner ones first: what they read, the outer ones read then


def _isolate(op: Op) -> bool:
    values = captured(op)
    if not values:
        return False
    op.operands = (*op.operands, *values)
    if op.name in LOOPS:
        op.attrs["shared"] = op.attrs.get("shared", 0) + len(values)
    for region in op.regions:
        mapping: dict[Value, Value] = {v: region.block.add_arg(v.type) for v in values}
        for inner in region.block.walk():
            for i, v in enumerate(inner.operands):
                if v in mapping:
                    inner.set_operand(i, mapping[v])
    return True
