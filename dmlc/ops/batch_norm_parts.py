"""What a rank does of a batch norm in training with the part of the batch that it holds, of which the first `valid` samples are there.

`partition` makes these ops (`dmlc.ops.batch_norm_strategies`); each has a library call of one or two passes over an image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.types import TensorType
from dmlc.ops.base import REQUIRED, InferError, OpDef, Sample, attribute
from dmlc.ops.emit import cast, f32
from dmlc.ops.terms import Term
from dmlc.ops.windows import names

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder

COUNT = TensorType((), "i64")
MADE = "made after autodiff"
SHAPES = (((4, 3, 5), 4), ((4, 3, 2, 5), 3), ((5, 2), 5), ((2, 3, 4), 0), ((1, 1, 1), 1), ((0, 3, 2), 0))  # of images, and how many samples are there


class RankPart(OpDef):
    """Base. Images are [n, c, s...], vectors [c]; the last operand, i64, is the number of samples that are there."""

    precision = "high"
    same_dtype = False
    pattern: str  # of the tensors: "i" an image, "c" a vector of its channels
    gives: str

    @classmethod
    def rule(cls, op: Any) -> str:
        image = f"n! c {names('s', len(op.operands[0].shape) - 2, '!')}"
        left, right = ([{"i": image, "c": "c"}[t] for t in text] for text in (cls.pattern, cls.gives))
        return f"{', '.join(left)}, () -> {', '.join(right)}"

    @classmethod
    def infer(cls, types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x = types[0]
        kinds = {"i": x, "c": x.with_shape(x.shape[1:2])}
        if len(types) != len(cls.pattern) + 1 or x.rank < 2 or types[-1] != COUNT or any(t != kinds[k] for t, k in zip(types, cls.pattern)):
            raise InferError(f"'{cls.name}' takes {cls.pattern} (i an image, c a vector of its channels) and a number of samples, not ({', '.join(map(str, types))})")
        return [kinds[k] for k in cls.gives]

    @classmethod
    def samples(cls) -> list[Sample]:
        found = []
        for shape, valid in SHAPES:
            kinds = {"i": f32(*shape), "c": f32(shape[1])}
            values = {str(len(cls.pattern)): lambda rng, shape, dtype, valid=valid: valid}
            values |= {str(i): lambda rng, shape, dtype: rng.uniform(0.2, 3.0, shape) for i, k in enumerate(cls.pattern) if k == "c"}
            attrs = dict.fromkeys(cls.attributes, 1e-05)
            found.append(Sample((*(kinds[k] for k in cls.pattern), COUNT), AttrDict(attrs), values=AttrDict(values)))
        return found


class ChannelMoments(RankPart):
    """Mean and biased variance of each channel of an image; 0 where there is no sample."""

    name = "dmlc.channel_moments"
    pattern, gives = "i", "cc"
    results = 2
    torch = "channel_moments({0}, {1})"
    no_vjp = MADE


class BatchNormSums(RankPart):
    """From x, a gradient g and a mean: for each channel the sums of g (x - mean) and of g."""

    name = "dmlc.batch_norm_sums"
    pattern, gives = "iic", "cc"
    results = 2
    torch = "batch_norm_sums({0}, {1}, {2}, {3})"
    no_vjp = MADE


class BatchNormRankGrad(RankPart):
    """Gradients of a batch norm by this rank's own statistics: from x, the weight, mean, biased variance and the gradient of y those in x (0
    where there is no sample), weight and bias."""

    name = "dmlc.batch_norm_rank_grad"
    pattern, gives = "iccci", "icc"
    results = 3
    attributes = {"eps": REQUIRED}
    torch = "batch_norm_rank_grad({0}, {1}, {2}, {3}, {4}, {5}, {eps})"
    no_vjp = MADE


class RankMoments(OpDef):
    """What a rank adds to the average of all ranks' statistics, [3, c]: its mean, its variance and 1, or zeros where it has no sample.

    Operands: mean and biased variance [c], the number of samples (i64) of `cells` values a channel each. The variance given on has
    `correction` taken off the number of values it is divided by.
    """

    name = "dmlc.rank_moments"
    rule = "c, c, () -> k! c"
    attributes = {"cells": REQUIRED, "correction": 0}
    same_dtype = False
    precision = "high"
    torch = "rank_moments({0}, {1}, {2}, {cells}, {correction})"
    no_vjp = MADE

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if len(types) != 3 or types[0].rank != 1 or types[1] != types[0] or types[2] != COUNT:
            raise InferError(f"'dmlc.rank_moments' takes a mean, a variance and a number of samples, not ({', '.join(map(str, types))})")
        return [types[0].with_shape((3, *types[0].shape))]

    @staticmethod
    def samples() -> list[Sample]:
        cases = ((5, 3, {"cells": 4, "correction": 1}), (1, 1, {"cells": 1, "correction": 1}), (4, 0, {"cells": 2}), (0, 2, {"cells": 3}))
        return [Sample((f32(c), f32(c), COUNT), AttrDict(attrs), values=AttrDict({"2": _number(n)})) for c, n, attrs in cases]


class MeanOverRanks(OpDef):
    """The sum over ranks of `dmlc.rank_moments` as the mean of those ranks' means and of their variances, [c] each; 0 where there is none."""

    name = "dmlc.mean_over_ranks"
    rule = "k! c -> c, c"
    results = 2
    precision = "high"
    torch = "mean_over_ranks({0})"
    no_vjp = MADE

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if len(types) != 1 or types[0].rank != 2 or types[0].shape[0] != 3:
            raise InferError(f"'dmlc.mean_over_ranks' takes a sum of [3, c], not ({', '.join(map(str, types))})")
        return [types[0].with_shape(types[0].shape[1:])] * 2

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((f32(3, c),), results=(f32(c), f32(c))) for c in (5, 1, 0)]


class RunningPart(OpDef):
    """What microbatch i of k adds to running statistics r: p (1 - p)^(k - 1 - i) batch_i, and the first one (1 - p)^k r.

    Operands: r, the batch's statistics, i and k (i64), where k counts the microbatches that hold samples; those after them add nothing.
    """

    name = "dmlc.running_part"
    rule = "..., ..., (), () -> ..."
    attributes = {"momentum": REQUIRED}
    same_dtype = False
    linear = [{0, 1}]
    precision = "high"
    torch = "running_part({0}, {1}, {2}, {3}, {momentum})"
    no_vjp = MADE

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if len(types) != 4 or types[1] != types[0] or types[2:] != [COUNT, COUNT]:
            raise InferError(f"'dmlc.running_part' takes two statistics alike and two numbers, not ({', '.join(map(str, types))})")
        return [types[0]]

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        running, batch, i, k = (Term(b, v) for v in op.operands)
        p, dtype = attribute(op, "momentum"), op.operands[0].dtype

        def kept(times: Term) -> Term:
            return running.number(1.0 - p).pow(Term(b, cast(b, times.clamp(min=0, max=None).value, dtype)))

        added = (i < k).select(batch * (kept(k - i - 1) * p), 0.0)
        return [(added + i.eq(0).select(running * kept(k), 0.0)).value]

    @staticmethod
    def samples() -> list[Sample]:
        cases = (((5,), 0, 1), ((7, 3), 1, 3), ((1,), 0, 0), ((0,), 2, 2), ((4,), 0, 2))
        return [Sample((f32(*s), f32(*s), COUNT, COUNT), AttrDict(momentum=0.3), values=AttrDict({"2": _number(i), "3": _number(k)})) for s, i, k in cases]


def _number(n: int) -> Any:
    return lambda rng, shape, dtype: n
