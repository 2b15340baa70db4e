"""Repeated layers of a global program: where they are, and the same program with fewer of them.

Layers that follow each other and do the same to what the one before made are one stretch of ops, repeated. What such a program takes in
a simulated step grows linearly with their number, so that two short programs tell what a deep one takes. Ops and arguments of the layer
that stands for those left out say for how many they stand (`dmlc.times`), so that `plan` weighs them as in the whole program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import BlockArgument, Function, Module, Op, Value
from dmlc.ops.base import own_key

TIMES = "dmlc.times"
SHORTEST = 4  # ops of a layer


@dataclass(frozen=True)
class Repeats:
    """`count` stretches of `length` ops each, the first of which begins at op number `start` of the body."""

    start: int
    length: int
    count: int


def find_repeats(function: Function) -> Repeats | None:
    """The longest row of equal stretches of ops, each of which reads what the one before made; None where none repeats twice."""
    ops = [op for op in function.body if op.name not in TERMINATORS]
    colours: dict[Any, int] = {}
    found = _longest_run([colours.setdefault(_colour(op), len(colours)) for op in ops])
    if found is None:
        return None
    start, length, equal = found
    number = {op: i for i, op in enumerate(ops)}
    first = start + length  # what the first stretch reads was made before all of them
    alike = next((i for i in range(first, start + equal) if not _is_shifted(ops[i], ops[i + length], number, length)), start + equal)
    count = (alike - start) // length + 1
    return Repeats(start, length, count) if count > 2 else None


def _colour(op: Op) -> tuple:
    types = tuple(v.type for v in (*op.operands, *op.results))
    return (op.name, types, own_key(op), tuple(isinstance(v, BlockArgument) for v in op.operands))


def _longest_run(colours: list[int]) -> tuple[int, int, int] | None:
    """(start, length, run): colours[i] = colours[i + length] for `run` values of i from `start` on; the most that such stretches cover."""
    import numpy as np

    row = np.array(colours)
    best, covered = None, 0
    for length in range(SHORTEST, len(row) // 2 + 1):
        different = np.flatnonzero(np.concatenate(([True], row[:-length] != row[length:], [True])))
        at = int(np.argmax(np.diff(different)))
        run = int(different[at + 1] - different[at]) - 1
        if run >= length and run + length > covered:  # twice the length covers no more
            best, covered = (int(different[at]), length, run), run + length
    return best


def _is_shifted(op: Op, later: Op, number: dict[Op, int], length: int) -> bool:
    """Whether `later` does to the next stretch what `op` does to its own."""
    return op.regions == later.regions == [] and all(_is_next(v, w, number, length) for v, w in zip(op.operands, later.operands, strict=True))


def _is_next(value: Value, later: Value, number: dict[Op, int], length: int) -> bool:
    if value is later:
        return True
    if isinstance(value, BlockArgument) or isinstance(later, BlockArgument):
        return isinstance(value, BlockArgument) and isinstance(later, BlockArgument) and _kind(value) == _kind(later)
    assert value.op is not None and later.op is not None
    return number[value.op] + length == number[later.op] and value.op.results.index(value) == later.op.results.index(later)  # type: ignore[arg-type]


def _kind(arg: BlockArgument) -> tuple:
    return (arg.type, *(arg.attrs.get(key) for key in ("dmlc.role", "dmlc.frozen", "dmlc.batch_dim", "dmlc.storage")))


def correspondence(function: Function, repeats: Repeats, layer: int, other: int) -> dict[str, str]:
    """Ids of the ops, and names of the arguments, of one layer -> those of another."""
    ops = [op for op in function.body if op.name not in TERMINATORS]
    found: dict[str, str] = {}
    for i in range(repeats.start, repeats.start + repeats.length):
        op, like = ops[i + layer * repeats.length], ops[i + other * repeats.length]
        found[op.id] = like.id
        found.update((v.name, w.name) for v, w in zip(op.operands, like.operands) if isinstance(v, BlockArgument) and isinstance(w, BlockArgument))
    return found


# ---------------------------------------------------------------- fewer layers


def shortened(module: Module, repeats: Repeats, keep: int) -> Module | None:
    """A copy with `keep` of the layers, at least three; None where a layer is read from further away than the next one or has results of its own."""
    assert 3 <= keep <= repeats.count
    copy = module.clone()
    function = copy.main
    ops = [op for op in function.body if op.name not in TERMINATORS]
    begin = repeats.start + 2 * repeats.length
    gap = (repeats.count - keep) * repeats.length
    removed = {op: i for i, op in enumerate(ops) if begin <= i < begin + gap}
    for op in ops[begin + gap :]:
        for index, value in enumerate(op.operands):
            if value.op in removed:
                op.set_operand(index, ops[removed[value.op] - gap].results[value.op.results.index(value)])  # type: ignore[arg-type, union-attr]
    if any(user not in removed for op in removed for r in op.results for user in r.users):
        return None
    _stand_for(ops[begin - repeats.length : begin], repeats.count - keep + 1)
    arguments = dict.fromkeys(v for op in removed for v in op.operands if isinstance(v, BlockArgument))
    for op in reversed(removed):
        op.erase()
    for arg in arguments:
        if not arg.uses:
            function.body.erase_arg(arg)
    return copy


def _stand_for(layer: list[Op], times: int) -> None:
    inside = set(layer)
    for op in layer:
        op.attrs[TIMES] = times
        for v in op.operands:
            if isinstance(v, BlockArgument) and v.attrs.get("dmlc.role") != "input" and all(u in inside for u in v.users):
                v.attrs[TIMES] = times
