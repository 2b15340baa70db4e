"""Poolings."""

from __future__ import annotations

import math
from typing import Any

from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.ops.windowed import window_maxima, window_mean, window_sum
from dmlc.frontend.onnx.ops.windows import positive, window_attributes
from dmlc.frontend.onnx.table import op
from dmlc.frontend.onnx.values import Tensor
from dmlc.ir.core import Value
from dmlc.ops.windows import Windows


def _pool_attributes(n: Node) -> dict[str, Any]:
    kernel = n.attr("kernel_shape")
    return {"kernel": kernel, **window_attributes(n, n.shape(0)[2:], kernel), "ceil_mode": bool(n.attr("ceil_mode", 0))}


@op("MaxPool", 1, 8, 10, 11, 12, 22)
def max_pool(n: Node) -> Tensor | list[Tensor]:
    attributes = _pool_attributes(n)
    if not n.wants(1):
        return n.emit("dmlc.max_pool", n[0], **attributes)
    return window_maxima(n, n[0], Windows.of(attributes, attributes["kernel"]), attributes["ceil_mode"], bool(n.attr("storage_order", 0)))


@op("AveragePool", 7, 10, 11, 19, 22)
def average_pool(n: Node) -> Tensor:
    attributes = _pool_attributes(n)
    if any(d != 1 for d in positive(n, "dilations", n.rank(0) - 2)):
        return window_mean(n, n[0], Windows.of(attributes, attributes["kernel"]), attributes["ceil_mode"], bool(n.attr("count_include_pad", 0)))
    del attributes["dilation"]
    return n.emit("dmlc.avg_pool", n[0], **attributes, count_include_pad=bool(n.attr("count_include_pad", 0)))


def _spatial(n: Node) -> tuple[int, ...]:
    return tuple(range(2, n.rank(0)))


@op("GlobalAveragePool", 1, 22)
def global_average_pool(n: Node) -> Value:
    return n.mean(n[0], _spatial(n))


@op("GlobalMaxPool", 1, 22)
def global_max_pool(n: Node) -> Tensor:
    return n.reduce("max", n[0], _spatial(n))


@op("GlobalLpPool", 2, 22)
def global_lp_pool(n: Node) -> Tensor:
    return _root(n, n.reduce("sum", _power(n, n[0], n.attr("p", 2)), _spatial(n)), n.attr("p", 2))


@op("LpPool", 2, 11, 18, 22)
def lp_pool(n: Node) -> Tensor:
    """The mean of |x|^p over each window, padding counted, times the window's size is the sum."""
    attributes, p = _pool_attributes(n), n.attr("p", 2)
    if any(d != 1 for d in attributes["dilation"]) or attributes["ceil_mode"]:
        return _root(n, window_sum(n, _power(n, n[0], p), Windows.of(attributes, attributes["kernel"]), attributes["ceil_mode"]), p)
    del attributes["dilation"]
    mean = n.emit("dmlc.avg_pool", _power(n, n[0], p), **attributes, count_include_pad=True)
    return _root(n, n.pointwise("dmlc.mul", mean, float(math.prod(attributes["kernel"]))), p)


def _power(n: Node, t: Tensor, p: int) -> Tensor:
    return n.pointwise("dmlc.mul", t, t) if p == 2 else n.pointwise("dmlc.pow", n.emit("dmlc.abs", t), p)


def _root(n: Node, t: Tensor, p: int) -> Tensor:
    return n.emit("dmlc.sqrt", t) if p == 2 else n.pointwise("dmlc.pow", t, 1.0 / p)


