"""Which factors carry the batch, and the data-parallel part of every op's place.

The batch enters at inputs marked `dmlc.batch_dim` and follows the factor rules: a dim keeps a batch extent, the size of its leading
part that counts samples (a merged (batch sequence) dim has the batch's size as its extent).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dmlc.ir.attributes import Sharding
from dmlc.ir.core import Function, Op, Value
from dmlc.ir.sharding import Mesh
from dmlc.ops.base import linear_of, rule_of
from dmlc.ops.place import Place, illegal, states

Extents = dict[int, int]  # dim -> size of its leading batch part


@dataclass
class Batch:
    """Batch extents of every value, and the batch factors of every op, in order of first appearance."""

    extents: dict[Value, Extents]
    factors: dict[Op, tuple[str, ...]]


def batch_of(function: Function) -> Batch:
    extents: dict[Value, Extents] = {}
    factors: dict[Op, tuple[str, ...]] = {}
    for arg in function.args:
        dim = arg.attrs.get("dmlc.batch_dim")
        extents[arg] = {dim: int(arg.shape[dim])} if dim is not None and arg.tensor.rank > dim else {}
    for op in function.body:
        if op.regions or op.name == "func.return":
            extents.update({r: {} for r in op.results})
            continue
        rule = rule_of(op)
        found = _batch_factors(op, extents)
        factors[op] = tuple(found)
        for j, r in enumerate(op.results):
            extents[r] = {d: e for d, fs in enumerate(rule.results[j]) if (e := _leading(fs, found)) > 1}
    return Batch(extents, factors)


def _batch_factors(op: Op, extents: dict[Value, Extents]) -> dict[str, int]:
    """Factor -> the part of it that counts samples."""
    rule = rule_of(op)
    found: dict[str, int] = {}
    for i, v in enumerate(op.operands):
        for d, extent in extents[v].items():
            for f in rule.operands[i][d]:
                if extent <= 1:
                    break
                size = int(rule.sizes[f])
                found[f] = min(extent, size)
                extent //= max(size, 1)
    return found


def _leading(factors: Sequence[str], found: dict[str, int]) -> int:
    extent = 1
    for f in factors:
        if f not in found:
            break
        extent *= found[f]
    return extent


def data_places(function: Function, mesh: Mesh, axes: tuple[str, ...], batch: Batch) -> tuple[dict[Op, Place], dict[Value, Sharding]]:
    """The part of every op's place that concerns the data axes, going forward from the inputs, and each value's resulting sharding.

    An op follows its operands: split where one of them is, by a linear set where they are unreduced sums, else replicated.
    """
    natural: dict[Value, Sharding] = {}
    places: dict[Op, Place] = {}
    for arg in function.args:
        dims: list[tuple[str, ...]] = [()] * arg.tensor.rank
        for d in batch.extents[arg]:
            dims[d] = axes
        natural[arg] = mesh.sharding(dims, shape=arg.shape)
    for op in function.body:
        if op.name == "func.return":
            continue
        if op.regions:
            natural.update({r: mesh.replicated(r.tensor.rank) for r in op.results})
            continue
        places[op] = _follow(op, mesh, axes, natural, batch.factors[op]) if axes else Place()
        for r, s in zip(op.results, states(mesh, op, places[op])[1]):
            natural[r] = s
    return places, natural


def _follow(op: Op, mesh: Mesh, axes: tuple[str, ...], natural: dict[Value, Sharding], batch_factors: tuple[str, ...]) -> Place:
    rule = rule_of(op)
    for i, v in enumerate(op.operands):
        for d, split in enumerate(natural[v].dims):
            if not split or not rule.operands[i][d]:
                continue
            factor = rule.operands[i][d][0]
            place = Place.make({factor: axes})
            if factor in batch_factors and illegal(mesh, op, place) is None:
                return place
    unreduced = [i for i, v in enumerate(op.operands) if natural[v].unreduced]
    sums = all(combiner == "sum" for v in op.operands for _, combiner in natural[v].unreduced)
    for s, members in enumerate(linear_of(op)):
        if sums and unreduced and set(unreduced) <= members and all(i in unreduced for i in members):
            return Place.make(linear=dict.fromkeys(axes, s))
    return Place()
