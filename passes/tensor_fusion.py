"""tensor-fusion: small collectives of one kind become one, a bucket, which pays the start-up once.

Reductions of gradients become ready one after another in the backward pass; gathers of weights are needed one after another in the
forward pass, which is the same problem backward in time. Both are cut into intervals (`_intervals`) under an alpha-beta model of the
link and a timeline of everything else. What the model proposes is kept only if the graph stays free of cycles, the simulated program gets
no longer and memory suffices; else collectives are merged one by one, each against the simulation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dmlc.cluster import Cluster
from dmlc.cost import CostModel
from dmlc.cost.model import bytes_of
from dmlc.ir.builder import IdPool
from dmlc.ir.core import Block, Module, Op
from dmlc.ir.location import DmlcError
from dmlc.ops.comm import is_start
from dmlc.passes._chunking import PART
from dmlc.passes._intervals import best_intervals, merge_rule
from dmlc.passes._reorder import sort_block
from dmlc.passmanager import Context, Pass
from dmlc.simulate import Choice, UnitGraph
from dmlc.simulate.choice import regions_of
from dmlc.simulate.engine import timeline
from dmlc.simulate.listing import fed_order, list_order
from dmlc.simulate.ordering import price
from dmlc.simulate.units import CommKey, Units

EXACT = 1024  # collectives of a key up to which the best intervals are found; above, a rule of linear time
TRIALS = 32  # simulations a key: with more candidates, several are tried at once
PER_OPERAND = ("dims", "sizes", "grains", "split_dims", "split_sizes", "split_grains")


@dataclass(frozen=True)
class TensorFusion(Pass):
    """`max_bytes` bounds a bucket (0: no bound). Buckets that the text gives (`dmlc.bucket`) are merged as they are; with `given` no others."""

    name = "tensor-fusion"
    decides = True
    numerics = "exact"
    requires = ("partitioned",)

    max_bytes: int = 0
    given: bool = False

    def run(self, module: Module, context: Context) -> bool:
        cost = CostModel.of(module)
        choice = Choice.of(module, order=False)
        memory = module.attrs.get("dmlc.request", {}).get("memory", 0)
        for _, block in () if self.given else regions_of(module.main):
            choice = decide(UnitGraph(block, cost), choice, cost, self.max_bytes, memory)
        return apply(module, choice)


# ---------------------------------------------------------------- decision


def decide(graph: UnitGraph, choice: Choice, cost: CostModel, max_bytes: int = 0, memory: int = 0) -> Choice:
    """Adds buckets for the collectives of the graph's region that no given bucket holds. `memory` in bytes (0: the device's)."""
    taken = {i for ids in choice.buckets for i in ids}
    keys: dict[CommKey, list[str]] = {}
    for node in graph.nodes:
        if node.key is not None and not is_start(node.op) and node.id not in taken and PART not in node.op.attrs:
            keys.setdefault(node.key, []).append(node.id)
    keys = {key: ids for key, ids in keys.items() if len(ids) > 1}
    if not keys:
        return choice
    trial = Trial(graph, choice, cost, memory)
    for key, ids in keys.items():
        before, better = trial.choice, False
        for buckets in _proposals(graph, before, key, ids, cost, max_bytes):
            choice = _whole(graph, before, buckets, max_bytes)
            better |= trial.offer(choice, gain=int(better))  # of equals the first: what is sent early leaves slack
        if not better:
            _one_by_one(trial, key, ids, max_bytes or 1 << 62)
    return trial.choice


class Trial:
    """The best choice so far, by simulated time; one that needs more memory than there is must not need more than the first."""

    def __init__(self, graph: UnitGraph, choice: Choice, cost: CostModel, memory: int = 0):
        self.graph, self.choice, self.cost = graph, choice, cost
        units = graph.units(choice)
        self.time = price(units)
        self.cap = max(memory or cost.cluster.memory, self._peak(units))

    def offer(self, choice: Choice, gain: int = 0) -> bool:
        """Take `choice` if it has new buckets and is shorter by `gain` picoseconds at least."""
        if choice == self.choice:
            return False
        units = self.graph.units(choice)
        time = price(units)
        if time + gain > self.time or self._peak(units) > self.cap:
            return False
        self.choice, self.time = choice, time
        return True

    @staticmethod
    def _peak(units: Units) -> int:
        return units.peak(range(len(units)))


def _proposals(graph: UnitGraph, choice: Choice, key: CommKey, ids: Sequence[str], cost: CostModel, limit: int) -> Iterator[list[list[str]]]:
    """Buckets for the collectives of a key, by when they become ready and by when they are needed in the program's order, then by when they become ready
    in an order that feeds the streams."""
    ready, needed, total = _times(graph, choice, key, fed=False)

    def time(size: int) -> int:
        return cost.collective(key.kind.split(".")[1], size, key.axes, graph.mesh).time

    for clock in (ready, {i: total - t for i, t in needed.items()}, _times(graph, choice, key, fed=True)[0]):
        order = sorted(ids, key=lambda i: clock[i])
        clocks, sizes = [clock[i] for i in order], [_bytes(graph, [i]) for i in order]
        solve = best_intervals if len(ids) <= EXACT else merge_rule
        yield [order[first:stop] for first, stop in solve(clocks, sizes, time, limit)]


def _times(graph: UnitGraph, choice: Choice, key: CommKey, fed: bool) -> tuple[dict[str, int], dict[str, int], int]:
    """Collective -> when its operands are there, and when its first reader could begin, in a list schedule in program order, or in one that feeds
    the streams, while the collectives of `key` take no time; and how long that schedule is."""
    units = graph.units(choice)
    order = fed_order(units) if fed else None
    own = [graph.nodes[members[0]].key == key for members in units.nodes]
    units = replace(units, time=tuple(0 if mine else t for mine, t in zip(own, units.time)))
    events = {e.unit: e for e in timeline(units, order or list_order(units, by_path=False))}
    total = max((e.end for e in events.values()), default=0)
    ready = {name: max((events[units.ids[p]].end for p in units.preds[u]), default=0) for u, name in enumerate(units.ids)}
    needed = {name: min((events[units.ids[s]].begin for s in units.succs[u]), default=total) for u, name in enumerate(units.ids)}
    return ready, needed, total


def _whole(graph: UnitGraph, choice: Choice, buckets: Sequence[Sequence[str]], limit: int) -> Choice:
    """`choice` with the buckets; of one that is not legal as a whole, the members that are."""
    for ids in buckets:
        if len(ids) < 2:
            continue
        found = choice.with_(buckets=(*choice.buckets, tuple(sorted(ids, key=lambda i: graph.by_id[i]))))
        if graph.legal(found) is None:
            choice = found
        else:
            choice = _merged(graph, choice, [(ids[0], other) for other in ids[1:]], limit or 1 << 62)
    return choice


def _one_by_one(trial: Trial, key: CommKey, ids: Sequence[str], limit: int) -> None:
    """Merge neighbours in order of readiness as far as the simulated program gets no longer."""
    graph = trial.graph
    units = graph.units(trial.choice)
    ends = {e.unit: e.end for e in timeline(units, list_order(units, by_path=False))}
    ready = {units.ids[u]: max((ends[units.ids[p]] for p in units.preds[u]), default=0) for u in range(len(units))}
    pairs = list(_candidates(sorted(ids, key=lambda i: ready[i]), key, ready, ends, graph, trial.cost))
    step = -(-len(pairs) // TRIALS)
    for at in range(0, len(pairs), step or 1):
        trial.offer(_merged(graph, trial.choice, pairs[at : at + step], limit))


def _candidates(ids: Sequence[str], key: CommKey, ready: dict[str, int], ends: dict[str, int], graph: UnitGraph, cost: CostModel):
    """(member of the bucket, collective to add), in order of readiness."""
    startup = cost.startup(key.kind.split(".")[1], key.axes, graph.mesh)
    first = 0
    for i in range(1, len(ids)):
        if ready[ids[i]] < ends[ids[i - 1]] + startup:
            yield ids[first], ids[i]
        else:
            first = i


def _merged(graph: UnitGraph, choice: Choice, pairs: Sequence[tuple[str, str]], limit: int) -> Choice:
    """`choice` with the second of each pair in the bucket of the first, where that is legal and within `limit` bytes."""
    for member, other in pairs:
        old = next((b for b in choice.buckets if member in b), (member,))
        bucket = (*old, other)
        found = choice.with_(buckets=(*(b for b in choice.buckets if b is not old), bucket))
        if _bytes(graph, bucket) <= limit and graph.legal(found) is None:
            choice = found
    return choice


def _bytes(graph: UnitGraph, bucket: Sequence[str]) -> int:
    return sum(bytes_of(graph.nodes[graph.by_id[i]].op.operands) for i in bucket)


# ---------------------------------------------------------------- application


def apply(module: Module, choice: Choice) -> bool:
    """Merges every bucket into one variadic collective behind the last of what it needs; ops that read a member move behind it."""
    changed = False
    for _, block in regions_of(module.main):
        by_id = {op.id: op for op in block}
        buckets = [[by_id[i] for i in ids] for ids in choice.buckets if all(i in by_id for i in ids) and len(ids) > 1]
        if not buckets:
            continue
        _check(block, buckets, choice)
        for ops in buckets:
            _merge(ops)
        sort_block(block)
        changed = True
    return changed


def _check(block: Block, buckets: Sequence[Sequence[Op]], choice: Choice) -> None:
    """Raise when the buckets cannot be merged."""
    cycle = UnitGraph(block, CostModel(Cluster.named("cpu"))).legal(choice)
    if cycle is not None:
        raise DmlcError(f"buckets that cannot be: {', '.join(cycle)} differ in kind, combiner, axes or dtype, or wait for each other", buckets[0][0].loc)


def _merge(ops: Sequence[Op]) -> Op:
    """One collective in place of `ops` (in program order), at the last one's place."""
    block = ops[0].block
    assert block is not None
    attrs = {k: v for k, v in ops[0].attrs.items() if k not in ("dmlc.bucket", "dmlc.name", "dmlc.id")}
    for key in PER_OPERAND:
        if key in attrs:
            attrs[key] = tuple(entry for op in ops for entry in op.attrs[key])
    attrs["dmlc.id"] = IdPool(ops[0].function or ops[0]).fresh(f"{ops[0].id}.bucket")
    whole = Op(ops[0].name, [v for op in ops for v in op.operands], [r.type for op in ops for r in op.results], attrs, loc=ops[0].loc)
    block.insert_after(max(ops, key=block.ops.index), whole)
    results = iter(whole.results)
    for op in ops:
        op.replace([next(results) for _ in op.results])
    return whole
