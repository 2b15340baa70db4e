"""decouple: an all-reduce of a gradient, split into its two halves, is half hidden by the backward pass and half by the forward pass.

Where the optimizer works on parts (ZeRO 1 or 2), a gradient is scattered in the backward pass and the new parameter is gathered at the
end of the step, with nothing left to run beside it. Afterwards the parameter rests in the part that is updated, and it is gathered in the next
step before its first use, once a microbatch if there is one, else once a step (DeAR: Zhang et al., ICDCS 2023). The traffic stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from dmlc.ir.attributes import Sharding
from dmlc.ir.core import BlockArgument, Function, Module
from dmlc.ir.sharding import Mesh
from dmlc.passes._regather import KEPT, KEY, TWICE
from dmlc.passmanager import Context, Pass
from dmlc.simulate import Choice


@dataclass(frozen=True)
class Decouple(Pass):
    """For training with `dmlc.train.decouple`. Only the storage of parameters changes, so it runs between `plan` and `partition`."""

    name = "decouple"
    numerics = "exact"
    requires = ("global",)

    def run(self, module: Module, context: Context) -> bool:
        if not module.attrs.get("dmlc.train", {}).get("decouple"):
            return False
        choice = decide(module.main, Choice())
        if not choice.storage:
            context.remark(module.main.op, "declined: no parameter is updated in parts; plan with zero=1 or zero=2")
            return False
        apply(module, choice)
        return True


def decide(function: Function, choice: Choice) -> Choice:
    """Adds storage and regather mode of every parameter whose gradient lies in finer parts than itself."""
    mesh = Mesh.around(function.op)
    count = mesh.extent(mesh.axes.sequential)
    found: dict[str, Sharding] = {}
    for op in function.body:
        if op.name == "dmlc.gradient" and "dmlc.storage" in op.attrs:
            param = op.operands[1]
            assert isinstance(param, BlockArgument)
            rests, updated = param.attrs.get("dmlc.storage") or mesh.replicated(param.tensor.rank), op.attrs["dmlc.storage"]
            if updated != rests and KEY not in param.attrs:
                found[param.name] = updated
    mode = TWICE if count == 1 else "once"
    return choice.with_(storage={**choice.storage, **found}, regather={**choice.regather, **dict.fromkeys(found, mode)})


def apply(module: Module, choice: Choice) -> None:
    function = module.main
    for arg in function.args:
        if arg.name in choice.storage:
            arg.attrs["dmlc.storage"], arg.attrs[KEY], arg.attrs[KEPT] = choice.storage[arg.name], choice.regather[arg.name], None
    for attrs in function.result_attrs:
        if attrs.get("dmlc.updates") in choice.storage:
            attrs["dmlc.sharding"] = choice.storage[attrs["dmlc.updates"]]
