"""The bits of a value read as another type of the same width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.types import BYTES, TensorType, Type
from dmlc.ops.base import REQUIRED, InferError, Sample
from dmlc.ops.pointwise import Pointwise


class Bitcast(Pointwise):
    """The same bits as the dtype `to`, which has as many."""

    name = "dmlc.bitcast"
    kind = "any"
    rule = "... -> ..."
    attributes = {"to": REQUIRED}
    torch = "{0}.view({to})"
    no_vjp = "the bits of a number are not a smooth function of it"

    @classmethod
    def result_types(cls, operand_types: Sequence[Type], attrs: dict[str, Any]) -> list[Type] | None:
        (source,) = operand_types
        if not isinstance(source, TensorType) or BYTES.get(attrs.get("to", "")) != BYTES[source.dtype]:
            raise InferError(f"'dmlc.bitcast' of {source} to \"{attrs.get('to')}\", which has another width")
        return super().result_types(operand_types, attrs)

    @staticmethod
    def dtype(types: Sequence[TensorType], attrs: dict[str, Any]) -> str:
        return attrs["to"]

    @staticmethod
    def samples() -> list[Sample]:
        pairs = (("i64", "i64"), ("i32", "i32"), ("i8", "ui8"), ("i16", "i16"))
        return [Sample((TensorType(s, "i64"),), AttrDict(to="i64")) for s in ((1,), (0, 4), ())] + [Sample((TensorType((5, 3), a),), AttrDict(to=b)) for a, b in pairs]
