"""Normalisations."""

from __future__ import annotations

from dmlc.frontend.onnx.emit import type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.values import Tensor
from dmlc.ir.core import Value
from dmlc.ir.location import DmlcError

EPSILON = 1e-5
FULL_PRECISION = 1  # element type of `stash_type`: statistics in f32


@op("BatchNormalization", 6, 7, 9, 14, 15)
def batch_normalization(n: Node) -> list[Tensor]:
    if n.attr("spatial", 1) != 1:
        raise Unsupported("spatial = 0")
    if n.attr("training_mode", 0):
        return _batch_normalization_training(n)
    if any(n.wants(i) for i in range(1, 5)) or (n.since == 6 and not n.attr("is_test", 0)):
        raise Unsupported("training form")
    return [n.emit("dmlc.batch_norm", n[0], n.param(1), n.param(2), n.buffer(3), n.buffer(4), eps=n.attr("epsilon", EPSILON))]


def _batch_normalization_training(n: Node) -> list[Tensor]:
    """y from the batch's statistics; running statistics are old momentum + new (1 - momentum)."""
    momentum = n.attr("momentum", 0.9)
    y, mean, var = n.op("dmlc.batch_norm_train", [n[0], n.param(1), n.param(2)], eps=n.attr("epsilon", EPSILON)).results
    running: list[Tensor] = [y]
    for i, fresh in ((3, mean), (4, var)):
        old = n.pointwise("dmlc.mul", n.buffer(i), momentum)
        running.append(n.pointwise("dmlc.add", old, n.pointwise("dmlc.mul", fresh, 1.0 - momentum)))
    return running


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
    if not n.attr("is_test", 0):
        raise Unsupported("training form")
    return _identity(n)


@op("Dropout", 7, 10)
def dropout_inference(n: Node) -> list[Tensor]:
    return _identity(n)


@op("Dropout", 12, 13, 22)
def dropout(n: Node) -> list[Tensor]:
    training = n.number(2) if n.has(2) else False
    if training is None or (training and n.number(1) != 0):
        raise Unsupported("training form")
    return _identity(n)


def _identity(n: Node) -> list[Tensor]:
    return [n[0], n.full(True, "i1", n.shape(0))] if n.wants(1) else [n[0]]


