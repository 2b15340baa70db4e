"""What a rank does of a batch norm in training with the part of the batch that it holds, of which the first `valid` samples are there.

`partition` makes these ops (`dmlc.ops.batch_norm_strategies`); each has a library call of one or two passes over an image.
"""

from __future__ import annotations

from typing import Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.types import TensorType
from dmlc.ops.base import REQUIRED, InferError, OpDef, Sample
from dmlc.ops.emit import f32
from dmlc.ops.windows import names

COUNT = TensorType((), "i64")
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
    no_vjp = "made after autodiff"


class BatchNormSums(RankPart):
    """From x, a gradient g and a mean: for each channel the sums of g (x - mean) and of g."""

    name = "dmlc.batch_norm_sums"
    pattern, gives = "iic", "cc"
    results = 2
    torch = "batch_norm_sums({0}, {1}, {2}, {3})"
    no_vjp = "made after autodiff"


class BatchNormRankGrad(RankPart):
    """Gradients of a batch norm by this rank's own statistics: from x, the weight, mean, biased variance and the gradient of y those in x (0
    where there is no sample), weight and bias."""

    name = "dmlc.batch_norm_rank_grad"
    pattern, gives = "iccci", "icc"
    results = 3
    attributes = {"eps": REQUIRED}
    torch = "batch_norm_rank_grad({0}, {1}, {2}, {3}, {4}, {5}, {eps})"
    no_vjp = "made after autodiff"
