"""Sizes that stay open until a program runs: the range each may have, and a representative value that prices are taken at.

`dmlc.sizes` on a module declares them: `{batch = {least = 1, most = 64, like = 8}}` (`most` is left out where there is none). While they are in
force, comparisons of Dims are answered by the ranges. Where these do not say, an import takes the comparison to come out as at the
representative sizes and narrows the range so that it does for every size allowed (the ranges are checked when the program runs); a pass gets an
`UnknownSize`. Inside `pricing` nothing is assumed: there a Dim is its representative value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from dmlc.ir.attributes import AttrDict, DenseResource, Sharding
from dmlc.ir.dims import Dim, Quotient, Size, bounds, make, substitute, symbol, symbols_of, terms_of
from dmlc.ir.location import DmlcError, Remark

ATTRIBUTE = "dmlc.sizes"
UNTOLD = 10**8  # a bound from which on nobody needs to be told of it: exporters' ends of slices
LARGEST = (1 << 31) - 1  # no dim is larger, so that ONNX's and PyTorch's "to the end" is the end


class UnknownSize(DmlcError):
    """Something needs the number that a symbolic size stands for. `symbols` are those to fix."""

    symbols: tuple[str, ...] = ()

    @classmethod
    def of(cls, size: Size, why: str) -> UnknownSize:
        made = cls(why)
        made.symbols = symbols_of(size)
        return made


class SizesDiffer(UnknownSize):
    """Two sizes must be equal that are not the same expression."""

    sides: tuple[Size, Size]

    @classmethod
    def between(cls, a: Size, b: Size, why: str) -> SizesDiffer:
        made = cls(why)
        made.sides, made.symbols = (a, b), tuple(dict.fromkeys((*symbols_of(a), *symbols_of(b))))
        return made


@dataclass(frozen=True)
class OpenSize:
    """From `least` to `most` (None: any), priced as `like`."""

    least: int = 1
    most: int | None = None
    like: int = 2

    def allows(self, n: int) -> bool:
        return self.least <= n <= (LARGEST if self.most is None else self.most)


@dataclass
class OpenSizes:
    """The open sizes of a program by name. `assumed` collects what comparisons took for granted, in words, in order."""

    sizes: dict[str, OpenSize] = field(default_factory=dict)
    assumed: dict[str, None] = field(default_factory=dict)
    may_narrow: bool = False  # during import
    bytes: dict[Any, int] = field(default_factory=dict)  # of a type, at the representative sizes

    @classmethod
    def of(cls, module: Any) -> OpenSizes:
        """What a module declares."""
        declared = module.attrs.get(ATTRIBUTE) or {}
        return cls({name: OpenSize(**dict(facts)) for name, facts in declared.items()})

    def declare(self, module: Any) -> None:
        """Write them into the module's text."""
        module.attrs.pop(ATTRIBUTE, None)
        if self.sizes:
            module.attrs[ATTRIBUTE] = AttrDict({name: AttrDict(_facts(s)) for name, s in self.sizes.items()})

    def like(self, size: Size) -> int:
        """The value of a size at the representative ones; a symbol that is not declared counts as 1."""
        if isinstance(size, int):
            return size
        value = substitute(size, {s: self.sizes[s].like if s in self.sizes else 1 for s in symbols_of(size)})
        assert isinstance(value, int)
        return value

    def divide(self, name: str, factor: int) -> str:
        """Put a symbol for its `factor`-th part in a symbol's place; its name."""
        old, part = self.sizes.pop(name), f"{name}_by_{factor}"
        self.sizes[part] = OpenSize(-(-old.least // factor), None if old.most is None else old.most // factor, old.like // factor)
        return part

    def ranges(self) -> Mapping[str, tuple[int, int | None]]:
        return {name: (s.least, LARGEST if s.most is None else s.most) for name, s in self.sizes.items()}

    def decide(self, difference: Size, margin: int, said: str) -> bool:
        """Whether difference >= margin for all sizes; assumed as it is at the representative ones where the ranges leave it open."""
        low, high = bounds(difference, self.ranges())
        if low is not None and low >= margin:
            return True
        if high is not None and high < margin:
            return False
        if not self.may_narrow:
            raise _undecided(difference, said)
        answer = self.like(difference) >= margin
        self._narrow(difference if answer else -difference, margin if answer else 1 - margin, said)
        return answer

    def _narrow(self, size: Size, least: int, said: str) -> None:
        """Narrow a range so that size >= least from now on."""
        terms = dict(terms_of(size))
        constant = terms.pop((), 0)
        names = symbols_of(size)
        if len(terms) != 1 or len(names) != 1 or next(iter(terms)) != (names[0],) or names[0] not in self.sizes:
            raise _undecided(size, said)
        name, factor = names[0], next(iter(terms.values()))
        old = self.sizes[name]
        if factor > 0:
            bound = -((constant - least) // factor)
            self.sizes[name] = replace(old, least=max(old.least, bound))
            self.assumed[f"{name} >= {bound}"] = None
        else:
            bound = (constant - least) // -factor
            self.sizes[name] = replace(old, most=bound if old.most is None else min(old.most, bound))
            if bound < UNTOLD:
                self.assumed[f"{name} <= {bound}"] = None


def smaller(a: Size, b: Size) -> Size:
    """The lesser of two sizes; narrows a range only where the ranges leave open which it is."""
    return a if _surely(b - a) else b if _surely(a - b) else min(a, b)


def larger(a: Size, b: Size) -> Size:
    return a if _surely(a - b) else b if _surely(b - a) else max(a, b)


def _surely(difference: Size) -> bool:
    """Whether it is at least 0 for all sizes."""
    low, _ = bounds(difference, _NOW[-1].ranges() if _NOW else None)
    return low is not None and low >= 0


def _undecided(size: Size, said: str) -> UnknownSize:
    return UnknownSize.of(size, f"'{said}' is not decided for all sizes; give values for {', '.join(symbols_of(size))}")


def _facts(size: OpenSize) -> dict[str, int]:
    return {"least": size.least, **({"most": size.most} if size.most is not None else {}), "like": size.like}


def fix(sizes: OpenSizes, error: UnknownSize) -> list[Remark]:
    """Fix the open sizes that an op has to know at their representative values; what was done, in words. Raises the error where there are none."""
    names = [name for name in error.symbols if name in sizes.sizes]
    if not names:
        raise error
    said = [Remark("import", f"{name} is fixed at {sizes.sizes[name].like}: {error.message}", loc=error.loc) for name in names]
    for name in names:
        del sizes.sizes[name]
    return said


def resolve(sizes: OpenSizes, error: UnknownSize) -> tuple[list[Remark], dict[str, Size]]:
    """What an import does about an error: sizes that have to be equal become one, or multiples; others are fixed. Remarks, and what stands for
    symbols from now on."""
    if isinstance(error, SizesDiffer):
        if (found := _solved(sizes, *error.sides)) is not None:
            name, size = found
            del sizes.sizes[name]
            return [Remark("import", f"{name} is {size}: {error.message}", loc=error.loc)], {name: size}
        if (multiple := _multiple(sizes, *error.sides)) is not None:
            name, factor = multiple
            part = sizes.divide(name, factor)
            return [Remark("import", f"{name} has to be a multiple of {factor}: {error.message}", loc=error.loc)], {name: factor * symbol(part)}
    usual = {name: s.like for name, s in sizes.sizes.items()}
    said = fix(sizes, error)
    return said, {name: n for name, n in usual.items() if name not in sizes.sizes}


def _multiple(sizes: OpenSizes, a: Size, b: Size) -> tuple[str, int] | None:
    """(symbol, factor): the sides are equal when the symbol is a multiple of the factor, as its representative value is."""
    difference = a - b
    divisors = [d for d in _divisors(difference) if d > 1]
    for name in symbols_of(difference):
        for factor in sorted({math.lcm(*divisors), *divisors} if divisors else ()):
            if name in sizes.sizes and sizes.sizes[name].like % factor == 0 and substitute(difference, {name: factor * symbol(name)}) == 0:
                return name, factor
    return None


def _divisors(size: Size) -> list[int]:
    """The numbers that parts of a size are divided by."""
    found: list[int] = []
    for monomial in terms_of(size):
        for atom in monomial:
            if isinstance(atom, Quotient):
                found += [*([atom.divisor] if isinstance(atom.divisor, int) else []), *_divisors(atom.numerator)]
    return found


def _solved(sizes: OpenSizes, a: Size, b: Size) -> tuple[str, Size] | None:
    """(symbol, size) that makes the two sides equal: of a symbol that stands on one side, as a term of its own, and not on the other."""
    for name in reversed(list(sizes.sizes)):
        terms = terms_of(a - b)
        factor = terms.pop((name,), 0)
        rest = make(terms)
        if not factor or name in symbols_of(rest):
            continue
        size = make({m: -c // factor for m, c in terms.items()})
        if factor * size + rest == 0 and sizes.sizes[name].allows(sizes.like(size)):
            return name, size
    return None


# ---------------------------------------------------------------- in force

_NOW: list[OpenSizes] = []
_PRICING: list[bool] = []


@contextmanager
def in_force(sizes: OpenSizes) -> Iterator[OpenSizes]:
    """Comparisons of Dims are answered by these sizes."""
    _NOW.append(sizes)
    _PRICING.append(False)
    try:
        yield sizes
    finally:
        _NOW.pop()
        _PRICING.pop()


@contextmanager
def pricing(module: Any = None) -> Iterator[None]:
    """A Dim is its representative value: for what only decides what is good, not what is right. `module`: whose sizes they are, else those in force."""
    if module is not None:
        with in_force(OpenSizes.of(module)), pricing():
            yield
        return
    _PRICING.append(True)
    try:
        yield
    finally:
        _PRICING.pop()


@contextmanager
def exactly() -> Iterator[None]:
    """Inside `pricing`, for what has to be right for every size: there a Dim has no value."""
    _PRICING.append(False)
    try:
        yield
    finally:
        _PRICING.pop()


def current() -> OpenSizes | None:
    return _NOW[-1] if _NOW else None


def is_pricing() -> bool:
    return bool(_PRICING) and _PRICING[-1]


def representative(size: Size) -> int:
    """The value of a size at the representative sizes in force; an undeclared symbol counts as 1."""
    return size if isinstance(size, int) else (_NOW[-1] if _NOW else _NONE).like(size)


_NONE = OpenSizes()


def representative_bytes(type_: Any, item: int) -> int:
    """Bytes of a tensor type with symbolic sizes, at the representative ones."""
    now = _NOW[-1] if _NOW else _NONE
    found = now.bytes.get(type_)
    if found is None:
        found = item
        for n in type_.shape:
            found *= now.like(n)
        now.bytes[type_] = found
    return found


# ---------------------------------------------------------------- binding


def bound_size(value: Any, numbers: Mapping[str, Size]) -> Any:
    """An attribute value, a type or a size with symbols replaced."""
    from dmlc.ir.types import FutureType, TensorType

    if isinstance(value, Dim):
        return substitute(value, numbers)
    if isinstance(value, TensorType):
        return value if value.is_static else value.with_shape(bound_size(n, numbers) for n in value.shape)
    if isinstance(value, FutureType):
        return FutureType(tuple(bound_size(t, numbers) for t in value.types))
    if isinstance(value, Sharding):
        return value if not value.grains else Sharding(value.mesh, value.dims, value.unreduced, tuple(bound_size(g, numbers) for g in value.grains))
    if isinstance(value, DenseResource):
        return value
    if isinstance(value, tuple):
        return tuple(bound_size(v, numbers) for v in value)
    if isinstance(value, AttrDict):
        return AttrDict({k: bound_size(v, numbers) for k, v in value.items()})
    return value
