"""tensor-fusion: small collectives of one kind become one, a bucket, which pays the start-up once.

Candidates follow MG-WFBP (Shi, Chu, Li, INFOCOM 2019): with t(M) = a + b M, a collective joins the bucket before it when its operands
are ready before that bucket's communication would end, and waiting for them delays the bucket by less than the start-up a. Each
candidate is kept only if the graph stays free of cycles and the simulated program gets no longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dmlc.cluster import Cluster
from dmlc.cost import CostModel
from dmlc.cost.model import bytes_of
from dmlc.ir.builder import IdPool
from dmlc.ir.core import Block, Module, Op
from dmlc.ir.location import DmlcError
from dmlc.ops.comm import is_start
from dmlc.passes._chunking import PART
from dmlc.passes._reorder import sort_block
from dmlc.passmanager import Context, Pass
from dmlc.simulate import Choice, UnitGraph
from dmlc.simulate.choice import regions_of
from dmlc.simulate.engine import timeline
from dmlc.simulate.listing import list_order
from dmlc.simulate.ordering import price
from dmlc.simulate.units import CommKey

TRIALS = 32  # simulations a key: with more candidates, several are tried at once
PER_OPERAND = ("dims", "sizes", "grains", "split_dims", "split_sizes", "split_grains")


@dataclass(frozen=True)
class TensorFusion(Pass):
    """`max_bytes` bounds a bucket (0: no bound). Buckets that the text gives (`dmlc.bucket`) are merged as they are."""

    name = "tensor-fusion"
    numerics = "exact"
    requires = ("partitioned",)

    max_bytes: int = 0

    def run(self, module: Module, context: Context) -> bool:
        cost = CostModel(Cluster.of(module))
        choice = Choice.of(module, order=False)
        for _, block in regions_of(module.main):
            choice = decide(UnitGraph(block, cost), choice, cost, self.max_bytes)
        return apply(module, choice)


# ---------------------------------------------------------------- decision


def decide(graph: UnitGraph, choice: Choice, cost: CostModel, max_bytes: int = 0) -> Choice:
    """Adds buckets for the collectives of the graph's region that no given bucket holds."""
    taken = {i for ids in choice.buckets for i in ids}
    ready, ends = _times(graph, choice)
    keys: dict[CommKey, list[str]] = {}
    for node in graph.nodes:
        if node.key is not None and not is_start(node.op) and node.id not in taken and PART not in node.op.attrs:
            keys.setdefault(node.key, []).append(node.id)
    if not any(len(ids) > 1 for ids in keys.values()):
        return choice
    best = price(graph.units(choice))
    for key, ids in keys.items():
        ids.sort(key=lambda i: ready[i])
        pairs = list(_candidates(ids, key, ready, ends, graph, cost))
        step = -(-len(pairs) // TRIALS)
        for at in range(0, len(pairs), step or 1):
            found = _merged(graph, choice, pairs[at : at + step], max_bytes or 1 << 62)
            time = price(graph.units(found)) if found != choice else best + 1
            if time <= best:
                choice, best = found, time
    return choice


def _times(graph: UnitGraph, choice: Choice) -> tuple[dict[str, int], dict[str, int]]:
    """Collective -> when its operands are there, and when it ends, in a list schedule in program order."""
    units = graph.units(choice)
    end = {e.unit: e.end for e in timeline(units, list_order(units, by_path=False))}
    ready = {units.ids[u]: max((end[units.ids[p]] for p in units.preds[u]), default=0) for u in range(len(units))}
    return ready, end


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
