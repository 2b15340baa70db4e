"""Ways to split ops that their factor rules do not give: dims that are whole for the rule, with the collectives that takes.

Each function gives an op's strategies. `emit(env, op, operands)` sees the global op and this rank's operands; what lies in their padding
is arbitrary, so whatever is summed or compared over a split dim is masked first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dmlc.ir.core import Op, Value
from dmlc.ir.types import BYTES
from dmlc.ops.base import Strategy, attribute
from dmlc.ops.emit import NARROW, cast, reshaped, wide
from dmlc.ops.gather import own_rows
from dmlc.ops.terms import Term

SUM = ("unreduced", "sum")


def masked(env: Any, x: Value, dim: int, n: int, identity: Any) -> Value:
    """x with this rank's padding of `dim`, which has `n` elements in all, set to the identity."""
    _, valid = env.window(n)
    return env.b.emit("dmlc.mask_pad", x, valid, dim=dim, identity=identity)


def _row_bytes(op: Op, dim: int) -> int:
    """Bytes of one number a row, in the dtype statistics have."""
    x = op.operands[0].tensor
    n = int(x.shape[dim])
    return (x.numel // n if n else 0) * (4 if x.dtype in NARROW else BYTES[x.dtype])


def _reductions(dim: int, count: int) -> Callable[[Op, int], list[tuple[str, int]]]:
    """The traffic of `count` all-reduces of one number a row."""
    return lambda op, k: [("comm.all_reduce", _row_bytes(op, dim))] * count


# ---------------------------------------------------------------- loss


def vocabulary_cross_entropy(op: Op) -> list[Strategy]:
    """Classes split: maximum, sum of exponentials and the target's logit are all-reduced, one number a row each."""
    last = len(op.operands[0].shape) - 1

    def emit(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
        b, (logits, targets), n = env.b, operands, op.operands[0].shape[last]
        x = wide(b, logits)
        lse = _sharded_logsumexp(env, x, last, n)
        picked = Term(b, env.all_reduce(_picked(env, op, x, targets, n).value, "sum"))
        rows = Term(b, reshaped(b, (lse - picked).value, targets.shape))
        loss = Term(b, targets).eq(attribute(op, "ignore")).select(0, rows)
        results = [cast(b, loss.value, logits.dtype)]
        return results + [cast(b, reshaped(b, lse.value, r.shape), r.dtype) for r in env.local_types[1:]]

    return [Strategy("vocabulary", (last, None), (None,) * len(op.results), emit, traffic=_reductions(last, 3))]


def vocabulary_cross_entropy_grad(op: Op) -> list[Strategy]:
    """Classes split, without traffic: a target among another rank's classes is no class here."""
    last = len(op.operands[0].shape) - 1

    def emit(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
        b, (logits, targets, lse, g), n = env.b, operands, op.operands[0].shape[last]
        here, inside = own_rows(env, targets, n)
        attrs = {"label_smoothing": attribute(op, "label_smoothing"), "classes": attribute(op, "classes") or n}
        return [b.op("dmlc.cross_entropy_grad", [logits, inside.select(here, -1).value, lse, g], attrs).result]

    return [Strategy("vocabulary", (last, None, None, None), (last,), emit)]


def _picked(env: Any, op: Op, x: Value, targets: Value, n: int) -> Term:
    """This rank's share of the logit that the loss subtracts: the target's, mixed with the mean of all under label smoothing."""
    b, last, smoothing = env.b, len(x.shape) - 1, attribute(op, "label_smoothing")
    here, inside = own_rows(env, targets, n)
    column = (*targets.shape, 1)
    mine = Term(b, b.emit("dmlc.take_along", x, reshaped(b, here.value, column), dim=last))
    share = Term(b, reshaped(b, inside.value, column)).select(mine, 0)
    if not smoothing:
        return share
    total = Term(b, masked(env, x, last, n, 0.0)).reduce_sum(dims=(last,), keepdim=True)
    return share * (1.0 - smoothing) + total * (smoothing / n)


# ---------------------------------------------------------------- softmax


def _sharded_exponentials(env: Any, x: Value, dim: int, n: int) -> tuple[Term, Term, Term, Term]:
    """e^(x - m), its sum over all ranks, x - m and m, with m the maximum over all ranks, or 0 if that is infinite. In padding e is 0."""
    b = env.b
    x = masked(env, x, dim, n, "max")
    m = Term(b, env.all_reduce(b.emit("dmlc.reduce_max", x, dims=(dim,), keepdim=True), "max"))
    m = m.isinf().select(0, m)
    shifted = Term(b, x) - m
    e = shifted.exp()
    return e, Term(b, env.all_reduce(e.reduce_sum(dims=(dim,), keepdim=True).value, "sum")), shifted, m


def _sharded_logsumexp(env: Any, x: Value, dim: int, n: int) -> Term:
    _, total, _, m = _sharded_exponentials(env, x, dim, n)
    return total.log() + m


def sharded_softmax(op: Op) -> list[Strategy]:
    """The normalised dim split: maximum and sum are all-reduced. For `dmlc.softmax` and `dmlc.log_softmax`."""
    dim = attribute(op, "dim")

    def emit(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
        e, total, shifted, _ = _sharded_exponentials(env, wide(env.b, operands[0]), dim, op.operands[0].shape[dim])
        y = e / total if op.name == "dmlc.softmax" else shifted - total.log()
        return [cast(env.b, y.value, operands[0].dtype)]

    return [Strategy("sharded", (dim,), (dim,), emit, traffic=_reductions(dim, 2))]


def sharded_logsumexp(op: Op) -> list[Strategy]:
    """A single reduced dim split: maximum and sum are all-reduced."""
    dims = attribute(op, "dims")
    if len(dims) != 1:
        return []

    def emit(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
        total = _sharded_logsumexp(env, wide(env.b, operands[0]), dims[0], op.operands[0].shape[dims[0]])
        return [reshaped(env.b, cast(env.b, total.value, operands[0].dtype), env.local_types[0].shape)]

    return [Strategy("sharded", dims, (None,), emit, traffic=_reductions(dims[0], 2))]


# ---------------------------------------------------------------- norms


def _sharded_sum(env: Any, x: Term, dims: tuple[int, ...], split: int, n: int) -> Term:
    """Sum over `dims` (kept), of which `split` lies over the ranks and has `n` elements in all."""
    clean = Term(env.b, masked(env, x.value, split, n, 0.0))
    return Term(env.b, env.all_reduce(clean.reduce_sum(dims=dims, keepdim=True).value, "sum"))


def sharded_layer_norm(op: Op) -> list[Strategy]:
    """The last dim split (with the weight and bias): sum, then sum of squares about the mean, are all-reduced."""
    last, kept = len(op.operands[0].shape) - 1, len(op.results) - 1
    if attribute(op, "dims") != 1:
        return []

    def emit(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
        n = op.operands[0].shape[last]
        x, w, shift = (Term(env.b, wide(env.b, v)) for v in operands)
        mean = _sharded_sum(env, x, (last,), last, n) * (1.0 / max(n, 1))
        centred = x - mean
        var = _sharded_sum(env, centred * centred, (last,), last, n) * (1.0 / max(n, 1))
        rstd = (var + attribute(op, "eps")).rsqrt()
        statistics = [reshaped(env.b, t.value, t.value.shape[:-1]) for t in (mean, rstd)[:kept]]
        return [cast(env.b, (centred * rstd * w + shift).value, operands[0].dtype), *statistics]

    return [Strategy("sharded", (last, 0, 0), (last, *[None] * kept), emit, traffic=_reductions(last, 2))]


def sharded_layer_norm_grad(op: Op) -> list[Strategy]:
    """The last dim split (with the weight): two sums over each row are all-reduced."""
    last = len(op.operands[0].shape) - 1
    if attribute(op, "dims") != 1:
        return []

    def emit(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
        n = op.operands[0].shape[last]
        g, x, w = (Term(env.b, wide(env.b, v)) for v in operands[:3])
        mean, rstd = (Term(env.b, reshaped(env.b, v, (*v.shape, 1))) for v in operands[3:])
        y, gw = (x - mean) * rstd, g * w
        first, second = (_sharded_sum(env, t, (last,), last, n) * (1.0 / max(n, 1)) for t in (gw, gw * y))
        return [cast(env.b, ((gw - first - y * second) * rstd).value, operands[0].dtype)]

    return [Strategy("sharded", (last, last, 0, None, None), (last,), emit, traffic=_reductions(last, 2))]


def sharded_rms_norm(op: Op) -> list[Strategy]:
    """The last dim split (with the weight): the sum of squares is all-reduced."""
    last = len(op.operands[0].shape) - 1

    def emit(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
        n = op.operands[0].shape[last]
        x, w = (Term(env.b, wide(env.b, v)) for v in operands)
        square = _sharded_sum(env, x * x, (last,), last, n) * (1.0 / max(n, 1))
        return [cast(env.b, (x * (square + attribute(op, "eps")).rsqrt() * w).value, operands[0].dtype)]

    return [Strategy("sharded", (last, 0), (last,), emit, traffic=_reductions(last, 1))]
