"""What the rules of `canonicalize` share: the table of rules, and questions about constants."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

from dmlc.ir.builder import Builder
from dmlc.ir.core import Op, Value
from dmlc.ir.dims import Dim
from dmlc.ir.types import FLOATS

Rule = Callable[[Op, Builder], "Value | None"]
RULES: dict[str, list[Rule]] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for ops of these names. It returns what replaces the result, emitting ops through the builder, or None without emitting any."""

    def add(function: Rule) -> Rule:
        for name in names:
            RULES.setdefault(name, []).append(function)
        return function

    return add


def uniform(value: Value) -> float | int | bool | None:
    """The number that every element of `value` equals, if a `dmlc.full` says so; an open size is no number yet."""
    found = value.op.attrs["value"] if value.op is not None and value.op.name == "dmlc.full" else None
    return None if isinstance(found, Dim) else found


def is_number(value: Value, number: float) -> bool:
    """Whether every element is `number` (-0.0 and 0.0 differ)."""
    found = uniform(value)
    return found is not None and found == number and math.copysign(1, found) == math.copysign(1, number)


def made_by(value: Value, name: str) -> Op | None:
    """The op of that name which makes `value`."""
    return value.op if value.op is not None and value.op.name == name else None


def rounded(number: Any, dtype: str) -> Any:
    """`number` as an element of `dtype`, or None where Python cannot round to it."""
    if dtype == "i1":
        return bool(number)
    if dtype not in FLOATS:
        return int(number) if math.isfinite(number) and abs(number) < 2**31 else None
    if dtype == "f64" or number != number or math.isinf(number):
        return float(number)
    code = {"f32": "f", "f16": "e"}.get(dtype)
    if code is None:
        return None
    try:
        return struct.unpack(code, struct.pack(code, number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
