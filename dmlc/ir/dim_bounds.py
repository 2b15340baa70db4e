"""What is known of a symbolic size's value: intervals, sharpened by the linear bounds of a division."""

from __future__ import annotations

from collections.abc import Mapping

from dmlc.ir.dims import Atom, Monomial, Quotient, Size, make, terms_of

Bound = int | None
Interval = tuple[Bound, Bound]
Ranges = Mapping[str, tuple[int, Bound]]


def bounds_of(size: Size, ranges: Ranges) -> Interval:
    """The better of two ways: each atom on its own, and divisions replaced by the lines they lie between."""
    if isinstance(size, int):
        return size, size
    low, high = _interval(size, ranges)
    return _best(max, low, _relaxed(size, ranges)), _best(min, high, _negated(_relaxed(-size, ranges)))


def _best(choose, a: Bound, b: Bound) -> Bound:
    return b if a is None else a if b is None else choose(a, b)


def _negated(a: Bound) -> Bound:
    return None if a is None else -a


def _interval(size: Size, ranges: Ranges) -> Interval:
    low: Bound = 0
    high: Bound = 0
    for monomial, c in terms_of(size).items():
        a, b = _scaled(_product_interval(monomial, ranges), c)
        low = None if low is None or a is None else low + a
        high = None if high is None or b is None else high + b
    return low, high


def _scaled(interval: Interval, c: int) -> Interval:
    low, high = (None if x is None else x * c for x in interval)
    return (low, high) if c >= 0 else (high, low)


def _product_interval(monomial: Monomial, ranges: Ranges) -> Interval:
    low: Bound = 1
    high: Bound = 1
    for atom in monomial:
        low, high = _times((low, high), _atom_interval(atom, ranges))
    return low, high


def _times(a: Interval, b: Interval) -> Interval:
    """Product of two intervals; without a sign on both it is unbounded unless all ends are known."""
    if a[0] is not None and b[0] is not None and a[0] >= 0 and b[0] >= 0:
        return a[0] * b[0], None if a[1] is None or b[1] is None else a[1] * b[1]
    if None in a or None in b:
        return None, None
    ends = [x * y for x in a for y in b]  # type: ignore[operator]
    return min(ends), max(ends)


def _atom_interval(atom: Atom, ranges: Ranges) -> Interval:
    if isinstance(atom, str):
        return ranges.get(atom, (1, None))
    low, high = bounds_of(atom.numerator, ranges)
    least, most = bounds_of(atom.divisor, ranges)
    least = max(1, least or 1)
    return _quotient_end(low, least, most), _quotient_end(high, most, least)


def _quotient_end(numerator: Bound, for_negative: Bound, for_positive: Bound) -> Bound:
    """One end of a quotient: which end of the divisor counts depends on the numerator's sign; an unbounded divisor leaves 0 or -1."""
    if numerator is None:
        return None
    divisor = for_negative if numerator < 0 else for_positive
    if divisor is None:
        return -1 if numerator < 0 else 0
    return numerator // divisor


def _relaxed(size: Size, ranges: Ranges) -> Bound:
    """A lower bound with each lone quotient floor(u / d) replaced by u / d or (u - d + 1) / d, whichever is the lower side."""
    scale, terms = 1, terms_of(size)
    while True:
        lone = next((m for m in terms if len(m) == 1 and isinstance(m[0], Quotient) and isinstance(m[0].divisor, int)), None)
        if lone is None:
            break
        quotient, c = lone[0], terms.pop(lone)
        assert isinstance(quotient, Quotient) and isinstance(quotient.divisor, int)
        d = quotient.divisor
        line = quotient.numerator - (d - 1 if c > 0 else 0)
        terms = terms_of(make({m: k * d for m, k in terms.items()}) + line * c)
        scale *= d
    low, _ = _interval(make(terms), ranges)
    return None if low is None else -(-low // scale)
