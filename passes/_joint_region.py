"""A block of a per-rank program as the plain problem that the joint search solves (`dmlc.simulate.joint`).

Its nodes are ops, each a unit of its own at first. Views and what a kernel makes itself (constants, broadcasts) are no nodes: whoever reads
one depends on what it is made of. So is a barrier: what it holds back may run wherever the order puts it, and the barrier's trigger is
chosen afterwards.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dmlc.cost import CostModel
from dmlc.cost.model import bytes_of, view_operand
from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Block, Op, Value
from dmlc.ops.base import own_attrs
from dmlc.ops.comm import is_start
from dmlc.ops.iteration import Space
from dmlc.ops.kernel import is_free
from dmlc.passes import _chunking
from dmlc.passes._kernels import Kernels, Limits, fits
from dmlc.passes._quotient import Quotient
from dmlc.simulate import UnitGraph
from dmlc.simulate.joint_problem import Buffer, Chunks, Node, Problem, Stream
from dmlc.simulate.liveness import outside_values, replaced_arguments, storages
from dmlc.simulate.units import COMPUTE
from dmlc.simulate.units import Node as GraphNode

COUNTS = (2, 4, 8)  # chunks that a large collective may be cut into


@dataclass(frozen=True)
class Body:
    """What is known of a loop's body once its own region is decided: picoseconds of one pass, bytes it needs beside its operands."""

    time: int
    peak: int


class JointRegion:
    """The problem of one block and the ops that its numbers stand for. `ways` are ids of the collectives that may be cut (left out: all large ones).

    nodes   number -> node of the graph (an op, or a start with its wait)
    number  op -> its node's number, `by_id` the same by id; ops that are no nodes are missing
    """

    def __init__(
        self, block: Block, cost: CostModel, limits: Limits | None = None, bodies: Mapping[Op, Body] | None = None, ways: Container[str] | None = None
    ):
        self.block, self.cost = block, cost
        self.graph = UnitGraph(block, cost)
        self.kernels = Kernels(Quotient(block), cost, limits or Limits())
        self.bodies = bodies or {}
        self.nodes = [n for n in self.graph.nodes if not is_left_out(n.op)]
        self.number = {op: i for i, node in enumerate(self.nodes) for op in node.ops}
        self.by_id = {node.id: i for i, node in enumerate(self.nodes)}
        self.able = [node.key is None and fits(node.op) for node in self.nodes]
        self._sources: dict[Op, tuple[frozenset[int], frozenset[int]]] = {}
        links = [self._links(node) for node in self.nodes]
        self.around = [through for _, through in links]
        self.streams = tuple(dict.fromkeys(n.key.axes for n in self.nodes if n.key is not None))
        self.problem = Problem(
            [self._node(i, near | through) for i, (near, through) in enumerate(links)],
            streams=[self._stream(axes) for axes in self.streams],
            buffers=self._buffers(),
            time=self._time,
            fusable=self._fusable,
            chunks=self._chunks(ways),
            call=lambda members: self.cost.starting(self.ops(members)),
        )

    # -------------------------------------------------- dependence

    def _links(self, node: GraphNode) -> tuple[frozenset[int], frozenset[int]]:
        """Nodes that `node` depends on: directly or through what a kernel makes itself, and through a view."""
        near: set[int] = set()
        through: set[int] = set()
        for op in node.ops:
            for value in outside_values(op):
                direct, viewed = self._made_by(value)
                near |= direct
                through |= viewed
        mine = self.number[node.op]
        near |= {i for p in node.preds if (i := self.number.get(self.graph.nodes[p].op)) is not None}  # messages keep their order
        return frozenset(near - through - {mine}), frozenset(through - {mine})

    def _made_by(self, value: Value) -> tuple[frozenset[int], frozenset[int]]:
        op = value.op
        if op is None:
            return frozenset(), frozenset()
        if op in self.number:
            return frozenset((self.number[op],)), frozenset()
        if op.block is not self.block:
            return frozenset(), frozenset()
        if op not in self._sources:
            self._sources[op] = self._through(op)
        return self._sources[op]

    def _through(self, op: Op) -> tuple[frozenset[int], frozenset[int]]:
        """The same of an op that is no node."""
        read = op.operands[:1] if op.name == "dmlc.barrier" else op.operands
        found = [self._made_by(v) for v in read]
        near = frozenset().union(*(n for n, _ in found))
        viewed = frozenset().union(*(v for _, v in found))
        return (near, viewed) if is_free(op) else (frozenset(), near | viewed)

    # -------------------------------------------------- nodes

    def _node(self, number: int, preds: Iterable[int]) -> Node:
        node = self.nodes[number]
        op, body = node.op, self.bodies.get(node.op)
        return Node(
            time=node.cost.time if body is None else body.time * op.attrs.get("count", 1),
            preds=tuple(sorted(preds)),
            stream=COMPUTE if node.key is None else self.streams.index(node.key.axes),
            key=node.key if self.may_merge(node) else None,
            host=self.cost.host(op),
            scratch=self._scratch(op, body),
            kind=_kind(op),
            name=node.id,
            call=0 if node.key is None else self.cost.starting([op]),
        )

    @staticmethod
    def may_merge(node: GraphNode) -> bool:
        """Whether a collective may be in a bucket: not one that is started already, not a chunk."""
        return node.key is not None and not is_start(node.op) and _chunking.PART not in node.op.attrs

    def _scratch(self, op: Op, body: Body | None) -> int:
        from dmlc.simulate.liveness import region_bytes

        return region_bytes(op) if body is None else body.peak

    def _stream(self, axes: Sequence[str]) -> Stream:
        computing, moving = self.cost.slow_down(axes, self.graph.mesh)
        return Stream(",".join(axes), computing, moving, self.cost.link_index(axes, self.graph.mesh))

    def _buffers(self) -> list[Buffer]:
        """Buffers by node; what is left out belongs to the node it stands before, as far as it has a buffer of its own."""
        last, arguments, replaced = self.block.last, list(self.block.args), replaced_arguments(self.block)
        kept = list(last.operands) if last is not None and last.name in TERMINATORS else []
        found = storages([node.ops for node in self.nodes], arguments, [*kept, *(a for a in arguments if a not in replaced)])
        return [Buffer(s.bytes, s.maker, s.users, s.kept) for s in found]

    # -------------------------------------------------- prices

    def ops(self, members: Iterable[int]) -> list[Op]:
        return [self.nodes[m].op for m in members]

    def _time(self, members: Sequence[int]) -> int:
        ops = self.ops(members)
        return self.kernels.price(ops).time if self.nodes[members[0]].key is None else self.graph.bucket_cost(ops).time

    def _fusable(self, members: Sequence[int]) -> bool:
        """Whether computations may be one kernel, by what it can hold; that it takes longer is the search's business unless the kernel's
        rows are so wide that they are read twice, which its price does not say."""
        if not all(self.able[m] for m in members) or any(not self.around[m].isdisjoint(members) for m in members):
            return False
        ops = self.ops(members)
        if self.kernels.too_large(ops) or not self._connected(members):
            return False
        space = self.kernels.space(ops)
        return isinstance(space, Space) and self.kernels.time(ops, space) <= sum(self.nodes[m].cost.time for m in members)

    def _connected(self, members: Sequence[int]) -> bool:
        """Whether values that one member makes and another reads, or that two read, join them all."""
        wanted = set(self.ops(members))
        reached, waiting = {self.nodes[members[0]].op}, [self.nodes[members[0]].op]
        quotient = self.kernels.quotient
        while waiting:
            op = waiting.pop()
            values = [*op.results, *quotient.inputs([op])]
            near = {r for v in values for r in quotient.readers.get(v, ())} | {v.op for v in values if v.op is not None}
            for other in (near & wanted) - reached:
                reached.add(other)
                waiting.append(other)
        return reached == wanted

    # -------------------------------------------------- chunks

    def _chunks(self, wanted: Container[str] | None) -> dict[int, dict[int, Chunks]]:
        """Ways to cut the collectives of one tensor that take longer than two start-ups; of those `wanted` where it is given."""
        found = {}
        for i, node in enumerate(self.nodes):
            offered = wanted is None or node.id in wanted
            if offered and self.may_merge(node) and len(node.op.operands) == 1 and node.cost.time > 2 * self.startup(node):
                ways = {k: way for k in COUNTS if (way := self._way(node.op, k)) is not None and len(way.times) == k}
                if ways:
                    found[i] = ways
        return found

    def startup(self, node: GraphNode) -> int:
        assert node.key is not None
        return self.cost.startup(node.key.kind.split(".")[1], node.key.axes, self.graph.mesh)

    def _way(self, op: Op, count: int) -> Chunks | None:
        """The prices of `op` in `count` chunks; None when it cannot be cut so."""
        cut = _chunking.find_cut([op], count)
        if cut is None:
            return None
        (operand,), (result,) = op.operands, op.results
        parts = [stop - start for start, stop in _chunking.ranges(cut.size, count)]
        ins = [_chunking.narrowed(operand.tensor, cut.dims.get(operand), n) for n in parts]
        outs = [_chunking.narrowed(result.tensor, cut.dims.get(result), n) for n in parts]
        kind = op.name.split(".")[1]
        times = [self.cost.collective(kind, max(a.bytes, b.bytes), op.attrs["axes"], self.graph.mesh).time for a, b in zip(ins, outs)]
        at = cut.dims[operand]
        slices = [Op("dmlc.slice", [Value(operand.type)], [t], {"dim": at, "start": 0, "stop": t.shape[at], "step": 1}) for t in ins]
        join = Op("dmlc.concat", [Value(t) for t in outs], [result.type], {"dim": cut.dims[result]})
        return Chunks(tuple(times), sum(self.cost.op(s).time for s in slices), self.cost.op(join).time, self.cost.call(op.attrs["axes"], self.graph.mesh))


def is_left_out(op: Op) -> bool:
    """Views, and what kernels make themselves: they take no time of their own."""
    return op.dialect != "comm" and not op.regions and (is_free(op) or view_operand(op) is not None)


def _kind(op: Op) -> tuple:
    attrs = tuple((k, str(v)) for k, v in sorted(own_attrs(op).items(), key=lambda kv: kv[0]))
    return (op.name, tuple(map(str, (v.type for v in op.operands))), tuple(map(str, (r.type for r in op.results))), attrs)


def source_bytes(block: Block) -> int:
    """Bytes of what is left out and has a buffer of its own: constants that are read outside of kernels."""
    return sum(bytes_of(op.results) for op in block if is_left_out(op) and view_operand(op) is None)
