"""Losses of `dmlc.train` on a model's output and a target, as a sum and what it is divided by: sums mean the same however samples are split.

All are computed in f32 at least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Function, Module, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ops.emit import cast, wide
from dmlc.ops.terms import Term
from dmlc.passes._batch import Samples
from dmlc.passes._step import insert_argument, request
from dmlc.passes.unflatten import flat_of

LOSSES = ("cross-entropy", "mse", "bce")


@dataclass
class Total:
    """A loss of the whole batch: `total` over `count` (valid targets, or samples) is its mean. `correct`: predictions that hit their target.
    `divided`: the mean where the model has divided already."""

    total: Term
    count: Term
    correct: Term | None = None
    divided: Term | None = None

    @property
    def mean(self) -> Term:
        """0 where nothing counts."""
        return self.divided if self.divided is not None else self.total / self.count.maximum(1.0)


def external_loss(module: Module, b: Builder, with_correct: bool) -> Total:
    """The loss that `dmlc.train` names, of the program's first result and a new input `target`."""
    kind = request(module, "loss", "")
    output = unmerged(b, first_output(module.main))
    if kind == "cross-entropy":
        return _cross_entropy(module, b, output, with_correct)
    target = Term(b, _target(module.main, b, output, output.tensor))
    x = Term(b, wide(b, output))
    target = Term(b, cast(b, target.value, x.value.dtype))
    if kind == "mse":
        difference = x - target
        return _mean_over_samples(module.main, b, output, difference * difference)
    if kind == "bce":
        return _mean_over_samples(module.main, b, output, x.softplus() - x * target)  # of a logit: log(1 + e^x) - x t
    raise DmlcError(f"there is no loss '{kind}'; there are {', '.join(LOSSES)}, and module:function for a model from PyTorch", module.op.loc)


def ids_of(b: Builder) -> IdPool:
    assert b.ids is not None
    return b.ids


def first_output(function: Function) -> Value:
    """The first float that the model returns."""
    for value, attrs in zip(function.results, function.result_attrs):
        if "dmlc.updates" not in attrs and value.tensor.is_float:
            return value
    raise DmlcError("the model returns no float that a loss could be computed of", function.op.loc)


def unmerged(b: Builder, output: Value) -> Value:
    """Leading dims that the model merged last are taken apart again, so that the batch is a dim of its own."""
    flat = flat_of(output)
    return output if flat is None else flat.restored(b)


def _target(function: Function, b: Builder, output: Value, type_: TensorType, more: dict[str, Any] | None = None) -> Value:
    """A new input behind the others. It has the batch where the output has it."""
    taken = {a.name for a in function.args}
    name = next(n for n in ("target", *(f"target_{i}" for i in range(1, len(taken) + 2))) if n not in taken)
    attrs: dict[str, Any] = {"dmlc.role": "input", **(more or {})}
    dim = Samples(function, ids_of(b)).dim(output)
    if dim is not None:
        attrs["dmlc.batch_dim"] = dim
    index = sum(a.attrs.get("dmlc.role", "input") == "input" for a in function.args)
    return insert_argument(function, index, name, type_, attrs)


def _mean_over_samples(function: Function, b: Builder, output: Value, each: Term) -> Total:
    """Mean over all elements: the sum of each sample's mean, over the number of samples."""
    samples = Samples(function, ids_of(b))
    size = samples.size(output)
    total, elements = _summed(each), output.tensor.numel
    if size > 1:
        return Total(total * (size / max(elements, 1)), samples.count(size, each.value.dtype))
    return Total(total * (1.0 / max(elements, 1)), total.number(1.0))


def _summed(x: Term) -> Term:
    rank = x.value.tensor.rank
    return x.reduce_sum(dims=tuple(range(rank)), keepdim=False) if rank else x


# ---------------------------------------------------------------- cross entropy


def _cross_entropy(module: Module, b: Builder, output: Value, with_correct: bool) -> Total:
    """Mean over the targets that are not `ignore`."""
    logits = _classes_last(module, b, output)
    ignore = int(request(module, "ignore", -100))
    smoothing = float(request(module, "label_smoothing", 0.0))
    x = wide(b, logits)
    target = _target(module.main, b, logits, TensorType(logits.shape[:-1], "i64"), {"dmlc.range": (0, logits.shape[-1])})
    rows = Term(b, b.emit("dmlc.cross_entropy", x, target, ignore=ignore, **({"label_smoothing": smoothing} if smoothing else {})))
    valid = Term(b, target).ne(ignore)
    count = _summed(Term(b, cast(b, valid.value, x.dtype)))
    correct = None
    if with_correct:
        hit = Term(b, b.emit("dmlc.argmax", x, dim=x.tensor.rank - 1, keepdim=False)).eq(Term(b, target)).logical_and(valid)
        correct = _summed(Term(b, cast(b, hit.value, x.dtype)))
    return Total(_summed(rows), count, correct)


def _classes_last(module: Module, b: Builder, output: Value) -> Value:
    """The logits with their class dim last."""
    rank = output.tensor.rank
    dim = int(request(module, "class_dim", -1))
    loc = output.op.loc if output.op is not None else module.main.op.loc
    if not -rank <= dim < rank:
        raise DmlcError(f"class_dim {dim} is no dim of the model's output, a {output.type}", loc)
    dim %= rank
    if Samples(module.main, ids_of(b)).dim(output) == dim:
        raise DmlcError(f"class_dim {dim} is the batch of the model's output, a {output.type}", loc)
    return output if dim == rank - 1 else b.emit("dmlc.transpose", output, perm=(*(d for d in range(rank) if d != dim), dim))
