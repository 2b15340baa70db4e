"""What is known before the program runs makes attention and lookups simpler: causal masks, masks that hide nothing, counted-up positions, repeated heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dmlc.ir.core import Op, Value
from dmlc.ir.dims import Dim
from dmlc.ir.rewriter import Pattern, Rewriter, pattern
from dmlc.ops.attention import Attends
from dmlc.ops.base import attribute, own_attrs
from dmlc.passes._known import Known
from dmlc.passes._raise_attention import HIDDEN

if TYPE_CHECKING:
    from numpy import ndarray


FROM_NUMBERS = ("dmlc.select", "dmlc.add", "dmlc.sub", "dmlc.mul", "dmlc.cast", "dmlc.logical_not")


class KnownMask(Pattern):
    """A mask that hides nothing goes; one that shows each query exactly the keys up to its own place becomes `causal`."""

    name = "known_mask"
    ops = ("dmlc.attention",)

    def __init__(self, known: Known):
        self.known = known

    def rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        q, k, v, mask, start = Attends.parts(op)
        array = self.known.array(mask) if mask is not None and start is None else None
        seen = None if array is None else _seen(array)
        if seen is None:
            return False
        attrs, t, s = dict(own_attrs(op)), q.shape[2], k.shape[2]
        if not seen.all():
            offset = _causal_offset(seen, t, s)
            if offset is None or attribute(op, "causal"):
                return False
            attrs |= {"causal": True} | ({"offset": offset} if offset else {})
        rewriter.replace_op(op, "dmlc.attention", [q, k, v], attrs)
        return True


def _seen(array: ndarray) -> ndarray | None:
    """Where a mask lets through, if it does so fully or not at all."""
    if array.dtype == bool:
        return array
    shown, hidden = array == 0, array <= HIDDEN
    return shown if bool((shown | hidden).all()) else None


def _causal_offset(seen: ndarray, t: int, s: int) -> int | None:
    """The offset with which query i sees exactly keys 0 … i + offset; None if there is none."""
    import numpy as np

    if seen.shape[:2] != (1, 1):
        return None
    rows = np.broadcast_to(seen[0, 0], (t, s))
    offset = int(rows[0].sum()) - 1
    if offset < 0:
        return None
    return offset if bool((rows == np.tri(t, s, offset, dtype=bool)).all()) else None


@pattern("dmlc.attention")
def unbroadcast_mask(op: Op, rewriter: Rewriter) -> bool:
    """A mask broadcasts by itself; so does one computed from a broadcast and plain numbers."""
    mask = Attends.parts(op)[3]
    made = mask.op if mask is not None else None
    if made is None or mask is None:
        return False
    numbers_but_one = [v for v in made.operands if v.tensor.rank] if made.name in FROM_NUMBERS else []
    wide = made if made.name == "dmlc.broadcast" else numbers_but_one[0].op if len(numbers_but_one) == 1 else None
    if wide is None or wide.name != "dmlc.broadcast":
        return False
    small = wide.operands[0]
    shape = (1,) * (4 - small.tensor.rank) + tuple(small.shape)
    if small.tensor.rank > 4 or shape[3] != op.operands[1].shape[2]:
        return False
    b = rewriter.builder(op)
    if shape != small.shape:
        small = b.emit("dmlc.reshape", small, types=[small.tensor.with_shape(shape)], tag="mask")
    if made is not wide:
        operands = [small if v is wide.result else v for v in made.operands]
        small = b.op(made.name, operands, own_attrs(made), [mask.tensor.with_shape(shape)], tag="mask").result
    rewriter.set_operand(op, 3, small)
    return True


@pattern("dmlc.attention")
def grouped_heads(op: Op, rewriter: Rewriter) -> bool:
    """Keys and values repeated for each query head of their group are not repeated."""
    q, k, v, _, _ = Attends.parts(op)
    narrow = [_before_repeat(x) for x in (k, v)]
    if None in narrow or narrow[0].shape[:3] != narrow[1].shape[:3] or q.shape[1] % narrow[0].shape[1]:  # type: ignore[union-attr]
        return False
    rewriter.set_operand(op, 1, narrow[0])  # type: ignore[arg-type]
    rewriter.set_operand(op, 2, narrow[1])  # type: ignore[arg-type]
    return True


def _before_repeat(value: Value) -> Value | None:
    """x [b, kv, s, d] of x with each head repeated in a row: [b, kv, 1, s, d] -> [b, kv, g, s, d] -> [b, kv g, s, d]."""
    merged = value.op
    widened = merged.operands[0].op if merged is not None and merged.name == "dmlc.reshape" else None
    if widened is None or widened.name != "dmlc.broadcast" or widened.result.tensor.rank != 5:
        return None
    b, kv, g, s, d = widened.result.shape
    inner = widened.operands[0]
    if value.shape != (b, kv * g, s, d) or inner.shape != (b, kv, 1, s, d):
        return None
    made = inner.op
    if made is not None and made.name == "dmlc.reshape" and made.operands[0].shape == (b, kv, s, d):
        return made.operands[0]
    return None


class KnownTruth(Pattern):
    """`and` with what is true everywhere, and choices that are known everywhere."""

    name = "known_truth"
    ops = ("dmlc.bitwise_and", "dmlc.logical_and", "dmlc.select")

    def __init__(self, known: Known):
        self.known = known

    def rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        kept = self._chosen(op) if op.name == "dmlc.select" else self._other(op)
        if kept is None or kept.dtype != op.result.dtype:
            return False
        if kept.type != op.result.type:
            kept = rewriter.builder(op).emit("dmlc.broadcast", kept, types=[op.result.type])
        rewriter.replace(op, [kept])
        return True

    def _other(self, op: Op) -> Value | None:
        left, right = op.operands
        return next((other for v, other in ((left, right), (right, left)) if v.dtype == "i1" and self._always(v) is True), None)

    def _chosen(self, op: Op) -> Value | None:
        always = self._always(op.operands[0])
        return None if always is None else op.operands[1 if always else 2]

    def _always(self, value: Value) -> bool | None:
        array = self.known.array(value)
        return bool(array.flat[0]) if array is not None and array.size == 1 else None


class Positions(Pattern):
    """A lookup at start, start + 1, … is a slice."""

    name = "positions"
    ops = ("dmlc.embedding", "dmlc.take")

    def __init__(self, known: Known):
        self.known = known

    def rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        table, ids = op.operands
        dim = op.attrs.get("dim", 0)
        run = _run(self.known.array(ids))
        if run is None or run[1] + run[2] > table.shape[dim]:
            return False
        along, start, count = run
        b = rewriter.builder(op)
        rows = b.emit("dmlc.slice", table, dim=dim, start=start, stop=start + count, tag="rows") if count < table.shape[dim] else table
        shape = (*table.shape[:dim], *(count if d == along else 1 for d in range(ids.tensor.rank)), *table.shape[dim + 1 :])
        if shape != rows.shape:
            rows = b.emit("dmlc.reshape", rows, types=[rows.tensor.with_shape(shape)], tag="rows")
        if shape != op.result.shape:
            rows = b.emit("dmlc.broadcast", rows, types=[op.result.type], tag="rows")
        rewriter.replace(op, [rows])
        return True


def _run(array: ndarray | None) -> tuple[int, int, int] | None:
    """(dim, start, count) of indices that count up by one along a single dim and are >= 0."""
    import numpy as np

    if array is None or array.size == 0 or array.dtype.kind != "i":
        return None
    dims = [d for d, n in enumerate(array.shape) if n > 1]
    flat = array.reshape(-1)
    if len(dims) != 1 or flat[0] < 0 or not bool((np.diff(flat) == 1).all()):
        return None
    return dims[0], int(flat[0]), len(flat)


def _open_run(index: Value) -> tuple[int, int, Dim] | None:
    """The same of indices up to an open size: a count from zero, perhaps with dims of size 1 added."""
    made = index.op
    while made is not None and made.name == "dmlc.reshape":
        made = made.operands[0].op
    if made is None or made.name != "dmlc.iota" or made.operands or attribute(made, "step") != 1 or made.result.tensor.rank != 1:
        return None
    (size,), dims = made.result.shape, [d for d, n in enumerate(index.shape) if n != 1]
    return (dims[0], 0, size) if isinstance(size, Dim) and len(dims) == 1 and index.shape[dims[0]] == size else None


class WholeIndex(Pattern):
    """x[i0, i1, …] where every index counts through a whole dim of x, each along a dim of its own, only moves dims."""

    name = "whole_index"
    ops = ("dmlc.index",)

    def __init__(self, known: Known):
        self.known = known

    def rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        x, indices = op.operands[0], op.operands[1:]
        rank = max(v.tensor.rank for v in indices)
        along = []
        for d, index in enumerate(indices):
            run = _open_run(index) or (_run(self.known.array(index)) if x.shape[d] != 1 else (None, 0, 1))
            if run is None or run[1:] != (0, x.shape[d]):
                return False
            along.append(None if run[0] is None else run[0] + rank - index.tensor.rank)
        placed = [a for a in along if a is not None]
        if placed != sorted(set(placed)):
            return False
        lead = [1] * rank
        for a, n in zip(along, x.shape):
            if a is not None:
                lead[a] = n
        b, shape = rewriter.builder(op), (*lead, *x.shape[len(indices) :])
        y = b.emit("dmlc.reshape", x, types=[x.tensor.with_shape(shape)]) if shape != x.shape else x
        if shape != op.result.shape:
            y = b.emit("dmlc.broadcast", y, types=[op.result.type])
        rewriter.replace(op, [y])
        return True
