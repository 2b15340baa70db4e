"""Find composite ops in the spelled-out forms that exporters write: attention, norms, softmax, GELU, SiLU.

Before: matmul, mul by 0.125, add of a mask, softmax, matmul.   After: attention {scale = 0.125} with the mask.
A composite has sharding rules, gradients and kernels of its own. Nothing is raised that changes a value beyond the order of sums: dims, numbers and casts
must be the formula's, and what is inside must not be used elsewhere. Masks and positions that depend on no input are evaluated: a lower triangle is `causal`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dmlc.ir.core import Module
from dmlc.ir.rewriter import Pattern, apply_patterns
from dmlc.passes import _raise_activations, _raise_norms
from dmlc.passes._known import Known
from dmlc.passes._raise_attention import Attention
from dmlc.passes._raise_masks import KnownMask, KnownTruth, Positions, WholeIndex, grouped_heads, unbroadcast_mask
from dmlc.passes.dce import erase_unused
from dmlc.passmanager.base import Numerics, Pass
from dmlc.passmanager.context import Context


@dataclass(frozen=True)
class RaiseComposites(Pass):
    """`limit`: elements up to which masks and positions are evaluated."""

    name: ClassVar[str] = "raise-composites"
    numerics: ClassVar[Numerics] = "reordered"
    requires: ClassVar[tuple[str, ...]] = ("global",)
    limit: int = 1 << 24

    def run(self, module: Module, context: Context) -> bool:
        known = Known(module, context, self.limit)
        changed = apply_patterns(module.main, patterns(known, context))
        if changed:
            erase_unused(module.main.body)
        return changed


def patterns(known: Known, context: Context) -> list[Pattern]:
    lookups = [WholeIndex(known), Positions(known), KnownTruth(known)]
    formulas = [*_raise_activations.PATTERNS, *_raise_norms.PATTERNS, Attention(known, context)]
    return [*lookups, *formulas, KnownMask(known), unbroadcast_mask, grouped_heads]
