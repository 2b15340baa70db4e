"""Random legal plans: every op gets a random place among all its candidates, so that partition meets what no planner would choose."""

from __future__ import annotations

import random

from dmlc.ir.attributes import Sharding
from dmlc.ir.core import Module, Op, Value
from dmlc.ir.sharding import Mesh
from dmlc.ops.place import Place
from dmlc.planner.candidates import Candidate, candidates
from dmlc.planner.grains import grains_of
from dmlc.planner.pricing import signature

Known = dict[tuple, list[Candidate]]


def place_randomly(module: Module, mesh: Mesh, rng: random.Random, known: Known | None = None, eager: float = 0.9) -> int:
    """Annotate the module with a random legal plan on `mesh` and return how many ops use an axis.

    `known` caches candidates between calls on clones of one module; `eager` is the chance to prefer places that use an axis.
    """
    known = {} if known is None else known
    main = module.main
    axes = mesh.device_axes
    grains = grains_of(main, mesh, axes)
    current: dict[Value, Sharding | None] = dict.fromkeys(main.args)
    used = 0
    for op in main.body:
        if op.name == "func.return":
            break
        options = _candidates(op, mesh, axes, grains.get(op, {}), known)
        fitting = [c for c in options if all(_reachable(current[v], s) for v, s in zip(op.operands, c.operands))]
        splitting = [c for c in fitting if not c.place.is_trivial]
        chosen = rng.choice(splitting if splitting and rng.random() < eager else fitting)
        used += not chosen.place.is_trivial
        if not chosen.place.is_trivial:
            op.attrs["dmlc.place"] = chosen.place.to_attr()
        for v, s in zip(op.operands, chosen.operands):
            if current[v] is None:
                current[v] = s
        current.update(zip(op.results, chosen.results))
    _annotate(module, mesh, current)
    return used


def _candidates(op: Op, mesh: Mesh, axes: tuple[str, ...], grains: dict[str, tuple[int, ...]], known: Known) -> list[Candidate]:
    key = (mesh, signature(op), tuple(sorted(grains.items())))
    if key not in known:
        known[key] = candidates(op, mesh, axes, Place(), (), grains)
    return known[key]


def _reachable(current: Sharding | None, wanted: Sharding) -> bool:
    if current is None:  # an argument may rest anywhere, complete
        return not wanted.unreduced
    return set(wanted.unreduced) <= set(current.unreduced)  # a complete value cannot become unreduced


def _annotate(module: Module, mesh: Mesh, current: dict[Value, Sharding | None]) -> None:
    main = module.main
    mesh_op = Op("dmlc.mesh", (), (), {"sym_name": mesh.name, "axes": mesh.axes})
    first = module.body.first
    assert first is not None
    module.body.insert_before(first, mesh_op)
    for arg in main.args:
        sharding = current[arg]
        if sharding is not None:
            arg.attrs["dmlc.sharding" if arg.attrs.get("dmlc.role", "input") == "input" else "dmlc.storage"] = sharding
