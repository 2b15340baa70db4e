"""Batch normalisation in training: by the batch's own statistics, its gradient, and the running statistics that evaluation uses.

On the whole-batch program "the batch" is all of it. Split, a strategy says over what statistics are taken: every microbatch has its own,
over all ranks (`statistics = "global"`) or over a rank's samples (`"rank"`), see `dmlc.ops.batch_norm_strategies`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ops import batch_norm_strategies
from dmlc.ops.base import REQUIRED, InferError, OpDef, Sample, attribute, own_attrs
from dmlc.ops.emit import cast, f32, reshaped, wide
from dmlc.ops.norm import Norm, mean, standardised_grad
from dmlc.ops.norm_channels import along, per_channel, vectors
from dmlc.ops.rule import Rule
from dmlc.ops.sized import sized_rule
from dmlc.ops.terms import Term, gradient
from dmlc.ops.windows import names

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder

STATISTICS = ("global", "rank")


class OverBatch(Norm):
    """Base: statistics over the batch (dim 0) and all spatial dims.

    With `groups` the batch is cut into that many equal parts with statistics of their own, [groups, c]. The variance has `correction`
    taken off the number of cells it is divided by: 0 biased, 1 unbiased (0 over a single cell).
    """

    attributes = {"eps": REQUIRED, "groups": None, "correction": 0, "statistics": "global"}
    results = 3

    @staticmethod
    def local(env: Any, op: Op, axes: Any) -> dict[str, Any]:
        """Groups may be split with the batch."""
        groups = attribute(op, "groups")
        return {"groups": env.local_types[0].shape[0] * groups // op.results[0].shape[0]} if groups is not None else {}

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        if len(op.results) != 3 or attribute(op, "statistics") not in STATISTICS:
            raise DmlcError(f"'{op.name}' has three results, and statistics over one of {', '.join(STATISTICS)}", op.loc)


def statistics_type(name: str, x: TensorType, groups: int | None) -> TensorType:
    """Type of the mean and the variance. Raises `InferError` when the groups do not fit."""
    if groups is not None and (groups < 1 or x.shape[0] % groups != 0):
        raise InferError(f"'{name}': a batch of {x.shape[0]} does not split into {groups} groups")
    return x.with_shape((x.shape[1],) if groups is None else (groups, x.shape[1]))


class BatchNormTrain(OverBatch):
    """Batch normalisation by the batch's own statistics (Ioffe, Szegedy 2015): x, weight, bias give y, mean and variance."""

    name = "dmlc.batch_norm_train"
    torch = "batch_norm_train({0}, {1}, {2}, {groups}, {eps}, {correction})"
    strategies = batch_norm_strategies.of_batch_norm

    @staticmethod
    def rule(op: Any) -> str | Rule:
        groups = attribute(op, "groups")
        rest = names("s", len(op.operands[0].shape) - 2, "!")
        if groups is None:
            return f"n! c {rest}, c, c -> n! c {rest}, c, c"
        return sized_rule(op, f"(g n!) c {rest}, c, c -> (g n!) c {rest}, g c, g c", g=groups)

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        vectors("dmlc.batch_norm_train", types, 2)
        stats = statistics_type("dmlc.batch_norm_train", types[0], attrs["groups"])
        return [types[0], stats, stats]

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        x, dims = _parts(b, op, op.operands[0]), _part_dims(op)
        centre = mean(x, dims)
        var = mean((x - centre) * (x - centre), dims)
        w, shift = (along(b, v, len(op.results[0].shape)) for v in op.operands[1:])
        y = Term(b, reshaped(b, ((x - centre) * (var + attribute(op, "eps")).rsqrt()).value, op.results[0].shape))
        cells = _cells(op)
        stats = [centre, var * (cells / max(cells - attribute(op, "correction"), 1))]
        return [cast(b, (y * w + shift).value, op.results[0].dtype), *(reshaped(b, cast(b, t.value, r.dtype), r.shape) for t, r in zip(stats, op.results[1:]))]

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value | None]) -> list[Value | None]:
        """Through y by one op; through the statistics, where they are used: the mean gives g / m to each cell, the variance 2 (x - mean) g / m."""
        (x, w, _), (_, centre, var) = op.operands, op.results
        cells, found, terms = _cells(op), [None, None, None], []
        if grads[0] is not None:
            dx, *found[1:] = b.op("dmlc.batch_norm_grad", [x, w, centre, var, grads[0]], own_attrs(op)).results
            terms.append(Term(b, dx))
        parts = _parts(b, op, x)
        if grads[1] is not None:
            terms.append(_whole(b, x, _statistic(b, op, grads[1]) * (1.0 / max(cells, 1)) + parts * 0.0))
        if grads[2] is not None:
            weight = _statistic(b, op, grads[2]) * (2.0 / max(cells - attribute(op, "correction"), 1))
            terms.append(_whole(b, x, weight * (parts - _statistic(b, op, centre))))
        total = terms[0]
        for t in terms[1:]:
            total = total + t
        return [total.value, *found[1:]]

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((f32(*s), f32(s[1]), f32(s[1])), AttrDict(a)) for s, a in _cases()]


def _cases() -> list[tuple[tuple[int, ...], dict[str, Any]]]:
    attrs: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        ((4, 3, 2, 3), {}), ((6, 2, 3), {"groups": 3}), ((5, 2), {"correction": 1}), ((2, 1, 1), {"groups": 1}), ((4, 3, 2), {"groups": 2, "correction": 1}),
        ((3, 2, 2, 1, 2), {}), ((3, 0, 2), {}), ((1, 1), {"correction": 1}),
    ]  # fmt: skip
    return [(s, {"eps": 1e-5, **a}) for s, a in attrs]


class BatchNormGrad(OverBatch):
    """Gradient of `dmlc.batch_norm_train` through y, in x, weight and bias: from x, the weight, mean, variance and the gradient of y."""

    name = "dmlc.batch_norm_grad"
    torch = "batch_norm_grad({0}, {1}, {2}, {3}, {4}, {groups}, {eps}, {correction})"
    strategies = batch_norm_strategies.of_batch_norm_grad
    no_vjp = "gradients of this gradient are not taken"
    linear = [{4}]

    @staticmethod
    def rule(op: Any) -> str | Rule:
        groups = attribute(op, "groups")
        rest = names("s", len(op.operands[0].shape) - 2, "!")
        if groups is None:
            return f"n! c {rest}, c, c, c, n! c {rest} -> n! c {rest}, c, c"
        return sized_rule(op, f"(g! n!) c {rest}, c, g! c, g! c, (g! n!) c {rest} -> (g! n!) c {rest}, c, c", g=groups)

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if len(types) != 5 or types[4].shape != types[0].shape:
            raise InferError("'dmlc.batch_norm_grad' takes x, a weight, mean, variance and a gradient like x")
        vectors("dmlc.batch_norm_grad", types[:2], 1)
        stats = statistics_type("dmlc.batch_norm_grad", types[0], attrs["groups"])
        if types[2].shape != stats.shape or types[3].shape != stats.shape:
            raise InferError(f"'dmlc.batch_norm_grad' has statistics of {types[2].shape} and {types[3].shape} where {stats.shape} is due")
        return [types[0], types[1], types[1]]

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        x, w, centre, var, _ = op.operands
        g, dims, cells = Term(b, wide(b, op.operands[4])), _part_dims(op), _cells(op)
        biased = _statistic(b, op, var) * (max(cells - attribute(op, "correction"), 1) / max(cells, 1))
        rstd = (biased + attribute(op, "eps")).rsqrt()
        y = (_parts(b, op, x) - _statistic(b, op, centre)) * rstd
        gw = _parts(b, op, (g * along(b, w, len(x.shape))).value)
        plain = Term(b, reshaped(b, y.value, x.shape))
        return [_whole(b, x, standardised_grad(gw, y, rstd, dims)).value, per_channel(b, g * plain, w), per_channel(b, g, w)]

    @staticmethod
    def samples() -> list[Sample]:
        positive = AttrDict({"3": lambda rng, shape, dtype: rng.uniform(0.2, 3.0, shape)})

        def case(shape: tuple[int, ...], attrs: dict[str, Any]) -> Sample:
            x, w = f32(*shape), f32(shape[1])
            stats = statistics_type("", x, attrs.get("groups"))
            return Sample((x, w, stats, stats, x), AttrDict(attrs), values=positive)

        return [case(*c) for c in _cases()]


def _parts(b: Builder, op: Op, x: Value) -> Term:
    """The batch as [groups, n / groups, c, s...], or as it is without groups."""
    groups = attribute(op, "groups")
    shape = x.shape if groups is None else (groups, x.shape[0] // groups, *x.shape[1:])
    return Term(b, wide(b, reshaped(b, x, shape)))


def _whole(b: Builder, x: Value, parts: Term) -> Term:
    """What `_parts` gave, as x is."""
    return Term(b, cast(b, reshaped(b, parts.value, x.shape), x.dtype))


def _part_dims(op: Op) -> tuple[int, ...]:
    """The dims of `_parts` that statistics are taken over."""
    rank = len(op.results[0].shape)
    return (0, *range(2, rank)) if attribute(op, "groups") is None else (1, *range(3, rank + 1))


def _cells(op: Op) -> int:
    """The number of values a statistic is over."""
    n, _, *rest = op.results[0].shape
    return n // (attribute(op, "groups") or 1) * math.prod(rest)


def _statistic(b: Builder, op: Op, v: Value) -> Term:
    """A mean or variance, ready to broadcast against `_parts`."""
    rest = (1,) * (len(op.results[0].shape) - 2)
    return Term(b, wide(b, reshaped(b, v, (1, *v.shape, *rest) if attribute(op, "groups") is None else (v.shape[0], 1, v.shape[1], *rest))))


class RunningAverage(OpDef):
    """A running statistic after a batch: (1 - momentum) running + momentum batch. Over microbatches it is a recurrence, not a sum."""

    name = "dmlc.running_average"
    rule = "..., ... -> ..."
    attributes = {"momentum": REQUIRED}
    linear = [{0, 1}]
    precision = "high"
    torch = "{momentum} * {1} + (1 - {momentum}) * {0}"
    strategies = batch_norm_strategies.of_running_average
    vjp = gradient(lambda g, running, batch, _, momentum: [g * (1.0 - momentum), g * momentum])

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        running, batch = (v.tensor for v in op.operands)
        if running != batch or not running.is_float:
            raise DmlcError(f"'{op.name}' takes a running statistic and a batch's, alike, not {running} and {batch}", op.loc)

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        running, batch = (Term(b, v) for v in op.operands)
        return [(batch * attribute(op, "momentum") + running * (1.0 - attribute(op, "momentum"))).value]

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((f32(*s), f32(*s)), AttrDict(momentum=m)) for s, m in (((5,), 0.1), ((7, 3), 1.0), ((1,), 0.3), ((0,), 0.1), ((), 0.25))]
