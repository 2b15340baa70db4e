"""tensor-partition: a large collective becomes chunks, so that a more urgent one need not wait for all of it.

Splitting k ways costs k-1 more start-ups; it pays where the stream is busy with what nobody needs yet (ByteScheduler, SOSP 2019), and is done
only where the simulated program gets shorter. The order of the chunks is the scheduler's: those whose result is needed first go first.
In a training step new parameters are brought to where they rest in the order in which the next forward pass reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from dmlc.cost import CostModel
from dmlc.ir.core import Module, Op
from dmlc.ops.comm import is_start
from dmlc.passes import _chunking
from dmlc.passes._joint_region import COUNTS, JointRegion
from dmlc.passes._next_use import by_next_use
from dmlc.passes.overlap_split import trial
from dmlc.passmanager import Context, Pass
from dmlc.simulate import Choice, UnitGraph
from dmlc.simulate.joint import Plan, search
from dmlc.simulate.ordering import price
from dmlc.simulate.units import Node

apply = _chunking.apply
SEARCH = 200_000  # units simulated to find what to cut, and as many before for the order without


@dataclass(frozen=True)
class TensorPartition(Pass):
    """`chunks` fixes the number of pieces (0: the best of 2, 4, 8); `force` splits every collective that costs more than its start-up
    even if the simulation sees no gain. With `given` only what the text marks (`dmlc.chunks`) is cut, and no update moves."""

    name = "tensor-partition"
    numerics = "exact"
    requires = ("partitioned",)

    chunks: int = 0
    force: bool = False
    given: bool = False

    def run(self, module: Module, context: Context) -> bool:
        if self.given:
            return apply(module, Choice.of(module, order=False))
        cost = CostModel.of(module)
        graph = UnitGraph.of(module.main, cost)
        choice = decide(graph, Choice.of(module, order=False), cost, self.chunks, self.force)
        for op in large(graph, cost):
            if op.id not in choice.chunks:
                context.remark(op, "not split: the program would not get shorter")
        return any([apply(module, choice), by_next_use(module.main, cost)])


def large(graph: UnitGraph, cost: CostModel) -> list[Op]:
    """Synchronous collectives of one tensor that take longer than two start-ups, longest first."""
    found = [n for n in graph.nodes if _is_whole(n) and n.cost.time > 2 * _startup(n.op, graph, cost)]
    return [n.op for n in sorted(found, key=lambda n: -n.cost.time)]


def _is_whole(node: Node) -> bool:
    """A synchronous collective of one tensor that is not a chunk already."""
    return node.key is not None and not is_start(node.op) and len(node.op.operands) == 1 and _chunking.PART not in node.op.attrs


def _startup(op: Op, graph: UnitGraph, cost: CostModel) -> int:
    return cost.startup(op.name.split(".")[1], op.attrs["axes"], graph.mesh)


def decide(graph: UnitGraph, choice: Choice, cost: CostModel, chunks: int = 0, force: bool = False) -> Choice:
    """Adds numbers of chunks for the collectives that shorten the program when cut."""
    if chunks or force:
        return _tried(graph, choice, cost, chunks, force)
    region = JointRegion(graph.block, cost, ways={op.id for op in large(graph, cost) if op.id not in choice.chunks and _has_rival(graph, op)})
    if not region.problem.chunks:
        return choice
    ordered = search(region.problem, [Plan.of(region.problem)], 0, SEARCH, frozenset(("order",)))
    cut = divided(region, ordered.plan)
    return choice.with_(chunks={**choice.chunks, **{region.nodes[n].id: count for n, count in cut.chunks.items()}})


def divided(region: JointRegion, plan: Plan, effort: int = SEARCH) -> Plan:
    """`plan` with collectives cut where that makes it shorter, and the order that goes with it; itself where nothing does."""
    if not region.problem.chunks:
        return plan
    return search(region.problem, [plan], 0, effort, frozenset(("order", "chunks"))).plan


def _tried(graph: UnitGraph, choice: Choice, cost: CostModel, chunks: int, force: bool) -> Choice:
    """The same one collective after another, with a number of chunks given, or whatever the simulation says."""
    best_time = price(graph.units(choice))
    for op in large(graph, cost):
        if op.id in choice.chunks or not (force or _has_rival(graph, op)):
            continue
        options = [choice.with_(chunks={**choice.chunks, op.id: k}) for k in ((chunks,) if chunks else COUNTS) if _chunking.find_cut([op], k)]
        timed = [(time, i) for i, option in enumerate(options) if (time := trial(graph.block, option, cost)) is not None]
        if timed and (min(timed)[0] < best_time or force):
            best_time, best = min(timed)
            choice = options[best]
    return choice


def _has_rival(graph: UnitGraph, op: Op) -> bool:
    """Whether another collective of the same stream could overtake a part of `op`: one that neither needs it nor is needed by it."""
    here = graph.by_id[op.id]
    axes = op.attrs["axes"]
    rivals = [i for i, n in enumerate(graph.nodes) if n.key is not None and n.key.axes == axes and i != here]
    return any(not graph.reaches(i, {here}) and not graph.reaches(here, {i}) for i in rivals)
