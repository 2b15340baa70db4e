"""Conversions between element types."""

from __future__ import annotations

from dmlc.frontend.onnx.carried import Kind, converted
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.table import op
from dmlc.frontend.onnx.values import Tensor


@op("Cast", 6, 9, 13, 19, 21, 23, 24, 25, 28)
def cast(n: Node) -> Tensor:
    return _cast(n, Kind.of(n.attr("to"), "the target"))


@op("CastLike", 15, 19, 21, 23, 24, 25)
def cast_like(n: Node) -> Tensor:
    return _cast(n, n.kind(1))


def _cast(n: Node, to: Kind) -> Tensor:
    n.result_elements = [to.element]
    return n[0] if n.kind(0) == to else converted(n, n[0], to, bool(n.attr("saturate", 1)))
