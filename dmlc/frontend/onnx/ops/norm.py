"""Normalisations."""

from __future__ import annotations

from dmlc.frontend.onnx.emit import type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.values import Tensor
from dmlc.ir.core import BlockArgument, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType

EPSILON = 1e-5
FULL_PRECISION = 1  # element type of `stash_type`: statistics in f32
DROPOUT_MASK_IS_BOOL = 10  # since this version


@op("BatchNormalization", 6, 7, 9, 14, 15)
def batch_normalization(n: Node) -> list[Tensor]:
    if n.attr("spatial", 1) != 1:
        raise Unsupported("spatial = 0")
    mode = n.importer.program.mode
    if n.attr("training_mode", 0):
        return [_normalized(n), n.buffer(3), n.buffer(4)] if mode == "eval" else _batch_normalization_training(n)
    if mode == "train":
        n.importer.told("batch norm", "keeps its running statistics as they are (it is in inference form: training_mode = 0)")
    if any(n.wants(i) for i in range(1, 5)) or (n.since == 6 and not n.attr("is_test", 0)):
        raise Unsupported("training form")
    return [_normalized(n)]


def _normalized(n: Node) -> Value:
    """By the statistics given."""
    return n.emit("dmlc.batch_norm", n[0], n.param(1), n.param(2), n.buffer(3), n.buffer(4), eps=n.attr("epsilon", EPSILON))


def _batch_normalization_training(n: Node) -> list[Tensor]:
    """y from the batch's statistics; running statistics are old momentum + new (1 - momentum)."""
    momentum = 1.0 - n.attr("momentum", 0.9)
    y, mean, var = n.op("dmlc.batch_norm_train", [n[0], n.param(1), n.param(2)], eps=n.attr("epsilon", EPSILON)).results
    return [y, *(_running(n, n.buffer(i), fresh, momentum) for i, fresh in ((3, mean), (4, var)))]


def _running(n: Node, old: Value, fresh: Value, momentum: float) -> Value:
    """A running statistic after this batch; a training program stores it in the old one's place."""
    new = n.emit("dmlc.running_average", old, fresh, momentum=momentum)
    if isinstance(old, BlockArgument) and n.importer.program.mode == "train":
        n.importer.program.updates[old] = new
    return new


@op("InstanceNormalization", 6, 22)
def instance_normalization(n: Node) -> Value:
    """A group norm with one channel a group."""
    return n.emit("dmlc.group_norm", n[0], n.param(1), n.param(2), groups=n.shape(0)[1], eps=n.attr("epsilon", EPSILON))


@op("GroupNormalization", 18, 21)
def group_normalization(n: Node) -> Value:
    """Version 18 has a scale and bias a group, version 21 a channel."""
    groups, channels = n.attr("num_groups"), n.shape(0)[1]
    if groups < 1 or channels % groups:
        raise DmlcError(f"{channels} channels do not split into {groups} groups")
    scale, bias = n.param(1), n.param(2)
    if n.since == 18:
        scale, bias = (n.value(_repeated(n, t, channels // groups)) for t in (scale, bias))
    return n.emit("dmlc.group_norm", n[0], scale, bias, groups=groups, eps=n.attr("epsilon", EPSILON))


def _repeated(n: Node, t: Tensor, times: int) -> Tensor:
    (size,) = type_of(t).shape
    return n.reshape(n.broadcast(n.reshape(t, (size, 1)), (size, times)), (size * times,))


@op("LayerNormalization", 17)
def layer_normalization(n: Node) -> list[Tensor]:
    """Over all dims from `axis` on; half-precision input is normalised in f32 (`stash_type`)."""
    axis = n.axis(n.attr("axis", -1), n.rank(0))
    eps, rest = n.attr("epsilon", EPSILON), n.shape(0)[axis:]
    scale = n.broadcast(n.param(1), rest)
    bias = n.broadcast(n.param(2), rest) if n.has(2) else n.full(0.0, n.dtype(1), rest)
    y = n.emit("dmlc.layer_norm", n[0], scale, bias, eps=eps, dims=len(rest))
    return [y, *_statistics(n, tuple(range(axis, n.rank(0))), eps)] if n.wants(1) or n.wants(2) else [y]


def _statistics(n: Node, dims: tuple[int, ...], eps: float) -> list[Tensor]:
    """Mean and 1 / sqrt(variance + eps), in f32 when `stash_type` says so."""
    x = n.cast(n[0], "f32") if n.attr("stash_type", FULL_PRECISION) == FULL_PRECISION else n[0]
    mean = n.mean(x, dims)
    centred = n.pointwise("dmlc.sub", x, mean)
    variance = n.mean(n.pointwise("dmlc.mul", centred, centred), dims)
    return [mean, n.emit("dmlc.rsqrt", n.pointwise("dmlc.add", variance, eps))]


@op("RMSNormalization", 23)
def rms_normalization(n: Node) -> Tensor:
    axis = n.axis(n.attr("axis", -1), n.rank(0))
    if axis != n.rank(0) - 1:
        raise Unsupported("axis other than the last")
    return n.emit("dmlc.rms_norm", n[0], n.broadcast(n.param(1), n.shape(0)[axis:]), eps=n.attr("epsilon", EPSILON))


@op("LRN", 1, 13)
def local_response_normalization(n: Node) -> Value:
    return n.emit("dmlc.lrn", n[0], size=n.attr("size"), alpha=n.attr("alpha", 1e-4), beta=n.attr("beta", 0.75), bias=n.attr("bias", 1.0))


@op("LpNormalization", 1, 22)
def lp_normalization(n: Node) -> Tensor:
    """x over its norm along one dim; 0 where the norm is 0."""
    dim, p = n.axis(n.attr("axis", -1), n.rank(0)), n.attr("p", 2)
    if p not in (1, 2):
        raise DmlcError(f"p = {p}; it is 1 or 2")
    size = n.emit("dmlc.abs", n[0]) if p == 1 else n.pointwise("dmlc.mul", n[0], n[0])
    norm = n.reduce("sum", size, (dim,))
    norm = norm if p == 1 else n.emit("dmlc.sqrt", norm)
    return n.select(n.pointwise("dmlc.eq", norm, 0), 0, n.pointwise("dmlc.div", n[0], norm))


@op("MeanVarianceNormalization", 9, 13)
def mean_variance_normalization(n: Node) -> Value:
    """(x - mean) / (standard deviation + 1e-9) over `axes`."""
    axes = n.axes(n.attr("axes", (0, 2, 3)), n.rank(0))
    centred = n.pointwise("dmlc.sub", n[0], n.mean(n[0], axes))
    deviation = n.emit("dmlc.sqrt", n.mean(n.pointwise("dmlc.mul", centred, centred), axes))
    return n.pointwise("dmlc.div", centred, n.pointwise("dmlc.add", deviation, 1e-9))


@op("Dropout", 1, 6)
def dropout_first(n: Node) -> list[Tensor]:
    if n.attr("is_test", 0):
        return _left_out(n)
    if not n.importer.program.mode:
        raise Unsupported("training form")
    return _dropout(n, n.attr("ratio", 0.5))


@op("Dropout", 7, 10)
def dropout_of_either_mode(n: Node) -> list[Tensor]:
    """The file does not say the mode: whoever runs it does."""
    return _dropout(n, n.attr("ratio", 0.5))


@op("Dropout", 12, 13, 22)
def dropout(n: Node) -> list[Tensor]:
    """`training_mode` may be an input of the graph: then whoever runs it says the mode."""
    training = n.number(2) if n.has(2) else False
    ratio = float(n.known(1, "the ratio").reshape(-1)[0]) if n.has(1) and (training is None or training) else n.number(1) if n.has(1) else 0.5
    if training is not None and not training:
        return _left_out(n) if ratio else _identity(n)
    if ratio is None or (ratio and not n.importer.program.mode):
        raise Unsupported("training form")
    return _dropout(n, float(ratio))


def _left_out(n: Node) -> list[Tensor]:
    if n.importer.program.mode == "train":
        n.importer.told("dropout", "leaves everything in (it is in inference form)")
    return _identity(n)


def _dropout(n: Node, p: float) -> list[Tensor]:
    """Drawn by definition (seed, step, stream) in training, the identity otherwise."""
    program = n.importer.program
    if program.mode != "train" or not p:
        return _identity(n)
    stream, drawn = program.stream(), program.seed_and_step()
    y = n.emit("dmlc.dropout", n[0], *drawn, p=p, stream=stream)
    if not n.wants(1):
        return [y]
    kept = n.op("dmlc.dropout_mask", drawn, [TensorType(n.shape(0), "i1")], p=p, shape=n.shape(0), stream=stream)
    return [y, _mask(n, kept.result)]


def _identity(n: Node) -> list[Tensor]:
    return [n[0], _mask(n, n.full(True, "i1", n.shape(0)))] if n.wants(1) else [n[0]]


def _mask(n: Node, kept: Tensor) -> Tensor:
    """What is kept; before version 10 of the operator in x's dtype."""
    return kept if n.since >= DROPOUT_MASK_IS_BOOL else n.cast(kept, n.dtype(0))
