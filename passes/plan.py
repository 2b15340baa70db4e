"""`plan`: decides where every op runs. It only annotates, so a person can edit what it wrote.

For each way to divide the devices into data x tensor parallel, the data axes follow the batch from the inputs and an integer
programme chooses the rest (`dmlc.planner`). An explicit `dp=…,tp=…` adds hard bounds on each rank's share of the matrices and of the
contractions; what cannot meet them is relaxed with a remark. Written: the mesh, `dmlc.place` on ops, `dmlc.sharding` on inputs and
results, `dmlc.storage` on weights, and `dmlc.plan` on the module (price, proven bound, the second-best plan).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dmlc.cluster import Cluster
from dmlc.cost.model import CostModel
from dmlc.cost.reshard import reshard
from dmlc.ir.attributes import AttrDict, Sharding
from dmlc.ir.core import BlockArgument, Function, Module, Op, OpResult, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh
from dmlc.ops.base import flops_of, rule_of
from dmlc.ops.place import share
from dmlc.passmanager.base import Pass
from dmlc.passmanager.context import Context
from dmlc.planner.batch import batch_of, data_places
from dmlc.planner.candidates import Candidate, candidates
from dmlc.planner.classes import Classes
from dmlc.planner.grains import grains_of
from dmlc.planner.pricing import Pricing, is_matrix, signature
from dmlc.planner.program import Bounds, Program, Solution, infeasible
from dmlc.planner.request import Request, factorisations, mesh_for
from dmlc.simulate.choice import Choice


@dataclass(frozen=True)
class Plan(Pass):
    name = "plan"
    numerics = "exact"
    requires = ("global",)

    def run(self, module: Module, context: Context) -> bool:
        placed = next((op for op in module.main.ops() if "dmlc.place" in op.attrs), None)
        if placed is not None:
            context.remark(placed, "declined: the program is placed already")
            return False
        request = Request.of(module)
        cost = CostModel(Cluster.of(module))
        best, second = decide(module, request, cost)
        apply(module, best, second)
        explain(module, best, request, context)
        return True


@dataclass
class Planned:
    """One solved division of the devices."""

    mesh: Mesh
    solution: Solution
    options: dict[Op, list[Candidate]]
    inputs: dict[BlockArgument, Sharding]
    choice: Choice = field(default_factory=Choice)

    @property
    def degrees(self) -> tuple[int, int]:
        return self.mesh.sizes.get("data", 1), self.mesh.sizes.get("model", 1)

    @property
    def text(self) -> str:
        return "dp={},tp={}".format(*self.degrees)


def decide(module: Module, request: Request, cost: CostModel) -> tuple[Planned, Planned | None]:
    """The cheapest plan and the next one: over all divisions of the devices, or for the one asked for over all placements."""
    function = module.main
    limit = request.memory or cost.cluster.memory
    if module.mesh_op is not None:
        mesh = Mesh.of(module)
        return _within(function, mesh, cost, _bounds(request, mesh, limit, explicit=False))
    if request.degrees is not None:
        mesh = mesh_for(request.degree("dp"), request.degree("tp"))
        return _within(function, mesh, cost, _bounds(request, mesh, limit, explicit=True))
    solved = [p for d, t in divisions(function, request.devices) if (p := solve(function, mesh_for(d, t), cost, Bounds(memory=limit))[0]) is not None]
    if not solved:
        raise _too_large(function, [mesh_for(d, t) for d, t in divisions(function, request.devices)], cost, limit)
    solved.sort(key=lambda p: p.solution.objective)  # stable: most data parallel first among equals
    return solved[0], solved[1] if len(solved) > 1 else None


def divisions(function: Function, devices: int) -> list[tuple[int, int]]:
    """Ways to divide the devices worth solving: data parallel only where there is a batch to split."""
    batched = any(a.attrs.get("dmlc.batch_dim") is not None and a.shape[a.attrs["dmlc.batch_dim"]] > 1 for a in function.args)
    return [(d, t) for d, t in factorisations(devices) if d == 1 or batched]


def _bounds(request: Request, mesh: Mesh, limit: int, explicit: bool) -> Bounds:
    tensor, ranks = mesh.sizes.get("model", 1), mesh.devices
    if not explicit or tensor == 1:
        return Bounds(memory=limit)
    return Bounds((1 + request.slack) / tensor, (1 + request.slack) / ranks, limit)


def _within(function: Function, mesh: Mesh, cost: CostModel, bounds: Bounds) -> tuple[Planned, Planned | None]:
    planned, program = solve(function, mesh, cost, bounds)
    if planned is None:
        raise _too_large(function, [mesh], cost, bounds.memory)
    second = program.solve([planned.solution.excluded]) if len(planned.solution.excluded) > 1 and planned.solution.variables < 20000 else None
    return planned, Planned(mesh, second, planned.options, planned.inputs) if second is not None else None


def solve(function: Function, mesh: Mesh, cost: CostModel, bounds: Bounds) -> tuple[Planned | None, Program]:
    program = programme(function, mesh, cost, bounds)
    solution = program.solve()
    return (Planned(mesh, solution, program.options, program.inputs) if solution is not None else None), program


def programme(function: Function, mesh: Mesh, cost: CostModel, bounds: Bounds) -> Program:
    """The choices on one mesh: the data axes follow the batch, the others are open."""
    batch = batch_of(function)
    data = tuple(a for a in mesh.order if a == "data")
    tensor = tuple(a for a in mesh.order if a != "data")
    places, natural = data_places(function, mesh, data, batch)
    inputs = {a: natural[a] for a in function.args if a.attrs.get("dmlc.role", "input") == "input"}
    grains = grains_of(function, mesh, tensor)
    options: dict[Op, list[Candidate]] = {}
    known: dict[tuple, list[Candidate]] = {}
    keys = {op: (signature(op), place, batch.factors[op], tuple(sorted(grains.get(op, {}).items()))) for op, place in places.items()}
    for op, key in keys.items():
        if key not in known:
            known[key] = candidates(op, mesh, tensor, places[op], batch.factors[op], grains.get(op, {}))
        options[op] = known[key]
    classes = Classes(function, lambda op: keys.get(op, op.id))
    return Program(function, mesh, Pricing(mesh, cost), options, inputs, bounds, classes)


def _too_large(function: Function, meshes: list[Mesh], cost: CostModel, limit: int) -> DmlcError:
    """No plan on these meshes fits: the error says by how much the smallest misses."""
    least = [m for mesh in meshes if (m := programme(function, mesh, cost, Bounds()).least_memory()) is not None]
    if not least or min(least) <= limit:
        return DmlcError("no plan was found for this program in the nodes that the solver may look at", function.op.loc, ("give the plan: --plan dp=…,tp=…",))
    return infeasible(limit, min(least), function.op.loc)


# ---------------------------------------------------------------- writing it down


def choice_of(planned: Planned) -> Choice:
    """The plan as a Choice: places by op id, storage by argument name."""
    places = {op.id: c.place.to_attr() for op, c in planned.solution.places.items() if not c.place.is_trivial}
    storage = {a.name: s for a, s in planned.solution.storage.items() if a not in planned.inputs}
    return Choice(places=AttrDict(places), storage=AttrDict(storage))


def apply(module: Module, planned: Planned, second: Planned | None = None) -> None:
    function = module.main
    if module.mesh_op is None:
        op = Op("dmlc.mesh", (), (), {"sym_name": planned.mesh.name, "axes": planned.mesh.axes})
        first = module.body.first
        module.body.insert_before(first, op) if first is not None else module.body.append(op)
    choice = choice_of(planned)
    for op in planned.solution.places:
        if op.id in choice.places:
            op.attrs["dmlc.place"] = choice.places[op.id]
    for arg, sharding in planned.solution.storage.items():
        arg.attrs["dmlc.sharding" if arg in planned.inputs else "dmlc.storage"] = sharding
    for attrs, sharding in zip(function.result_attrs, planned.solution.results):
        attrs["dmlc.sharding"] = sharding
    module.attrs["dmlc.plan"] = _summary(planned, second)


def _summary(planned: Planned, second: Planned | None) -> AttrDict:
    """Prices in picoseconds; the gap in parts per million."""
    dp, tp = planned.degrees
    s = planned.solution
    summary = {"dp": dp, "tp": tp, "price": round(s.objective), "bound": round(s.bound), "gap": round(s.gap * 1e6)}
    if second is not None:
        summary["second"] = AttrDict(plan=second.text, price=round(second.solution.objective))
    return AttrDict(summary)


def explain(module: Module, planned: Planned, request: Request, context: Context) -> None:
    """Remarks: what each relaxed bound is about, what stays whole and why, whether devices only replicate."""
    mesh, solution = planned.mesh, planned.solution
    if mesh.devices > 1 and all(c.place.is_trivial for c in solution.places.values()):
        context.remark(module.main.op, f"all {mesh.devices} devices do the same work: no op can be split")
    if request.degrees is not None:
        _refuse_unused(module, planned)
    if mesh.sizes.get("model", 1) == 1:
        return
    for name, excess in solution.excess.items():
        context.remark(module.main.op, f"the bound on {name} a rank is relaxed by {excess:.1%} of the total: no placement meets it")
    for arg, sharding in solution.storage.items():
        if is_matrix(arg) and arg not in planned.inputs and not any("model" in d for d in sharding.dims):
            op = next(iter(arg.users), None)
            context.remark(op, f"%{arg.name} stays whole on every rank of the model axis: {_why_whole(arg, planned)}")
    for op, c in solution.places.items():
        if flops_of(op) and share(mesh, op, c.place) > (1 + request.slack) / mesh.devices and "model" not in c.place.axes:
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
