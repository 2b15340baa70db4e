"""Attention, found as softmax(scale q k^T + mask) v.

Strict on what changes values: the softmax runs over the keys, every factor of the scale is counted, the mask is outside the scale. A row that sees no
key is 0 in `dmlc.attention` but NaN in a softmax over -inf, so a mask that may hide a whole row stays spelled out unless NaN is replaced by 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dmlc.ir.core import Op, Value
from dmlc.ir.rewriter import Pattern, Rewriter
from dmlc.passes._known import Known
from dmlc.passes._match import Match, number_of
from dmlc.passmanager.context import Context

HIDDEN = -1e30  # what is at most this is -inf for any score
MOVES = ("reshape", "broadcast", "slice", "transpose", "concat", "copy")
KEEPS_FINITE = (*MOVES, "mul", "add", "sub", "neg", "clamp", "minimum", "maximum", "cast")


@dataclass
class Scores:
    """scale q kT (+ mask): `mask` adds to the scores if it is a float, shows where it is true if it is i1; `fill` is then what the hidden ones got."""

    q: Value
    k_transposed: Value
    scale: float
    mask: Value | None = None
    fill: float = 0.0
    inverted: bool = False


class Attention(Pattern):
    """The product with the values is the root."""

    name = "attention"
    ops = ("dmlc.matmul",)

    def __init__(self, known: Known, context: Context):
        self.known, self.context = known, context

    def rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        m = Match(op)
        weights, guarded = _guard(m, op.operands[0])
        logits = _softmax(m, weights, op.operands[0].dtype)
        found = _scores(m, logits) if logits is not None else None
        if found is None or not _shapes_fit(found, op):
            return False
        if not m.is_private:
            self.context.remark(op, "this attention stays spelled out, since its scores or weights are used elsewhere too")
            return False
        if found.mask is not None and not guarded and not self._always_sees(found):
            self.context.remark(op, "this attention stays spelled out, since its mask may hide a whole row, which then is NaN")
            return False
        _emit(op, rewriter, found)
        return True

    def _always_sees(self, found: Scores) -> bool:
        """Whether every row keeps a key, or its hidden scores are finite and so add up to a proper softmax."""
        assert found.mask is not None
        array = self.known.array(found.mask)
        if array is not None:
            seen = array != found.inverted if found.mask.dtype == "i1" else array > -math.inf
            return bool(seen.any(axis=-1).all())
        return math.isfinite(found.fill) if found.mask.dtype == "i1" else _is_finite(found.mask)


def _guard(m: Match, value: Value) -> tuple[Value, bool]:
    """p of select(isnan(p), 0, p)."""
    choice = m.made(value, "select")
    if choice is None:
        return value, False
    condition, zero, p = choice.operands
    test = m.made(condition, "isnan")
    return (p, True) if test is not None and test.operands[0] is p and number_of(zero) == 0 else (value, False)


def _softmax(m: Match, weights: Value, dtype: str) -> Value | None:
    """x of softmax(x) over the last dim; a softmax in float32 between casts is what attention does inside."""
    cast = m.made(weights, "cast")
    made = m.made(cast.operands[0] if cast is not None else weights, "softmax")
    if made is None or made.attrs["dim"] != made.result.tensor.rank - 1:
        return None
    logits = made.operands[0]
    if cast is None:
        return logits
    widened = m.made(logits, "cast")
    return widened.operands[0] if widened is not None and logits.dtype == "f32" and widened.operands[0].dtype == dtype else None


def _scores(m: Match, value: Value) -> Scores | None:
    """Mask outermost, then numbers, then the product; numbers may also stand on q and k."""
    added, chosen = m.made(value, "add"), m.made(value, "select")
    if added is not None:
        for inner, mask in (added.operands, added.operands[::-1]):
            found = _scaled_product(m, inner)
            if found is not None and inner.type == value.type:
                found.mask = mask
                return found
        return None
    if chosen is None:
        return _scaled_product(m, value)
    condition, yes, no = chosen.operands
    for inner, other, inverted in ((yes, no, False), (no, yes, True)):
        fill = number_of(other)
        found = _scaled_product(m, inner) if fill is not None and fill <= HIDDEN else None
        if found is not None and inner.type == value.type:
            found.mask, found.fill, found.inverted = condition, float(fill), inverted  # type: ignore[arg-type]
            return found
    return None


def _scaled_product(m: Match, value: Value) -> Scores | None:
    number, factors = m.product(value)
    product = m.made(factors[0], "matmul") if len(factors) == 1 else None
    if product is None:
        return None
    (a, left), (b, right) = (m.product(v) for v in product.operands)
    if len(left) != 1 or len(right) != 1:
        return None
    return Scores(left[0], right[0], number * a * b)


def _shapes_fit(found: Scores, op: Op) -> bool:
    """Equal batch and heads everywhere, in rank 3 (one leading dim) or 4."""
    q, k, v = found.q, found.k_transposed, op.operands[1]
    if q.tensor.rank not in (3, 4) or not q.shape[:-2] == k.shape[:-2] == v.shape[:-2] == op.result.shape[:-2]:
        return False
    mask = found.mask
    return q.dtype == k.dtype == v.dtype == op.result.dtype and (mask is None or (mask.tensor.rank <= q.tensor.rank and mask.dtype in ("i1", q.dtype)))


def _is_finite(value: Value) -> bool:
    """Whether a float mask is seen to hold no infinity: finite constants and integers, moved, chosen between, scaled."""
    todo, seen = [value], set()
    while todo:
        v = todo.pop()
        number = number_of(v)
        if v in seen or not v.tensor.is_float or (number is not None and math.isfinite(number)):
            continue
        seen.add(v)
        kind = v.op.name.removeprefix("dmlc.") if v.op is not None else ""
        if kind not in (*KEEPS_FINITE, "select"):
            return False
        todo += v.op.operands  # type: ignore[union-attr]
    return True


def _emit(op: Op, rewriter: Rewriter, found: Scores) -> None:
    b = rewriter.builder(op)
    rank = found.q.tensor.rank
    turn = (*range(rank - 2), rank - 1, rank - 2)
    made = found.k_transposed.op
    if made is not None and made.name == "dmlc.transpose" and tuple(made.attrs["perm"]) == turn:
        k = made.operands[0]
    else:
        k = b.emit("dmlc.transpose", found.k_transposed, perm=turn, tag="k")
    operands = [found.q, k, op.operands[1]]
    if rank == 3:
        operands = [b.emit("dmlc.reshape", v, types=[v.tensor.with_shape((v.shape[0], 1, *v.shape[1:]))]) for v in operands]
    if found.mask is not None:
        operands.append(_mask(b, found, rank))
    attrs = {"scale": found.scale}
    if rank == 4:
        rewriter.replace_op(op, "dmlc.attention", operands, attrs)
        return
    y = b.emit("dmlc.attention", *operands, tag="attention", **attrs)
    rewriter.replace_op(op, "dmlc.reshape", [y], {}, [op.result.type])


def _mask(b, found: Scores, rank: int) -> Value:
    """The mask in rank 4. One that wrote a finite number into hidden scores adds it instead: a fully hidden row stays what it was."""
    mask = found.mask
    assert mask is not None
    if found.inverted:
        mask = b.emit("dmlc.logical_not", mask, tag="seen")
    if mask.dtype == "i1" and math.isfinite(found.fill):
        scalar = found.q.tensor.with_shape(())
        shown, hidden = (b.emit("dmlc.full", types=[scalar], value=v, tag="mask") for v in (0.0, found.fill))
        mask = b.emit("dmlc.select", mask, shown, hidden, tag="mask")
    shape = (1,) * (rank - mask.tensor.rank) + tuple(mask.shape)
    shape = shape if rank == 4 else (shape[0], 1, *shape[1:])
    return mask if mask.shape == shape else b.emit("dmlc.reshape", mask, types=[mask.tensor.with_shape(shape)], tag="mask")
