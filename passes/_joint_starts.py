"""Where the joint search starts: the program as it stands, each pass's own choice, and the passes one after another.

Choices (`dmlc.simulate.Choice`, by id) become plans (by node); ids that are no nodes, such as constants in a group, are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dmlc.passes import fuse, schedule, tensor_fusion, tensor_partition
from dmlc.passes._joint_region import JointRegion
from dmlc.simulate import Choice
from dmlc.simulate.joint_problem import Plan

ROUGH = 100_000  # units replayed for an order to start from, which the search goes on with


@dataclass(frozen=True)
class Start:
    """A plan and whose choices it is made of."""

    name: str
    plan: Plan


def starts(region: JointRegion, memory: int) -> list[Start]:
    """Plans to start from, the passes in sequence last. `memory` in bytes bounds buckets."""
    graph, cost, none = region.graph, region.cost, Choice()
    groups = fuse.decide(graph.block, none, cost, fuse.Fuse(**vars(region.kernels.limits))).groups
    found = [Start("none", Plan.of(region.problem)), Start("fuse", plan_of(region, groups))]
    if not region.streams:
        return found
    ordered = plan_of(region, order=schedule.decide(graph, none, cost, ROUGH).order[graph.region])
    buckets = tensor_fusion.decide(graph, none, cost, memory=memory).buckets
    found += [Start("schedule", ordered), Start("tensor-fusion", plan_of(region, buckets))]
    return [*found, Start("tensor-partition", tensor_partition.divided(region, ordered)), Start("passes in sequence", in_sequence(region, groups, memory))]


def in_sequence(region: JointRegion, groups: Iterable[Sequence[str]], memory: int) -> Plan:
    """fuse, tensor-fusion, tensor-partition and schedule, each after the one before it."""
    cost, graph = region.cost, region.graph
    choice = tensor_fusion.decide(graph, Choice(groups=tuple(map(tuple, groups))), cost, memory=memory)
    sets = (*choice.groups, *choice.buckets)
    order = schedule.decide(graph, choice, cost, ROUGH).order[graph.region]
    return tensor_partition.divided(region, plan_of(region, sets, order=_members(order, sets)))


def _members(order: Iterable[str], sets: Iterable[Sequence[str]]) -> list[str]:
    """Units' ids, each by one of its members, with all members in its place."""
    inside = {i: ids for ids in sets for i in ids}
    return [i for unit in order for i in inside.get(unit, (unit,))]


def plan_of(region: JointRegion, sets: Iterable[Sequence[str]] = (), chunks: dict[int, int] | None = None, order: Iterable[str] | None = None) -> Plan:
    """A plan with these sets (by id), chunks (by node) and order (by id)."""
    number = region.by_id
    ranked = [number[i] for i in order if i in number] if order is not None else None
    return Plan.of(region.problem, members_of(region, sets), chunks or {}, ranked)


def members_of(region: JointRegion, sets: Iterable[Sequence[str]]) -> list[tuple[int, ...]]:
    """Sets of ids as sets of at least two nodes."""
    found = [tuple(region.by_id[i] for i in ids if i in region.by_id) for ids in sets]
    return [members for members in found if len(members) > 1]
