"""Text of types and attribute values."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from dmlc.ir.attributes import AttrDict, Axes, DenseResource, Sharding, SymbolRef
from dmlc.ir.dims import Dim
from dmlc.ir.lexer import escape_key, quote
from dmlc.ir.types import FunctionType, FutureType, TensorType, Type

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*", re.ASCII)


@lru_cache(maxsize=65536)
def type_text(type_: Type) -> str:
    """Text of a type."""
    if isinstance(type_, TensorType):
        encoding = "" if type_.is_static else f", {_dims_text(type_.shape)}"
        return "tensor<" + "".join(f"{n}x" if isinstance(n, int) else "?x" for n in type_.shape) + f"{type_.dtype}{encoding}>"
    if isinstance(type_, FutureType):
        return f"!comm.future<{', '.join(map(type_text, type_.types))}>"
    if isinstance(type_, FunctionType):
        return signature_text(type_.inputs, type_.results)
    raise TypeError(f"no text for type {type_!r}")


def signature_text(inputs: Sequence[Type], results: Sequence[Type]) -> str:
    """`(a, b) -> c`; one result stands without parentheses unless it is a function type."""
    right = ", ".join(map(type_text, results))
    if len(results) != 1 or isinstance(results[0], FunctionType):
        right = f"({right})"
    return f"({', '.join(map(type_text, inputs))}) -> {right}"


def bare_or_quoted(key: str) -> str:
    return key if _BARE.fullmatch(key) else quote(key)


def symbol_text(name: str) -> str:
    return "@" + bare_or_quoted(name)


def dictionary_text(attrs: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{bare_or_quoted(k)} = {attribute_text(v)}" for k, v in attrs.items()) + "}"


def attribute_text(value: Any) -> str:
    """Text of an attribute value (see `dmlc.ir.attributes`)."""
    printer = _PRINTERS.get(type(value))
    if printer is not None:
        return printer(value)
    if isinstance(value, Type):
        return type_text(value)
    raise TypeError(f"{value!r} is not an attribute value")


def _integer_text(value: int) -> str:
    if -(1 << 63) <= value < 1 << 63:
        return f"{value} : i64"
    return f"{value} : i{64 * ((value.bit_length() + 1 + 63) // 64)}"


def _float_text(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X} : f64"
    text = repr(value)
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")
    return f"{text} : f64"


def _tuple_text(value: tuple) -> str:
    kinds = {type(v) for v in value}
    if kinds == {int} and all(-(1 << 63) <= v < 1 << 63 for v in value):
        return f"array<i64: {', '.join(map(str, value))}>"
    if Dim in kinds and kinds <= {int, Dim}:
        return _dims_text(value)
    return f"[{', '.join(map(attribute_text, value))}]"


def _dims_text(sizes: Sequence[int | Dim]) -> str:
    return f"#dmlc.dims<[{', '.join(map(_size_text, sizes))}]>"


def _size_text(size: int | Dim) -> str:
    return str(size) if isinstance(size, int) else f'"{size}"'


def _axes_text(axes: Axes) -> str:
    parts = [f"{quote(name)}={size}" + ":sequential" * (name in axes.sequential) for name, size in axes.sizes]
    return f"#dmlc.axes<[{', '.join(parts)}]>"


def _sharding_text(sharding: Sharding) -> str:
    dims = ", ".join("{" + ", ".join(map(quote, axes)) + "}" for axes in sharding.dims)
    text = f"{symbol_text(sharding.mesh)}, [{dims}]"
    if sharding.unreduced:
        text += ", unreduced={" + ", ".join(f"{quote(a)}: {quote(c)}" for a, c in sharding.unreduced) + "}"
    if sharding.grains:
        text += f", grains=[{', '.join(map(_size_text, sharding.grains))}]"
    return f"#dmlc.sharding<{text}>"


_PRINTERS: dict[type, Callable[[Any], str]] = {
    bool: lambda v: "true" if v else "false",
    int: _integer_text,
    float: _float_text,
    str: quote,
    type(None): lambda v: "unit",
    tuple: _tuple_text,
    AttrDict: dictionary_text,
    dict: dictionary_text,
    list: lambda v: f"[{', '.join(map(attribute_text, v))}]",
    SymbolRef: lambda v: symbol_text(v.name),
    DenseResource: lambda v: f"dense_resource<{escape_key(v.key)}> : {type_text(v.type)}",
    Dim: lambda v: f'#dmlc.dim<"{v}">',
    Axes: _axes_text,
    Sharding: _sharding_text,
}
