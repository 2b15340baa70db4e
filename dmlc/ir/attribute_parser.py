"""Reading types and attribute values: the part of the grammar below operations."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from dmlc.ir.attributes import AttrDict, Axes, DenseResource, Sharding, SymbolRef
from dmlc.ir.dims import Dim, parse_dim
from dmlc.ir.lexer import Source, Tokens, unquote
from dmlc.ir.location import DmlcError, Loc
from dmlc.ir.suggest import did_you_mean
from dmlc.ir.types import DTYPES, FunctionType, FutureType, TensorType, Type

T = TypeVar("T")

FLOAT_BITS = {"f64": ("<Q", "<d", 64), "f32": ("<I", "<f", 32), "f16": ("<H", "<e", 16)}
COMBINERS = ("sum", "max", "min", "and", "or")
MAX_DEPTH = 100
MAX_DIGITS = 2500
_INTEGER_TYPE = re.compile(r"(?:si|ui|i)[1-9][0-9]{0,3}")

_tensor_types: dict[str, TensorType] = {}


class AttributeParser:
    """A cursor over tokens. Methods consume what they name or raise `DmlcError` at the token that does not fit."""

    def __init__(self, source: Source):
        self.source = source
        tokens = Tokens(source)
        self.tokens = tokens
        self.kinds, self.texts = tokens.kinds, tokens.texts
        self.at = 0
        self.depth = 0

    # ------------------------------------------------------------ cursor

    def fail(self, message: str, index: int | None = None, notes: tuple[str, ...] = ()) -> NoReturn:
        """Raise an error at a token (the current one)."""
        index = self.at if index is None else index
        if self.kinds[index] == "bad" and index == self.at:
            message = "this string has no end on its line" if self.texts[index] == '"' else f"unexpected character '{self.texts[index]}'"
        start, end = self.tokens.span(index)
        raise self.source.error(message, start, end, notes)

    def shown(self) -> str:
        return "the end of the text" if self.kinds[self.at] == "end" else f"'{self.texts[self.at]}'"

    def accept(self, text: str) -> bool:
        """Consume a token with this text, if it is next. Strings never match: their text has quotes."""
        if self.texts[self.at] == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str, where: str) -> None:
        if self.texts[self.at] != text:
            self.fail(f"expected '{text}' {where}, found {self.shown()}")
        self.at += 1

    def take(self, kind: str, what: str) -> str:
        """Consume a token of a kind and return its text."""
        if self.kinds[self.at] != kind:
            self.fail(f"expected {what}, found {self.shown()}")
        self.at += 1
        return self.texts[self.at - 1]

    def list_of(self, item: Callable[[], T], close: str, what: str) -> list[T]:
        """Items separated by commas up to `close`, which is consumed; the opening bracket already is."""
        items: list[T] = []
        if self.accept(close):
            return items
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"{what} is nested more than {MAX_DEPTH} deep")
        while True:
            items.append(item())
            if self.accept(","):
                continue
            self.expect(close, f"or ',' in {what}")
            self.depth -= 1
            return items

    def string(self, what: str) -> str:
        literal = self.take("string", what)
        try:
            return unquote(literal)
        except ValueError as e:
            self.fail(str(e), self.at - 1)

    def word(self, what: str) -> str:
        """A bare identifier or a string."""
        if self.kinds[self.at] == "string":
            return self.string(what)
        return self.take("ident", what)

    def integer(self, what: str) -> int:
        text = self.take("number", what)
        if "." in text:
            self.fail(f"expected {what}, found '{text}'", self.at - 1)
        return self._integer(text, self.at - 1)

    def _integer(self, text: str, index: int) -> int:
        if len(text) > MAX_DIGITS:
            self.fail(f"a number of {len(text)} digits is too long", index)
        return int(text, 16 if "0x" in text else 10)

    def symbol_name(self, what: str) -> str:
        text = self.take("at", what)
        if text[1] != '"':
            return text[1:]
        try:
            return unquote(text[1:])
        except ValueError as e:
            self.fail(str(e), self.at - 1)

    # ------------------------------------------------------------ types

    def type(self) -> Type:
        """A tensor, a future or a function type."""
        text = self.texts[self.at]
        known = _tensor_types.get(text)
        if known is not None:
            self.at += 1
            return known
        kind = self.kinds[self.at]
        if kind == "tensor" or text == "tensor":
            return self.tensor_type()
        if text == "(":
            return self.function_type()
        if kind == "bang":
            return self.future_type()
        if text in DTYPES or text == "index":
            self.fail(f"'{text}' is not a type of values; a scalar is 'tensor<{text}>'")
        hint = did_you_mean(text, ("tensor", "!comm.future")) if kind == "ident" else ""
        self.fail(f"expected a type, found {self.shown()}{hint}")

    def tensor_type(self) -> TensorType:
        """`tensor<8x64xf32>`; sizes that are not numbers are `?` and stand in the encoding."""
        if self.kinds[self.at] == "tensor":
            text = self.texts[self.at]
            made = self._tensor_from(text)
            _tensor_types[text] = made
            self.at += 1
            return made
        self.at += 1
        self.expect("<", "after 'tensor'")
        first = self.at
        shape = self.texts[self.at]
        while self.texts[self.at] not in (",", ">") and self.kinds[self.at] in ("number", "ident", "punct") and len(shape) < 1000:
            self.at += 1
            shape = self.source.text[self.tokens.starts[first] : self.tokens.span(self.at - 1)[1]]
        sizes, dtype = self._shape("".join(shape.split()), first)
        encoding = self.attribute() if self.accept(",") else None
        self.expect(">", "at the end of a tensor type")
        return self._with_encoding(sizes, dtype, encoding, first)

    def _tensor_from(self, text: str) -> TensorType:
        """A tensor type from a one-token text."""
        body = text[7:-1]
        shape, comma, encoding = body.partition(",")
        sizes, dtype = self._shape(shape, self.at)
        dims = None
        if comma:
            inner = AttributeParser(Source(encoding, self.source.filename))
            try:
                dims = inner.attribute()
            except DmlcError as e:
                self.fail(e.message)
        return self._with_encoding(sizes, dtype, dims, self.at)

    def _shape(self, text: str, index: int) -> tuple[list[int | None], str]:
        """Sizes (None for `?`) and element type of `8x?xf32`."""
        *sizes, dtype = text.split("x")
        if dtype not in DTYPES:
            self.fail(f"unknown element type '{dtype}'{did_you_mean(dtype, DTYPES, ALIASES)}", index)
        for n in sizes:
            if n != "?" and not (n.isdigit() and n.isascii() and len(n) <= 18):
                hint = f"; a symbolic size is written '?' with #dmlc.dims<[\"{n}\"]> after the element type" if n.isidentifier() else ""
                self.fail(f"'{n}' is not a size{hint}", index)
        return [None if n == "?" else int(n) for n in sizes], dtype

    def _with_encoding(self, sizes: list[int | None], dtype: str, encoding: Any, index: int) -> TensorType:
        if encoding is None:
            if None in sizes:
                self.fail("a size '?' needs #dmlc.dims<[...]> to say which", index)
            return TensorType(tuple(sizes), dtype)  # type: ignore[arg-type]
        if not isinstance(encoding, tuple) or not all(isinstance(n, (int, Dim)) for n in encoding):
            self.fail("the encoding of a tensor type is #dmlc.dims<[...]>", index)
        if [n if isinstance(n, int) else None for n in encoding] != sizes:
            self.fail("#dmlc.dims does not agree with the sizes before it", index)
        return TensorType(encoding, dtype)

    def type_list(self) -> tuple[Type, ...]:
        """Types in parentheses."""
        self.expect("(", "before types")
        return tuple(self.list_of(self.type, ")", "a list of types"))

    def result_list(self) -> tuple[Type, ...]:
        """Types in parentheses or one bare type."""
        return self.type_list() if self.texts[self.at] == "(" else (self.type(),)

    def function_type(self) -> FunctionType:
        inputs = self.type_list()
        self.expect("->", "in a function type")
        return FunctionType(inputs, self.result_list())

    def future_type(self) -> FutureType:
        if self.texts[self.at] != "!comm.future":
            self.fail(f"unknown type {self.shown()}{did_you_mean(self.texts[self.at], ('!comm.future',))}")
        self.at += 1
        self.expect("<", "after '!comm.future'")
        return FutureType(tuple(self.list_of(self.type, ">", "a future's types")))

    # ------------------------------------------------------------ attributes

    def attribute(self) -> Any:
        """Any attribute value (see `dmlc.ir.attributes`)."""
        kind, text = self.kinds[self.at], self.texts[self.at]
        if kind == "string":
            return self.string("a string")
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
        self.list_of(lambda: self._entry(attrs), "}", "attributes")
        return attrs

    def _entry(self, attrs: dict[str, Any]) -> None:
        start = self.at
        key = self.word("an attribute's name")
        if key in attrs:
            self.fail(f"attribute '{key}' is given twice", start)
        attrs[key] = self.attribute() if self.accept("=") else None

    def number(self) -> int | float:
        """`3`, `3 : i32`, `0.5 : f32`, `0x7F800000 : f32` (bits)."""
        start, text = self.at, self.texts[self.at]
        self.at += 1
        scalar = self.scalar_type() if self.accept(":") else ("f64" if "." in text else "i64")
        return self._number(text, scalar, start)

    def scalar_type(self) -> str:
        name = self.take("ident", "a number's type")
        if name not in FLOAT_NAMES and not _INTEGER_TYPE.fullmatch(name) and name != "index":
            self.fail(f"'{name}' is not a type of numbers{did_you_mean(name, DTYPES, ALIASES)}", self.at - 1)
        return name

    def _number(self, text: str, scalar: str, index: int) -> int | float:
        if scalar in FLOAT_NAMES:
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
        integer, real, bits = FLOAT_BITS.get(scalar, (None, None, 0))
        value = self._integer(text, index)
        if scalar == "bf16":
            integer, real, bits, value = "<I", "<f", 32, value << 16
        if integer is None or not 0 <= value < 1 << bits:
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
        key = self.word("a resource's key")
        self.expect(">", "after a resource's key")
        self.expect(":", "before a resource's type")
        return DenseResource(key, self.tensor_type() if self.texts[self.at].startswith("tensor") else self._no_tensor())

    def _no_tensor(self) -> NoReturn:
        self.fail(f"expected a tensor type, found {self.shown()}")

    # ------------------------------------------------------------ the dialect's own attributes

    def dialect_attribute(self) -> Any:
        name = self.texts[self.at]
        reader = DIALECT_ATTRIBUTES.get(name)
        if reader is None:
            self.fail(f"unknown attribute {name}{did_you_mean(name, tuple(DIALECT_ATTRIBUTES))}")
        self.at += 1
        self.expect("<", f"after {name}")
        return reader(self)

    def dim(self) -> int | Dim:
        """A size: a number or a string with an expression."""
        if self.kinds[self.at] == "number":
            return self.integer("a size")
        start = self.at
        text = self.string("a size or an expression in quotes")
        try:
            return parse_dim(text)
        except DmlcError as e:
            self.fail(e.message, start)

    def _dims(self) -> tuple:
        self.expect("[", "after #dmlc.dims<")
        dims = tuple(self.list_of(self.dim, "]", "a list of sizes"))
        self.expect(">", "after a list of sizes")
        return dims

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

    # ------------------------------------------------------------ locations

    def optional_loc(self) -> Loc | None:
        """`loc("file":1:2)`, `loc("name")` or `loc(unknown)`, if present."""
        if not (self.texts[self.at] == "loc" and self.texts[self.at + 1] == "("):
            return None
        self.at += 2
        if self.accept("unknown"):
            loc = Loc()
        else:
            name, line, column = self.string("a file or node name in quotes, or 'unknown'"), 0, 0
            if self.accept(":"):
                line = self.integer("a line number")
                self.expect(":", "after a line number")
                column = self.integer("a column number")
            loc = Loc(name, line, column)
        self.expect(")", "after a location")
        return loc


FLOAT_NAMES = ("f64", "f32", "f16", "bf16", "f8E4M3FN", "f8E5M2")
ALIASES = {
    "float": "f32", "float32": "f32", "fp32": "f32", "double": "f64", "float64": "f64", "half": "f16", "float16": "f16", "fp16": "f16",
    "bfloat16": "bf16", "bool": "i1", "int": "i32", "int64": "i64", "int32": "i32", "int8": "i8", "uint8": "ui8", "u8": "ui8",
}  # fmt: skip

KEYWORDS: dict[str, Callable[[AttributeParser], Any]] = {
    "true": lambda p: True,
    "false": lambda p: False,
    "unit": lambda p: None,
    "array": AttributeParser.array,
    "dense_resource": AttributeParser.dense_resource,
}

DIALECT_ATTRIBUTES: dict[str, Callable[[AttributeParser], Any]] = {
    "#dmlc.dims": AttributeParser._dims,
    "#dmlc.dim": AttributeParser._dim,
    "#dmlc.axes": AttributeParser._axes,
    "#dmlc.sharding": AttributeParser._sharding,
}
