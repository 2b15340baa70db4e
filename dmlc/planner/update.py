"""Where the optimizer's part of a training step runs: each parameter's update lies as its optimizer state does.

ZeRO (Rajbhandari et al. 2020) is a matter of storage. Level 1 splits the optimizer state over the data axis, so the gradient is needed in
parts only and the new parameter is gathered; level 2 splits the accumulated gradient too, so it is scattered in every microbatch;
level 3 splits the parameter itself, gathered where the forward and the backward computation use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dmlc.ir.attributes import Sharding
from dmlc.ir.core import BlockArgument, Function, Op, Value
from dmlc.ir.sharding import Mesh
from dmlc.ops.base import rule_of
from dmlc.ops.place import Place, illegal, states


@dataclass(frozen=True)
class Gradient:
    """How one parameter's gradient is accumulated (`accumulator`, maybe unreduced) and lies afterwards (`storage`)."""

    accumulator: Sharding
    storage: Sharding


@dataclass
class Update:
    """Places of the update's ops, where each argument and gradient rests, the shardings of the step's results."""

    places: dict[Op, Place]
    gradients: dict[Op, Gradient]
    storage: dict[BlockArgument, Sharding]
    natural: dict[Value, Sharding]


def update_ops(function: Function) -> Iterator[Op]:
    return (op for op in function.body if op.attrs.get("dmlc.phase") == "update")


def gradient_ops(function: Function) -> Iterator[Op]:
    return (op for op in function.body if op.name == "dmlc.gradient")


def place_update(function: Function, mesh: Mesh, storage: dict[BlockArgument, Sharding], natural: dict[Value, Sharding], zero: int) -> Update:
    """`storage`: where parameters lie as the tensor axes have it; `natural`: how the step's earlier values lie."""
    update = Update({}, {}, dict(storage), dict(natural))
    for op in gradient_ops(function):
        _gradient(op, mesh, update, zero)
    split = {op.operands[1].name: update.gradients[op].storage for op in gradient_ops(function)}  # type: ignore[union-attr]
    shapes = {a.name: a.shape for a in function.args}
    for arg in function.args:
        owner = arg.attrs.get("dmlc.of")
        if owner in split and arg.shape == shapes[owner]:
            update.storage[arg] = split[owner]
    for arg in function.args:  # the update reads a parameter as its state lies, wherever it rests
        update.natural[arg] = split.get(arg.name) or update.storage.get(arg) or natural.get(arg) or mesh.replicated(arg.tensor.rank)
    for op in update_ops(function):
        place = _follow(op, mesh, update.natural)
        update.places[op] = place
        update.natural.update(zip(op.results, states(mesh, op, place)[1]))
    return update


def _gradient(op: Op, mesh: Mesh, update: Update, zero: int) -> None:
    param = op.operands[1]
    assert isinstance(param, BlockArgument)
    resting = update.storage.get(param) or mesh.replicated(param.tensor.rank)
    split = split_over_data(mesh, resting, param.shape) if zero else resting
    gradient = update.natural[op.operands[0]]
    lies = split if zero >= 2 else resting
    split_by = {a for axes in lies.dims for a in axes}
    kept = {a: combiner for a, combiner in gradient.unreduced if a not in split_by}  # an axis that splits the accumulator is reduced in every microbatch
    accumulator = mesh.sharding(lies.dims, kept, lies.grains, param.shape)
    update.gradients[op] = Gradient(accumulator, split)
    update.natural[op.result] = split
    if zero >= 3 and split != resting:
        update.storage[param] = split


def split_over_data(mesh: Mesh, sharding: Sharding, shape: tuple[int, ...]) -> Sharding:
    """`sharding` with one dim split further over the data axis: a whole dim that divides evenly if there is one, else the longest.

    What has fewer elements along every dim than there are data ranks stays as it is.
    """
    ranks = mesh.sizes.get("data", 1)
    if ranks == 1:
        return sharding
    best: tuple[tuple[bool, bool, int], int] | None = None
    for d, n in enumerate(shape):
        units = mesh.local_size(n, sharding.dims[d], sharding.grain(d)) // sharding.grain(d)
        if units < ranks:
            continue
        key = (units % ranks == 0, not sharding.dims[d], n)
        if best is None or key > best[0]:
            best = (key, d)
    if best is None:
        return sharding
    dims = [axes + ("data",) * (d == best[1]) for d, axes in enumerate(sharding.dims)]
    return mesh.sharding(dims, {}, sharding.grains, shape)


def _follow(op: Op, mesh: Mesh, natural: dict[Value, Sharding]) -> Place:
    """An op of the update is split as finely as any of its operands."""
    rule = rule_of(op)
    factors: dict[str, tuple[str, ...]] = {}
    grains: dict[str, int] = {}
    for i, v in enumerate(op.operands):
        for d, axes in enumerate(natural[v].dims):
            fs = rule.operands[i][d]
            if axes and len(fs) == 1 and fs[0] not in rule.whole and len(axes) > len(factors.get(fs[0], ())):
                factors[fs[0]], grains[fs[0]] = axes, natural[v].grain(d)
    place = Place.make(factors, grains=grains)
    return place if illegal(mesh, op, place) is None else Place()
