"""The order in which the next step needs what this one makes: parameters by their first use in the forward pass.

After the backward pass and the last op that several parameters share (the clipping factor), every op serves one parameter's update. These ops, and the collectives
that take new parameters to where they rest, can run in any order; first comes what the next forward pass reads first (ByteScheduler, SOSP 2019).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from dmlc.cost import CostModel
from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Function, Op
from dmlc.ops.comm import is_start
from dmlc.passes._reorder import place
from dmlc.simulate import UnitGraph
from dmlc.simulate.engine import replay
from dmlc.simulate.liveness import outside_values


def first_uses(function: Function) -> dict[str, int]:
    """Parameter -> number of the first op, in loops too, that reads it."""
    found: dict[str, int] = {}
    names = {a: a.name for a in function.args if a.attrs.get("dmlc.role") == "param"}
    for number, op in enumerate(function.ops()):
        for v in op.operands:
            if v in names:
                found.setdefault(names[v], number)
    return found


def by_next_use(function: Function, cost: CostModel) -> bool:
    """Order the updates of a step by the next use of what they make, if it takes no longer than as they stand. True if the order changed."""
    ops = [op for op in function.body if op.name not in TERMINATORS]
    serves = _served(function)
    if not serves or any(is_start(op) or op.name in ("comm.send", "comm.recv") for op in ops):
        return False
    shared = [i for i, op in enumerate(ops) if op.dialect != "comm" and (len(serves.get(op, ())) != 1 or "dmlc.of" in op.attrs)]
    begin = shared[-1] + 1 if shared else 0
    uses = first_uses(function)
    last = max(uses.values(), default=0) + 1
    urgency = {op: min(uses.get(p, last) for p in serves[op]) for op in ops[begin:] if serves.get(op)}
    before = _time(function, cost)
    changed = place([*ops[:begin], *_by_urgency(ops[begin:], urgency)], function.body)
    if changed and _time(function, cost) > before:
        place(ops, function.body)
        return False
    return changed


def _time(function: Function, cost: CostModel) -> int:
    """Makespan in the order that stands."""
    units = UnitGraph.of(function, cost).units()
    return replay(units, range(len(units)))


def _served(function: Function) -> dict[Op, frozenset[str]]:
    """Op -> the parameters whose update (or whose optimizer state's) it is for; empty for a program that updates nothing."""
    owner = {a.name: a.attrs.get("dmlc.of", a.name) for a in function.args}
    found: dict[Op, frozenset[str]] = {}
    for value, attrs in zip(function.results, function.result_attrs):
        if value.op is not None:
            updated = attrs.get("dmlc.updates")
            found[value.op] = found.get(value.op, frozenset()) | {owner.get(updated, updated) or ""}
    for op in reversed(function.body.ops):
        for v in outside_values(op) if op in found else ():
            if v.op is not None:
                found[v.op] = found.get(v.op, frozenset()) | found[op]
    return found if any(a.get("dmlc.updates") for a in function.result_attrs) else {}


def _by_urgency(ops: Sequence[Op], urgency: dict[Op, int]) -> list[Op]:
    """A topological order, most urgent first, else as they stood."""
    number = {op: i for i, op in enumerate(ops)}
    missing = {op: len({v.op for v in outside_values(op) if v.op in number}) for op in ops}
    ready = [(urgency.get(op, 0), number[op]) for op in ops if not missing[op]]
    heapq.heapify(ready)
    order: list[Op] = []
    while ready:
        op = ops[heapq.heappop(ready)[1]]
        order.append(op)
        for user in dict.fromkeys(u for r in op.results for u in r.users if u in number):
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (urgency.get(user, 0), number[user]))
    return order
