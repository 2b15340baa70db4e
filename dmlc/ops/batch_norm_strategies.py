"""Batch normalisation with the batch split: statistics of a microbatch over all ranks or over each rank, running statistics over microbatches.

What a rank holds of a microbatch may be less than its part's size, or nothing (a ragged last batch): sums are over masked rows and divided by
the number of samples that are there, a value. Statistics are the same on every rank but differ from one microbatch to the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dmlc.ir.core import Op, Value
from dmlc.ops.base import Strategy, attribute
from dmlc.ops.emit import NARROW, cast, reshaped, wide
from dmlc.ops.strategies import SUM, masked
from dmlc.ops.terms import Term


def of_batch_norm(op: Op) -> list[Strategy]:
    if attribute(op, "groups") is not None:
        return []
    name, emit = ("synchronised", _emit_synchronised) if attribute(op, "statistics") == "global" else ("rank", _emit_rank)
    return [Strategy(name, (0, None, None), (0, None, None), emit, traffic=_channels(2), batch=True)]


def of_batch_norm_grad(op: Op) -> list[Strategy]:
    """The gradients of weight and bias are sums over the batch, wanted only once all microbatches are done."""
    if attribute(op, "groups") is not None:
        return []
    if attribute(op, "statistics") == "global":
        return [Strategy("synchronised", (0, None, None, None, 0), (0, SUM, SUM), _emit_synchronised_grad, traffic=_channels(2), batch=True)]
    return [Strategy("rank", (0, None, None, None, 0), (0, SUM, SUM), _emit_rank_grad, batch=True)]


def of_running_average(op: Op) -> list[Strategy]:
    """Over the microbatches only: every rank has the same statistics of each, so that nothing is added up over ranks."""
    return [Strategy("recurrence", (None, None), (SUM,), _emit_recurrence, batch=True, sequential_only=True)]


def _channels(count: int) -> Any:
    """The traffic of `count` all-reduces of one number a channel."""
    return lambda op, k: [("comm.all_reduce", op.operands[1].tensor.numel * 4)] * count


# ---------------------------------------------------------------- sums over a batch that may be ragged


class Cells:
    """Channel images [n, c, s...] of which this rank has some samples."""

    def __init__(self, env: Any, op: Op):
        self.env, self.b, self.shape = env, env.b, op.operands[0].shape
        self.dims = tuple(d for d in range(len(self.shape)) if d != 1)
        self.spatial = math.prod(self.shape[2:])

    def by_library(self, op: Op) -> bool:
        """Whether one call makes the sums: not for narrow floats, whose sums are wider, and no channels."""
        return op.operands[0].dtype not in NARROW and bool(self.shape[1])

    def image(self, v: Value) -> Term:
        """Zero where there is no sample: padding may hold anything."""
        return Term(self.b, masked(self.env, wide(self.b, v), 0, self.shape[0], 0.0))

    def along(self, v: Value) -> Term:
        """A channel vector, ready to broadcast against images."""
        return Term(self.b, reshaped(self.b, wide(self.b, v), (1, *v.shape, *(1 for _ in self.shape[2:]))))

    def vector(self, t: Term, like: Any) -> Value:
        """A kept sum as a vector of the type `like`."""
        return reshaped(self.b, cast(self.b, t.value, like.dtype), like.shape)

    def sum(self, t: Term) -> Term:
        """This rank's sum per channel, kept as size 1."""
        return t.reduce_sum(dims=self.dims, keepdim=True)

    def all_sum(self, t: Term) -> Term:
        return Term(self.b, self.env.all_reduce(self.sum(t).value, "sum"))

    def valid(self) -> Term:
        """This rank's number of samples (i64)."""
        return Term(self.b, self.env.window(self.shape[0])[1])

    def clean(self, t: Term) -> Term:
        """Zero again where there is no sample, after something was added."""
        return Term(self.b, masked(self.env, t.value, 0, self.shape[0], 0.0))

    def number(self, samples: Term, dtype: str, less: int = 0) -> Term:
        """The number of values a statistic of so many samples is divided by: 1 where there is none."""
        return Term(self.b, cast(self.b, (samples * self.spatial - less).clamp(min=1, max=None).value, dtype))


def _standardised(cells: Cells, op: Op, operands: Sequence[Value], mean: Term, var: Term) -> Value:
    """y from the operands and the statistics: one op, but for narrow floats, whose statistics are wider, and no channels."""
    x = operands[0]
    if x.dtype not in NARROW and x.shape[1]:
        stats = (cells.vector(t, operands[1].tensor) for t in (mean, var))
        return cells.b.emit("dmlc.batch_norm", *operands, *stats, eps=attribute(op, "eps"))
    w, shift = (cells.along(v) for v in operands[1:3])
    return cast(cells.b, ((Term(cells.b, wide(cells.b, x)) - mean) * (var + attribute(op, "eps")).rsqrt() * w + shift).value, x.dtype)


def _corrected(cells: Cells, op: Op, var: Term, samples: Term) -> Term:
    """The variance as the op gives it, from the biased one."""
    correction, dtype = attribute(op, "correction"), var.value.dtype
    return var * cells.number(samples, dtype) / cells.number(samples, dtype, correction) if correction else var


def _biased(cells: Cells, op: Op, var: Term, samples: Term) -> Term:
    correction, dtype = attribute(op, "correction"), var.value.dtype
    return var * cells.number(samples, dtype, correction) / cells.number(samples, dtype) if correction else var


# ---------------------------------------------------------------- statistics over all ranks


def _emit_synchronised(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
    """The sum, then the sum of squares about the mean, are all-reduced per channel."""
    cells = Cells(env, op)
    samples = Term(env.b, env.count(cells.shape[0]))
    mean, var = (_all_moments if cells.by_library(op) else _all_sums)(cells, operands[0], samples)
    stats = (mean, _corrected(cells, op, var, samples))
    return [_standardised(cells, op, operands, mean, var), *(cells.vector(t, r) for t, r in zip(stats, env.local_types[1:]))]


def _all_sums(cells: Cells, x: Value, samples: Term) -> tuple[Term, Term]:
    image = cells.image(x)
    count = cells.number(samples, image.value.dtype)
    mean = cells.all_sum(image) / count
    centred = cells.clean(image - mean)
    return mean, cells.all_sum(centred * centred) / count


def _all_moments(cells: Cells, x: Value, samples: Term) -> tuple[Term, Term]:
    """From each rank's mean and variance: what its samples add to the squares about the common mean is n (var + (own mean - mean)^2)."""
    own, var = _own_moments(cells, x)
    if not cells.env.devices:
        return own, var
    count = cells.number(samples, x.dtype)
    here = Term(cells.b, cast(cells.b, (cells.valid() * cells.spatial).value, x.dtype))
    mean = Term(cells.b, cells.env.all_reduce((own * here).value, "sum")) / count
    squares = (var + (own - mean) * (own - mean)) * here
    return mean, Term(cells.b, cells.env.all_reduce(squares.value, "sum")) / count


def _own_moments(cells: Cells, x: Value) -> tuple[Term, Term]:
    """Mean and biased variance of this rank's samples, kept as size 1; mask elimination sees that a variance is not negative."""
    mean, var = cells.b.op("dmlc.channel_moments", [x, cells.valid().value]).results
    return cells.along(mean), cells.along(cells.b.emit("dmlc.relu", var))


def _emit_synchronised_grad(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
    """Both sums over the batch that the gradient in x needs are all-reduced together."""
    cells = Cells(env, op)
    samples = Term(env.b, env.count(cells.shape[0]))
    mean, var = (cells.along(v) for v in operands[2:4])
    biased = _biased(cells, op, var, samples)
    if cells.by_library(op) and not env.devices:
        return _own_gradients(cells, op, operands, mean, biased)
    return _gradients(cells, op, operands, mean, biased, samples, lambda v: env.all_reduce(v, "sum"))


def _own_gradients(cells: Cells, op: Op, operands: Sequence[Value], mean: Term, var: Term) -> list[Value]:
    """By the statistics of this rank's samples alone."""
    x, w, g = operands[0], operands[1], operands[4]
    stats = (cells.vector(t, w.tensor) for t in (mean, var))
    return list(cells.b.op("dmlc.batch_norm_rank_grad", [x, w, *stats, g, cells.valid().value], {"eps": attribute(op, "eps")}).results)


def _gradients(cells: Cells, op: Op, operands: Sequence[Value], mean: Term, var: Term, samples: Term, over_ranks: Any) -> list[Value]:
    """dx = w rstd (g - mean(g) - y mean(g y)), and this rank's sums of g y and g, which are the gradients of weight and bias.

    With c = x - mean, y = c rstd: what is one number a channel is multiplied first.
    """
    b = cells.b
    centred, g = cells.image(operands[0]) - mean, cells.image(operands[4])
    rstd = (var + attribute(op, "eps")).rsqrt()
    scaled, plain = _gradient_sums(cells, op, operands, mean, centred, g)
    scaled = scaled * rstd
    both = Term(b, over_ranks(b.emit("dmlc.concat", scaled.value, plain.value, dim=0)))
    count = cells.number(samples, g.value.dtype)
    mean_gy, mean_g = (both.slice(dim=0, start=i, stop=i + 1, step=1) / count for i in (0, 1))
    dx = (g - mean_g - centred * (rstd * mean_gy)) * (rstd * cells.along(operands[1]))
    weights = (cells.vector(t, operands[1].tensor) for t in (scaled, plain))
    return [cast(b, dx.value, operands[0].dtype), *weights]


def _gradient_sums(cells: Cells, op: Op, operands: Sequence[Value], mean: Term, centred: Term, g: Term) -> tuple[Term, Term]:
    """This rank's sums of g c and g."""
    if not cells.by_library(op):
        return cells.sum(g * centred), cells.sum(g)
    made = cells.b.op("dmlc.batch_norm_sums", [operands[0], operands[4], cells.vector(mean, operands[1].tensor), cells.valid().value]).results
    return cells.along(made[0]), cells.along(made[1])


# ---------------------------------------------------------------- statistics over each rank


def _own_statistics(cells: Cells, op: Op, x: Value) -> tuple[Term, Term]:
    """Mean and biased variance of this rank's samples."""
    if cells.by_library(op):
        return _own_moments(cells, x)
    image = cells.image(x)
    count = cells.number(cells.valid(), image.value.dtype)
    mean = cells.sum(image) / count
    centred = cells.clean(image - mean)
    return mean, cells.sum(centred * centred) / count


def _emit_rank(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
    """y by the rank's own statistics. What is given out is the average over the ranks that have samples: running statistics stay equal."""
    cells = Cells(env, op)
    b = env.b
    mean, var = _own_statistics(cells, op, operands[0])
    own = [reshaped(b, t.value, (cells.shape[1],)) for t in (mean, var)]
    attrs = {"cells": cells.spatial, "correction": attribute(op, "correction")}
    listed = b.op("dmlc.rank_moments", [*own, cells.valid().value], attrs).result
    averages = b.op("dmlc.mean_over_ranks", [env.all_reduce(listed, "sum")]).results
    return [_standardised(cells, op, operands, mean, var), *(cast(b, v, r.dtype) for v, r in zip(averages, env.local_types[1:]))]


def _emit_rank_grad(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
    """The rank's own statistics are taken again: those among the operands are an average over ranks."""
    cells = Cells(env, op)
    mean, var = _own_statistics(cells, op, operands[0])
    if cells.by_library(op):
        return _own_gradients(cells, op, operands, mean, var)
    return _gradients(cells, op, operands, mean, var, cells.valid(), lambda v: v)


# ---------------------------------------------------------------- running statistics


def _emit_recurrence(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
    """Each microbatch's part; the parts are added up."""
    numbers = [env.micro_index, env.filled_microbatches()]
    return [env.b.op("dmlc.running_part", [*operands, *numbers], {"momentum": attribute(op, "momentum")}).result]
