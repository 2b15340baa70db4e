"""Folds: evaluating an op on numpy arrays at compile time, written as numpy expressions.

Only what gives the same bits as the emitted program folds: integers, booleans, data movement, and single correctly rounded float ops.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dmlc.ir.core import Op, Value
from dmlc.ops.base import attribute
from dmlc.ops.text import literal

if TYPE_CHECKING:
    import numpy

Fold = Callable[[Op, Sequence["numpy.ndarray"]], "list[numpy.ndarray] | None"]

# bf16 arrays hold the bits as uint16, 8-bit floats as uint8 (dmlc.ir.weights): data movement may touch them, arithmetic may not
NUMPY = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "uint16", "f8E4M3FN": "uint8", "f8E5M2": "uint8",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "ui8": "uint8", "i1": "bool",
}  # fmt: skip
ROUNDED = ("f64", "f32")  # float dtypes in which numpy and PyTorch both round once


def fold(text: Any, dtypes: Sequence[str] | None = None) -> Fold:
    """A fold from a numpy expression: `{0}` operands, `{r0.shape}`, `{key}` attributes, `np`; a function of the op may give the expression.

    An expression that gives None declines. `dtypes` (None = all) are those that every operand and result must have for the op to fold.
    """

    def run(op: Op, operands: Sequence[numpy.ndarray]) -> list[numpy.ndarray] | None:
        import numpy as np

        values = (*op.operands, *op.results)
        if dtypes is not None and any(v.dtype not in dtypes for v in values):
            return None
        expression = text(op) if callable(text) else text
        names = {f"a{i}": a for i, a in enumerate(operands)}
        with np.errstate(all="ignore"):
            value = eval(_fill(expression, op), {"np": np, **names})
        if value is None:
            return None
        return [_as_result(v, r) for v, r in zip(value if len(op.results) > 1 else [value], op.results)]

    return run


def _fill(text: str, op: Op) -> str:
    def field(match: re.Match[str]) -> str:
        key = match[1]
        if key.isdigit():
            return f"a{key}"
        return repr(op.results[int(key[1])].shape) if key.endswith(".shape") else literal(attribute(op, key))

    return re.sub(r"\{(\d+|r\d+\.shape|[a-z_]\w*)\}", field, text)


def _as_result(array: Any, result: Value) -> numpy.ndarray:
    import numpy as np

    return np.ascontiguousarray(np.asarray(array, dtype=NUMPY[result.dtype])).reshape(result.shape)


def rounded(text: str) -> Fold:
    """A fold for integers and for floats whose operation rounds once."""
    return fold(text, (*ROUNDED, "i64", "i32", "i16", "i8", "ui8", "i1"))


def exact(text: Any) -> Fold:
    """A fold for integers and booleans only."""
    return fold(text, ("i64", "i32", "i16", "i8", "ui8", "i1"))


def moved(text: Any) -> Fold:
    """A fold for data movement: any dtype, bits are carried."""
    return fold(text)
