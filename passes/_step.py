"""What the passes that make a training step share: its request, its arguments beside the model's own, its results."""

from __future__ import annotations

from typing import Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import BlockArgument, Function, Module, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType


def request(module: Module, key: str, default: Any) -> Any:
    """An entry of the module's `dmlc.train`."""
    return module.attrs.get("dmlc.train", AttrDict()).get(key, default)


def scaling(module: Module) -> str | float:
    """The loss scale: "dynamic" or a number (1: none)."""
    text = str(request(module, "loss_scale", "none"))
    if text in ("none", "dynamic"):
        return text if text == "dynamic" else 1.0
    try:
        return float(text)
    except ValueError:
        raise DmlcError(f'loss_scale is "none", "dynamic" or a number, not "{text}"', module.op.loc) from None


def model_names(arg: BlockArgument) -> tuple[str, ...]:
    """The model's own names of an argument: several when it is tied, those of the whole when it is a part of a split parameter."""
    part = arg.attrs.get("dmlc.part", AttrDict())
    return tuple(arg.attrs.get("dmlc.names") or part.get("names") or (arg.attrs.get("dmlc.name", arg.name),))


def new_argument(function: Function, name: str, type_: TensorType, attrs: dict[str, Any]) -> BlockArgument:
    """One more argument, under exactly this name, by which the step's caller knows it."""
    if any(a.name == name for a in function.args):
        raise DmlcError(f"the model has an argument %{name}, a name that the training step gives to one of its own", function.op.loc)
    return function.body.add_arg(type_, name, attrs)


def new_state(function: Function, name: str, dtype: str, init: float | int) -> BlockArgument:
    """A scalar that each step replaces, from `init` on."""
    return new_argument(function, name, TensorType((), dtype), {"dmlc.role": "state", "dmlc.init": init})


def insert_argument(function: Function, index: int, name: str, type_: TensorType, attrs: dict[str, Any]) -> BlockArgument:
    """One more argument before the one at `index`."""
    made = function.body.add_arg(type_, name, attrs)
    args = function.body.args
    args.insert(index, args.pop())
    for i, a in enumerate(args):
        a.index = i
    return made


def set_results(function: Function, values: list[Value], attrs: list[dict[str, Any]]) -> None:
    function.return_op.operands = values
    function.result_attrs[:] = attrs
