"""Rendering an op's `torch` text: the same routine serves the interpreter and the emitted program, so they cannot drift."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from dmlc.ir.core import Op
from dmlc.ir.dims import Dim
from dmlc.ir.location import DmlcError
from dmlc.ops.base import attribute, definition
from dmlc.ops.size_text import python_text

TORCH_DTYPES = {
    "f64": "torch.float64", "f32": "torch.float32", "f16": "torch.float16", "bf16": "torch.bfloat16",
    "f8E4M3FN": "torch.float8_e4m3fn", "f8E5M2": "torch.float8_e5m2",
    "i64": "torch.int64", "i32": "torch.int32", "i16": "torch.int16", "i8": "torch.int8", "ui8": "torch.uint8", "i1": "torch.bool",
}  # fmt: skip

_FIELD = re.compile(r"\{(\*|\d+|r\d+\.shape|r\d+\.dtype|o\d+\.shape|o\d+\.dtype|[a-z_]\w*)\}")


def torch_text(op: Op) -> str:
    """The op's raw text, before operands are filled in."""
    text = definition(op).torch
    text = text(op) if callable(text) else text
    if text is None:
        raise DmlcError(f"'{op.name}' has no PyTorch text", op.loc)
    return text  # type: ignore[reportReturnType]


def render_torch(
    op: Op, operands: Sequence[str], dtype: Callable[[str], str] = lambda d: d, size: Callable[[Any], str] = python_text, outs: Sequence[str] = ()
) -> str:
    """A Python expression for the op: one value, or a tuple for several results.

    `operands` are the names to fill in. Fields: `{0}` operand 0; `{*}` all operands, comma separated; `{key}` an attribute as
    a Python literal; `{r0.shape}`, `{r0.dtype}` of a result; `{o0.shape}`, `{o0.dtype}` of an operand. `dtype` maps every dtype first
    (promotion to float64 in checks). `outs`: one name a result, where the text of the form in place is wanted.
    """

    def shape(value: Any) -> str:
        sizes = [size(n) for n in value.shape]
        return "(" + ", ".join(sizes) + ("," if len(sizes) == 1 else "") + ")"

    def fill(match: re.Match[str]) -> str:
        key = match[1]
        if key == "*":
            return ", ".join(operands)
        if key == "outs":
            return ", ".join(outs)
        if key.isdigit():
            return operands[int(key)]
        if "." in key:
            where, what = key.split(".")
            value = (op.results if where[0] == "r" else op.operands)[int(where[1:])]
            return shape(value) if what == "shape" else TORCH_DTYPES[dtype(value.dtype)]
        return literal(attribute(op, key), dtype)

    return _FIELD.sub(fill, definition(op).in_place if outs else torch_text(op))


def literal(value: Any, dtype: Callable[[str], str] = lambda d: d) -> str:
    """A Python literal. A string that names a dtype becomes the torch dtype."""
    if isinstance(value, str) and value in TORCH_DTYPES:
        return TORCH_DTYPES[dtype(value)]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"float('{value}')"
    if isinstance(value, tuple):
        return "(" + ", ".join(literal(v, dtype) for v in value) + ("," if len(value) == 1 else "") + ")"
    return python_text(value) if isinstance(value, Dim) else repr(value)
