"""Open sizes in emitted code: each symbol is a variable, and a size the expression in them."""

from __future__ import annotations

import builtins
import keyword
from typing import Any

from dmlc.ir.core import Op
from dmlc.ir.dims import Dim, Quotient, Size, symbols_of
from dmlc.ir.types import FutureType, TensorType

TAKEN = frozenset(
    {
        "torch",
        "math",
        "F",
        "kernels",
        "comm",
        "device",
        "inputs",
        "weights",
        "mesh",
        "sizes",
        "self",
        "row",
        "col",
        "at",
        "start",
        "mask",
        "out",
        "tl",
        "triton",
        "block",
        "BLOCK",
        "ROWS",
    }
)


def variable(symbol: str) -> str:
    """The variable that holds a symbol's number."""
    return f"{symbol}_size" if symbol in TAKEN or keyword.iskeyword(symbol) or hasattr(builtins, symbol) else symbol


def python_text(size: Size) -> str:
    """An expression for the size in Python (and in Triton, whose quotients of numbers that are not negative are the same)."""
    if isinstance(size, int):
        return str(size)
    text = ""
    for monomial, c in size.terms:
        factors = [variable(a) if isinstance(a, str) else _quotient(a) for a in monomial]
        product = " * ".join(factors if abs(c) == 1 and factors else [str(abs(c)), *factors])
        text += (" - " if c < 0 else " + ") + product if text else ("-" if c < 0 else "") + product
    return text


def _quotient(atom: Quotient) -> str:
    return f"({_operand(atom.numerator)} // {_operand(atom.divisor)})"


def _operand(size: Size) -> str:
    text = python_text(size)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def kernel_symbols(function: Op) -> list[str]:
    """The open sizes that a kernel's function needs, sorted: its arguments behind the tensors."""
    block = function.region.block
    found = {s for v in (*block.args, *(r for op in block for r in op.results)) for s in symbols_in(v.type)}
    return sorted(found | {s for op in block for key, value in op.attrs.items() if "." not in key for s in symbols_in(value)})


def symbols_in(value: Any) -> set[str]:
    """Symbols of a size, a type, or an attribute value."""
    if isinstance(value, Dim):
        return set(symbols_of(value))
    if isinstance(value, TensorType):
        return set() if value.is_static else {s for n in value.shape for s in symbols_of(n)}
    if isinstance(value, FutureType):
        return {s for t in value.types for s in symbols_in(t)}
    if isinstance(value, tuple):
        return {s for v in value for s in symbols_in(v)}
    return {s for v in value.values() for s in symbols_in(v)} if hasattr(value, "values") else set()
