"""Local rewrites run to a fixpoint: patterns, the rewriter they edit through, and the driver with its worklist.

    @pattern("dmlc.neg")
    def double_negation(op, rewriter):
        inner = op.operands[0].op
        if inner is None or inner.name != "dmlc.neg":
            return False
        rewriter.replace(op, [inner.operands[0]])
        return True

The driver visits ops in program order, tries the patterns in the order given and revisits what a rewrite touched. Both orders are
fixed, so the same input gives the same output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Function, Module, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.open_sizes import UnknownSize

REWRITES_PER_OP = 64  # more than this on average means that patterns undo one another


class Pattern:
    """A rewrite of single ops. `ops` names those it looks at (empty = all)."""

    name: str = ""
    ops: tuple[str, ...] = ()

    def rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        """Edit the IR around `op` through `rewriter` and return True, or change nothing and return False."""
        return False


class _FunctionPattern(Pattern):
    def __init__(self, ops: tuple[str, ...], function: Callable[[Op, Rewriter], bool]):
        self.ops, self.function = ops, function
        self.name = function.__name__

    def rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        return self.function(op, rewriter)


def pattern(*ops: str) -> Callable[[Callable[[Op, Rewriter], bool]], Pattern]:
    """Make a pattern of a function `(op, rewriter) -> changed` on ops of these names (none = all)."""
    return lambda function: _FunctionPattern(ops, function)


class Rewriter:
    """Edits that the driver learns of. Ops must be made, replaced and erased through it."""

    def __init__(self) -> None:
        self._queue: deque[Op] = deque()
        self._queued: set[Op] = set()  # membership only, never iterated
        self._pools: dict[Op | None, IdPool] = {}

    def builder(self, op: Op) -> Builder:
        """A builder that emits before `op`, on its behalf."""
        return _NotifyingBuilder(self, op)

    def replace(self, op: Op, values: Sequence[Value]) -> None:
        """Let all uses of the op's results take `values` and erase it. Raises `DmlcError` where a value has another type than the result."""
        for result, value in zip(op.results, values, strict=True):
            if value.type != result.type:
                raise DmlcError(f"'{op.name}' makes {result.type} and cannot be replaced by a value of type {value.type}", op.loc)
            self.replace_uses(result, value)
        self.erase(op)

    def replace_op(self, op: Op, name: str, operands: Sequence[Value] = (), attrs: dict | None = None, result_types: Sequence | None = None) -> Op:
        """Put a new op in the place of `op`; it keeps the id, the name and the other annotations that `attrs` does not give."""
        kept = {k: v for k, v in op.attrs.items() if k.startswith("dmlc.")}
        new = self.builder(op).op(name, operands, {**(attrs or {}), **kept}, result_types)
        self.replace(op, new.results)
        return new

    def replace_uses(self, old: Value, new: Value) -> None:
        for user in old.users:
            self.touch(user)
        old.replace_uses(new)

    def erase(self, op: Op) -> None:
        """Erase an op with unused results; what made its operands may be unused now and is visited again."""
        producers = [v.op for nested in op.walk() for v in nested.operands]
        op.erase()
        for producer in producers:
            if producer is not None:
                self.touch(producer)

    def set_operand(self, op: Op, index: int, value: Value) -> None:
        producer = op.operands[index].op
        op.set_operand(index, value)
        self.touch(op)
        if producer is not None:
            self.touch(producer)

    def set_attribute(self, op: Op, key: str, value) -> None:
        op.attrs[key] = value
        self.touch(op)

    def touch(self, op: Op) -> None:
        """Have the op visited (again)."""
        if op not in self._queued:
            self._queued.add(op)
            self._queue.append(op)

    def _pool(self, op: Op) -> IdPool | None:
        function = op.function
        if function is None:
            return None
        if function not in self._pools:
            self._pools[function] = IdPool(function)
        return self._pools[function]

    def _next(self) -> Op | None:
        """The next queued op that still stands in the IR."""
        while self._queue:
            op = self._queue.popleft()
            self._queued.discard(op)
            if _attached(op):
                return op
        return None


class _NotifyingBuilder(Builder):
    def __init__(self, rewriter: Rewriter, op: Op):
        assert op.block is not None
        super().__init__(op.block, op, rewriter._pool(op), origin=op)
        self._rewriter = rewriter

    def insert(self, op: Op) -> Op:
        self._rewriter.touch(op)
        return super().insert(op)


def apply_patterns(scope: Module | Function | Op, patterns: Iterable[Pattern], limit: int | None = None) -> bool:
    """Apply patterns to a module's or function's ops until none applies; returns whether anything changed.

    `limit` bounds the number of rewrites (default: 64 an op, at least 4096); passing it is an error that names the last pattern and op.
    """
    table = _Table(patterns)
    rewriter = Rewriter()
    top = scope if isinstance(scope, Op) else scope.op
    ops = [op for op in top.walk() if op is not top]
    for op in ops:
        rewriter.touch(op)
    limit = limit if limit is not None else max(4096, REWRITES_PER_OP * len(ops))
    count = 0
    while (op := rewriter._next()) is not None:
        applied = next((p for p in table.of(op.name) if _applies(p, op, rewriter)), None)
        if applied is None:
            continue
        count += 1
        if count > limit:
            raise DmlcError(f"no fixpoint after {limit} rewrites; the last was '{applied.name or type(applied).__name__}' on '{op.name}'", op.loc)
        if _attached(op):
            rewriter.touch(op)
    return count > 0


def _applies(pattern_: Pattern, op: Op, rewriter: Rewriter) -> bool:
    """A pattern that would have to know an open size does not apply."""
    try:
        return pattern_.rewrite(op, rewriter)
    except UnknownSize:
        return False


class _Table:
    """Patterns by op name, in the order given."""

    def __init__(self, patterns: Iterable[Pattern]):
        self.patterns = tuple(patterns)
        self.by_name: dict[str, tuple[Pattern, ...]] = {}

    def of(self, name: str) -> tuple[Pattern, ...]:
        found = self.by_name.get(name)
        if found is None:
            found = self.by_name[name] = tuple(p for p in self.patterns if not p.ops or name in p.ops)
        return found


def _parents(op: Op) -> Iterator[Op]:
    parent = op.parent
    while parent is not None:
        yield parent
        parent = parent.parent


def _attached(op: Op) -> bool:
    """Whether the op and all around it up to a module (or a function made on its own) are in place."""
    if op.block is None:
        return False
    return all(p.block is not None or p.name in ("builtin.module", "func.func") for p in _parents(op))
