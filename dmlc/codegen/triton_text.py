"""Lines of a kernel's body for single ops: literals, pointwise texts, reductions, loads and stores with their dtypes.

Inside a kernel 16-bit floats are fp32 and every other dtype is itself (`triton_dtype`). A value is rounded where it is stored and where the
program casts it, nowhere else: `x + y -> gelu` in bf16 rounds once. With `dmlc.rounding = "every-value"` on the module each op's result is
rounded to its dtype, as the unfused program does (composites still compute inside in fp32).
"""

from __future__ import annotations

import re

from dmlc.ir.core import Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import FLOATS
from dmlc.ops.base import attribute
from dmlc.ops.kernel import REDUCTIONS, triton_text
from dmlc.ops.pointwise import triton_dtype
from dmlc.ops.text import literal

STORED = {
    "f64": "tl.float64",
    "f32": "tl.float32",
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "i64": "tl.int64",
    "i32": "tl.int32",
    "i16": "tl.int16",
    "i8": "tl.int8",
    "ui8": "tl.uint8",
    "i1": "tl.int1",
}
POINTERS = {
    "f64": "*fp64",
    "f32": "*fp32",
    "f16": "*fp16",
    "bf16": "*bf16",
    "i64": "*i64",
    "i32": "*i32",
    "i16": "*i16",
    "i8": "*i8",
    "ui8": "*u8",
    "i1": "*i1",
}
BITS = {"i64": 64, "i32": 32, "i16": 16, "i8": 8}
NARROW = ("f16", "bf16")
PLAIN = ("f32", "f16", "bf16", "i32", "i64")  # a bare Python number takes the right dtype beside a block of these

_FIELD = re.compile(r"\{(\*|\d+|[a-z_]\w*)\}")


def number(value: bool | int | float, dtype: str, shape: str, plain: bool = True) -> str:
    """A constant: a bare number where that is exact, else a one-element block of the right dtype."""
    is_float = dtype in FLOATS
    text = literal(float(value) if is_float else bool(value) if dtype == "i1" else int(value))
    if plain and dtype in PLAIN and (is_float or abs(int(value)) < 2**31):
        return f"({text})" if text.startswith("-") else text
    return f"tl.full({shape}, {text}, {triton_dtype(dtype)})"


def identity_of(op: Op, shape: str) -> str:
    """What a reduction ignores, as a constant of its operand's dtype."""
    dtype = op.operands[0].dtype
    return number(identity_number(REDUCTIONS[op.name], dtype), dtype, shape)


def identity_number(combiner: str, dtype: str) -> bool | int | float:
    if combiner in ("sum", "prod"):
        return 0 if combiner == "sum" else 1
    if combiner in ("and", "or"):
        return combiner == "and"
    if dtype in FLOATS:
        return float("-inf") if combiner == "max" else float("inf")
    low, high = (0, 255) if dtype == "ui8" else (-(2 ** (BITS[dtype] - 1)), 2 ** (BITS[dtype] - 1) - 1)
    return low if combiner == "max" else high


def pointwise(op: Op, operands: list[str]) -> str:
    """The op's Triton text with names filled in: `{0}` operand 0, `{*}` all, `{key}` an attribute."""
    text = triton_text(op)
    if text is None:
        raise DmlcError(f"'{op.name}' has no Triton text", op.loc)

    def fill(match: re.Match[str]) -> str:
        key = match[1]
        if key == "*":
            return ", ".join(operands)
        return operands[int(key)] if key.isdigit() else literal(attribute(op, key))

    return _FIELD.sub(fill, text)


def reduction(op: Op, block: str) -> str:
    """The reduction of a block over its columns. Max and min propagate NaN, which `tl.max` and `tl.min` do not."""
    combiner, dtype = REDUCTIONS[op.name], op.operands[0].dtype
    if combiner == "sum":
        return f"tl.sum({block}, 1, keep_dims=True)"
    if combiner == "prod":
        return f"tl.reduce({block}, 1, times, keep_dims=True)"
    if combiner in ("and", "or"):
        return f"tl.{'min' if combiner == 'and' else 'max'}({_wide(block)}, 1, keep_dims=True) != 0"
    return f"tl.reduce({block}, 1, nan_{combiner}, keep_dims=True)" if dtype in FLOATS else f"tl.{combiner}({block}, 1, keep_dims=True)"


def _wide(block: str) -> str:
    return f"({block}).to(tl.int32)"


def combine(op: Op, total: str, block: str) -> str:
    """One step of a running reduction, element by element."""
    combiner = REDUCTIONS[op.name]
    if combiner in ("max", "min"):
        return f"nan_{combiner}({total}, {block})" if op.operands[0].dtype in FLOATS else f"tl.{combiner}imum({total}, {block})"
    return f"{total} {dict(sum='+', prod='*', **{'and': '&', 'or': '|'})[combiner]} {block}"


HELPERS = {
    "nan_max": "@jit\ndef nan_max(a, b):\n    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "nan_min": "@jit\ndef nan_min(a, b):\n    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "times": "@jit\ndef times(a, b):\n    return a * b",
}


def helpers_in(text: str) -> list[str]:
    """Sources of the helper functions that kernel text uses."""
    return [source for name, source in HELPERS.items() if re.search(rf"\b{name}\b", text)]


def widened(load: str, value: Value) -> str:
    """A load in the compute dtype."""
    return f"{load}.to(tl.float32)" if value.dtype in NARROW else load


def narrowed(text: str, value: Value) -> str:
    """A block in the dtype it is stored in; bare numbers are converted by the store."""
    return f"{text}.to({STORED[value.dtype]})" if text.isidentifier() and value.dtype in NARROW else text


def rounded(text: str, op: Op) -> str:
    """`text` rounded to the dtype of the op's result and widened again."""
    return f"({text}).to({STORED[op.result.dtype]}).to(tl.float32)" if op.result.dtype in NARROW else text
