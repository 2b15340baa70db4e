"""The search for a plan: over the ways to divide the devices, and for each over the places of all ops (`dmlc.planner.program`).

A training step is planned in two parts. The forward and backward computation goes through the integer programme; the optimizer's part
then follows the storage of the parameters (`dmlc.planner.update`), where the level of ZeRO comes in: the lowest that fits the memory
unless the request names one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dmlc.cost.model import CostModel
from dmlc.ir.attributes import Sharding
from dmlc.ir.core import BlockArgument, Function, Module, Op
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh
from dmlc.planner.batch import MixedBatch, batch_of, data_places
from dmlc.planner.candidates import Candidate, candidates
from dmlc.planner.classes import Classes
from dmlc.planner.grains import grains_of
from dmlc.planner.pricing import Pricing, signature
from dmlc.planner.program import LARGE, Bounds, Program, Solution, infeasible
from dmlc.planner.request import ZERO, Request, factorisations, mesh_for
from dmlc.planner.update import Update, gradient_ops, place_update


@dataclass
class Planned:
    """One solved division of the devices."""

    mesh: Mesh
    solution: Solution
    options: dict[Op, list[Candidate]]
    inputs: dict[BlockArgument, Sharding]
    zero: int = 0
    update: Update | None = None  # of a training step

    @property
    def degrees(self) -> tuple[int, int]:
        return self.mesh.sizes.get("data", 1), self.mesh.sizes.get("model", 1)

    @property
    def text(self) -> str:
        return "dp={},tp={}".format(*self.degrees) + (f",zero={self.zero}" if self.zero else "")


def decide(module: Module, request: Request, cost: CostModel) -> tuple[Planned, Planned | None]:
    """The cheapest plan and the next one: over all divisions of the devices, or for the one asked for over all placements.

    Where no plan keeps all values in memory and recomputation is allowed, what a step makes is left to it.
    """
    try:
        return _decide(module, request, cost, kept=True)
    except TooLarge:
        if not request.recompute:
            raise
    return _decide(module, request, cost, kept=False)


def _decide(module: Module, request: Request, cost: CostModel, kept: bool) -> tuple[Planned, Planned | None]:
    function = module.main
    limit = request.memory or cost.cluster.memory
    if module.mesh_op is not None:
        mesh = Mesh.of(module)
        return _within(function, mesh, cost, replace(_bounds(request, mesh, limit, explicit=False), kept=kept), request.zero or 0)
    if request.degrees is not None:
        mesh = _mesh(function, request, request.degree("dp"), request.degree("tp"))
        return _within(function, mesh, cost, replace(_bounds(request, mesh, limit, explicit=True), kept=kept), request.zero or 0)
    meshes = [_mesh(function, request, d, t) for d, t in divisions(function, request.devices)]
    solved = [p for mesh in meshes if (p := _lowest_zero(function, mesh, cost, Bounds(memory=limit, kept=kept))) is not None]
    if not solved:
        raise _too_large(function, meshes, cost, Bounds(memory=limit, kept=kept))
    solved.sort(key=lambda p: p.solution.objective)  # stable: most data parallel first among equals
    return solved[0], solved[1] if len(solved) > 1 else None


def divisions(function: Function, devices: int) -> list[tuple[int, int]]:
    """Ways to divide the devices worth solving: data parallel only where there is a batch to split."""
    batched = any(a.attrs.get("dmlc.batch_dim") is not None and a.shape[a.attrs["dmlc.batch_dim"]] > 1 for a in function.args)
    return [(d, t) for d, t in factorisations(devices) if d == 1 or batched]


def _mesh(function: Function, request: Request, dp: int, tp: int) -> Mesh:
    """The mesh of a division. One microbatch that cannot be cut (its samples are mixed) leaves out the axis of microbatches."""
    mesh = mesh_for(dp, tp, request.microbatches)
    if request.microbatches != 1:
        return mesh
    try:
        data_places(function, mesh, batch_axes(mesh), batch_of(function))
    except MixedBatch:
        return mesh_for(dp, tp)
    return mesh


def batch_axes(mesh: Mesh) -> tuple[str, ...]:
    """Microbatches outside, data ranks inside: a microbatch then holds the same samples under every plan."""
    return tuple(a for a in mesh.order if a in ("micro", "data"))


def _lowest_zero(function: Function, mesh: Mesh, cost: CostModel, bounds: Bounds) -> Planned | None:
    """The plan with the least ZeRO that fits."""
    levels = ZERO if "data" in mesh.sizes and any(True for _ in gradient_ops(function)) else ZERO[:1]
    return next((p for zero in levels if (p := solve(function, mesh, cost, bounds, zero)[0]) is not None), None)


def _bounds(request: Request, mesh: Mesh, limit: int, explicit: bool) -> Bounds:
    tensor, ranks = mesh.sizes.get("model", 1), mesh.devices
    if not explicit or tensor == 1:
        return Bounds(memory=limit)
    return Bounds((1 + request.slack) / tensor, (1 + request.slack) / (ranks * mesh.sizes.get("micro", 1)), limit)


def _within(function: Function, mesh: Mesh, cost: CostModel, bounds: Bounds, zero: int) -> tuple[Planned, Planned | None]:
    planned, program = solve(function, mesh, cost, bounds, zero)
    if planned is None:
        raise _too_large(function, [mesh], cost, bounds)
    second = program.solve([planned.solution.excluded]) if len(planned.solution.excluded) > 1 and planned.solution.variables < LARGE else None
    return planned, replace(planned, solution=second) if second is not None else None


def solve(function: Function, mesh: Mesh, cost: CostModel, bounds: Bounds, zero: int = 0) -> tuple[Planned | None, Program]:
    program = programme(function, mesh, cost, bounds, zero)
    solution = program.solve()
    if solution is None:
        return None, program
    planned = Planned(mesh, solution, program.options, program.inputs, zero)
    if any(op.attrs.get("dmlc.phase") == "update" or op.name == "dmlc.gradient" for op in function.body):
        natural = {r: s for op, c in solution.places.items() for r, s in zip(op.results, c.results)}
        planned.update = place_update(function, mesh, solution.storage, natural | dict(program.inputs), zero)
    return planned, program


def programme(function: Function, mesh: Mesh, cost: CostModel, bounds: Bounds, zero: int = 0) -> Program:
    """The choices on one mesh: the axes of the batch follow it, the others are open."""
    batch = batch_of(function)
    data = batch_axes(mesh)
    tensor = tuple(a for a in mesh.order if a not in data)
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
    classes = Classes(function, lambda op: keys.get(op) or (signature(op) if op.attrs.get("dmlc.phase") == "update" else op.id))
    return Program(function, mesh, Pricing(mesh, cost), options, inputs, bounds, classes, copies(function, mesh, zero))


def copies(function: Function, mesh: Mesh, zero: int) -> dict[BlockArgument, float]:
    """How many times the bytes of an argument a rank holds, by the level of ZeRO: a trained parameter with its gradient and its optimizer
    state; that state itself is counted with its parameter."""
    trained = [op.operands[1].name for op in gradient_ops(function)]  # type: ignore[union-attr]
    slots = [a.attrs["dmlc.of"] for a in function.args if "dmlc.of" in a.attrs]
    ranks = mesh.sizes.get("data", 1)
    part = {level: 1 / ranks if zero >= level else 1.0 for level in (1, 2, 3)}
    held = {name: part[3] + part[2] + part[1] * slots.count(name) for name in trained}
    return {a: 0.0 if "dmlc.of" in a.attrs else held.get(a.name, 1.0) for a in function.args}


class TooLarge(DmlcError):
    """No plan fits the memory."""


def _too_large(function: Function, meshes: list[Mesh], cost: CostModel, bounds: Bounds) -> DmlcError:
    """No plan on these meshes fits: the error says by how much the smallest misses."""
    zero = ZERO[-1] if any(True for _ in gradient_ops(function)) else 0
    least = [m for mesh in meshes if (m := programme(function, mesh, cost, Bounds(kept=bounds.kept), zero).least_memory()) is not None]
    if not least or min(least) <= bounds.memory:
        return TooLarge("no plan was found for this program in the nodes that the solver may look at", function.op.loc, ("give the plan: --plan dp=…,tp=…",))
    wrong = infeasible(bounds.memory, min(least), function.op.loc)
    return TooLarge(wrong.message, wrong.loc, wrong.notes)
