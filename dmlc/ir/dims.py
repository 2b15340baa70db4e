"""Symbolic sizes: polynomials over symbols with floor division, ceiling division and remainder, in one normal form.

A `Dim` is a sum of terms, a term an integer times atoms, an atom a symbol or a floor division. Ceiling division and remainder are
written as floor divisions inside and recognised again when printed, so that `(n + 1) floordiv 2` and `n ceildiv 2` are the same Dim
with the same text. Two Dims are equal exactly when their texts are equal.

Symbols stand for sizes and are at least 1; divisors are positive. Whatever reduces to a constant is a plain `int`:
make Dims through `symbol`, `floordiv`, `ceildiv`, `mod`, `parse_dim`, `substitute` and arithmetic only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Union

from dmlc.ir.location import DmlcError

Size = Union[int, "Dim"]


class Quotient:
    """The atom `numerator floordiv divisor`, already normal."""

    __slots__ = ("divisor", "numerator", "text")

    def __init__(self, numerator: Size, divisor: Size):
        self.numerator, self.divisor = numerator, divisor
        self.text = f"{wrap(numerator)} floordiv {wrap(divisor)}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quotient) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


Atom = Union[str, Quotient]
Monomial = tuple[Atom, ...]  # sorted, powers repeated; () is the constant's
Terms = dict[Monomial, int]


def _key(atom: Atom) -> tuple[bool, str]:
    return (False, atom) if isinstance(atom, str) else (True, atom.text)


def _order(monomial: Monomial) -> tuple:
    """Longer products first, then by name, the constant last."""
    return -len(monomial), tuple(_key(a) for a in monomial)


class Dim:
    """A size that is not a constant. Immutable, hashable; `//` is floor division, `%` the remainder, `ceildiv` rounds up
    (`-(-a // b)` does too, but need not reach the same text).

    Order comparisons answer when the ranges of the symbols decide them and raise `DmlcError` otherwise.
    """

    __slots__ = ("_text", "terms")

    def __init__(self, terms: Iterable[tuple[Monomial, int]]):
        self.terms: tuple[tuple[Monomial, int], ...] = tuple(terms)
        self._text: str | None = None

    @property
    def text(self) -> str:
        if self._text is None:
            from dmlc.ir.dim_text import format_dim

            self._text = format_dim(self)
        return self._text

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of all symbols, sorted."""
        return symbols_of(self)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Dim({self.text!r})"

    def __reduce__(self):
        return parse_dim, (self.text,)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Dim) and self.terms == other.terms)

    def __hash__(self) -> int:
        return hash(self.terms)

    def __add__(self, other: Size) -> Size:
        return _sum((self, 1), (other, 1)) if isinstance(other, (int, Dim)) else NotImplemented

    __radd__ = __add__

    def __neg__(self) -> Size:
        return _sum((self, -1))

    def __sub__(self, other: Size) -> Size:
        return _sum((self, 1), (other, -1)) if isinstance(other, (int, Dim)) else NotImplemented

    def __rsub__(self, other: int) -> Size:
        return _sum((other, 1), (self, -1)) if isinstance(other, int) else NotImplemented

    def __mul__(self, other: Size) -> Size:
        if isinstance(other, float):
            return number_of(self) * other  # type: ignore[return-value]
        return _product(self, other) if isinstance(other, (int, Dim)) else NotImplemented

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        return floordiv(self, other) if isinstance(other, (int, Dim)) else NotImplemented

    def __rfloordiv__(self, other: int) -> Size:
        return floordiv(other, self) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: Size) -> Size:
        return mod(self, other) if isinstance(other, (int, Dim)) else NotImplemented

    def __rmod__(self, other: int) -> Size:
        return mod(other, self) if isinstance(other, int) else NotImplemented

    def ceildiv(self, other: Size) -> Size:
        return ceildiv(self, other)

    def __index__(self) -> int:
        return number_of(self)

    __int__ = __index__

    def __float__(self) -> float:
        return float(number_of(self))

    def __truediv__(self, other: object) -> float:
        return number_of(self) / other  # type: ignore[operator]

    def __rtruediv__(self, other: object) -> float:
        return other / number_of(self)  # type: ignore[operator]

    def __lt__(self, other: Size) -> bool:
        return decide(other, self, 1, "<", self, other)

    def __le__(self, other: Size) -> bool:
        return decide(other, self, 0, "<=", self, other)

    def __gt__(self, other: Size) -> bool:
        return decide(self, other, 1, ">", self, other)

    def __ge__(self, other: Size) -> bool:
        return decide(self, other, 0, ">=", self, other)


def wrap(size: Size) -> str:
    """Text of an operand: a name or a natural number as it is, all else in parentheses."""
    text = str(size)
    return text if text.replace("_", "a").isalnum() else f"({text})"


# ---------------------------------------------------------------- constructors


def symbol(name: str) -> Dim:
    """The size called `name`, at least 1. Names are like Python's: letters, digits and `_`."""
    if not name.isidentifier() or not name.isascii() or name in ("floordiv", "ceildiv", "mod"):
        raise DmlcError(f"'{name}' cannot name a dim: use letters, digits and '_'")
    return Dim([((name,), 1)])


def terms_of(size: Size) -> Terms:
    if isinstance(size, Dim):
        return dict(size.terms)
    return {(): size} if size else {}


def make(terms: Mapping[Monomial, int]) -> Size:
    """The size with these terms: an int when it is a constant."""
    kept = [(m, c) for m, c in terms.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and kept[0][0] == ():
        return kept[0][1]
    return Dim(sorted(kept, key=lambda term: _order(term[0])))


def _sum(*parts: tuple[Size, int]) -> Size:
    total: Terms = {}
    for size, factor in parts:
        for monomial, c in terms_of(size).items():
            total[monomial] = total.get(monomial, 0) + c * factor
    return make(total)


def _product(a: Size, b: Size) -> Size:
    total: Terms = {}
    for m, c in terms_of(a).items():
        for n, d in terms_of(b).items():
            both = tuple(sorted(m + n, key=_key))
            total[both] = total.get(both, 0) + c * d
    return make(total)


def floordiv(a: Size, b: Size) -> Size:
    """floor(a / b) for positive b."""
    if isinstance(b, int):
        if b <= 0:
            raise DmlcError(f"a dim is divided by {b}; divisors are positive")
        return a // b if isinstance(a, int) else _floordiv_int(a, b)
    whole, rest = _divide(a, b)
    if rest == 0:
        return whole
    numerator, divisor = _cancel(rest, b)
    if isinstance(divisor, int):
        return whole + floordiv(numerator, divisor)
    if isinstance(numerator, int) and 0 <= numerator < 1:
        return whole
    return whole + _quotient(numerator, divisor)


def ceildiv(a: Size, b: Size) -> Size:
    """ceil(a / b) for positive b."""
    return floordiv(a + (b - 1), b)


def mod(a: Size, b: Size) -> Size:
    """a - b * floor(a / b), at least 0 and below b."""
    return a - b * floordiv(a, b)


def _quotient(numerator: Size, divisor: Size) -> Dim:
    return Dim([((Quotient(numerator, divisor),), 1)])


def _floordiv_int(a: Dim, b: int) -> Size:
    """Whole multiples of b leave; nested divisions join; a common factor cancels; what the ranges decide is a number."""
    terms = dict(a.terms)
    whole = make({m: c // b for m, c in terms.items()})
    rest = make({m: c % b for m, c in terms.items()})
    if isinstance(rest, int):
        return whole + rest // b
    inner = next((m[0] for m, c in rest.terms if c == 1 and len(m) == 1 and isinstance(m[0], Quotient) and isinstance(m[0].divisor, int)), None)
    if inner is not None:  # floor((floor(u / d) + r) / b) = floor((u + d r) / (d b))
        others = make({m: c for m, c in rest.terms if m != (inner,)})
        return whole + floordiv(inner.numerator + others * inner.divisor, inner.divisor * b)
    common = math.gcd(b, *(c for m, c in rest.terms if m))
    if common > 1:
        return whole + floordiv(make({m: c // common for m, c in rest.terms}), b // common)
    low, high = bounds(rest)
    if low is not None and high is not None and low // b == high // b:
        return whole + low // b
    return whole + _quotient(rest, b)


def _divide(a: Size, b: Dim) -> tuple[Size, Size]:
    """Polynomial division by a Dim: (q, r) with a = q b + r, as far as leading terms divide with a whole coefficient."""
    lead, factor = b.terms[0]
    whole: Size = 0
    rest: Size = a
    kept: Size = 0  # terms that do not divide
    while rest != 0:
        monomial, c = (rest.terms[0]) if isinstance(rest, Dim) else ((), rest)
        quotient = _without(monomial, lead)
        step = make({quotient: c // factor}) if quotient is not None and c % factor == 0 else None
        if step is None:
            taken = make({monomial: c})
            kept, rest = kept + taken, rest - taken
        else:
            whole, rest = whole + step, rest - step * b
    return whole, kept


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """The monomial divided by another, or None."""
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _cancel(a: Size, b: Dim) -> tuple[Size, Size]:
    """Both without the integer and the atoms that all their terms share."""
    ta, tb = terms_of(a), terms_of(b)
    shared = math.gcd(*ta.values(), *tb.values())
    monomials = [*ta, *tb]
    atoms: Monomial = ()
    for atom in monomials[0]:
        if all(_without(m, (*atoms, atom)) is not None for m in monomials):
            atoms = (*atoms, atom)

    def divided(terms: Terms) -> Size:
        return make({_without(m, atoms) or (): c // shared for m, c in terms.items()})

    return divided(ta), divided(tb)


# ---------------------------------------------------------------- questions


def number_of(size: Dim) -> int:
    """The number a Dim stands for where prices are taken; elsewhere it has none."""
    from dmlc.ir import dim_decisions

    return dim_decisions.number_of(size)


def decide(big: Size, small: Size, margin: int, sign: str, left: Size, right: Size) -> bool:
    """Whether big - small >= margin; `left sign right` is how that was asked."""
    from dmlc.ir import dim_decisions

    return dim_decisions.decide(big, small, margin, f"{left} {sign} {right}")


def symbols_of(size: Size) -> tuple[str, ...]:
    """Names of all symbols in a size, sorted; () for an integer."""
    found: dict[str, None] = {}
    pending = [size]
    while pending:
        for monomial, _ in terms_of(pending.pop()).items():
            for atom in monomial:
                if isinstance(atom, str):
                    found[atom] = None
                else:
                    pending += [atom.numerator, atom.divisor]
    return tuple(sorted(found))


def substitute(size: Size, values: Mapping[str, Size]) -> Size:
    """The size with symbols replaced by integers or Dims; symbols left out stay."""
    if isinstance(size, int):
        return size
    total: Size = 0
    for monomial, c in size.terms:
        part: Size = c
        for atom in monomial:
            part = part * _substitute_atom(atom, values)
        total = total + part
    return total


def _substitute_atom(atom: Atom, values: Mapping[str, Size]) -> Size:
    if isinstance(atom, str):
        value = values.get(atom)
        return symbol(atom) if value is None else value
    return floordiv(substitute(atom.numerator, values), substitute(atom.divisor, values))


def bounds(size: Size, ranges: Mapping[str, tuple[int, int | None]] | None = None) -> tuple[int | None, int | None]:
    """Least and greatest value, as far as known (None = no bound). `ranges` gives symbols' own; the default is 1 and up."""
    from dmlc.ir.dim_bounds import bounds_of

    return bounds_of(size, ranges or {})


def parse_dim(text: str) -> Size:
    """A size from its text, e.g. `2 * batch + 1`, `(n + 1) floordiv 2`, `n ceildiv 4`, `n mod 8`. Raises `DmlcError`."""
    from dmlc.ir.dim_text import parse

    return parse(text)
