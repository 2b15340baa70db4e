"""A cursor over the tokens of a text: what every part of the parser stands on."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NoReturn, TypeVar

from dmlc.ir.lexer import Source, Tokens, unquote
from dmlc.ir.location import Loc

T = TypeVar("T")

MAX_DEPTH = 100
MAX_DIGITS = 2500


@lru_cache(maxsize=65536)
def _location(text: str) -> Loc:
    """The location that a token says: `loc("file":1:2)` or `loc("name")`, without escapes."""
    name, _, position = text[5:-1].rpartition('"')
    line, column = map(int, position[1:].split(":")) if position else (0, 0)
    return Loc(name, line, column)


class Cursor:
    """A cursor over tokens. Methods consume what they name or raise `DmlcError` at the token that does not fit."""

    def __init__(self, source: Source):
        self.source = source
        tokens = Tokens(source)
        self.tokens = tokens
        self.kinds, self.texts = tokens.kinds, tokens.texts
        self.at = 0
        self.depth = 0

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
        texts = self.texts
        if texts[self.at] == close:
            self.at += 1
            return items
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"{what} is nested more than {MAX_DEPTH} deep")
        while True:
            items.append(item())
            if texts[self.at] == ",":
                self.at += 1
                continue
            if texts[self.at] != close:
                self.fail(f"expected '{close}' or ',' in {what}, found {self.shown()}")
            self.at += 1
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

    def optional_loc(self) -> Loc | None:
        """`loc("file":1:2)`, `loc("name")` or `loc(unknown)`, if present."""
        if self.kinds[self.at] == "loc":
            self.at += 1
            return _location(self.texts[self.at - 1])
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
