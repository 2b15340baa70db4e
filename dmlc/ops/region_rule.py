"""Factor rules of loops and branches: which of their dims every op inside lets through.

A dim of an operand, the same dim of what it becomes inside, and of what follows there by the rules of the ops inside are one class. A
class is a factor that a rank may hold a part of, unless somewhere inside its dim is whole, reduced, part of a compound or read from outside
the region, or no result has it. Batches usually pass; what a loop's condition is made of never does. So ranks that hold parts run the same iterations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Op, Value
from dmlc.ops.base import rule_of
from dmlc.ops.control import arguments, bodies, parts, passed
from dmlc.ops.rule import Dims, Rule

Dim = tuple[Value, int]


@dataclass(frozen=True)
class Flow:
    """`rule` of the op, and the name of the factor that a dim of a value of its regions belongs to."""

    rule: Rule
    names: dict[Dim, str]

    def factor(self, value: Value, dim: int) -> str | None:
        return self.names.get((value, dim))


def region_rule(op: Op) -> Rule:
    return region_flow(op).rule


def region_flow(op: Op) -> Flow:
    classes = _Classes()
    inside = _inner_ops(op)
    for a, b in _ties(op):
        classes.union(a, b)
    for inner in inside:
        _through(inner, classes)
    for dim in _whole(op, inside):
        classes.whole.add(classes.find(dim))
    _refuse_repeated(op, inside, classes)
    return _named(op, classes)


class _Classes:
    """Dims that go together, and those classes that are never split."""

    def __init__(self) -> None:
        self.parent: dict[Dim, Dim] = {}
        self.whole: set[Dim] = set()

    def find(self, dim: Dim) -> Dim:
        root = dim
        while (above := self.parent.get(root, root)) != root:
            root = above
        self.parent[dim] = root
        return root

    def union(self, a: Dim, b: Dim) -> None:
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        self.parent[b] = a
        if b in self.whole:
            self.whole.add(a)


def _inner_ops(op: Op) -> list[Op]:
    """Ops of the regions themselves; what stands deeper is seen through the rule of its own region op."""
    return [o for region in op.regions for block in region.blocks for o in block if o.name not in TERMINATORS]


def _ties(op: Op) -> Iterator[tuple[Dim, Dim]]:
    """Dims of operands, arguments, yields and results that are the same dim."""
    for region in op.regions:
        args = arguments(op, region.block)
        outer = passed(op)
        rows = range(len(outer))[slice(*_row_places(op))]
        for k, (arg, value) in enumerate(zip(args, outer)):
            yield from _dims(value, arg, 1 if k in rows else 0)
    carried = len(parts(op, op.operands)[0]) if op.name != "dmlc.cond" else len(op.results)
    for block in bodies(op):
        for k, (value, result) in enumerate(zip(block.terminator.operands, op.results)):
            yield from _dims(result, value, 0 if k < carried else 1)
    if op.name != "dmlc.cond":
        for value, result in zip(op.operands[:carried], op.results):
            yield from _dims(value, result, 0)


def _row_places(op: Op) -> tuple[int, int]:
    """Where the scanned operands begin and end."""
    carried, scanned, _ = parts(op, op.operands)
    return len(carried), len(carried) + len(scanned)


def _dims(outer: Value, inner: Value, dropped: int) -> Iterator[tuple[Dim, Dim]]:
    for d in range(getattr(inner.type, "rank", 0)):
        yield (outer, d + dropped), (inner, d)


def _through(op: Op, classes: _Classes) -> None:
    """Dims that one factor of the op's rule ties together; those of compounds, whole and reduced factors stay whole."""
    rule = rule_of(op)
    first: dict[str, Dim] = {}
    for value, dims in (*zip(op.operands, rule.operands), *zip(op.results, rule.results)):
        for d, factors in enumerate(dims):
            here = (value, d)
            for f in factors:
                classes.union(first.setdefault(f, here), here)
            if len(factors) != 1 or factors[0] in rule.whole or factors[0] in rule.reduced:
                classes.whole.add(classes.find(here))


def _whole(op: Op, inside: list[Op]) -> Iterator[Dim]:
    """Dims of size 1, dims that are scanned over, and all of what is read from outside without being an operand."""
    made = {r for o in inside for r in o.results} | {a for region in op.regions for a in region.block.args}
    read = [v for o in op.walk() if o is not op for v in o.operands]
    for deeper in (o for o in op.walk() if o is not op):
        made.update(a for region in deeper.regions for a in region.block.args)
        made.update(deeper.results)
    for value in read:
        if value not in made:
            yield from ((value, d) for d in range(getattr(value.type, "rank", 0)))
    for nested in (o for o in inside if o.regions):
        yield from ((v, d) for v in _captured(nested) for d in range(getattr(v.type, "rank", 0)))
    start, stop = _row_places(op)
    yield from ((v, 0) for v in op.operands[start:stop])
    if op.name == "dmlc.scan":
        yield from ((r, 0) for r in op.results[start:])
    for value in (*op.operands, *op.results, *made):
        yield from ((value, d) for d in range(getattr(value.type, "rank", 0)) if value.tensor.shape[d] == 1)


def _captured(op: Op) -> list[Value]:
    nested = [o for o in op.walk() if o is not op]
    made = {r for o in nested for r in o.results} | {a for o in op.walk() for region in o.regions for a in region.block.args}
    return list(dict.fromkeys(v for o in nested for v in o.operands if v not in made))


def _refuse_repeated(op: Op, inside: list[Op], classes: _Classes) -> None:
    """A class that one tensor has twice, or that two factors of an op belong to, cannot be split."""
    for inner in (op, *inside):
        for value in (*inner.operands, *inner.results):
            found = [classes.find((value, d)) for d in range(getattr(value.type, "rank", 0))]
            classes.whole.update(c for c in found if found.count(c) > 1)
        if inner is op:
            continue
        rule, factor_of = rule_of(inner), {}
        for value, dims in (*zip(inner.operands, rule.operands), *zip(inner.results, rule.results)):
            for d, factors in enumerate(dims):
                for f in factors:
                    if factor_of.setdefault(classes.find((value, d)), f) != f:
                        classes.whole.add(classes.find((value, d)))


def _named(op: Op, classes: _Classes) -> Flow:
    """Factors d0, d1, … in order of appearance; a size-1 dim has none."""
    known: dict[Dim, str] = {}
    sizes: dict[str, int] = {}
    whole: set[str] = set()

    def side(values: list[Value]) -> tuple[Dims, ...]:
        found = []
        for value in values:
            dims: list[tuple[str, ...]] = []
            for d in range(value.tensor.rank):
                root = classes.find((value, d))
                if value.shape[d] == 1:
                    dims.append(())
                    continue
                name = known.setdefault(root, f"d{len(known)}")
                sizes[name] = value.shape[d]
                if root in classes.whole:
                    whole.add(name)
                dims.append((name,))
            found.append(tuple(dims))
        return tuple(found)

    rule = Rule(side(list(op.operands)), side(list(op.results)), sizes)
    rule = replace(rule, whole=frozenset(whole) | rule.operand_factors - rule.result_factors)  # what no result has would count as summed over
    return Flow(rule, {dim: known[root] for dim in list(classes.parent) if (root := classes.find(dim)) in known and known[root] not in rule.whole})
