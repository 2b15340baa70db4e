"""Gradients of the loss by every trained parameter, in reverse mode through each op's own vjp.

Before: loss = f(w, x).   After: also the ops of df/dw, then `dmlc.gradient %dw, %w`, and a result a gradient for `optimizer` to take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from dmlc.ir.builder import IdPool
from dmlc.ir.core import BlockArgument, Function, Module, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ops.emit import cast
from dmlc.ops.terms import full
from dmlc.passes._reverse import BackwardBuilder, Reverse, activity, drop_stops
from dmlc.passes._statistics import set_statistics
from dmlc.passes._step import model_names, new_state, scaling
from dmlc.passmanager.base import Numerics, Pass
from dmlc.passmanager.context import Context


@dataclass(frozen=True)
class Autodiff(Pass):
    name: ClassVar[str] = "autodiff"
    numerics: ClassVar[Numerics] = "reordered"
    requires: ClassVar[tuple[str, ...]] = ("global",)
    results: ClassVar[Literal["kept", "changed"]] = "changed"

    def run(self, module: Module, context: Context) -> bool:
        function = module.main
        set_statistics(module)
        loss = loss_of(function)
        trained = trained_parameters(function)
        active = activity(function.body, set(trained))
        if loss not in active:
            raise DmlcError("the loss depends on no trained parameter", loss.op.loc if loss.op is not None else function.op.loc)
        gradients = differentiate(module, loss, active)
        for arg, grad in sorted(gradients.items(), key=lambda pair: pair[0].index):
            add_result(function, grad, f"{arg.name}.grad")
        drop_stops(list(function.body))
        drop_unread(function)
        report(function, trained, gradients, context)
        return True


def loss_of(function: Function) -> Value:
    """The result `loss`. Raises `DmlcError` when there is none or it is no float scalar."""
    attrs = function.result_attrs
    at = next((i for i, a in enumerate(attrs) if a.get("dmlc.name") == "loss"), None)
    if at is None:
        names = ", ".join(a.get("dmlc.name", f"result{i}") for i, a in enumerate(attrs)) or "nothing"
        raise DmlcError(f"the program has no result named loss; it returns {names}", function.op.loc)
    loss = function.results[at]
    if any(op.name == "dmlc.gradient" for op in function.body):
        raise DmlcError("the program has its gradients already", function.op.loc)
    if loss.tensor.rank or not loss.tensor.is_float:
        raise DmlcError(f"the loss is a {loss.type}; it must be a float scalar", loss.op.loc if loss.op is not None else function.op.loc)
    return loss


def trained_parameters(function: Function) -> list[BlockArgument]:
    params = [a for a in function.args if a.attrs.get("dmlc.role") == "param" and a.tensor.is_float]
    return [a for a in params if "dmlc.frozen" not in a.attrs]


def differentiate(module: Module, loss: Value, active: set[Value]) -> dict[BlockArgument, Value]:
    """Emit the backward ops before the function's return. Gives each parameter's completed gradient."""
    function = module.main
    ops = [op for op in function.body if op is not function.return_op]
    b = BackwardBuilder(function.body, function.return_op, IdPool(function))
    reverse = Reverse(b, active)
    assert loss.op is not None
    with b.for_op(loss.op):
        reverse.add(loss, seed_gradient(module, b, loss))
    complete = completions(ops, [a for a in trained_parameters(function) if a in active])
    gradients: dict[BlockArgument, Value] = {}

    def mark(op: Op) -> None:
        for arg in complete.get(op, ()):
            grad = reverse.grads.pop(arg, None)
            if grad is not None:
                with b.for_op(op):
                    gradients[arg] = b.emit("dmlc.gradient", grad, arg, param=arg.name)

    reverse.sweep(ops, mark)
    return gradients


def seed_gradient(module: Module, b: BackwardBuilder, loss: Value) -> Value:
    """The gradient of the loss by itself: one, or the loss scale (Micikevicius et al. 2018), which `optimizer` divides out again."""
    scale = scaling(module)
    if scale == "dynamic":
        return cast(b, new_state(module.main, "loss_scale", "f32", 65536.0), loss.dtype)
    return full(b, loss.tensor, scale)


def completions(ops: list[Op], params: list[BlockArgument]) -> dict[Op, list[BlockArgument]]:
    """Each parameter under the first op that reads it, itself or in a region: past it, the sweep finds no more uses."""
    left = dict.fromkeys(params)
    found: dict[Op, list[BlockArgument]] = {}
    for top in ops:
        for op in top.walk():
            for v in op.operands:
                if isinstance(v, BlockArgument) and v in left:
                    del left[v]
                    found.setdefault(top, []).append(v)
    return found


def add_result(function: Function, value: Value, name: str) -> None:
    attrs = function.result_attrs
    function.return_op.operands = [*function.results, value]
    attrs.append({"dmlc.name": name})


def drop_unread(function: Function) -> None:
    """Backward ops that nothing reads: gradients of inputs, of integers' other operands."""
    op = function.body.last
    while op is not None:
        previous = op.prev
        if "dmlc.of" in op.attrs and op.unused:
            op.erase()
        op = previous


def report(function: Function, trained: list[BlockArgument], gradients: dict[BlockArgument, Value], context: Context) -> None:
    """Name the parameters that stay as they are, and why."""
    lost = dict.fromkeys(n for a in trained if a not in gradients for n in model_names(a))
    frozen = dict.fromkeys(n for a in function.args if a.attrs.get("dmlc.role") == "param" and "dmlc.frozen" in a.attrs for n in model_names(a))
    if lost:
        context.remark(None, f"no gradient reaches {', '.join(lost)}; the optimizer leaves what has none as it is")
    if frozen:
        context.remark(None, f"frozen: {', '.join(frozen)}")
