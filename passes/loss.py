"""What is trained on: the model's own loss, or one of its output and a target; other results of the model go.

Before: logits.   After: cross entropy a row, its sum over the number of valid targets of the whole batch, as the one result `loss`.
A mean over samples that the model computes is divided by the number of samples that a step has. In evaluation (`dmlc.mode = "eval"`) the
results are `loss_sum`, `count` and, for cross entropy, `correct`: sums that can be added up over batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Function, Module, Value
from dmlc.ir.location import DmlcError
from dmlc.ops.emit import reshaped, wide
from dmlc.ops.terms import Term
from dmlc.passes._batch import Samples
from dmlc.passes._batch_means import count_samples
from dmlc.passes._losses import LOSSES, Total, external_loss, ids_of
from dmlc.passes._step import request, set_results
from dmlc.passes.dce import erase_unused
from dmlc.passmanager.base import Numerics, Pass
from dmlc.passmanager.context import Context


@dataclass(frozen=True)
class Loss(Pass):
    name: ClassVar[str] = "loss"
    numerics: ClassVar[Numerics] = "reordered"
    requires: ClassVar[tuple[str, ...]] = ("global",)
    results: ClassVar[Literal["kept", "changed"]] = "changed"

    def run(self, module: Module, context: Context) -> bool:
        function, evaluating = module.main, module.attrs.get("dmlc.mode") == "eval"
        b = Builder(function.body, function.return_op, IdPool(function), loc=function.return_op.loc)
        kind = request(module, "loss", "")
        if ":" in kind:
            raise DmlcError(f"the loss {kind} is a Python function: it must be traced with the model, which dmlc compile --loss does", module.op.loc)
        total = external_loss(module, b, evaluating) if kind else own_loss(function, b, evaluating)
        results = {"loss_sum": total.total, "count": total.count, "correct": total.correct} if evaluating else {"loss": total.mean}
        finish(function, {name: term.value for name, term in results.items() if term is not None}, keep_updates=not evaluating)
        return True


def own_loss(function: Function, b: Builder, evaluating: bool) -> Total:
    """The result named `loss`."""
    loss = returned_loss(function)
    samples = Samples(function, ids_of(b))
    count_samples(samples, loss)
    loss = returned_loss(function)
    value = Term(b, wide(b, reshaped(b, loss, ())))
    if not evaluating:
        return Total(value, value, divided=value)
    parts = _sum_and_count(loss)
    if parts is not None:
        return Total(*(Term(b, wide(b, v)) for v in parts))
    count = samples.count(samples.batch, value.value.dtype) if (samples.batch or 0) > 1 else value.number(1.0)
    count = Term(b, count.value)
    return Total(value * count, count)


def returned_loss(function: Function) -> Value:
    attrs = function.result_attrs
    named = [v for v, a in zip(function.results, attrs) if a.get("dmlc.name") == "loss"]
    if not named:
        names = ", ".join(a.get("dmlc.name", f"result{i}") for i, a in enumerate(attrs)) or "nothing"
        raise DmlcError(f"the model returns no result named loss but {names}; a loss can be given: {', '.join(LOSSES)}", function.op.loc)
    loss = named[0]
    if not loss.tensor.is_float or not loss.tensor.is_static or loss.tensor.numel != 1:
        raise DmlcError(f"the loss is a {loss.type}; it must be a float scalar", loss.op.loc if loss.op is not None else function.op.loc)
    return loss


def _sum_and_count(loss: Value) -> tuple[Value, Value] | None:
    """Numerator and denominator of a loss that ends in `sum / max(count, 1)`."""
    op = loss.op
    if op is None or op.name != "dmlc.div" or loss.tensor.rank:
        return None
    guard = op.operands[1].op
    return (op.operands[0], guard.operands[0]) if guard is not None and guard.name == "dmlc.maximum" else None


def finish(function: Function, results: dict[str, Value], keep_updates: bool) -> None:
    """Return these, and in training what the model itself renews (running statistics); erase what only other results needed."""
    renewed = [(v, dict(a)) for v, a in zip(function.results, function.result_attrs) if keep_updates and "dmlc.updates" in a]
    attrs: list[dict[str, Any]] = [{"dmlc.name": name} for name in results]
    set_results(function, [*results.values(), *(v for v, _ in renewed)], [*attrs, *(a for _, a in renewed)])
    erase_unused(function.body)
