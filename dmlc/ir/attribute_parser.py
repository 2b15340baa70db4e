"""Reading attribute values."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from dmlc.ir.attributes import AttrDict, Axes, DenseResource, Sharding, SymbolRef
from dmlc.ir.dims import Dim
from dmlc.ir.lexer import unescape_key
from dmlc.ir.suggest import did_you_mean
from dmlc.ir.type_parser import ALIASES, TypeParser
from dmlc.ir.types import DTYPES, FLOATS

FLOAT_BITS = {"f64": ("<Q", "<d", 64), "f32": ("<I", "<f", 32), "f16": ("<H", "<e", 16)}
COMBINERS = ("sum", "prod", "max", "min", "and", "or")
_INTEGER_TYPE = re.compile(r"(?:si|ui|i)[1-9][0-9]{0,3}")


class AttributeParser(TypeParser):
    def attribute(self) -> Any:
        """Any attribute value (see `dmlc.ir.attributes`)."""
        kind, text = self.kinds[self.at], self.texts[self.at]
        if kind == "string":
            return self.string("a string")
        if kind == "integer":
            self.at += 1
            return int(text[:-6])  # without " : i64"
        if kind == "integers":
            self.at += 1
            return tuple(map(int, text[11:-1].split(",")))  # without "array<i64: " and ">"
        if kind == "number":
            return self.number()
        if kind == "at":
            return SymbolRef(self.symbol_name("a symbol"))
        if kind == "hash":
            return self.dialect_attribute()
        if text == "[":
            self.at += 1
            return tuple(self.list_of(self.attribute, "]", "a list"))
        if text == "{":
            return AttrDict(self.dictionary())
        if kind == "ident" and text in KEYWORDS:
            self.at += 1
            return KEYWORDS[text](self)
        if kind in ("tensor", "bang") or text in ("tensor", "("):
            return self.type()
        hint = f'; a data type is a string, "{text}"' if text in DTYPES else did_you_mean(text, tuple(KEYWORDS)) if kind == "ident" else ""
        self.fail(f"expected an attribute value, found {self.shown()}{hint}")

    def dictionary(self) -> dict[str, Any]:
        """`{key = value, flag}`: a key alone is a unit."""
        self.expect("{", "before attributes")
        attrs: dict[str, Any] = {}
        self.list_of(partial(self._entry, attrs), "}", "attributes")
        return attrs

    def _entry(self, attrs: dict[str, Any]) -> None:
        start = self.at
        if self.kinds[start] == "ident":
            key = self.texts[start]
            self.at += 1
        else:
            key = self.word("an attribute's name")
        if key in attrs:
            self.fail(f"attribute '{key}' is given twice", start)
        if self.texts[self.at] == "=":
            self.at += 1
            attrs[key] = self.attribute()
        else:
            attrs[key] = None

    def number(self) -> int | float:
        """`3`, `3 : i32`, `0.5 : f32`, `0x7F800000 : f32` (bits)."""
        start, text = self.at, self.texts[self.at]
        self.at += 1
        if "." not in text and self.kinds[self.at] == "ident" and self.tokens.starts[self.at] == self.tokens.span(start)[1]:
            self.fail(f"'{text}{self.texts[self.at]}…' is not a number; a decimal number has a point, such as 1.0e-05", start)
        scalar = self.scalar_type() if self.accept(":") else ("f64" if "." in text else "i64")
        return self._number(text, scalar, start)

    def scalar_type(self) -> str:
        name = self.take("ident", "a number's type")
        if name not in FLOATS and not _INTEGER_TYPE.fullmatch(name) and name != "index":
            self.fail(f"'{name}' is not a type of numbers{did_you_mean(name, DTYPES, ALIASES)}", self.at - 1)
        return name

    def _number(self, text: str, scalar: str, index: int) -> int | float:
        if scalar in FLOATS:
            return self._float(text, scalar, index)
        if "." in text:
            self.fail(f"'{text}' is not an integer but its type is {scalar}", index)
        value = self._integer(text, index)
        bits = 64 if scalar == "index" else int(scalar.lstrip("uis"))
        if not -(1 << bits) // 2 <= value < 1 << bits:
            self.fail(f"{text} does not fit in {scalar}", index)
        return value

    def _float(self, text: str, scalar: str, index: int) -> float:
        if "0x" not in text:
            return float(text)
        integer, real, bits = FLOAT_BITS.get(scalar, ("", "", 0))
        value = self._integer(text, index)
        if scalar == "bf16":
            integer, real, bits, value = "<I", "<f", 32, value << 16
        if not 0 <= value < 1 << bits:
            self.fail(f"{text} does not give the bits of an {scalar}", index)
        return struct.unpack(real, struct.pack(integer, value))[0]

    def array(self) -> tuple:
        """`array<i64: 1, 2>` after its keyword."""
        self.expect("<", "after 'array'")
        scalar = self.scalar_type()
        if self.accept(">"):
            return ()
        self.expect(":", "after an array's element type")
        return tuple(self.list_of(lambda: self._element(scalar), ">", "an array"))

    def _element(self, scalar: str) -> Any:
        text = self.texts[self.at]
        if text in ("true", "false") and scalar == "i1":
            self.at += 1
            return text == "true"
        self.take("number", "a number")
        return self._number(text, scalar, self.at - 1)

    def dense_resource(self) -> DenseResource:
        """`dense_resource<key> : tensor<...>` after its keyword."""
        self.expect("<", "after 'dense_resource'")
        quoted = self.kinds[self.at] == "string"
        key = self.word("a resource's key")
        self.expect(">", "after a resource's key")
        self.expect(":", "before a resource's type")
        return DenseResource(key if quoted else unescape_key(key), self.tensor_type())

    def dialect_attribute(self) -> Any:
        name = self.texts[self.at]
        reader = DIALECT_ATTRIBUTES.get(name)
        if reader is None:
            self.fail(f"unknown attribute {name}{did_you_mean(name, tuple(DIALECT_ATTRIBUTES))}")
        self.at += 1
        self.expect("<", f"after {name}")
        return reader(self)

    def _dim(self) -> int | Dim:
        value = self.dim()
        self.expect(">", "after a size")
        return value

    def _axes(self) -> Axes:
        sequential: list[str] = []

        def axis() -> tuple[str, int]:
            name = self.string("an axis name in quotes")
            self.expect("=", "after an axis name")
            size = self.integer("an axis size")
            if self.accept(":"):
                if not self.accept("sequential"):
                    self.fail(f"expected 'sequential', found {self.shown()}")
                sequential.append(name)
            return name, size

        self.expect("[", "after #dmlc.axes<")
        sizes = tuple(self.list_of(axis, "]", "a list of axes"))
        self.expect(">", "after a list of axes")
        return Axes(sizes, tuple(sequential))

    def _sharding(self) -> Sharding:
        mesh = self.symbol_name("a mesh, such as @mesh")
        self.expect(",", "after the mesh")
        self.expect("[", "before a sharding's dims")
        dims = tuple(self.list_of(self._dim_axes, "]", "a sharding's dims"))
        unreduced: tuple[tuple[str, str], ...] = ()
        grains: tuple[int, ...] = ()
        while self.accept(","):
            start, word = self.at, self.take("ident", "'unreduced' or 'grains'")
            if word not in ("unreduced", "grains"):
                self.fail(f"expected 'unreduced' or 'grains', found '{word}'{did_you_mean(word, ('unreduced', 'grains'))}", start)
            self.expect("=", f"after '{word}'")
            self.expect("{" if word == "unreduced" else "[", f"after '{word} ='")
            if word == "unreduced":
                unreduced = tuple(self.list_of(self._unreduced, "}", "the unreduced axes"))
            else:
                grains = tuple(self.list_of(lambda: self.integer("a grain"), "]", "grains"))
        self.expect(">", "at the end of a sharding")
        return Sharding(mesh, dims, unreduced, grains)

    def _dim_axes(self) -> tuple[str, ...]:
        self.expect("{", "before a dim's axes")
        return tuple(self.list_of(lambda: self.string("an axis name in quotes"), "}", "a dim's axes"))

    def _unreduced(self) -> tuple[str, str]:
        axis = self.string("an axis name in quotes")
        self.expect(":", "after an unreduced axis")
        start, combiner = self.at, self.string("a combiner in quotes")
        if combiner not in COMBINERS:
            self.fail(f"unknown combiner '{combiner}'{did_you_mean(combiner, COMBINERS)}", start)
        return axis, combiner


KEYWORDS: dict[str, Callable[[AttributeParser], Any]] = {
    "true": lambda p: True,
    "false": lambda p: False,
    "unit": lambda p: None,
    "array": AttributeParser.array,
    "dense_resource": AttributeParser.dense_resource,
}

DIALECT_ATTRIBUTES: dict[str, Callable[[AttributeParser], Any]] = {
    "#dmlc.dims": AttributeParser.dims,
    "#dmlc.dim": AttributeParser._dim,
    "#dmlc.axes": AttributeParser._axes,
    "#dmlc.sharding": AttributeParser._sharding,
}
