"""Ranks that run alike are simulated once: the classes of a mesh's ranks, and which of them meet in a collective.

Two ranks are of one class when they have the same device, stage of each pipeline and delay, and so have, group by group, those they
communicate with: the coarsest such partition, found by refining until nothing splits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from dmlc.cluster import Device
from dmlc.cost import CostModel
from dmlc.ir.core import Function, Op
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh
from dmlc.simulate.events import Engine
from dmlc.simulate.events_program import POST, Channel, Compiler, Marks, Program
from dmlc.simulate.rows import axes_of, is_traffic

Axes = tuple[str, ...]
Delays = Mapping[int, float]


@dataclass(frozen=True)
class RankClass:
    """Ranks that take the same time at everything; computation takes `factor` times as long as priced."""

    ranks: tuple[int, ...]
    device: Device
    factor: Fraction = Fraction(1)

    @property
    def first(self) -> int:
        return self.ranks[0]


class Classes:
    """The classes of the ranks that run `function`; `delays` names ranks that compute slower, by a factor."""

    def __init__(self, function: Function, cost: CostModel, delays: Delays | None = None):
        self.function, self.cost, self.mesh, self.delays = function, cost, Mesh.around(function.op), dict(delays or {})
        for rank in self.delays:
            if not 0 <= rank < self.mesh.devices:
                raise DmlcError(f"there is no rank {rank} to delay; the mesh has {self.mesh.devices}")
        self.ops = list(function.ops())
        self.colour = self._refined(self._first_colours())

    def _first_colours(self) -> list[int]:
        pipes = dict.fromkeys(op.attrs["axis"] for op in self.ops if op.name == "pipe.schedule")
        cluster, keys = self.cost.cluster, []
        for rank in range(self.mesh.devices):
            place = self.mesh.coordinates(rank) if pipes else {}
            keys.append((cluster.device_of(rank), tuple(place[a] for a in pipes), self.delays.get(rank, 1)))
        return _numbered(keys)

    def _refined(self, colour: list[int]) -> list[int]:
        """Split classes until all members of one meet the same classes."""
        axes = dict.fromkeys(axes_of(op) for op in self.ops if is_traffic(op))
        while len(set(colour)) > 1:
            found = _numbered([(c, *(tuple(sorted(colour[m] for m in self.mesh.group(r, a))) for a in axes)) for r, c in enumerate(colour)])
            if found == colour:
                break
            colour = found
        return colour

    @cached_property
    def classes(self) -> list[RankClass]:
        members: dict[int, list[int]] = {}
        for rank, c in enumerate(self.colour):
            members.setdefault(c, []).append(rank)
        cluster = self.cost.cluster
        return [RankClass(tuple(r), cluster.device_of(r[0]), _factor(self.delays.get(r[0], 1))) for r in members.values()]

    # -------------------------------------------------- programs

    def programs(self, marks: Sequence[Marks] = ()) -> list[Program]:
        """One a class; of class i, ops of `marks[i]` have their begin recorded."""
        return [self._compiler(i, marks[i] if marks else None).compile(self.function.body) for i in range(len(self.classes))]

    def _compiler(self, number: int, marks: Marks | None) -> Compiler:
        one = self.classes[number]
        cost = self.cost if one.device == self.cost.cluster.device else CostModel(replace(self.cost.cluster, device=one.device), self.cost.measured)
        channel = (lambda op, axes: self._channel(number, op, axes)) if len(self.classes) > 1 else (lambda op, axes: ())
        return Compiler(cost, self.mesh, self.mesh.coordinates(one.first), one.factor, marks, channel)

    def _channel(self, number: int, op: Op, axes: Axes) -> Channel:
        """The axes and the classes that meet along them, of a message the sender first and its tag too."""
        rank = self.classes[number].first
        if op.name in ("comm.send", "comm.recv"):
            other = self.colour[self.mesh.rank({**self.mesh.coordinates(rank), axes[0]: op.attrs["to" if op.name == "comm.send" else "source"]})]
            ends = (number, other) if op.name == "comm.send" else (other, number)
            return (axes, ends, op.attrs.get("tag", 0)) if number != other else ()
        met = tuple(sorted({self.colour[m] for m in self.mesh.group(rank, axes)}))
        return (axes, met) if len(met) > 1 else ()

    def engine(self, marks: Sequence[Marks] = ()) -> Engine:
        """An engine that runs one lane for each class."""
        programs = self.programs(marks)
        return Engine(programs, {c: c[1] for p in programs for i in p.code if i[0] == POST and (c := i[-1])})


def _numbered(keys: Iterable[object]) -> list[int]:
    """Each key as the number of its first occurrence among different ones."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(k, len(numbers)) for k in keys]


def _factor(delay: float) -> Fraction:
    """The delay as it is written in decimals."""
    found = Fraction(str(delay))
    if found <= 0:
        raise DmlcError(f"a delay is a positive factor, not {delay}")
    return found
