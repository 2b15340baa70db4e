"""Reading types: tensors with symbolic sizes, futures, functions."""

from __future__ import annotations

from dmlc.ir.cursor import Cursor
from dmlc.ir.dims import Dim, parse_dim
from dmlc.ir.lexer import Source
from dmlc.ir.location import DmlcError
from dmlc.ir.suggest import did_you_mean
from dmlc.ir.types import DTYPES, FunctionType, FutureType, TensorType, Type

ALIASES = {
    "float": "f32", "float32": "f32", "fp32": "f32", "double": "f64", "float64": "f64", "half": "f16", "float16": "f16", "fp16": "f16",
    "bfloat16": "bf16", "bool": "i1", "int": "i32", "int64": "i64", "int32": "i32", "int8": "i8", "uint8": "ui8", "u8": "ui8",
}  # fmt: skip

_tensor_types: dict[str, TensorType] = {}  # by their one-token text


class TypeParser(Cursor):
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
        text = self.texts[self.at]
        if self.kinds[self.at] == "tensor":
            made = _tensor_types[text] = self._tensor_from(text)
            self.at += 1
            return made
        if text != "tensor":
            self.fail(f"expected a tensor type, found {self.shown()}")
        self.at += 1
        self.expect("<", "after 'tensor'")
        first = self.at
        while self.texts[self.at] in ("?", "*") or self.kinds[self.at] in ("number", "ident"):
            self.at += 1
        if self.at == first:
            self.fail(f"expected sizes and an element type, found {self.shown()}")
        sizes, dtype = self._shape("".join(self.texts[first : self.at]), first)
        encoding = self.encoding() if self.accept(",") else None
        self.expect(">", "at the end of a tensor type")
        return self._with_encoding(sizes, dtype, encoding, first)

    def encoding(self) -> tuple[int | Dim, ...]:
        """`#dmlc.dims<["batch", 8]>`, the only encoding of a tensor type."""
        if not self.accept("#dmlc.dims"):
            self.fail(f"the encoding of a tensor type is #dmlc.dims<[...]>, not {self.shown()}")
        self.expect("<", "after #dmlc.dims")
        return self.dims()

    def _tensor_from(self, text: str) -> TensorType:
        """A tensor type from a one-token text."""
        shape, comma, encoding = text[7:-1].partition(",")
        sizes, dtype = self._shape(shape, self.at)
        try:
            dims = TypeParser(Source(encoding)).encoding() if comma else None
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

    def _with_encoding(self, sizes: list[int | None], dtype: str, encoding: tuple[int | Dim, ...] | None, index: int) -> TensorType:
        if encoding is None:
            if None in sizes:
                self.fail("a size '?' needs #dmlc.dims<[...]> to say which", index)
            return TensorType(tuple(sizes), dtype)  # type: ignore[arg-type]
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

    def dims(self) -> tuple[int | Dim, ...]:
        """`["batch", 8]>`: the rest of #dmlc.dims."""
        self.expect("[", "after #dmlc.dims<")
        dims = tuple(self.list_of(self.dim, "]", "a list of sizes"))
        self.expect(">", "after a list of sizes")
        return dims
