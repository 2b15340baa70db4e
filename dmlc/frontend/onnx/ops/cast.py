"""Conversions between element types."""

from __future__ import annotations

import onnx

from dmlc.frontend.onnx.carried import Kind, converted
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.tensors import CARRIED_BITS
from dmlc.frontend.onnx.unsigned import to_float
from dmlc.frontend.onnx.values import Tensor
from dmlc.ir.types import BYTES, FLOATS

UINT64 = onnx.TensorProto.UINT64


@op("Cast", 6, 9, 13, 19, 21, 23, 24, 25, 28)
def cast(n: Node) -> Tensor:
    return _cast(n, Kind.of(n.attr("to"), "the target"))


@op("CastLike", 15, 19, 21, 23, 24, 25)
def cast_like(n: Node) -> Tensor:
    return _cast(n, n.kind(1))


def _cast(n: Node, to: Kind) -> Tensor:
    n.result_elements = [to.element]
    if n.elements[0] == UINT64 and to.dtype in FLOATS:
        return converted(n, to_float(n, n[0], to.dtype if to.dtype in ("f16", "bf16", "f64") else "f32"), to, bool(n.attr("saturate", 1)))
    return n[0] if n.kind(0) == to else converted(n, n[0], to, bool(n.attr("saturate", 1)), n.attr("round_mode", "up"))


@op("BitCast", 26)
def bit_cast(n: Node) -> Tensor:
    """The same bits read as another type of as many; between integers that is a cast."""
    source, to = n.kind(0), Kind.of(n.attr("to"), "the target")
    n.result_elements = [to.element]
    widths = [CARRIED_BITS[k.element] if k.element else 8 * BYTES[k.dtype] for k in (source, to)]
    if widths[0] != widths[1]:
        raise Unsupported(f"{widths[0]} bits as {widths[1]}")
    if source.dtype not in FLOATS and to.dtype not in FLOATS:
        if to.dtype == "i1" != source.dtype:
            raise Unsupported("integers as truth values")
        return converted(n, n[0], to)
    if source.element or to.element:
        raise Unsupported("floats as integers of a type that the IR lacks, or the other way round")
    return n.emit("dmlc.bitcast", n[0], to=to.dtype)
