"""Let ops keep the leading dims that a reshape merged for them: a flattened (batch, sequence) cannot be split unevenly over ranks.

Before: reshape [b, t, k] -> [b t, k], matmul, add of a bias, reshape -> [b, t, j].   After: matmul and add on [b, t, k], no reshape.
A reshape that only merges leading dims sinks below every op that treats these dims alike, until another reshape undoes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from dmlc.ir.builder import Builder
from dmlc.ir.core import Module, Op, Value
from dmlc.ir.registry import lookup
from dmlc.ir.rewriter import Rewriter, apply_patterns, pattern
from dmlc.ops.base import attribute
from dmlc.ops.pointwise import Pointwise
from dmlc.passes.dce import erase_unused
from dmlc.passmanager.base import Numerics, Pass
from dmlc.passmanager.context import Context


@dataclass(frozen=True)
class Unflatten(Pass):
    name: ClassVar[str] = "unflatten"
    numerics: ClassVar[Numerics] = "exact"
    requires: ClassVar[tuple[str, ...]] = ("global",)

    def run(self, module: Module, context: Context) -> bool:
        changed = apply_patterns(module.main, [merge_reshapes, sink])
        if changed:
            erase_unused(module.main.body)
        return changed


@dataclass(frozen=True)
class Flat:
    """A value [prod(lead), *tail] that a reshape made of `source`, whose first dims are `lead`."""

    source: Value
    lead: tuple[int, ...]
    tail: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.lead + self.tail

    def restored(self, b: Builder) -> Value:
        """The value [*lead, *tail]."""
        if self.source.shape == self.shape:
            return self.source
        return b.emit("dmlc.reshape", self.source, types=[self.source.tensor.with_shape(self.shape)], tag="unflat")


def flat_of(value: Value) -> Flat | None:
    """How a reshape merged two or more leading dims into the value's first one, if it did."""
    made = value.op
    if made is None or made.name != "dmlc.reshape" or not value.shape:
        return None
    source, total = made.operands[0], 1
    for i, n in enumerate(source.shape):
        total *= n
        if total == value.shape[0] and i >= 1 and math.prod(source.shape[:i]) != total:
            return Flat(source, tuple(source.shape[: i + 1]), tuple(value.shape[1:]))
        if isinstance(total, int) and isinstance(value.shape[0], int) and total >= value.shape[0]:
            return None
    return None


@pattern("dmlc.reshape")
def merge_reshapes(op: Op, rewriter: Rewriter) -> bool:
    """Two reshapes are one, or none."""
    source = op.operands[0]
    if source.type == op.result.type:
        rewriter.replace(op, [source])
        return True
    inner = source.op
    if inner is None or inner.name != "dmlc.reshape":
        return False
    rewriter.set_operand(op, 0, inner.operands[0])
    return True


@pattern()
def sink(op: Op, rewriter: Rewriter) -> bool:
    """Compute on the unmerged value and merge the result, if the result still has the merged dim."""
    rule = RULES.get(op.name) or (_pointwise if _is_pointwise(op) else None)
    flats = [flat_of(v) for v in op.operands] if rule is not None else []
    lead = next((f.lead for f in flats if f is not None), None)
    if rule is None or lead is None or len(op.results) != 1 or any(f is not None and f.lead != lead for f in flats):
        return False
    b = rewriter.builder(op)
    found = rule(op, flats, lead)
    if found is None:
        return False
    attrs, operands = found
    restored = [f.restored(b) if f is not None else v for f, v in zip(operands, op.operands)]
    new = b.op(op.name, restored, {**op.attrs, **attrs}).result
    if new.type != op.result.type:
        new = b.emit("dmlc.reshape", new, types=[op.result.type], tag="flat")
    rewriter.replace(op, [new])
    return True


# A rule gives changed attributes and, for each operand, its flat form or None to take it as it is; None when the op must stay.
Flats = list["Flat | None"]
Found = tuple[dict, Flats] | None


def _is_pointwise(op: Op) -> bool:
    found = lookup(op.name)
    return isinstance(found, type) and issubclass(found, Pointwise)


def _pointwise(op: Op, flats: Flats, lead: tuple[int, ...]) -> Found:
    """Operands are flat alike, or have no leading dim that matters."""
    rank = op.result.tensor.rank
    for f, v in zip(flats, op.operands):
        if f is None and v.tensor.rank >= rank:
            return None
        if f is not None and (v.tensor.rank != rank or v.shape[0] != op.result.shape[0]):
            return None
    return {}, flats


def _product(op: Op, flats: Flats, lead: tuple[int, ...]) -> Found:
    """Rows times one matrix, or a merged batch of products on both sides."""
    left, right = op.operands
    if flats[0] is None:
        return None
    if op.name == "dmlc.linear" or right.tensor.rank == 2:
        return ({}, [flats[0], None]) if flats[1] is None or right.tensor.rank == 2 else None
    both = flats[1] is not None and left.tensor.rank == right.tensor.rank >= 3
    return ({}, flats) if both else None


def _norm(op: Op, flats: Flats, lead: tuple[int, ...]) -> Found:
    """The normalised dims are not among the merged ones; weights are taken as they are."""
    dims = attribute(op, "dims") if op.name == "dmlc.layer_norm" else 1
    return ({}, [flats[0], *(None for _ in op.operands[1:])]) if flats[0] is not None and op.operands[0].tensor.rank > dims else None


def _along(op: Op, flats: Flats, lead: tuple[int, ...]) -> Found:
    """One dim counts, and it is not the merged one."""
    dim = op.attrs["dim"]
    return ({"dim": dim + len(lead) - 1}, flats) if dim > 0 and None not in flats else None


def _rows(op: Op, flats: Flats, lead: tuple[int, ...]) -> Found:
    """A loss a row: logits and targets flat alike."""
    return ({}, flats) if None not in flats else None


def _lookup(op: Op, flats: Flats, lead: tuple[int, ...]) -> Found:
    return ({}, [None, flats[1]]) if flats[1] is not None else None


def _reduction(op: Op, flats: Flats, lead: tuple[int, ...]) -> Found:
    """The merged dim is reduced as a whole, without keeping it, or not at all."""
    dims, added = op.attrs["dims"], len(lead) - 1
    if 0 in dims and attribute(op, "keepdim"):
        return None
    first = tuple(range(len(lead))) if 0 in dims else ()
    return {"dims": first + tuple(d + added for d in dims if d > 0)}, flats


def _transposed(op: Op, flats: Flats, lead: tuple[int, ...]) -> Found:
    """The merged dim stays in front."""
    perm, added = op.attrs["perm"], len(lead) - 1
    return ({"perm": (*range(len(lead)), *(p + added for p in perm[1:]))}, flats) if perm[0] == 0 else None


RULES: dict[str, Callable[[Op, Flats, tuple[int, ...]], Found]] = {
    "dmlc.matmul": _product,
    "dmlc.linear": _product,
    "dmlc.layer_norm": _norm,
    "dmlc.rms_norm": _norm,
    "dmlc.softmax": _along,
    "dmlc.log_softmax": _along,
    "dmlc.slice": _along,
    "dmlc.transpose": _transposed,
    "dmlc.concat": _along,
    "dmlc.cross_entropy": _rows,
    "dmlc.embedding": _lookup,
    **{f"dmlc.reduce_{kind}": _reduction for kind in ("sum", "prod", "max", "min", "and", "or")},
}
