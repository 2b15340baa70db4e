"""Which factors carry the batch, and the data-parallel part of every op's place.

The batch enters at inputs marked `dmlc.batch_dim` (and at sources so marked) and follows the factor rules: a dim keeps a batch extent, the
size of its leading part that counts samples (a merged (batch sequence) dim has the batch's size as its extent). In a training step the
axes of the batch are the microbatches and the data axes; an op that mixes samples of different microbatches has no place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dmlc.ir.attributes import Sharding
from dmlc.ir.core import Function, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import Size
from dmlc.ops.base import definition, linear_of, rule_of, strategies_of
from dmlc.ops.place import Place, illegal, states

Extents = dict[int, Size]  # dim -> size of its leading batch part


@dataclass
class Batch:
    """Batch extents of every value, and the batch factors of every op, in order of first appearance."""

    extents: dict[Value, Extents]
    factors: dict[Op, tuple[str, ...]]


def batch_of(function: Function) -> Batch:
    extents: dict[Value, Extents] = {}
    factors: dict[Op, tuple[str, ...]] = {}
    for arg in function.args:
        extents[arg] = _marked(arg, arg.attrs)
    for op in function.body:
        if op.name == "func.return":
            continue
        rule = rule_of(op)
        found = _batch_factors(op, extents)
        factors[op] = tuple(found)
        for j, r in enumerate(op.results):
            extents[r] = {d: e for d, fs in enumerate(rule.results[j]) if (e := _leading(fs, found)) != 1} or _marked(r, op.attrs)
    return Batch(extents, factors)


def _marked(value: Value, attrs: Mapping[str, Any]) -> Extents:
    dim = attrs.get("dmlc.batch_dim")
    return {dim: value.shape[dim]} if dim is not None and value.tensor.rank > dim else {}


def _batch_factors(op: Op, extents: dict[Value, Extents]) -> dict[str, Size]:
    """Factor -> the part of it that counts samples."""
    rule = rule_of(op)
    found: dict[str, Size] = {}
    for i, v in enumerate(op.operands):
        for d, extent in extents[v].items():
            for f in rule.operands[i][d]:
                if isinstance(extent, int) and extent <= 1:
                    break
                size = rule.sizes[f]
                found[f] = _least(extent, size)
                extent = extent // size if size else 0
    return found


def _least(extent: Size, size: Size) -> Size:
    """The part of a factor of `size` elements that counts samples, when `extent` of them are in it and what follows: a part divides the whole."""
    if isinstance(extent, int) and isinstance(size, int):
        return min(extent, size)
    return extent if size % extent == 0 else size


def _leading(factors: Sequence[str], found: dict[str, Size]) -> Size:
    extent: Size = 1
    for f in factors:
        if f not in found:
            break
        extent *= found[f]
    return extent


# ---------------------------------------------------------------- places


def data_places(function: Function, mesh: Mesh, axes: tuple[str, ...], batch: Batch) -> tuple[dict[Op, Place], dict[Value, Sharding]]:
    """The part of every op's place that concerns the axes of the batch, going forward from the inputs, and each value's resulting sharding.

    An op follows its operands: split where one of them is, by a strategy for a whole factor, by a linear set where they are unreduced
    sums, else replicated. What is made from no split operand is then split as its users want it, going backward. Ops of the update
    phase are left out: they follow the storage of the parameters (`dmlc.planner.update`).
    """
    return DataPlaces(function, mesh, axes, batch).run()


class DataPlaces:
    def __init__(self, function: Function, mesh: Mesh, axes: tuple[str, ...], batch: Batch):
        self.function, self.mesh, self.axes, self.batch = function, mesh, axes, batch
        self.natural: dict[Value, Sharding] = {}
        self.places: dict[Op, Place] = {}
        self._complete: dict[Value, Op] = {}  # made from a completed sum over the batch -> a contraction in that sum

    def run(self) -> tuple[dict[Op, Place], dict[Value, Sharding]]:
        for arg in self.function.args:
            dims: list[tuple[str, ...]] = [()] * arg.tensor.rank
            for d in self.batch.extents[arg]:
                dims[d] = self.axes
            self.natural[arg] = self.mesh.sharding(dims, shape=arg.shape)
        for op in self.function.body:
            self._forward(op)
        if self.mesh.axes.sequential:
            for op in reversed(list(self.places)):
                self._backward(op)
            for op in self.places:
                self._refuse_mixing(op)
            self._refuse_second_pass()
        return self.places, self.natural

    def _forward(self, op: Op) -> None:
        if op.name == "func.return" or op.attrs.get("dmlc.phase") == "update":
            return
        self._set(op, self._follow(op) if self.axes else Place())

    def _set(self, op: Op, place: Place) -> None:
        self.places[op] = place
        self.natural.update(zip(op.results, states(self.mesh, op, place)[1]))

    # -------------------------------------------------- forward

    def _follow(self, op: Op) -> Place:
        if op.name == "dmlc.gradient":
            return Place()  # complete here
        split = self._split_factors(op)
        for factor, grain in split:
            place = Place.make({factor: self.axes}, grains={factor: grain})
            if factor in self.batch.factors[op] and illegal(self.mesh, op, place) is None:
                return place
        chosen = self._strategy(op)
        return chosen if chosen is not None else self._linear(op)

    def _split_factors(self, op: Op) -> list[tuple[str, int]]:
        """Major factors of the operands' split dims, each with the grain it is split in."""
        rule, found = rule_of(op), []
        for i, v in enumerate(op.operands):
            for d, split in enumerate(self.natural[v].dims):
                fs = rule.operands[i][d]
                if split and fs:
                    minor = math.prod(rule.sizes[f] for f in fs[1:])
                    grain = self.natural[v].grain(d)
                    found.append((fs[0], grain // minor if grain % minor == 0 else 1))
        marked = op.attrs.get("dmlc.batch_dim")
        if marked is not None and not found:
            found.append((rule_of(op).results[0][marked][0], 1))
        return found

    def _strategy(self, op: Op) -> Place | None:
        """A strategy that takes the operands split as they are: statistics over the batch."""
        if not any(any(self.natural[v].dims) for v in op.operands) and not any(s.sequential_only for s in strategies_of(op)):
            return None
        for s in strategies_of(op):
            if s.batch and all(entry is None or (isinstance(entry, int) and self.natural[v].dims[entry]) for v, entry in zip(op.operands, s.operands)):
                axes = tuple(a for a in self.axes if a in self.mesh.axes.sequential) if s.sequential_only else self.axes
                place = Place.make(strategy=(s.name, axes))
                if axes and illegal(self.mesh, op, place) is None:
                    return place
        return None

    def _linear(self, op: Op) -> Place:
        natural = self.natural
        unreduced = [i for i, v in enumerate(op.operands) if natural[v].unreduced]
        sums = all(combiner == "sum" for v in op.operands for _, combiner in natural[v].unreduced)
        axes = {tuple(a for a, _ in natural[op.operands[i]].unreduced) for i in unreduced}
        for s, members in enumerate(linear_of(op)):
            if sums and len(axes) == 1 and set(unreduced) <= members and all(i in unreduced for i in members):
                return Place.make(linear=dict.fromkeys(next(iter(axes)), s))
        return Place()

    # -------------------------------------------------- backward

    def _backward(self, op: Op) -> None:
        """An op whose result is whole but wanted in parts by everybody makes the parts."""
        if not self.places[op].is_trivial or len(op.results) != 1 or self.natural[op.result].unreduced:
            return
        wanted = {self._asked(user, index) for user, index in op.result.uses}
        if len(wanted) != 1 or (target := next(iter(wanted))) is None or not any(target.dims):
            return
        rule = rule_of(op)
        factors = {rule.results[0][d][0]: target.grain(d) for d, split in enumerate(target.dims) if split and rule.results[0][d]}
        minor = {f: math.prod(rule.sizes[m] for m in fs[1:]) for fs in rule.results[0] if fs for f in fs[:1]}
        place = Place.make(dict.fromkeys(factors, self.axes), grains={f: g // minor[f] if g % minor[f] == 0 else 1 for f, g in factors.items()})
        if illegal(self.mesh, op, place) is None and states(self.mesh, op, place)[1][0].dims == target.dims:
            self._set(op, place)

    def _asked(self, user: Op, index: int) -> Sharding | None:
        return states(self.mesh, user, self.places[user])[0][index] if user in self.places else None

    def _refuse_mixing(self, op: Op) -> None:
        """Samples of different microbatches are never in one place."""
        sequential = set(self.mesh.axes.sequential)
        for v, asked in zip(op.operands, states(self.mesh, op, self.places[op])[0]):
            given = self.natural[v]
            lost = {a for d in given.dims for a in d} - {a for d in asked.dims for a in d}
            if lost & sequential:
                raise MixedBatch(f"'{op.name}' needs samples of all microbatches at once ({rule_of(op)})", op.loc)
            if any(a in sequential and c != "sum" for a, c in given.unreduced):
                raise MixedBatch(f"'{op.name}' needs a {dict(given.unreduced)} over all microbatches, which only add up", op.loc)

    def _refuse_second_pass(self) -> None:
        """A sum over the batch that is needed complete to go on costs a loop of its own over what it is made of: no contraction may be in it."""
        heavy: dict[Value, Op] = {}  # value -> a contraction over microbatches that it is made with, in this pass over them
        for op, place in self.places.items():
            asked = states(self.mesh, op, place)[0]
            behind = next((heavy[v] for v in op.operands if v in heavy), None)
            split = bool(set(place.axes) & set(self.mesh.axes.sequential))
            for v, wanted in zip(op.operands, asked):
                if self._is_sum(v) and not any(a in self.mesh.axes.sequential for a, _ in wanted.unreduced):
                    behind = None
                    self._complete.update(dict.fromkeys(op.results, heavy[v]) if v in heavy else {})
                elif v in self._complete:
                    if split:
                        raise second_pass(self._complete[v])
                    self._complete.update(dict.fromkeys(op.results, self._complete[v]))
            if split and definition(op).precision == "low":
                behind = op
            heavy.update(dict.fromkeys(op.results, behind) if behind is not None else {})

    def _is_sum(self, value: Value) -> bool:
        return any(a in self.mesh.axes.sequential for a, _ in self.natural[value].unreduced)


class MixedBatch(DmlcError):
    """The batch cannot be cut into microbatches."""


def second_pass(op: Op) -> MixedBatch:
    """The error for a contraction behind a sum that the computation needs complete to go on."""
    text = f"'{op.name}' would run twice a microbatch: a sum over the whole batch is made from it, and more is computed with that sum in every microbatch"
    return MixedBatch(text, op.loc, ("make the loss a sum, or a mean, of what single samples give",))
