"""Where an op runs: which mesh axes split which factor, and the shardings of operands and results that follow.

In text `dmlc.place = {j = ["model"], linear = {data = 0}, strategy = {vocabulary = ["model"]}, grains = {j = 64}}`:
a factor's axes; for an axis over which operand set i stays unreduced, `linear`; a strategy's name with its axes; the grain of a
factor (in its own elements) where it is not 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dmlc.ir.attributes import AttrDict, Sharding
from dmlc.ir.core import Op
from dmlc.ir.location import DmlcError
from dmlc.ir.open_sizes import representative
from dmlc.ir.sharding import Mesh
from dmlc.ops.base import Strategy, linear_of, rule_of, signature, strategies_of
from dmlc.ops.rule import Rule

RESERVED = ("linear", "strategy", "grains")


@dataclass(frozen=True)
class Place:
    """Pairs are kept sorted by key; axes of a factor major first."""

    factors: tuple[tuple[str, tuple[str, ...]], ...] = ()
    linear: tuple[tuple[str, int], ...] = ()
    strategy: tuple[str, tuple[str, ...]] | None = None
    grains: tuple[tuple[str, int], ...] = ()

    @classmethod
    def make(cls, factors: Mapping[str, Sequence[str]] | None = None, linear: Mapping[str, int] | None = None, strategy: tuple[str, tuple[str, ...]] | None = None, grains: Mapping[str, int] | None = None) -> Place:
        kept = {f: tuple(a) for f, a in (factors or {}).items() if a}
        return cls(
            tuple(sorted(kept.items())),
            tuple(sorted((linear or {}).items())),
            strategy,
            tuple(sorted((f, g) for f, g in (grains or {}).items() if g != 1 and f in kept)),
        )

    @classmethod
    def from_attr(cls, attr: AttrDict | None) -> Place:
        if attr is None:
            return cls()
        factors = {f: a for f, a in attr.items() if f not in RESERVED}
        strategy = next(iter(attr["strategy"].items())) if "strategy" in attr else None
        return cls.make(factors, attr.get("linear"), strategy, attr.get("grains"))

    def to_attr(self) -> AttrDict:
        attr: dict = dict(self.factors)
        if self.linear:
            attr["linear"] = AttrDict(self.linear)
        if self.strategy:
            attr["strategy"] = AttrDict({self.strategy[0]: self.strategy[1]})
        if self.grains:
            attr["grains"] = AttrDict(self.grains)
        return AttrDict(attr)

    def axes_of(self, factor: str) -> tuple[str, ...]:
        return next((axes for f, axes in self.factors if f == factor), ())

    def grain_of(self, factor: str) -> int:
        return next((grain for f, grain in self.grains if f == factor), 1) if self.grains else 1

    @property
    def axes(self) -> tuple[str, ...]:
        """Every axis in use."""
        used = [a for _, axes in self.factors for a in axes] + [a for a, _ in self.linear]
        return tuple(dict.fromkeys(used + list(self.strategy[1] if self.strategy else ())))

    @property
    def is_trivial(self) -> bool:
        return not (self.factors or self.linear or self.strategy)


def strategy_of(op: Op, place: Place) -> Strategy | None:
    if place.strategy is None:
        return None
    for s in strategies_of(op):
        if s.name == place.strategy[0]:
            return s
    raise DmlcError(f"'{op.name}' has no strategy \"{place.strategy[0]}\"; it has {[s.name for s in strategies_of(op)]}", op.loc)


def illegal(mesh: Mesh, op: Op, place: Place) -> str | None:
    """Why an op cannot be placed so, or None. Wrong names and whole, repeated or strided splits are refused."""
    rule = rule_of(op)
    used = [a for _, axes in place.factors for a in axes] + [a for a, _ in place.linear] + list(place.strategy[1] if place.strategy else ())
    if len(set(used)) != len(used):
        return "an axis is used twice"
    if any(a not in mesh.sizes for a in used):
        return f"the mesh has no axis {next(a for a in used if a not in mesh.sizes)}"
    for f, _ in place.factors:
        if f not in rule.factors:
            return f"the op has no factor {f} ({rule})"
        if f in rule.whole:
            return f"factor {f} is whole"
        if place.grain_of(f) < 1 or rule.sizes[f] % place.grain_of(f):
            return f"factor {f} of {rule.sizes[f]} does not split into grains of {place.grain_of(f)}"
    if any(i >= len(linear_of(op)) for _, i in place.linear):
        return "no such linear operand set"
    chosen = strategy_of(op, place)
    if chosen is not None and chosen.divides and chosen.divides % mesh.extent(place.strategy[1]):  # type: ignore[index]
        return f"strategy {chosen.name} needs a number of ranks that divides {chosen.divides}"
    if chosen is not None and (f := _uneven_below(mesh, rule, place, chosen)) is not None:
        return f"strategy {chosen.name} splits a dim further that factor {f} splits unevenly"
    return next((why for d in rule.compounds if (why := _strided(mesh, rule, place, d))), None)


def _uneven_below(mesh: Mesh, rule: Rule, place: Place, chosen: Strategy) -> str | None:
    """A factor that splits unevenly a dim which the strategy splits again: the parts of two tensors would no longer match."""
    for entries, tensors in ((chosen.operands, rule.operands), (chosen.results, rule.results)):
        for entry, dims in zip(entries, tensors):
            for f in dims[entry] if isinstance(entry, int) else ():
                if not mesh.is_even(rule.sizes[f], place.axes_of(f), place.grain_of(f)):
                    return f
    return None


def _strided(mesh: Mesh, rule: Rule, place: Place, compound: tuple[str, ...]) -> str | None:
    """A factor inside a compound may be split only when all to its left have local size 1 and split evenly."""
    for i, f in enumerate(compound):
        if not place.axes_of(f):
            continue
        for left in compound[:i]:
            if mesh.local_size(rule.sizes[left], place.axes_of(left)) != 1 or not mesh.is_even(rule.sizes[left], place.axes_of(left)):
                return f"factor {f} lies inside {left}, which is not split down to 1"
    return None


_STATES: dict[tuple, tuple[list[Sharding], list[Sharding]]] = {}


def states(mesh: Mesh, op: Op, place: Place) -> tuple[list[Sharding], list[Sharding]]:
    """Shardings that the place asks of the operands and gives the results (cached by name, types and own attributes)."""
    key = (mesh, place, signature(op))
    found = _STATES.get(key)
    if found is None:
        found = _STATES[key] = _states(mesh, op, place)
    return list(found[0]), list(found[1])


def _states(mesh: Mesh, op: Op, place: Place) -> tuple[list[Sharding], list[Sharding]]:
    rule = rule_of(op)
    chosen = strategy_of(op, place)
    linear = linear_of(op)
    operands, results = [], []
    for i, dims in enumerate(rule.operands):
        unreduced = {a: "sum" for a, s in place.linear if i in linear[s]}
        operands.append(_state(mesh, rule, place, dims, op.operands[i].shape, unreduced, chosen, "operands", i))
    completed = {a: rule.combiner(f) for f, axes in place.factors if f in rule.reduced for a in axes}
    completed |= {a: "sum" for a, _ in place.linear}
    for j, dims in enumerate(rule.results):
        results.append(_state(mesh, rule, place, dims, op.results[j].shape, dict(completed), chosen, "results", j))
    return operands, results


def _state(mesh: Mesh, rule: Rule, place: Place, dims: Iterable[tuple[str, ...]], shape: Sequence[int], unreduced: dict[str, str], chosen: Strategy | None, side: str, index: int) -> Sharding:
    axes, grains = [], []
    for fs in dims:
        a, g = _dim_state(rule, place, fs)
        axes.append(a)
        grains.append(g)
    if chosen is not None:
        entry = getattr(chosen, side)[index]
        mine = place.strategy[1]  # type: ignore[index]
        if isinstance(entry, tuple):
            unreduced |= dict.fromkeys(mine, str(entry[1]))
        elif entry is not None:
            axes[entry] += mine
            grains[entry] = chosen.grains.get(f"{side[0]}{index}", 1)
    return mesh.sharding(axes, unreduced, grains, shape)


def _dim_state(rule: Rule, place: Place, factors: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """Axes and grain of one dim: the grain is what lies right of the last split factor, times that factor's own grain."""
    axes: tuple[str, ...] = ()
    grain = 1
    for i, f in enumerate(factors):
        if place.axes_of(f):
            axes += place.axes_of(f)
            grain = place.grain_of(f) * math.prod(rule.sizes[r] for r in factors[i + 1 :])
    return axes, grain  # type: ignore[return-value]  # an open size counts as a number


def share(mesh: Mesh, op: Op, place: Place) -> float:
    """The part of the op's global work that one rank does, padding included."""
    rule = rule_of(op)
    part = 1.0
    for f, axes in place.factors:
        n = representative(rule.sizes[f])
        if n:
            part *= mesh.local_size(n, axes, place.grain_of(f)) / n
    chosen = strategy_of(op, place)
    return part * chosen.work(mesh.extent(place.strategy[1])) if chosen is not None else part  # type: ignore[index]
