"""Element types that the IR lacks, carried by a wider type of the IR that holds each of their values exactly.

Which name of a graph has such a type is kept beside the names (`Frame.elements`). An operator that is not listed here refuses such operands,
since it would compute with the wider type's limits; those that leave the range are brought back into it (integers wrap).
No type is wider than uint64: it is carried by the bits, and what compares its values does so with the highest bit flipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx

from dmlc.frontend.onnx.table import Unsupported
from dmlc.frontend.onnx.tensors import CARRIERS, INTEGER_CARRIED, dtype_of_element, element_name
from dmlc.ir.location import DmlcError
from dmlc.ir.types import FLOATS

if TYPE_CHECKING:
    from dmlc.frontend.onnx.emit import Emit
    from dmlc.frontend.onnx.node import Node
    from dmlc.frontend.onnx.values import Tensor

T = onnx.TensorProto

# results keep the operands' type and never leave its range
CLOSED = set(
    "Identity Reshape Transpose Squeeze Unsqueeze Flatten Slice Split Concat Gather GatherElements GatherND Expand Tile Pad Where Max Min Div Mod "
    "BitwiseAnd BitwiseOr BitwiseXor TopK Clip DepthToSpace SpaceToDepth Trilu ReverseSequence Compress Scatter ScatterElements ScatterND ReduceMax ReduceMin".split()
)
WRAPPED = set("Add Sub Mul Sum BitShift BitwiseNot Pow ReduceSum ReduceProd CumSum".split())  # integers only: the result's low bits count
PLAIN = set("Equal Less Greater LessOrEqual GreaterOrEqual Shape Size NonZero ArgMax ArgMin".split())  # results are of the IR's own types
ORDERED = set("Less Greater LessOrEqual GreaterOrEqual Max Min Clip TopK ReduceMax ReduceMin ArgMax ArgMin".split())  # of uint64
OWN = set("GatherBlockQuantized Cast CastLike BitCast QuantizeLinear DequantizeLinear".split())  # the handler says


@dataclass(frozen=True)
class Kind:
    """An element type as handlers choose it: ONNX's number when it is carried, and the IR's dtype."""

    element: int | None
    dtype: str

    @classmethod
    def of(cls, element: int, what: str) -> Kind:
        return cls(element, CARRIERS[element]) if element in CARRIERS else cls(None, dtype_of_element(element, what))


def result_elements(n: Node) -> list[int | None]:
    """The carried types of a node's results. Raises `Unsupported` for an operator that does not take its operands' type."""
    results: list[int | None] = [None] * len(n.proto.output)
    first = next((e for e in n.elements if e), None)
    operator = n.proto.op_type
    if first is None or operator in PLAIN or operator in OWN:
        return results
    if operator not in CLOSED and not (operator in WRAPPED and (first in INTEGER_CARRIED or first == T.UINT64)):
        raise Unsupported(f"values of type {element_name(first)}")
    if n.elements[0] == T.UINT64 and operator == "Pow":
        raise Unsupported("values of type uint64")
    if operator in ("Pow", "TopK"):
        return [n.elements[0], *results[1:]]
    return [first] * len(results)


def brought_back(n: Node, results: Sequence[Tensor]) -> list[Tensor]:
    """Results of an operator that may leave the range of its operands' type, inside it again."""
    if n.proto.op_type in ORDERED:
        return [_flipped(n, t) if e == T.UINT64 else t for t, e in zip(results, n.result_elements)]
    if n.proto.op_type not in WRAPPED:
        return list(results)
    return [wrapped(n, t, e) if e in INTEGER_CARRIED else t for t, e in zip(results, n.result_elements)]


def prepared(n: Node) -> list[Tensor | None]:
    """The operands as the handler takes them: those of type uint64 with the highest bit flipped, where a signed comparison then orders them."""
    if T.UINT64 not in n.elements or n.proto.op_type not in ORDERED:
        return n.operands
    return [_flipped(n, t) if e == T.UINT64 and t is not None else t for t, e in zip(n.operands, n.elements)]


def _flipped(n: Emit, t: Tensor) -> Tensor:
    return n.pointwise("dmlc.bitwise_xor", t, -(1 << 63))


def wrapped(n: Emit, t: Tensor, element: int) -> Tensor:
    """The low bits of an integer, read as the narrow type reads them."""
    low, high = INTEGER_CARRIED[element]
    t = n.pointwise("dmlc.bitwise_and", t, high - low)
    return t if not low else n.pointwise("dmlc.sub", n.pointwise("dmlc.bitwise_xor", t, -low), -low)


# ---------------------------------------------------------------- conversions

LARGEST = {"f8E4M3FN": 448.0, "f8E5M2": 57344.0}
HALVED = {T.FLOAT8E4M3FNUZ: ("f8E4M3FN", 240.0, 248.0), T.FLOAT8E5M2FNUZ: ("f8E5M2", 57344.0, 61440.0)}  # the type whose values below 1 are twice these, largest value, where the next would begin


def converted(n: Emit, x: Tensor, to: Kind, saturate: bool = True, rounding: str = "up") -> Tensor:
    """A cast as the specification has it: 8-bit floats saturate (or not), integers keep their low bits."""
    from dmlc.frontend.onnx.emit import type_of
    from dmlc.frontend.onnx.unsigned import from_float

    source = type_of(x).dtype
    if to.element == T.UINT64:
        if source in FLOATS:
            return from_float(n, x)
        return n.cast(x, "i64")
    if to.element is None:
        return _small_float(n, x, to.dtype, saturate) if to.dtype in LARGEST else n.cast(x, to.dtype)
    if to.element in INTEGER_CARRIED:
        wide = n.cast(x, "i64" if to.element == T.UINT32 or source == "i64" else "i32")
        return n.cast(wrapped(n, wide, to.element), to.dtype)
    if to.element in HALVED:
        return _halved(n, x, to, saturate)
    if to.element == T.FLOAT4E2M1:
        return _four_bits(n, x, to)
    return _power_of_two(n, x, saturate, rounding)


def _small_float(n: Emit, x: Tensor, dtype: str, saturate: bool) -> Tensor:
    wide = _at_least_half(n, x)
    if saturate:
        return n.cast(n.emit("dmlc.clamp", wide, min=-LARGEST[dtype], max=LARGEST[dtype]), dtype)
    if dtype == "f8E4M3FN":  # it has no infinity; 464 is halfway to the value that would follow the largest, which is even
        wide = n.select(n.pointwise("dmlc.gt", n.emit("dmlc.abs", wide), 464.0), float("nan"), wide)
    return n.cast(wide, dtype)


def _at_least_half(n: Emit, x: Tensor) -> Tensor:
    """As a float dtype that comparisons and products work in."""
    from dmlc.frontend.onnx.emit import type_of

    return n.cast(x, "f32") if type_of(x).dtype not in ("f16", "bf16", "f32", "f64") else x


def _halved(n: Emit, x: Tensor, to: Kind, saturate: bool) -> Tensor:
    """The FNUZ types have one exponent more below: values under 1 are rounded at twice their size, others as in the type without."""
    assert to.element is not None
    other, largest, beyond = HALVED[to.element]
    wide = n.cast(_at_least_half(n, x), "f32")
    size = n.emit("dmlc.abs", wide)
    inside = n.emit("dmlc.clamp", wide, min=-largest, max=largest)
    small = n.pointwise("dmlc.mul", n.cast(n.cast(n.pointwise("dmlc.mul", n.emit("dmlc.clamp", wide, min=-1.0, max=1.0), 2.0), other), "f32"), 0.5)
    y: Tensor = n.select(n.pointwise("dmlc.lt", size, 1.0), small, n.cast(n.cast(inside, other), "f32"))
    if not saturate:
        y = n.select(n.pointwise("dmlc.ge", size, beyond), float("nan"), y)
    return n.cast(y, to.dtype)


def _four_bits(n: Emit, x: Tensor, to: Kind) -> Tensor:
    """0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, ties to even; there is no NaN (it becomes 0) and no infinity."""
    wide = n.emit("dmlc.clamp", n.cast(_at_least_half(n, x), "f32"), min=-6.0, max=6.0)
    size = n.emit("dmlc.abs", wide)
    halves, ones, twos = (n.pointwise("dmlc.mul", n.emit("dmlc.round", n.pointwise("dmlc.mul", wide, 1 / step)), step) for step in (0.5, 1.0, 2.0))
    y = n.select(n.pointwise("dmlc.lt", size, 2.0), halves, n.select(n.pointwise("dmlc.lt", size, 4.0), ones, twos))
    return n.cast(n.select(n.emit("dmlc.isnan", wide), 0.0, y), to.dtype)


def _power_of_two(n: Emit, x: Tensor, saturate: bool, rounding: str) -> Tensor:
    """f8E8M0: 2^-127 to 2^127, told from the bits of an f32. A number outside gets the nearest of these, or NaN; what is negative has no result."""
    least = {"up": 1, "nearest": 1 << 22, "down": 1 << 23}.get(rounding)  # fractions from here on go to the next power
    if least is None:
        raise DmlcError(f"round_mode '{rounding}' is none of up, down and nearest")
    wide = n.cast(x, "f32")
    bits = n.emit("dmlc.bitcast", wide, to="i32")
    up = n.pointwise("dmlc.add", bits, (1 << 23) - least)
    power = n.emit("dmlc.bitcast", n.pointwise("dmlc.bitwise_and", up, 0x7F800000), to="f32")  # below 2^-126 this is 0 or 2^-126
    smallest, largest = 2.0**-127, 2.0**127
    low = n.pointwise("dmlc.le", wide, smallest) if rounding == "up" else n.pointwise("dmlc.lt", wide, 2.0**-126 if rounding == "down" else 1.5 * smallest)
    y: Tensor = n.select(low, smallest, n.pointwise("dmlc.minimum", n.pointwise("dmlc.maximum", power, 2.0**-126), largest))
    if not saturate:
        outside = n.pointwise("dmlc.logical_or", n.pointwise("dmlc.lt", wide, smallest), n.pointwise("dmlc.gt", power, largest))
        y = n.select(outside, float("nan"), y)
    return n.select(n.emit("dmlc.isnan", wide), float("nan"), y)


def is_float(kind: Kind) -> bool:
    return kind.dtype in FLOATS
