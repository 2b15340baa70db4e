"""Factor rules: which dims of operands and results go together.

A rule gives every dim a list of factors, major first: `"... i k, ... k j -> ... i j"`. Notation:

    ...     right-aligned remaining dims (factors e0, e1, … counted from the right)
    (h d)   a compound dim; one unknown size is solved from the dim's size
    f!      whole: never split by a plain factor assignment (a strategy may)
    1       a dim without factor
    ()      a tensor of rank 0

A factor on the left only is reduced (by the op's combiner); on the right only, new. A size-1 dim whose factor is larger
elsewhere (broadcast) carries no factor. The notation follows einops and Shardy's sharding rules
(https://github.com/openxla/shardy/blob/main/docs/sdy_op_sharding_rule.md in idea).
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dmlc.ir.types import Size

Dims = tuple[tuple[str, ...], ...]  # per dim, its factors, major first


class RuleError(ValueError):
    """Shapes do not fit a rule."""


@dataclass(frozen=True)
class Rule:
    """Factors of each dim of each operand and result, their sizes, which are whole, and how reduced ones combine.

    Sizes are those of the global tensors. `combiners` maps a reduced factor to `sum max min and or prod`; what it leaves out is `sum`.
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sizes: Mapping[str, Size]
    whole: frozenset[str] = frozenset()
    combiners: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """All factors in order of appearance."""
        sides = itertools.chain(self.operands, self.results)
        return tuple(dict.fromkeys(f for dims in sides for dim in dims for f in dim))

    @cached_property
    def operand_factors(self) -> frozenset[str]:
        return frozenset(f for dims in self.operands for dim in dims for f in dim)

    @cached_property
    def result_factors(self) -> frozenset[str]:
        return frozenset(f for dims in self.results for dim in dims for f in dim)

    @cached_property
    def reduced(self) -> frozenset[str]:
        return self.operand_factors - self.result_factors - self.whole

    @cached_property
    def new(self) -> frozenset[str]:
        return self.result_factors - self.operand_factors - self.whole

    @cached_property
    def compounds(self) -> tuple[tuple[str, ...], ...]:
        """Every distinct dim made of two or more factors."""
        sides = itertools.chain(self.operands, self.results)
        return tuple(dict.fromkeys(dim for dims in sides for dim in dims if len(dim) > 1))

    def combiner(self, factor: str) -> str:
        return self.combiners.get(factor, "sum")

    @property
    def is_opaque(self) -> bool:
        return all(f in self.whole for f in self.factors)

    def work(self) -> int:
        """Product of all factor sizes: the multiply-adds of a contraction."""
        return math.prod(self.sizes[f] for f in self.factors)  # type: ignore[misc]

    def dims_of(self, factor: str) -> list[tuple[str, int, int]]:
        """Where a factor stands: ("operand" | "result", index, dim)."""
        found = [("operand", i, d) for i, dims in enumerate(self.operands) for d, fs in enumerate(dims) if factor in fs]
        return found + [("result", i, d) for i, dims in enumerate(self.results) for d, fs in enumerate(dims) if factor in fs]

    def __str__(self) -> str:
        def dim(fs: tuple[str, ...]) -> str:
            names = [f + "!" * (f in self.whole) for f in fs]
            return "1" if not names else names[0] if len(names) == 1 else "(" + " ".join(names) + ")"

        def side(tensors: Iterable[Dims]) -> str:
            return ", ".join(" ".join(map(dim, dims)) if dims else "()" for dims in tensors)

        return f"{side(self.operands)} -> {side(self.results)}"


def _tokens(text: str) -> list[str]:
    return re.findall(r"\([^)]*\)|\.\.\.|[^\s()]+", text)


def _split(side: str) -> list[str]:
    return [t.strip() for t in side.split(",")] if side.strip() else []


def _expand(text: str, rank: int) -> list[tuple[str, ...]]:
    """One tensor's dims as factor tuples, `...` filled from the right."""
    tokens = [t for t in _tokens(text) if t != "()"]
    extra = rank - sum(1 for t in tokens if t != "...")
    if extra < 0 or (extra > 0 and "..." not in tokens):
        raise RuleError(f"a tensor of rank {rank} does not fit '{text}'")
    dims: list[tuple[str, ...]] = []
    for t in tokens:
        if t == "...":
            dims += [(f"e{extra - 1 - i}",) for i in range(extra)]
        else:
            dims.append(() if t == "1" else tuple(t.strip("()").split()))
    return dims


def _ellipsis_rank(text: str, rank: int) -> int:
    return rank - sum(1 for t in _tokens(text) if t not in ("...", "()")) if "..." in text else 0


def parse_rule(
    text: str,
    operand_shapes: Sequence[Sequence[Size]],
    result_shapes: Sequence[Sequence[Size]] | None = None,
    sizes: Mapping[str, Size] | None = None,
    combiner: str = "sum",
) -> Rule:
    """Bind a rule's text to shapes.

    With `result_shapes` None they follow from the operands (`result_shapes_of` gives them); new factors then need `sizes`.
    Raises `RuleError` when ranks or sizes do not fit.
    """
    left, right = text.split("->")
    known: dict[str, Size] = dict(sizes or {})
    whole: set[str] = set()
    lhs = _split(left)
    if len(lhs) != len(operand_shapes):
        raise RuleError(f"{len(operand_shapes)} operands for '{text}'")
    ins = [_expand(t, len(s)) for t, s in zip(lhs, operand_shapes)]
    spread = max([_ellipsis_rank(t, len(s)) for t, s in zip(lhs, operand_shapes)], default=0)
    rhs = _split(right)
    if result_shapes is None:
        ranks = [sum(1 for t in _tokens(r) if t not in ("...", "()")) + (spread if "..." in r else 0) for r in rhs]
    else:
        ranks = [len(s) for s in result_shapes]
    if len(rhs) != len(ranks):
        raise RuleError(f"{len(ranks)} results for '{text}'")
    outs = [_expand(t, n) for t, n in zip(rhs, ranks)]

    def strip(dims: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
        whole.update(f[:-1] for d in dims for f in d if f.endswith("!"))
        return [tuple(f.rstrip("!") for f in d) for d in dims]

    ins, outs = [strip(d) for d in ins], [strip(d) for d in outs]
    shaped = [(d, s) for d, s in zip(ins, operand_shapes)] + ([(d, s) for d, s in zip(outs, result_shapes)] if result_shapes is not None else [])
    _solve(known, shaped, text)

    def broadcast(dims: list[tuple[str, ...]], shape: Sequence[Size]) -> Dims:
        return tuple(() if n == 1 and any(known[f] != 1 for f in d) else d for d, n in zip(dims, shape))

    operands = tuple(broadcast(d, s) for d, s in zip(ins, operand_shapes))
    final_shapes = result_shapes if result_shapes is not None else [tuple(product(known[f] for f in d) for d in dims) for dims in outs]
    results = tuple(broadcast(d, s) for d, s in zip(outs, final_shapes))
    used = {f for dims in (*operands, *results) for d in dims for f in d}
    rule = Rule(operands, results, {f: n for f, n in known.items() if f in used}, frozenset(whole & used))
    return Rule(rule.operands, rule.results, rule.sizes, rule.whole, {} if combiner == "sum" else dict.fromkeys(rule.reduced, combiner))


def product(sizes: Iterable[Size]) -> Size:
    total: Size = 1
    for n in sizes:
        total = total * n  # type: ignore[operator]
    return total


def _solve(known: dict[str, Size], shaped: Sequence[tuple[list[tuple[str, ...]], Sequence[Size]]], text: str) -> None:
    """Fill in factor sizes from the shapes and check that all dims agree."""
    given = set(known)
    for dims, shape in shaped:
        for d, n in zip(dims, shape):
            if len(d) == 1 and d[0] not in given and known.get(d[0], 1) == 1:
                known[d[0]] = n
    for dims, shape in shaped:
        for d, n in zip(dims, shape):
            unknown = [f for f in d if f not in known]
            if len(unknown) > 1:
                raise RuleError(f"sizes of {unknown} in '{text}' are not known")
            if unknown:
                rest = product(known[f] for f in d if f in known)
                if isinstance(n, int) and isinstance(rest, int) and (rest == 0 or n % rest):
                    raise RuleError(f"a dim of {n} does not split by {rest} in '{text}'")
                known[unknown[0]] = n // rest  # type: ignore[operator]
    for dims, shape in shaped:
        for d, n in zip(dims, shape):
            if d and n != 1 and product(known[f] for f in d) != n:
                raise _disagreement(n, product(known[f] for f in d), f"sizes do not agree: a dim of {n} for {' '.join(d)} = {product(known[f] for f in d)} in '{text}'")


def _disagreement(a: Size, b: Size, why: str) -> Exception:
    """The error for two sizes that are not the same; open ones may still have to be."""
    if isinstance(a, int) and isinstance(b, int):
        return RuleError(why)
    from dmlc.ir.open_sizes import SizesDiffer

    return SizesDiffer.between(a, b, why)


def result_shapes_of(rule: Rule) -> list[tuple[Size, ...]]:
    """Global result shapes a rule implies."""
    return [tuple(product(rule.sizes[f] for f in d) for d in dims) for dims in rule.results]


def opaque_rule(operand_shapes: Sequence[Sequence[Size]], result_shapes: Sequence[Sequence[Size]]) -> Rule:
    """Every dim of every tensor is a whole factor of its own: all operands replicated."""
    sizes: dict[str, Size] = {}

    def side(prefix: str, shapes: Sequence[Sequence[Size]]) -> tuple[Dims, ...]:
        out = []
        for i, shape in enumerate(shapes):
            names = [f"{prefix}{i}_{d}" for d in range(len(shape))]
            sizes.update(zip(names, shape))
            out.append(tuple((n,) for n in names))
        return tuple(out)

    operands, results = side("x", operand_shapes), side("y", result_shapes)
    return Rule(operands, results, sizes, frozenset(sizes))


def open_view_rule(source: Sequence[Size], target: Sequence[Size]) -> Rule:
    """`view_rule` of shapes with open sizes: both sides are cut where their prefix products are the same expression; between two such places the
    steps are those where every product divides the next one for all sizes, else all dims there are whole."""
    sides = [list(source), list(target)]
    prefixes = [[1, *itertools.accumulate(side, operator.mul)] for side in sides]
    sizes: dict[str, Size] = {}
    whole: set[str] = set()
    dims: list[list[tuple[str, ...]]] = [[()] * len(source), [()] * len(target)]
    common = [p for p in dict.fromkeys(prefixes[0]) if p in prefixes[1]]
    for low, high in zip(common, common[1:]):
        inside = [range(prefix.index(low), prefix.index(high)) for prefix in prefixes]  # dims of each side between the two products
        steps = _chain([low, *(prefixes[k][i + 1] for k in (0, 1) for i in inside[k])])
        names: list[tuple[int, str]] = []
        for n, (a, b) in enumerate(zip(steps, steps[1:])):
            names.append((n, f"f{len(sizes)}"))
            sizes[names[-1][1]] = b // a
        for k in (0, 1):
            for i in inside[k]:
                if sides[k][i] == 1:
                    continue
                if steps:
                    dims[k][i] = tuple(name for n, name in names if steps.index(prefixes[k][i]) <= n < steps.index(prefixes[k][i + 1]))
                else:
                    name = f"w{len(sizes)}"
                    sizes[name] = sides[k][i]
                    whole.add(name)
                    dims[k][i] = (name,)
    return Rule((tuple(dims[0]),), (tuple(dims[1]),), sizes, frozenset(whole))


def _chain(products: Sequence[Size]) -> list[Size]:
    """Products in an order in which each divides the next for all sizes; none where there is no such order."""
    left = list(dict.fromkeys(products))
    ordered: list[Size] = []
    while left:
        least = next((p for p in left if all(q % p == 0 for q in left)), None)
        if least is None:
            return []
        ordered.append(least)
        left.remove(least)
    return ordered


def view_rule(source: Sequence[int], target: Sequence[int]) -> Rule:
    """Rule of a row-major reshape: factors are the steps between merged prefix products of both shapes.

    Stretches whose prefix products do not divide one another become whole factors, a pair each side. Size-1 dims carry none.
    A tensor with a zero size has one whole factor a dim.
    """
    if 0 in source or 0 in target:
        return opaque_rule([source], [target])
    a, b = list(itertools.accumulate(source, int.__mul__)), list(itertools.accumulate(target, int.__mul__))
    common = sorted((set(a) & set(b)) | {1})
    sizes: dict[str, Size] = {}
    whole: set[str] = set()
    dims_a: list[tuple[str, ...]] = [()] * len(source)
    dims_b: list[tuple[str, ...]] = [()] * len(target)
    for low, high in zip(common, common[1:]):
        bounds = sorted({p for p in a + b if low <= p <= high} | {low})
        nested = all(y % x == 0 for x, y in zip(bounds, bounds[1:]))
        steps = []
        for x, y in zip(bounds, bounds[1:]) if nested else ():
            name = f"f{len(sizes)}"
            sizes[name] = y // x
            steps.append((x, y, name))
        for dims, prefix, shape in ((dims_a, a, source), (dims_b, b, target)):
            previous = 1
            for i, p in enumerate(prefix):
                if previous >= low and previous < p <= high:
                    if nested:
                        dims[i] = tuple(name for x, y, name in steps if x >= previous and y <= p)
                    else:
                        name = f"w{len(sizes)}"
                        sizes[name] = shape[i]
                        whole.add(name)
                        dims[i] = (name,)
                previous = p
    return Rule((tuple(dims_a),), (tuple(dims_b),), sizes, frozenset(whole))
