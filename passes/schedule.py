"""schedule: the order of computation and communication, and collectives that run beside computation.

Every collective becomes a start and a wait where something runs between them; waits stand before their first consumer. The order is
one for all ranks: it follows from the graph and the cost model alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dmlc.cost import CostModel
from dmlc.ir.builder import TERMINATORS, Builder, IdPool
from dmlc.ir.core import Block, Module, Op
from dmlc.ir.location import DmlcError
from dmlc.ir.types import FutureType
from dmlc.ops.comm import base_name, is_collective, is_start
from dmlc.passes._reorder import place
from dmlc.passmanager import Context, Pass
from dmlc.simulate import Choice, UnitGraph
from dmlc.simulate.choice import NOT_ORDERED, regions_of
from dmlc.simulate.engine import Simulation, simulate_block
from dmlc.simulate.liveness import outside_values
from dmlc.simulate.ordering import EFFORT, find_order
from dmlc.simulate.units import Prices


@dataclass(frozen=True)
class Schedule(Pass):
    """Orders each region by simulated time under the cluster's memory. `effort` bounds the local search (units replayed). With `given` the order
    stays as it stands, and collectives only begin where they are and are waited for before their first reader."""

    name = "schedule"
    decides = True
    numerics = "exact"
    requires = ("partitioned",)
    ensures = ("scheduled",)

    effort: int = EFFORT
    given: bool = False

    def run(self, module: Module, context: Context) -> bool:
        cost = CostModel.of(module)
        changed = False
        for function in module.functions:
            if function.op.attrs.get("sym_visibility") == "private":
                continue
            for _, block in reversed(list(regions_of(function))):  # inner regions first: a loop takes as long as its body
                changed |= self._block(block, cost, context)
        return changed

    def _block(self, block: Block, cost: CostModel, context: Context) -> bool:
        if not any(op.dialect == "comm" and op.name != "comm.axis_index" for op in block):
            return False
        if self.given:
            return _apply_block(block, [op for op in block if op.name not in NOT_ORDERED])
        prices: Prices = {}
        before = simulate_block(block, cost, prices)
        choice = decide(UnitGraph(block, cost, prices=prices), Choice(), cost, self.effort)
        changed = apply(block, choice)
        after = simulate_block(block, cost, prices)
        memory = cost.cluster.memory
        owner = block.region.op if block.region is not None else None
        context.remark(owner, _comparison(before, after))
        if after.peak > memory:
            context.remark(owner, f"needs {after.peak} bytes, {after.peak - memory} more than a device may use")
        return changed


def _comparison(before: Simulation, after: Simulation) -> str:
    time = f"{_micro(before.makespan)} -> {_micro(after.makespan)}, of which communication exposed {_micro(before.exposed)} -> {_micro(after.exposed)}"
    return f"{time}; no order beats {_micro(after.bounds.best)} ({after.bounds}): gap {before.gap:.1%} -> {after.gap:.1%}"


def _micro(time: int) -> str:
    return f"{time / 1e6:.1f} us"


def decide(graph: UnitGraph, choice: Choice, cost: CostModel, effort: int = EFFORT) -> Choice:
    """Adds an order for the graph's region: never slower than the program's own, and within the memory cap if that one is."""
    units = graph.units(choice)
    order = find_order(units, cost.cluster.memory, effort, cost.late)
    return choice.with_(order={**choice.order, graph.region: tuple(units.ids[u] for u in order)})


def apply(target: Module | Block, choice: Choice) -> bool:
    """Puts every region that `choice` orders into that order."""
    if isinstance(target, Block):
        (order,) = choice.order.values()
        return _apply_block(target, _expanded(target, order, choice))
    regions = [pair for f in target.functions for pair in regions_of(f)]
    return any([_apply_block(block, _expanded(block, choice.order[key], choice)) for key, block in regions if key in choice.order])


def _expanded(block: Block, order: Iterable[str], choice: Choice) -> list[Op]:
    """Ops in the order of their units; members of a group stay together."""
    by_id = {op.id: op for op in block if op.name != "comm.wait" and op.name not in TERMINATORS}
    members = {ids[0]: ids for ids in (*choice.groups, *choice.buckets)}
    ids = [i for unit in order for i in members.get(unit, (unit,))]
    if sorted(ids) != sorted(by_id):
        odd = sorted(set(by_id).symmetric_difference(ids))
        raise DmlcError(f"the order does not list each op of its region once ({', '.join(odd) or 'some twice'})", block.terminator.loc)
    return [by_id[i] for i in ids]


def _apply_block(block: Block, order: list[Op]) -> bool:
    before = [(op.name, op.id) for op in block]
    ids = IdPool(block.terminator.function or block.terminator)
    started = [_as_start(op, ids) if is_collective(op) else op for op in order]
    place(_with_waits(block, started), block)
    _join_adjacent(block)
    return [(op.name, op.id) for op in block] != before


def _as_start(op: Op, ids: IdPool) -> Op:
    """A collective as a start and a wait behind it; what is one already stays."""
    if is_start(op):
        return op
    attrs = {k: v for k, v in op.attrs.items() if k != "dmlc.name"}
    start = Op(op.name + "_start", op.operands, [FutureType(tuple(r.type for r in op.results))], attrs, loc=op.loc)
    assert op.block is not None
    op.block.insert_before(op, start)
    wait = Builder.after(start, ids).op("comm.wait", start.results, _name_of(op), [r.type for r in op.results], tag="wait")
    op.replace(wait.results)
    return start


def _name_of(op: Op) -> dict:
    return {"dmlc.name": op.attrs["dmlc.name"]} if "dmlc.name" in op.attrs else {}


def _with_waits(block: Block, order: list[Op]) -> list[Op]:
    """Each wait before the first op that reads what it gives, or at the end."""
    waits = {wait: start for start in order if is_start(start) for wait in start.results[0].users}
    found: list[Op] = []
    pending = dict.fromkeys(w for w in waits if w.block is block)
    for op in order:
        for value in outside_values(op):
            if value.op in pending:
                found.append(value.op)
                del pending[value.op]
        found.append(op)
    return [*found, *pending]


def _join_adjacent(block: Block) -> None:
    """A wait right behind its start is the synchronous collective again."""
    for start in block:
        wait = start.next
        if is_start(start) and wait is not None and wait.name == "comm.wait" and wait.operands[0] is start.results[0]:
            whole = Op(base_name(start), start.operands, [r.type for r in wait.results], {**start.attrs, **_name_of(wait)}, loc=start.loc)
            block.insert_before(start, whole)
            wait.replace(whole.results)
            start.erase()
