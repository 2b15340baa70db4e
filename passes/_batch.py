"""Where the samples of the batch are in a program's values, and how many of them count."""

from __future__ import annotations

from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Function, Op, Value
from dmlc.ir.types import TensorType
from dmlc.ops.terms import Term
from dmlc.planner.batch import batch_of


class Samples:
    """The batch of a whole-batch program. It enters at inputs marked `dmlc.batch_dim` and follows the ops' factors."""

    def __init__(self, function: Function, ids: IdPool):
        self.function, self.ids = function, ids
        self.extents = batch_of(function).extents
        sizes = [a.shape[a.attrs["dmlc.batch_dim"]] for a in function.args if "dmlc.batch_dim" in a.attrs]
        self.batch: int | None = sizes[0] if sizes else None
        self._counts: dict[str, Term] = {}

    def dim(self, value: Value) -> int | None:
        """The dim of `value` that is the batch and nothing else."""
        for d, extent in self.extents.get(value, {}).items():
            return d if extent == value.shape[d] else None
        alone = self.batch == 1 and value.tensor.rank > 0 and value.shape[0] == 1  # a batch of one is not followed through the program
        return 0 if alone else None

    def size(self, value: Value) -> int:
        """How many samples `value` holds."""
        return next(iter(self.extents.get(value, {}).values()), 1)  # type: ignore[return-value]  # an open size counts as a number

    def reduced(self, op: Op) -> int:
        """How many samples a reduction adds up (1: none are added)."""
        found = self.extents.get(op.operands[0], {})
        return next((e for d, e in found.items() if d in op.attrs["dims"]), 1)  # type: ignore[return-value]

    def count(self, size: int, dtype: str) -> Term:
        """The number of samples in this step: a sum of ones over the batch, which `partition` masks where a rank has fewer.

        It stands at the program's beginning, and at least 1 is divided by.
        """
        if dtype not in self._counts:
            b = Builder(self.function.body, self.function.body.first, self.ids)
            ones = b.op("dmlc.full", (), {"value": 1.0, "dmlc.batch_dim": 0}, [TensorType((size,), dtype)], tag="samples").result
            self._counts[dtype] = Term(b, b.emit("dmlc.reduce_sum", ones, dims=(0,), keepdim=False))
        return self._counts[dtype]
