"""Repeated layers are decided once: ops whose surroundings look alike share one choice.

Colours are refined by neighbourhood, round by round (Weisfeiler and Leman 1968); ops and arguments of one colour after the last round
form a class. Two layers of a deep model agree in all but a few ops near the ends, so the programme's size hardly grows with depth.
Sharing only restricts the choice: whatever it picks is a legal plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

from dmlc.ir.core import BlockArgument, Function, Op, OpResult, Value

ROUNDS = 3


def times(item: Op | Value) -> int:
    """How many layers' like an op, an argument or a result stands for (`dmlc.times`)."""
    holder = item.op if isinstance(item, OpResult) else item
    return holder.attrs.get("dmlc.times", 1)  # type: ignore[union-attr]


class Classes:
    """`op(o)` and `value(v)` give the first member of a class; `count` how many members a first one stands for: also those of layers left out."""

    def __init__(self, function: Function, key: Callable[[Op], Hashable], rounds: int = ROUNDS):
        self.ops = [op for op in function.body if op is not function.return_op]
        self.args = function.args
        self._replacing = {i for i, attrs in enumerate(function.result_attrs) if "dmlc.updates" in attrs}
        self._colours = self._refine(key, rounds)
        self._first: dict[Any, Any] = {}
        self.count: Counter[Any] = Counter()
        for item in (*self.args, *self.ops):
            first = self._first.setdefault(self._colours[item], item)
            self.count[first] += times(item)

    def op(self, op: Op) -> Op:
        return self._first[self._colours[op]]

    def value(self, value: Value) -> Value:
        if isinstance(value, OpResult):
            return self.op(value.op).results[value.index]
        return self._first[self._colours[value]]

    def size(self, value: Value) -> int:
        """How many values of the program the class of `value` stands for."""
        return self.count[value.op if value.op is not None else value]

    # -------------------------------------------------- refinement

    def _refine(self, key: Callable[[Op], Hashable], rounds: int) -> dict[Any, int]:
        table: dict[Hashable, int] = {}

        def number(colour: Hashable) -> int:
            return table.setdefault(colour, len(table))

        colours: dict[Any, int] = {a: number(("arg", *_argument(a))) for a in self.args}
        colours.update({op: number(("op", key(op))) for op in self.ops})
        for turn in range(rounds):
            fresh: dict[Any, int] = {}
            for a in self.args:
                fresh[a] = number((turn, colours[a], self._uses(a, colours)))
            for op in self.ops:
                sources = tuple(self._source(v, colours) for v in op.operands)
                fresh[op] = number((turn, colours[op], sources, tuple(self._uses(r, colours) for r in op.results)))
            colours = fresh
        return colours

    @staticmethod
    def _source(value: Value, colours: dict[Any, int]) -> Hashable:
        if isinstance(value, OpResult):
            return (colours.get(value.op, -1), value.index)
        return colours.get(value, -1)

    def _uses(self, value: Value, colours: dict[Any, int]) -> Hashable:
        """Consumers as a multiset, each with the position at which it reads the value."""
        return tuple(sorted((colours.get(op, -1), self._position(op, index, colours)) for op, index in value.uses))

    def _position(self, op: Op, index: int, colours: dict[Any, int]) -> int:
        """What is added up has no position, nor has what replaces an argument among the results."""
        if op in colours:
            return 0 if op.name == "dmlc.add_n" else index
        return 1 if index in self._replacing else -index


def _argument(arg: BlockArgument) -> tuple[Hashable, ...]:
    return (arg.type, arg.attrs.get("dmlc.role", "input"), arg.attrs.get("dmlc.batch_dim"), arg.attrs.get("dmlc.storage"))
