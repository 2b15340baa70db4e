"""`plan`: decides where every op runs. It only annotates, so a person can edit what it wrote.

For each way to divide the devices into data x tensor parallel, the data axes follow the batch from the inputs and an integer
programme chooses the rest (`dmlc.planner`). An explicit `dp=…,tp=…` adds hard bounds on each rank's share of the matrices and of the
contractions; what cannot meet them is relaxed with a remark. Written: the mesh, `dmlc.place` on ops, `dmlc.sharding` on inputs and
results, `dmlc.storage` on weights, and on the module `dmlc.plan` (price, proven bound, the second-best plan) and `dmlc.work` (what a step computes).
"""

from __future__ import annotations

from dataclasses import dataclass

from dmlc.cost.model import CostModel
from dmlc.cost.reshard import reshard
from dmlc.ir.attributes import AttrDict, Sharding
from dmlc.ir.core import BlockArgument, Module, Op, OpResult, Value
from dmlc.ir.location import DmlcError
from dmlc.ops.base import flops_of, rule_of
from dmlc.ops.place import share
from dmlc.passmanager.base import Pass
from dmlc.passmanager.context import Context
from dmlc.planner.pricing import is_matrix
from dmlc.planner.request import Request
from dmlc.planner.search import Planned, decide
from dmlc.simulate.choice import Choice
from dmlc.simulate.work import note_work


@dataclass(frozen=True)
class Plan(Pass):
    name = "plan"
    decides = True
    numerics = "exact"
    requires = ("global",)

    def run(self, module: Module, context: Context) -> bool:
        placed = next((op for op in module.main.ops() if "dmlc.place" in op.attrs), None)
        if placed is not None:
            context.remark(placed, "declined: the program is placed already")
            return False
        request = Request.of(module)
        cost = CostModel.of(module)
        best, second = decide(module, request, cost)
        apply(module, best, second)
        note_work(module)
        explain(module, best, request, context)
        if len(kinds := cost.cluster.devices) > 1:
            names = ", ".join(d.name for d in kinds)
            context.remark(module.main.op, f"the cluster has different devices ({names}): planned for '{cost.cluster.device.name}', since every rank waits for the slowest")
        return True


# ---------------------------------------------------------------- writing it down


def choice_of(planned: Planned) -> Choice:
    """The plan as a Choice: places by op id, storage by argument name."""
    update = planned.update
    placed = {op.id: c.place for op, c in planned.solution.places.items()} | ({op.id: p for op, p in update.places.items()} if update else {})
    places = {name: place.to_attr() for name, place in placed.items() if not place.is_trivial}
    resting = update.storage if update else planned.solution.storage
    storage = {a.name: s for a, s in resting.items() if a not in planned.inputs}
    regather = {a.name: "per-microbatch" for a, s in resting.items() if a not in planned.inputs and s != planned.solution.storage[a] and a.attrs.get("dmlc.role") == "param"}
    return Choice(places=AttrDict(places), storage=AttrDict(storage), regather=AttrDict(regather))


def apply(module: Module, planned: Planned, second: Planned | None = None) -> None:
    function = module.main
    if module.mesh_op is None:
        op = Op("dmlc.mesh", (), (), {"sym_name": planned.mesh.name, "axes": planned.mesh.axes})
        first = module.body.first
        module.body.insert_before(first, op) if first is not None else module.body.append(op)
    choice = choice_of(planned)
    for op in function.body:
        if op.id in choice.places:
            op.attrs["dmlc.place"] = choice.places[op.id]
    for arg in function.args:
        if arg in planned.inputs:
            arg.attrs["dmlc.sharding"] = planned.inputs[arg]
        elif arg.name in choice.storage:
            arg.attrs["dmlc.storage"] = choice.storage[arg.name]
        if arg.name in choice.regather:
            arg.attrs["dmlc.regather"] = choice.regather[arg.name]
    for op, gradient in (planned.update.gradients if planned.update else {}).items():
        op.attrs["dmlc.accumulate"], op.attrs["dmlc.storage"] = gradient.accumulator, gradient.storage
    for i, attrs in enumerate(function.result_attrs):
        attrs["dmlc.sharding"] = _final(planned, i, attrs.get("dmlc.updates"), choice)
    module.attrs["dmlc.plan"] = _summary(planned, second)


def _final(planned: Planned, index: int, updated: str | None, choice: Choice) -> Sharding:
    """A result's sharding: what replaces an argument lies as it does."""
    if updated is not None and updated in choice.storage:
        return choice.storage[updated]
    return planned.solution.results[index] or planned.mesh.replicated(0)


def _summary(planned: Planned, second: Planned | None) -> AttrDict:
    """Prices in picoseconds; the gap in parts per million."""
    dp, tp = planned.degrees
    s = planned.solution
    summary = {"dp": dp, "tp": tp, **({"zero": planned.zero} if planned.zero else {}), "price": round(s.objective), "bound": round(s.bound), "gap": round(s.gap * 1e6)}
    if second is not None:
        summary["second"] = AttrDict(plan=second.text, price=round(second.solution.objective))
    return AttrDict(summary)


def explain(module: Module, planned: Planned, request: Request, context: Context) -> None:
    """Remarks: what each relaxed bound is about, what stays whole and why, whether devices only replicate."""
    mesh, solution = planned.mesh, planned.solution
    if mesh.devices > 1 and all(c.place.is_trivial for c in solution.places.values()):
        context.remark(module.main.op, f"all {mesh.devices} devices do the same work: no op can be split")
    if request.microbatches and not mesh.axes.sequential:
        context.remark(module.main.op, "the samples of a batch are mixed, so it is not cut into microbatches, and every step needs a full batch")
    if request.degrees is not None and module.attrs.get("dmlc.mode") != "eval":  # an evaluation program has the degrees of its training program
        _refuse_unused(module, planned)
    if mesh.sizes.get("model", 1) == 1:
        for op, c in solution.places.items() if mesh.devices > 1 else ():
            if op.regions and c.place.is_trivial:
                context.remark(op, f"'{op.name}' runs whole on every rank, what it reads gathered for it: ops inside need each dim whole ({rule_of(op)})")
        return
    for name, excess in solution.excess.items():
        context.remark(module.main.op, f"the bound on {name} a rank is relaxed by {excess:.1%} of the total: no placement meets it")
    for arg, sharding in solution.storage.items():
        if is_matrix(arg) and arg not in planned.inputs and not any("model" in d for d in sharding.dims):
            op = next(iter(arg.users), None)
            context.remark(op, f"%{arg.name} stays whole on every rank of the model axis: {_why_whole(arg, planned)}")
    for op, c in solution.places.items():
        if flops_of(op) and share(mesh, op, c.place) > (1 + request.slack) / (mesh.devices * mesh.sizes.get("micro", 1)) and "model" not in c.place.axes:
            context.remark(op, f"'{op.name}' is computed whole on every rank of the model axis: {_why_unsplit(op, planned)}")
    for arg, op in _gathered_weights(planned):
        context.remark(op, f"%{arg.name} lies in parts on the ranks of the model axis and is gathered for '{op.name}'")
    for op, c in solution.places.items():
        for v in _gathered(op, planned) if "model" not in c.place.axes else ():
            context.remark(op, f"'{op.name}' runs whole on every rank, its operand {v.type} gathered over the model axis: {_why_unsplit(op, planned)}")


def _refuse_unused(module: Module, planned: Planned) -> None:
    """An axis asked for that no op can use is an error."""
    used = {a for c in planned.solution.places.values() for a in c.place.axes}
    for axis, text, remedy in (("data", "data parallelism (dp", "name the batch dim with --batch-dim"), ("model", "tensor parallelism (tp", "use --plan auto")):
        if axis in planned.mesh.sizes and axis not in used:
            raise DmlcError(f"no op of this model can use {text}={planned.mesh.sizes[axis]})", module.main.op.loc, (remedy,))


def _gathered(op: Op, planned: Planned) -> list[Value]:
    """Computed operands that lie in parts on the ranks of the model axis and have to be gathered for the op."""
    places = planned.solution.places
    found = []
    for v, wanted in zip(op.operands, places[op].operands):
        if isinstance(v, OpResult) and v.op in places and _is_gather(planned, v, places[v.op].results[v.index], wanted):
            found.append(v)
    return list(dict.fromkeys(found))


def _gathered_weights(planned: Planned) -> list[tuple[BlockArgument, Op]]:
    """Matrices stored in parts that an op wants more of than its rank holds, each with the first such op."""
    found: dict[BlockArgument, Op] = {}
    for op, c in planned.solution.places.items():
        for v, wanted in zip(op.operands, c.operands):
            stored = planned.solution.storage.get(v) if isinstance(v, BlockArgument) and v not in planned.inputs else None
            if stored is not None and is_matrix(v) and _is_gather(planned, v, stored, wanted):
                found.setdefault(v, op)
    return list(found.items())


def _is_gather(planned: Planned, value: Value, given: Sharding, wanted: Sharding) -> bool:
    steps = reshard(planned.mesh, given, wanted, value.shape) or ()
    return any(s.kind == "comm.all_gather" and "model" in s.axes for s in steps)


def _why_whole(arg: BlockArgument, planned: Planned) -> str:
    users = [op for op in arg.users if op in planned.options]
    can = [op for op in users if any(any("model" in d for i, v in enumerate(op.operands) if v is arg for d in c.operands[i].dims) for c in planned.options[op])]
    if not can:
        return "no op that reads it can use a part of it"
    return "splitting it would cost more communication than it saves"


def _why_unsplit(op: Op, planned: Planned) -> str:
    if all("model" not in c.place.axes for c in planned.options[op]):
        return f"none of its factors can be split ({rule_of(op)})"
    return "splitting it would cost more communication than it saves"
