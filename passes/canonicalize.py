"""Rewrite to one form what can be written in several: no-op moves go, two moves become one, constants move to where they are used.

Before: transpose {1, 0, 2}, transpose {0, 2, 1}, mul by 1.0.   After: transpose {1, 2, 0}.
Never changes a float's bits: x*0 and x+0.0 stay, and a cast there and back stays where the middle dtype rounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Function, Module, Op, Value
from dmlc.passes import _canonical_movement  # noqa: F401  (its rules register themselves)
from dmlc.passes._canonical import RULES
from dmlc.passes._canonical_arithmetic import ANY_POINTWISE
from dmlc.passmanager.base import Numerics, Pass
from dmlc.passmanager.context import Context

DECISIONS = ("dmlc.place", "dmlc.complete", "dmlc.group", "dmlc.bucket", "dmlc.chunks", "dmlc.remat", "dmlc.precision")


@dataclass(frozen=True)
class Canonicalize(Pass):
    name: ClassVar[str] = "canonicalize"
    numerics: ClassVar[Numerics] = "exact"

    def run(self, module: Module, context: Context) -> bool:
        return any([rewrite(f) for f in module.functions])


def rewrite(function: Function) -> bool:
    """Apply rules until none fits. Visits ops in program order; what a rewrite touches is visited again."""
    ids = IdPool(function)
    todo: dict[Op, None] = dict.fromkeys(function.ops())
    changed = False
    while todo:
        op = next(iter(todo))
        del todo[op]
        if op.block is None or any(key in op.attrs for key in DECISIONS):
            continue
        changed |= _rewrite_op(op, ids, todo)
    return changed


def _rewrite_op(op: Op, ids: IdPool, todo: dict[Op, None]) -> bool:
    for rule in (*RULES.get(op.name, ()), *ANY_POINTWISE):
        b = Builder.before(op, ids)
        last = op.prev
        found = rule(op, b)
        if found is None:
            continue
        values = [found] if isinstance(found, Value) else list(found)
        made = _since(last, op)
        _inherit(op, values, made)
        touched = [*made, *(user for r in op.results for user in r.users)]
        inputs = [v.op for v in op.operands if v.op is not None]
        op.replace(values)
        todo.update(dict.fromkeys(touched))
        _erase_dead(inputs, todo)
        return True
    return False


def _since(last: Op | None, op: Op) -> list[Op]:
    """The ops that stand between `last` and `op`: those just emitted."""
    made, current = [], op.prev
    while current is not last and current is not None:
        made.append(current)
        current = current.prev
    return made


def _inherit(op: Op, values: list[Value], made: list[Op]) -> None:
    """An op made in the place of another takes its id, name and other annotations."""
    new = values[0].op if values else None
    if new is not None and new in made:
        annotations = {k: v for k, v in op.attrs.items() if "." in k}
        new.attrs.update({**new.attrs, **annotations})


def _erase_dead(ops: Iterable[Op], todo: dict[Op, None]) -> None:
    """Erase the inputs of a rewritten op that nothing uses any more, so that 'used once' stays true for other rules."""
    stack = list(ops)
    while stack:
        op = stack.pop()
        if op.block is None or not op.unused or op.name not in RULES and op.name != "dmlc.full":
            continue
        stack += [v.op for v in op.operands if v.op is not None]
        todo.pop(op, None)
        op.erase()
