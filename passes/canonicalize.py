"""Rewrite to one form what can be written in several: no-op moves go, two moves become one, constants move to where they are used.

Before: transpose {1, 0, 2}, transpose {0, 2, 1}, mul by 1.0.   After: transpose {1, 2, 0}.
Never changes a float's bits: x*0 and x+0.0 stay, and a cast there and back stays where the middle dtype rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dmlc.ir.core import Module, Op
from dmlc.ir.rewriter import Pattern, Rewriter, apply_patterns
from dmlc.passes import _canonical_movement  # noqa: F401  (its rules register themselves)
from dmlc.passes._canonical import RULES, Rule
from dmlc.passes._canonical_arithmetic import ANY_POINTWISE
from dmlc.passes._canonical_control import InlineKnown
from dmlc.passmanager.base import Numerics, Pass
from dmlc.passmanager.context import Context

DECISIONS = ("dmlc.place", "dmlc.complete", "dmlc.group", "dmlc.bucket", "dmlc.chunks", "dmlc.remat", "dmlc.precision")


@dataclass(frozen=True)
class Canonicalize(Pass):
    name: ClassVar[str] = "canonicalize"
    numerics: ClassVar[Numerics] = "exact"

    def run(self, module: Module, context: Context) -> bool:
        return apply_patterns(module, [EraseUnused(), InlineKnown(), *(ByRule(rule, names) for rule, names in _names_of().items())])


def _names_of() -> dict[Rule, tuple[str, ...]]:
    """Each rule once, with the op names it is for (none = all)."""
    names: dict[Rule, tuple[str, ...]] = {}
    for name, rules in RULES.items():
        for rule in rules:
            names[rule] = (*names.get(rule, ()), name)
    return names | dict.fromkeys(ANY_POINTWISE, ())


class EraseUnused(Pattern):
    """What a rewrite leaves unused goes at once, so that 'used only here' is true for other rules."""

    ops = (*RULES, "dmlc.full")

    def rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        if not op.unused:
            return False
        rewriter.erase(op)
        return True


class ByRule(Pattern):
    """A rule gives the values that replace an op; where a decision about the op has been taken, it stays."""

    def __init__(self, rule: Rule, ops: tuple[str, ...]):
        self.rule, self.ops, self.name = rule, ops, rule.__name__

    def rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        if any(key in op.attrs for key in DECISIONS):
            return False
        last = op.prev
        found = self.rule(op, rewriter.builder(op))
        if found is None:
            return False
        if found.op is not None and found.op is op.prev is not last:  # the last op emitted takes the place of the old one
            found.op.attrs.update({k: v for k, v in op.attrs.items() if "." in k})
        rewriter.replace(op, [found])
        return True
