"""Tokens of the IR's text, and errors that show the line they stand in.

The whole text becomes tokens at once, by one regular expression: a module is small, and parsing by index needs no lookahead machinery.
What large programs are full of is a single token where its spacing is the printer's: a tensor type, so that its text can be looked up in a
table of types already seen, an array of integers, an integer with its type, a location.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property

from dmlc.ir.location import DmlcError, Loc

SPLIT_MARK = re.compile(r"^// -----.*$", re.MULTILINE)

_SUFFIX = r"(?:[0-9]+|[A-Za-z$._][A-Za-z0-9$._-]*)"

# Order matters: the first alternative that matches wins. White space and comments belong to the token behind them.
_TOKEN = re.compile(
    r"""(?:[ \t\r\n]+|//[^\n]*)*(?:
     (?P<punct>->|[{}()\[\]<>:,=?*+/])
    |(?P<percent>%SUFFIX(?:\#[0-9]+)?)
    |(?P<tensor>tensor<(?:[0-9?]+x)*[A-Za-z]\w*(?:,[ ]?\#dmlc\.dims<\[[^\]\n]*\]>)?>)
    |(?P<integers>array<i64:[ ]-?[0-9]{1,18}(?:,[ ]-?[0-9]{1,18})*>)
    |(?P<loc>loc\("[^"\\\n]*"(?::[0-9]{1,9}:[0-9]{1,9})?\))
    |(?P<ident>[A-Za-z_][A-Za-z0-9_$.]*)
    |(?P<string>"(?:[^"\\\n]|\\[^\n])*")
    |(?P<integer>-?[0-9]{1,18}[ ]:[ ]i64\b)
    |(?P<number>-?(?:0x[0-9A-Fa-f]+|[0-9]+(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?)?))
    |(?P<hash>\#[A-Za-z_][A-Za-z0-9_$.]*)
    |(?P<bang>![A-Za-z_][A-Za-z0-9_$.]*)
    |(?P<at>@(?:[A-Za-z_][A-Za-z0-9_$.]*|"(?:[^"\\\n]|\\[^\n])*"))
    |(?P<caret>\^SUFFIX)
    |(?P<end>\Z)
    |(?P<bad>.))""".replace("SUFFIX", _SUFFIX),
    re.VERBOSE | re.ASCII,
)


class Source:
    """A text with a name. `first_line` is the number of its first line, for pieces of a larger file."""

    def __init__(self, text: str, filename: str = "<text>", first_line: int = 1):
        self.text, self.filename, self.first_line = text, filename, first_line

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(m.end() for m in re.finditer("\n", self.text))]

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, counted from 1."""
        line = bisect_right(self._line_starts, offset) - 1
        return line + self.first_line, offset - self._line_starts[line] + 1

    def loc(self, offset: int) -> Loc:
        line, column = self.position(offset)
        return Loc(self.filename, line, column, text=True)

    def line(self, number: int) -> str | None:
        """The text of a line, or None when the source has no such line."""
        index = number - self.first_line
        if not 0 <= index < len(self._line_starts):
            return None
        start = self._line_starts[index]
        end = self.text.find("\n", start)
        return self.text[start : end if end >= 0 else len(self.text)].rstrip("\r")

    def error(self, message: str, start: int, end: int, notes: tuple[str, ...] = ()) -> DmlcError:
        """An error with the line of `start` and carets under `[start, end)`, cut at the line's end."""
        loc = self.loc(start)
        line = self.line(loc.line) or ""
        last = min(max(loc.column + end - start, loc.column + 1), max(len(line), loc.column) + 1)
        return DmlcError(message, loc, notes, line, (loc.column, last))


class Tokens:
    """Parallel lists of kind, text and offset; the last token is `end`. Kinds are the group names of the expression above."""

    def __init__(self, source: Source):
        self.source = source
        self.kinds: list[str] = []
        self.texts: list[str] = []
        self.starts: list[int] = []
        kinds, texts, starts = self.kinds, self.texts, self.starts
        for match in _TOKEN.finditer(source.text):
            group = match.lastindex
            kinds.append(match.lastgroup)  # type: ignore[arg-type]
            texts.append(match[group])  # type: ignore[index]
            starts.append(match.start(group))  # type: ignore[arg-type]
        del kinds[kinds.index("end") + 1 :]  # the expression may match nothing once more
        del texts[len(kinds) :], starts[len(kinds) :]
        starts[-1] = len(source.text.rstrip())

    def span(self, index: int) -> tuple[int, int]:
        start = self.starts[index]
        return start, start + len(self.texts[index])


_ESCAPE = re.compile(r"\\(?:([nt\"\\])|([0-9A-Fa-f]{2}))")
_ESCAPED = {"n": b"\n", "t": b"\t", '"': b'"', "\\": b"\\"}


def unquote(literal: str) -> str:
    """The string a literal with its quotes stands for. Raises `ValueError` on a bad escape."""
    body = literal[1:-1]
    if "\\" not in body:
        return body
    out, at = b"", 0
    while (slash := body.find("\\", at)) >= 0:
        match = _ESCAPE.match(body, slash)
        if match is None:
            raise ValueError(f"'{body[slash : slash + 2]}' is not an escape; use \\n, \\t, \\\", \\\\ or two hexadecimal digits")
        out += body[at:slash].encode() + (_ESCAPED[match[1]] if match[1] else bytes.fromhex(match[2]))
        at = match.end()
    try:
        return (out + body[at:].encode()).decode()
    except UnicodeDecodeError:
        raise ValueError("the escapes of this string are not UTF-8") from None


def quote(text: str) -> str:
    """A literal for a string: quotes, backslashes and whatever does not print are escaped."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(_quoted_char(c) for c in text) + '"'


def _quoted_char(c: str) -> str:
    if c == "\n":
        return "\\n"
    if c == "\t":
        return "\\t"
    if c in '"\\':
        return "\\" + c
    return c if c.isprintable() else "".join(f"\\{b:02X}" for b in c.encode("utf-8", "replace"))


def escape_key(key: str) -> str:
    """A bare identifier for any key: other characters become `$` and two hexadecimal digits a byte; xDSL takes no strings as resource keys."""
    text = "".join(c if c in _KEY_CHARS else "".join(f"${b:02X}" for b in c.encode("utf-8", "replace")) for c in key)
    return text if text and (text[0].isalpha() or text[0] == "_") else "_$$" + text


def unescape_key(text: str) -> str:
    """The key an identifier stands for."""
    raw = re.sub(r"\$([0-9A-F]{2})", lambda m: chr(int(m[1], 16)), text.removeprefix("_$$"), flags=re.ASCII)
    try:
        return raw.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return text


_KEY_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.")


def split_input(text: str) -> list[tuple[str, int]]:
    """The pieces of a text between `// -----` lines, each with the number of its first line."""
    pieces, start = [], 0
    for match in SPLIT_MARK.finditer(text):
        pieces.append((start, match.start()))
        start = match.end()
    pieces.append((start, len(text)))
    return [(text[a:b], 1 + text.count("\n", 0, a)) for a, b in pieces]
