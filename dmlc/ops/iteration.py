"""The iteration space of a kernel: which dims of its values run together, which of them are reduced.

Dims that share a factor of some op's rule run together (size-1 dims belong to none). A set of ops fits one kernel when some value
has all the running dims, no value has one twice, every reduction reduces the same ones and these are the last: rows times columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dmlc.ir.core import Block, Op, Value
from dmlc.ops.base import rule_of, signature
from dmlc.ops.kernel import REDUCTIONS, SOURCES, decomposed, is_free, is_primitive

UNIT = -1  # the iteration dim of a size-1 dim: none
Axes = tuple[int, ...]


@dataclass(frozen=True)
class Facts:
    """How one op (or the inside of a composite) ties dims together: every tensor's dims as classes, numbered within the op."""

    tensors: tuple[Axes, ...]  # operands, then results
    inner: tuple[Axes, ...]  # values inside a composite
    sizes: tuple[int, ...]  # of the classes
    reduced: tuple[frozenset[int], ...]  # one set a reduction; empty ones (only size-1 dims) left out
    count: int  # ops that compute something: no constants, views


@dataclass(frozen=True)
class Space:
    """Rows and columns of a kernel.

    `sizes` of the iteration dims, slowest first; the last `columns` of them are reduced (0: no reduction). `axes[v]` says for each dim of
    value v which iteration dim it runs with, `UNIT` for none.
    """

    sizes: tuple[int, ...]
    columns: int
    axes: dict[Value, Axes]

    @property
    def row_axes(self) -> Axes:
        return tuple(range(len(self.sizes) - self.columns))

    @property
    def column_axes(self) -> Axes:
        return tuple(range(len(self.sizes) - self.columns, len(self.sizes)))

    @property
    def rows(self) -> int:
        return math.prod(self.sizes[a] for a in self.row_axes)

    @property
    def width(self) -> int:
        """Elements of a row."""
        return math.prod(self.sizes[a] for a in self.column_axes)

    def varies(self, value: Value) -> frozenset[int]:
        """The iteration dims that a value depends on."""
        return frozenset(self.axes[value]) - {UNIT}

    def can_leave(self, value: Value) -> bool:
        """Whether a value may be a result: one element of it per element, or per row, of the space; others would be written many times."""
        return self.varies(value) in (frozenset(range(len(self.sizes))), frozenset(self.row_axes))


class _Classes:
    """Union-find over dim classes."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.size: list[int] = []

    def new(self, size: int) -> int:
        self.parent.append(len(self.parent))
        self.size.append(size)
        return len(self.parent) - 1

    def find(self, i: int) -> int:
        while self.parent[i] != i:
            self.parent[i] = self.parent[self.parent[i]]
            i = self.parent[i]
        return i

    def union(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[max(a, b)] = min(a, b)

    def axes(self, dims: Iterable[int]) -> Axes:
        return tuple(UNIT if d == UNIT else self.find(d) for d in dims)


def facts_of(op: Op) -> Facts | None:
    """Facts of a primitive or a composite; None when the op cannot be in a kernel because of its dims."""
    return _facts(*signature(op))


@lru_cache(maxsize=16384)
def _facts(name: str, operands: tuple, results: tuple, attrs: tuple) -> Facts | None:
    block = Block(operands)
    op = Op(name, block.args, results, dict(attrs))
    return _primitive_facts(op) if is_primitive(op) else _composite_facts(op)


def _primitive_facts(op: Op) -> Facts | None:
    tensors = [*op.operands, *op.results]
    dims = _dims(op)
    if dims is None:
        return None
    names: dict[str, int] = {}
    sizes: list[int] = []
    axes = []
    for value, factors in zip(tensors, dims, strict=True):
        for factor, size in zip(factors, value.shape, strict=True):
            if factor and factor not in names:
                names[factor] = len(sizes)
                sizes.append(size)
        axes.append(tuple(names[f] if f else UNIT for f in factors))
    reduced = frozenset(axes[0]) - frozenset(axes[-1]) - {UNIT} if op.name in REDUCTIONS else frozenset()
    return Facts(tuple(axes), (), tuple(sizes), (reduced,) if reduced else (), 0 if is_free(op) else 1)


def _dims(op: Op) -> list[list[str]] | None:
    """Per tensor and dim a name shared by dims that run together, empty for size-1 dims; None when the op mixes dims."""
    if op.name in ("dmlc.reshape", "dmlc.broadcast"):
        return _view_dims(op)
    if op.name in SOURCES:
        return [*([] for _ in op.operands), _running(op.result.shape)]
    if op.name == "dmlc.mask_pad":
        return [_running(op.result.shape), [], _running(op.result.shape)]
    return _rule_dims(op)


def _rule_dims(op: Op) -> list[list[str]] | None:
    """The factors of the op's rule; None when a dim is a compound."""
    rule = rule_of(op)
    sides = [*rule.operands, *rule.results]
    dims: list[list[str]] = []
    for factors, value in zip(sides, [*op.operands, *op.results]):
        if any(len(f) > 1 for f in factors):
            return None
        dims.append([f[0] if f and n != 1 else "" for f, n in zip(factors, value.shape, strict=True)])
    before, after = ({f for d in side for f in d if f} for side in (dims[: len(op.operands)], dims[len(op.operands) :]))
    if after - before or (before - after and op.name not in REDUCTIONS):
        return None
    bare = any(n != 1 and not f for d, v in zip(dims, [*op.operands, *op.results]) for f, n in zip(d, v.shape))
    return None if bare else dims


def _view_dims(op: Op) -> list[list[str]] | None:
    source, target = op.operands[0].shape, op.result.shape
    if op.name == "dmlc.broadcast":
        result = [f"d{i}" if n != 1 else "" for i, n in enumerate(target)]
        right = result[len(target) - len(source) :]
        return [["" if n == 1 else f for n, f in zip(source, right)], result]
    if not is_free(op):
        return None
    return [_running(source), _running(target)]


def _running(shape: Sequence[int]) -> list[str]:
    """Names for the dims that are not 1, counted among themselves."""
    count = iter(range(len(shape)))
    return [f"d{next(count)}" if n != 1 else "" for n in shape]


def _composite_facts(op: Op) -> Facts | None:
    block = decomposed(op)
    space = joined(block.ops[:-1]) if block is not None else None
    if block is None or space is None:
        return None
    classes, axes, reduced, count = space
    values = [*block.args, *block.terminator.operands]
    for value in values:  # an operand that nothing reads
        if value not in axes:
            axes[value] = tuple(classes.new(n) if n != 1 else UNIT for n in value.shape)
    outside = set(values)
    inner = [classes.axes(a) for v, a in axes.items() if v not in outside]
    return Facts(tuple(classes.axes(axes[v]) for v in values), tuple(inner), tuple(classes.size), tuple(reduced), count)


def joined(ops: Iterable[Op]) -> tuple[_Classes, dict[Value, Axes], list[frozenset[int]], int] | None:
    """The classes of several ops together, every value's dims in them, the reduced sets, the number of primitives; None when an op has no facts."""
    classes, axes, reduced, count = _Classes(), {}, [], 0
    hidden: dict[Value, Axes] = {}
    for op in ops:
        facts = facts_of(op)
        if facts is None:
            return None
        local = [classes.new(n) for n in facts.sizes]
        rename = {UNIT: UNIT} | dict(enumerate(local))
        for value, dims in zip([*op.operands, *op.results], facts.tensors):
            mine = tuple(rename[d] for d in dims)
            for a, b in zip(axes.setdefault(value, mine), mine, strict=True):
                if a != UNIT:
                    classes.union(a, b)
        for dims in facts.inner:
            hidden[Value(op.results[0].type)] = tuple(rename[d] for d in dims)
        reduced += [frozenset(rename[d] for d in r) for r in facts.reduced]
        count += facts.count
    axes |= hidden
    return classes, {v: classes.axes(a) for v, a in axes.items()}, [frozenset(classes.axes(r)) for r in reduced], count


def iteration_space(ops: Sequence[Op], leaving: Sequence[Value]) -> Space | str:
    """The space of a set of ops whose values `leaving` are results; a sentence saying why when they do not fit one kernel."""
    found = joined(ops)
    if found is None:
        return "an op mixes dims in a way that a kernel cannot follow"
    classes, axes, reduced, _ = found
    running = dict.fromkeys(a for dims in axes.values() for a in dims if a != UNIT)
    if any(len(set(d) - {UNIT}) != sum(a != UNIT for a in d) for d in axes.values()):
        return "a value would have one dim of the kernel twice"
    order = next((tuple(a for a in d if a != UNIT) for d in axes.values() if len(set(d) - {UNIT}) == len(running)), None)
    if order is None:
        return "no value has all dims of the kernel"
    if len(set(reduced)) > 1:
        return "reductions run over different dims"
    columns = len(reduced[0]) if reduced else 0
    if columns and frozenset(order[-columns:]) != reduced[0]:
        return "a reduction does not run over the last dims"
    place = {a: i for i, a in enumerate(order)} | {UNIT: UNIT}
    if any(v not in axes for v in leaving):
        return "a result is an operand"
    space = Space(tuple(classes.size[a] for a in order), columns, {v: tuple(place[a] for a in d) for v, d in axes.items()})
    if any([a for a in d if a != UNIT] != sorted(a for a in d if a != UNIT) for d in space.axes.values()):
        return "values have their dims in different orders"
    if not all(space.can_leave(v) for v in leaving):
        return "a result would have fewer elements than the kernel has rows"
    return space


_NUMBERS: dict[tuple, int] = {}
_SPACES: dict[tuple, Space | str] = {}


def signature_number(op: Op) -> int:
    """A number for what an op does: equal for ops of equal signatures."""
    return _NUMBERS.setdefault(signature(op), len(_NUMBERS))


def common_space(ops: Sequence[Op], leaving: Sequence[Value], number: Callable[[Op], int] = signature_number) -> Space | str:
    """`iteration_space` without `axes`: one for all sets of ops that do the same, as layers do. `number` may remember what `signature_number` gives."""
    numbers: dict[Value, int] = {}
    key: list[int] = []
    for op in ops:
        key.append(number(op))  # says how many operands and results follow
        for value in (*op.operands, *op.results):
            key.append(numbers.setdefault(value, len(numbers)))
    structure = (*key, UNIT, *[numbers.get(v, UNIT) for v in leaving])
    found = _SPACES.get(structure)
    if found is None:
        found = iteration_space(ops, leaving)
        found = _SPACES[structure] = found if isinstance(found, str) else Space(found.sizes, found.columns, {})
    return found


def primitives_in(op: Op) -> int:
    """How many ops that compute something an op is made of."""
    facts = facts_of(op)
    return facts.count if facts is not None else 0
