"""Extra results that a gradient asks of its op: values the forward computation has anyway."""

from __future__ import annotations

from dmlc.ir.core import Op, OpResult, Value
from dmlc.ops.base import attribute, definition


def residual(op: Op, name: str) -> Value:
    """The op's extra result `name` (one of its definition's `residuals`), added at the end of its results if it is not there yet.

    Which ones an op has stands in its attribute `residuals`; their types come from the definition's `residual_type(op, name)`.
    """
    have = attribute(op, "residuals")
    first = len(op.results) - len(have)
    if name in have:
        return op.results[first + have.index(name)]
    op.attrs["residuals"] = (*have, name)
    op.results.append(OpResult(definition(op).residual_type(op, name), op, len(op.results)))  # type: ignore[attr-defined]
    return op.results[-1]
