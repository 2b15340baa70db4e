"""`mask-elim`: drops a mask where the padding is proven to hold the identity already.

What is known: a mask's own result; arguments, whose padding the loader fills with zeros (those relied on are marked `dmlc.pad = 0`);
zeros through linear ops whose other operands have no such padding, or known finite padding; constants through pointwise ops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dmlc.ir.core import BlockArgument, Function, Module, Op, Value
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import TensorType
from dmlc.ops.base import definition, linear_of, rule_of
from dmlc.passmanager.base import Pass
from dmlc.passmanager.context import Context

KEEP_ZERO = frozenset(f"dmlc.{n}" for n in ("gelu", "silu", "tanh", "sin", "tan", "erf", "asin", "atan", "sinh", "asinh", "expm1", "log1p", "mish", "hardswish", "elu", "leaky_relu"))


@dataclass(frozen=True)
class Pad:
    """Every element of a dim's padding is `value`, provided the loader zero-fills `sources`."""

    value: float
    sources: frozenset[BlockArgument] = frozenset()


@dataclass(frozen=True)
class MaskElim(Pass):
    name = "mask-elim"
    numerics = "exact"
    requires = ("partitioned",)
    ensures = ("partitioned",)

    def run(self, module: Module, context: Context) -> bool:
        if "dmlc.spmd" not in module.attrs:
            return False
        known = pads(module.main, Mesh.of(module))
        changed = False
        for op in module.main.body.ops:
            if op.name != "dmlc.mask_pad":
                continue
            found = known.get((op.operands[0], op.attrs["dim"]))
            if found is None or found.value != identity_value(op.attrs["identity"], op.operands[0].dtype):
                continue
            for arg in sorted(found.sources, key=lambda a: a.index):
                arg.attrs["dmlc.pad"] = 0
            op.replace([op.operands[0]])
            changed = True
        return changed


def identity_value(identity: Any, dtype: str) -> float | None:
    """A mask's identity as a number; None where it depends on the integer type."""
    if not isinstance(identity, str):
        return float(identity)
    if identity in ("sum", "or"):
        return 0.0
    if identity in ("prod", "and"):
        return 1.0
    if dtype.startswith(("f", "bf")):
        return float("-inf") if identity == "max" else float("inf")
    return None


def pads(function: Function, mesh: Mesh) -> dict[tuple[Value, int], Pad]:
    """What is known of the padding of each value's dims."""
    known: dict[tuple[Value, int], Pad] = {}
    for arg in function.args:
        sharding = arg.attrs.get("dmlc.storage") or arg.attrs.get("dmlc.sharding")
        shape = arg.attrs.get("dmlc.global", arg.shape)
        for d in range(arg.tensor.rank):
            if sharding is not None and sharding.dims[d] and not mesh.is_even(shape[d], sharding.dims[d], sharding.grain(d)):
                known[arg, d] = Pad(0.0, frozenset([arg]))
    for op in function.body:
        if op.name == "dmlc.mask_pad":
            _mask(op, known)
        elif op.dialect == "dmlc" and not op.regions and op.results:
            _through(op, known)
    return known


def _mask(op: Op, known: dict[tuple[Value, int], Pad]) -> None:
    source, result = op.operands[0], op.results[0]
    for d in range(result.tensor.rank):
        if (source, d) in known:
            known[result, d] = known[source, d]
    value = identity_value(op.attrs["identity"], source.dtype)
    if value is not None:
        known[result, op.attrs["dim"]] = Pad(value)


def _through(op: Op, known: dict[tuple[Value, int], Pad]) -> None:
    if not any((v, d) in known for v in op.operands for d in range(getattr(v.type, "rank", 0))):
        return
    rule = rule_of(op)
    for j, result in enumerate(op.results):
        for d, factors in enumerate(rule.results[j]):
            if len(factors) == 1 and factors[0] not in rule.whole:
                found = _zero(op, rule, factors[0], known) or _constant(op, rule, factors[0], known)
                if found is not None:
                    known[result, d] = found


def _pad_of(op: Op, rule: Any, i: int, factor: str, known: dict[tuple[Value, int], Pad]) -> Pad | None:
    """What operand i holds in the padding of `factor`; a constant tensor holds its value there."""
    value = op.operands[i]
    for d, factors in enumerate(rule.operands[i]):
        if factors == (factor,):
            return known.get((value, d))
    return Pad(float(value.op.attrs["value"])) if value.op is not None and value.op.name == "dmlc.full" else None


def _carries(rule: Any, i: int, factor: str) -> bool:
    return any(factor in factors for factors in rule.operands[i])


def _zero(op: Op, rule: Any, factor: str, known: dict[tuple[Value, int], Pad]) -> Pad | None:
    """An op is zero where a set of operands it is linear in is zero and the padding of the others is finite (zero times NaN is NaN)."""
    for members in linear_of(op):
        found = [_pad_of(op, rule, i, factor, known) for i in sorted(members)]
        others = [_pad_of(op, rule, i, factor, known) for i in range(len(op.operands)) if i not in members and _carries(rule, i, factor)]
        if found and all(p is not None and p.value == 0.0 for p in found) and all(p is not None and _keeps_zero(op, p.value) for p in others):
            return Pad(0.0, frozenset(s for p in found + others if p for s in p.sources))
    return None


def _keeps_zero(op: Op, other: float) -> bool:
    """Zero times this, or over this, is zero."""
    return math.isfinite(other) and (op.name != "dmlc.div" or other != 0.0)


def _constant(op: Op, rule: Any, factor: str, known: dict[tuple[Value, int], Pad]) -> Pad | None:
    """A pointwise op of known constants."""
    d = definition(op)
    if rule.reduced or rule.whole or not op.operands or len(op.results) != 1:
        return None
    found = [_pad_of(op, rule, i, factor, known) for i in range(len(op.operands))]
    if not all(found):
        return None
    if op.name in KEEP_ZERO and all(p is not None and p.value == 0.0 for p in found):
        return Pad(0.0, found[0].sources if found[0] else frozenset())
    if d.fold is None:
        return None
    import numpy

    from dmlc.ir.weights import NUMPY

    if any(v.dtype in ("bf16", "f8E4M3FN", "f8E5M2") for v in (*op.operands, *op.results)):
        return None
    made = d.fold(_single(op), [numpy.full((1,) * v.tensor.rank, p.value, NUMPY[v.dtype]) for v, p in zip(op.operands, found) if p])
    if made is None:
        return None
    return Pad(float(made[0].reshape(-1)[0]), frozenset(s for p in found if p for s in p.sources))


def _single(op: Op) -> Op:
    """The same op on tensors of one element."""

    def one(value: Value) -> TensorType:
        return value.tensor.with_shape((1,) * value.tensor.rank)

    return Op(op.name, [Value(one(v)) for v in op.operands], [one(r) for r in op.results], op.attrs)
