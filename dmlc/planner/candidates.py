"""The places an op may take: one choice a tensor-parallel axis beside its data-parallel part."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from dmlc.ir.attributes import Sharding
from dmlc.ir.core import Op
from dmlc.ir.open_sizes import representative
from dmlc.ir.sharding import Mesh
from dmlc.ops.base import linear_of, rule_of, strategies_of
from dmlc.ops.place import Place, illegal, states


@dataclass(frozen=True)
class Candidate:
    """A place with the shardings it asks for and gives."""

    place: Place
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]


def candidates(op: Op, mesh: Mesh, axes: Sequence[str], data: Place, batch_factors: Sequence[str], grains: dict[str, tuple[int, ...]]) -> list[Candidate]:
    """All legal places of an op, the replicated one first; places with equal shardings are kept once.

    Tensor axes never split a batch factor. `grains[f]` are grains worth trying for factor f beside 1.
    """
    found: dict[tuple, Candidate] = {}
    for choice in itertools.product(_choices(op, batch_factors, grains), repeat=len(axes)):
        place = _merge(data, dict(zip(axes, choice)))
        if place is None or illegal(mesh, op, place) is not None:
            continue
        asked, given = states(mesh, op, place)
        if not _disjoint(asked) or not _disjoint(given):
            continue
        found.setdefault((tuple(asked), tuple(given)), Candidate(place, tuple(asked), tuple(given)))
    return list(found.values())


def _choices(op: Op, batch_factors: Sequence[str], grains: dict[str, tuple[int, ...]]) -> list[tuple]:
    rule = rule_of(op)
    options: list[tuple] = [("none",)]
    for f in rule.factors:
        if f in rule.whole or f in batch_factors or representative(rule.sizes[f]) < 2:
            continue
        options += [("factor", f, g) for g in (1, *grains.get(f, ()))]
    options += [("linear", s) for s in range(len(linear_of(op)))]
    options += [("strategy", s.name) for s in strategies_of(op) if not s.sequential_only]
    return options


def _merge(data: Place, chosen: dict[str, tuple]) -> Place | None:
    factors = {f: list(a) for f, a in data.factors}
    linear = dict(data.linear)
    grains = dict(data.grains)
    strategies: dict[str, list[str]] = {}
    for axis, option in chosen.items():
        if option[0] == "factor":
            factors.setdefault(option[1], []).append(axis)
            if grains.setdefault(option[1], option[2]) != option[2]:
                return None
        elif option[0] == "linear":
            linear[axis] = option[1]
        elif option[0] == "strategy":
            strategies.setdefault(option[1], []).append(axis)
    if len(strategies) + (data.strategy is not None) > 1:
        return None  # an op has one strategy at most
    strategy = next(((n, tuple(a)) for n, a in strategies.items()), data.strategy)
    return Place.make({f: tuple(a) for f, a in factors.items()}, linear, strategy, grains)


def _disjoint(shardings: Sequence[Sharding]) -> bool:
    """No tensor uses an axis twice."""
    for s in shardings:
        used = [a for d in s.dims for a in d] + [a for a, _ in s.unreduced]
        if len(set(used)) != len(used):
            return False
    return True
