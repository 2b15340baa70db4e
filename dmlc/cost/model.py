"""A roofline for ops and an alpha-beta model of rings for collectives.

An op takes the longer of its arithmetic at the dense peak and its operands and results at the memory's bandwidth, both derated,
plus one kernel launch. A ring over n ranks takes a step's latency for each of its steps plus the bytes a rank sends at the
link's bandwidth: (n-1)/n of the tensor for a gather, a scatter or an all-to-all, twice that for an all-reduce
(Thakur, Rabenseifner, Gropp 2005). All arithmetic is on integers, so that every machine gives the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dmlc.cluster import Cluster, Link
from dmlc.cost.cost import Cost, transfer
from dmlc.cost.measured import Measurements
from dmlc.ir import registry
from dmlc.ir.core import Module, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import FutureType, TensorType, Type
from dmlc.ops.base import flops_of, index_of, own_attrs

EFFICIENCY = 70  # percent of the sheet's rates that real kernels reach
STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "broadcast": 1, "send": 0, "recv": 0}
HOST_ISSUE = 6_000_000  # picoseconds in which eager PyTorch issues one op to a gpu


def type_bytes(type_: Type) -> int:
    """Bytes of a value; an unknown size counts as 1."""
    if isinstance(type_, FutureType):
        return sum(map(type_bytes, type_.types))
    if not isinstance(type_, TensorType):
        return 0
    known = type_.with_shape(tuple(n if isinstance(n, int) else 1 for n in type_.shape))
    return known.bytes


def bytes_of(values: Iterable[Value]) -> int:
    return sum(type_bytes(v.type) for v in values)


def view_operand(op: Op) -> int | None:
    """The operand that result 0 aliases, or None."""
    found = registry.lookup(op.name)
    return found.view if found is not None else None


class CostModel:
    """Prices on one cluster. All sizes are a rank's own (local)."""

    def __init__(self, cluster: Cluster, measured: Measurements | None = None):
        self.cluster, self.measured = cluster, measured
        self._links: dict[tuple[Mesh, tuple[str, ...]], Link] = {}
        self._ops: dict[tuple, Cost] = {}
        self.defaults: dict[str, int] = {}  # ops priced for want of anything better: kind -> how many different ones

    @classmethod
    def of(cls, module: Module) -> CostModel:
        """The prices that the module's text asks for: its cluster, and the measurements it names."""
        return cls(Cluster.of(module), Measurements.of(module))

    # -------------------------------------------------- computation

    def op(self, op: Op) -> Cost:
        """What running `op` once costs a rank; regions count their body, a loop as often as it runs."""
        definition = registry.lookup(op.name)
        if op.dialect == "comm" and op.name != "comm.axis_index":
            return self._comm_op(op)
        if op.regions and op.name != "kernel.fused":
            return self._region_op(op)
        if op.name != "kernel.fused" and (view_operand(op) is not None or (definition is not None and definition.cost == "free")):
            return Cost()
        key = (op.name, tuple(v.type for v in op.operands), tuple(r.type for r in op.results), tuple(sorted(own_attrs(op).items(), key=lambda kv: kv[0])))
        if op.regions or key not in self._ops:
            self._ops[key] = found = self.group([op], op.operands, op.results)
            if found.source == "default":
                self.defaults[op.name] = self.defaults.get(op.name, 0) + 1
        return self._ops[key]

    def host(self, op: Op) -> int:
        """Picoseconds in which the host issues `op` to the device; 0 where the host is the device."""
        return 0 if self.cluster.device.kind == "cpu" else HOST_ISSUE

    def group(self, ops: Sequence[Op], reads: Iterable[Value], writes: Iterable[Value]) -> Cost:
        """Ops in one kernel that reads and writes the given values."""
        inner = [o for op in ops for o in op.walk()]
        known = all(registry.lookup(o.name) is not None for o in inner)
        macs = [(o, flops_of(o)) for o in inner if registry.lookup(o.name) is not None and not o.regions]
        arithmetic = sum(self._arithmetic(o, n) for o, n in macs if n)
        moved = self._read_bytes(ops, reads) + bytes_of(writes)
        memory = self._derated(transfer(moved, self.cluster.device.bandwidth))
        time = max(arithmetic, memory) + self.cluster.device.launch
        return Cost(time, moved, 2 * sum(n for _, n in macs), "model" if known else "default")

    def _arithmetic(self, op: Op, macs: int) -> int:
        dtype = op.operands[0].dtype if op.operands else "f32"
        return self._derated(transfer(2 * macs, self.cluster.device.rate(dtype)))

    @staticmethod
    def _derated(time: int) -> int:
        return -(-time * 100 // EFFICIENCY)

    @staticmethod
    def _read_bytes(ops: Sequence[Op], reads: Iterable[Value]) -> int:
        """Bytes read; a table that is indexed is read only where the result asks for it."""
        values = dict.fromkeys(reads)
        if len(ops) == 1 and registry.lookup(ops[0].name) is not None and index_of(ops[0]):
            return sum(min(type_bytes(v.type), bytes_of(ops[0].results)) for v in values)
        return bytes_of(values)

    def _region_op(self, op: Op) -> Cost:
        bodies = [sum((self.op(o) for o in region.block), Cost()) for region in op.regions]
        if op.name == "dmlc.cond":
            return max(bodies, key=lambda c: c.time)
        return sum(bodies, Cost()).times(op.attrs.get("count", 1))

    # -------------------------------------------------- communication

    def _comm_op(self, op: Op) -> Cost:
        if op.name == "comm.wait":
            return Cost()
        kind = op.name.split(".")[1].removesuffix("_start")
        axes = op.attrs.get("axes") or (op.attrs["axis"],)
        return self.collective(kind, max(bytes_of(op.operands), bytes_of(op.results)), axes, Mesh.around(op))

    def collective(self, kind: str, bytes: int, axes: Sequence[str], mesh: Mesh) -> Cost:
        """One collective over `axes`, or a message (`send`, `recv`) along an axis.

        `bytes` is the larger of what a rank puts in and gets out: the whole tensor for all-reduce, gather and scatter, a rank's
        part of it for all-to-all. The result's bytes are those that a rank sends.
        """
        if kind not in STEPS:
            raise DmlcError(f"no cost is known for a collective of kind '{kind}'")
        ranks = mesh.extent(axes)
        if ranks == 1:
            return Cost()
        link = self._link(mesh, tuple(axes))
        rounds = STEPS[kind]
        sent = -(-bytes * (ranks - 1) * rounds // ranks) if rounds else bytes
        latency = max(1, rounds * (ranks - 1)) * link.alpha + self.cluster.device.launch
        return Cost(latency + transfer(sent, link.bandwidth), sent, 0, "model")

    def slow_down(self, axes: Sequence[str], mesh: Mesh) -> tuple[int, int]:
        """Percent of its speed that computation keeps while a collective over `axes` moves, and that the collective keeps while it does."""
        link = self._link(mesh, tuple(axes))
        return link.computing, link.moving

    def link_index(self, axes: Sequence[str], mesh: Mesh) -> int:
        """A number for the physical link that collectives over `axes` take: equal for those that share one."""
        return self.cluster.links.index(self._link(mesh, tuple(axes)))

    def _link(self, mesh: Mesh, axes: tuple[str, ...]) -> Link:
        if (mesh, axes) not in self._links:
            self._links[mesh, axes] = self.cluster.link(mesh, axes)
        return self._links[mesh, axes]

    def startup(self, kind: str, axes: Sequence[str], mesh: Mesh) -> int:
        """Picoseconds a collective takes however small it is: what merging two saves."""
        return self.collective(kind, 0, axes, mesh).time
