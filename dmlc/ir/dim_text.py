"""Text of symbolic sizes: sums of products; `floordiv`, `ceildiv`, `mod` bind like `*`, from the left, as in MLIR's affine expressions."""

from __future__ import annotations

import re
from functools import lru_cache

from dmlc.ir.dims import Dim, Quotient, Size, Terms, ceildiv, floordiv, make, mod, symbol, terms_of, wrap
from dmlc.ir.location import DmlcError

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|([-+*()]))", re.ASCII)


def format_dim(dim: Dim) -> str:
    """Text of a Dim; remainders and ceiling divisions are recognised in the normal form. A positive part leads where there is one."""
    rest, parts = _remainders(dict(dim.terms))
    parts += [(tuple(a if isinstance(a, str) else _quotient_text(a) for a in m), c) for m, c in terms_of(make(rest)).items()]
    lead = next((i for i, (_, c) in enumerate(parts) if c > 0), 0)
    parts.insert(0, parts.pop(lead))
    if len(parts) == 1 and parts[0][1] == 1 and len(parts[0][0]) == 1:
        return parts[0][0][0]
    signs = ["-" if parts[0][1] < 0 else "", *(" - " if c < 0 else " + " for _, c in parts[1:])]
    return "".join(sign + _product_text(factors, abs(c)) for sign, (factors, c) in zip(signs, parts))


Part = tuple[tuple[str, ...], int]  # texts of factors, coefficient


def _remainders(terms: Terms) -> tuple[Terms, list[Part]]:
    """Take k (u mod d) = k u - k d floor(u / d) out of the terms wherever all of it is there."""
    parts: list[Part] = []
    for monomial in list(terms):
        atom = monomial[0] if len(monomial) == 1 else None
        if not isinstance(atom, Quotient) or not isinstance(atom.divisor, int) or terms[monomial] % atom.divisor:
            continue
        k = -terms[monomial] // atom.divisor
        whole = {m: k * c for m, c in terms_of(atom.numerator).items()}
        if all(c * terms.get(m, 0) > 0 and abs(terms[m]) >= abs(c) for m, c in whole.items()):
            del terms[monomial]
            for m, c in whole.items():
                terms[m] -= c
            parts.append(((f"{wrap(atom.numerator)} mod {atom.divisor}",), k))
    return terms, parts


def _product_text(factors: tuple[str, ...], c: int) -> str:
    texts = [f if f.isidentifier() else f"({f})" for f in factors]
    return " * ".join(texts if c == 1 and texts else [str(c), *texts])


def _quotient_text(atom: Quotient) -> str:
    """`u ceildiv d` for floor((u + d - 1) / d)."""
    d = atom.divisor
    if isinstance(d, int) and terms_of(atom.numerator).get((), 0) == d - 1:
        return f"{wrap(atom.numerator - (d - 1))} ceildiv {d}"
    return atom.text


class _Parser:
    def __init__(self, text: str):
        self.text, self.at = text, 0
        self.token = ""
        self.advance()

    def advance(self) -> str:
        """Step to the next token; returns the one left behind."""
        old = self.token
        match = _TOKEN.match(self.text, self.at)
        if match is None and self.text[self.at :].strip():
            raise self.error(f"unexpected '{self.text[self.at :].strip()[0]}'")
        self.token = "" if match is None else match[0].strip()
        self.at = len(self.text) if match is None else match.end()
        return old

    def error(self, what: str) -> DmlcError:
        return DmlcError(f"{what} in the dim '{self.text}'")

    def sum(self) -> Size:
        sign = -1 if self.token == "-" else 1
        if self.token == "-":
            self.advance()
        total: Size = sign * self.product()
        while self.token in ("+", "-"):
            minus = self.advance() == "-"
            part = self.product()
            total = total - part if minus else total + part
        return total

    def product(self) -> Size:
        value = self.factor()
        while self.token in ("*", "floordiv", "ceildiv", "mod"):
            operator = self.advance()
            right = self.factor()
            value = value * right if operator == "*" else {"floordiv": floordiv, "ceildiv": ceildiv, "mod": mod}[operator](value, right)
        return value

    def factor(self) -> Size:
        token = self.advance()
        if token.isdigit():
            return int(token)
        if token == "(":
            value = self.sum()
            if self.advance() != ")":
                raise self.error("missing ')'")
            return value
        if not token or token in "+-*)":
            raise self.error("a name or a number is missing")
        return symbol(token)


@lru_cache(maxsize=16384)
def parse(text: str) -> Size:
    """See `dmlc.ir.dims.parse_dim`."""
    try:
        parser = _Parser(text)
        value = parser.sum()
    except RecursionError:
        raise DmlcError("a dim is nested too deeply") from None
    if parser.token:
        raise parser.error(f"unexpected '{parser.token}'")
    return value
