"""Means over the batch that a model computes itself: divided by how many samples a step really has, not by the number compiled for."""

from __future__ import annotations

import math

from dmlc.ir.builder import Builder
from dmlc.ir.core import Op, Value
from dmlc.ops.emit import cast, wide
from dmlc.ops.terms import Term
from dmlc.passes._batch import Samples
from dmlc.passes._canonical import uniform
from dmlc.passes._match import number_of

THROUGH = ("dmlc.cast", "dmlc.neg", "dmlc.reshape")  # ops between a sum and its division


def count_samples(samples: Samples, upto: Value) -> None:
    """Rewrite each mean over samples that `upto` depends on, and keep counts of valid targets from being zero."""
    for op in needed(upto):
        if op.name not in ("dmlc.mul", "dmlc.div") or not op.result.tensor.is_float or op.attrs.get("rounding", "none") != "none":
            continue
        if not _count_mean(samples, op):
            _guard_count(samples, op)


def needed(value: Value) -> list[Op]:
    """The ops of the value's block that it depends on, in order."""
    last = value.op
    if last is None or last.block is None:
        return []
    found: set[Op] = set()
    todo = [last]
    while todo:
        op = todo.pop()
        if op not in found:
            found.add(op)
            todo += [v.op for nested in op.walk() for v in nested.operands if v.op is not None]
    return [op for op in last.block if op in found]


def _count_mean(samples: Samples, op: Op) -> bool:
    """`sum * (1 / n)`, where n counts all samples and maybe more, becomes `sum * (samples / n) / count`."""
    split = _scaled(op)
    summed = _sum_behind(split[0]) if split is not None else None
    if split is None or summed is None:
        return False
    x, n = split
    size = samples.reduced(summed)
    elements = math.prod(summed.operands[0].shape[d] for d in summed.attrs["dims"])
    if size <= 1 or n % size or elements % n:
        return False
    b = Builder.before(op, samples.ids)
    total = Term(b, wide(b, x))
    if n != size:
        total = total * (size / n)
    count = Term(b, samples.count(size, total.value.dtype).value)
    mean = total / count.maximum(1.0)
    op.replace([cast(b, mean.value, op.result.dtype)])
    return True


def _scaled(op: Op) -> tuple[Value, int] | None:
    """x and n of `x * (1 / n)` or `x / n`."""
    left, right = op.operands
    if op.name == "dmlc.mul" and number_of(right) is None:
        left, right = right, left
    number = number_of(right)
    if not number or left.type != op.result.type or not math.isfinite(number):
        return None
    n = 1 / number if op.name == "dmlc.mul" else number
    return (left, round(n)) if n >= 1 and abs(n - round(n)) <= 1e-5 * n else None


def _sum_behind(value: Value) -> Op | None:
    op = value.op
    while op is not None and op.name in THROUGH:
        op = op.operands[0].op
    return op if op is not None and op.name == "dmlc.reduce_sum" else None


def _guard_count(samples: Samples, op: Op) -> None:
    """Dividing by a count of valid targets of the batch: where none is valid, the loss is 0 and not NaN."""
    if op.name != "dmlc.div" or uniform(op.operands[1]) is not None:
        return
    counted = _sum_behind(op.operands[1])
    flags = counted.operands[0].op if counted is not None else None
    if counted is None or flags is None or samples.reduced(counted) <= 1:
        return
    if flags.name == "dmlc.cast" and flags.operands[0].dtype == "i1":
        b = Builder.before(op, samples.ids)
        op.set_operand(1, Term(b, op.operands[1]).maximum(1.0).value)
