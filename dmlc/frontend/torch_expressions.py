"""Sizes of an exported program (sympy expressions over its symbols) as sizes of the IR."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from dmlc.ir.dims import Size, ceildiv, floordiv, mod
from dmlc.ir.open_sizes import UnknownSize, larger, smaller


def size_of(expression: Any, symbols: Mapping[Any, Size]) -> Size:
    """A sympy expression with its symbols replaced. Raises `UnknownSize` for one that the IR cannot write, with the symbols to fix."""
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return symbols[expression]
    known = _FUNCTIONS.get(type(expression).__name__)
    if known is None:
        names = {s for free in expression.free_symbols if not isinstance(s_of := symbols[free], int) for s in s_of.symbols}
        error = UnknownSize(f"the size {expression} is no sum of products and whole quotients")
        error.symbols = tuple(sorted(names))
        raise error
    return known(*(size_of(a, symbols) for a in expression.args))


def _sum(*parts: Size) -> Size:
    total: Size = 0
    for part in parts:
        total = total + part
    return total


def _product(*parts: Size) -> Size:
    total: Size = 1
    for part in parts:
        total = total * part
    return total


def _power(base: Size, exponent: Size) -> Size:
    return _product(*[base] * int(exponent))


_FUNCTIONS: dict[str, Callable[..., Size]] = {
    "Add": _sum,
    "Mul": _product,
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": floordiv,
    "CleanDiv": floordiv,
    "CeilDiv": ceildiv,
    "Mod": mod,
    "PythonMod": mod,
    "Max": lambda *parts: functools.reduce(larger, parts),
    "Min": lambda *parts: functools.reduce(smaller, parts),
    "Identity": lambda part: part,
}
