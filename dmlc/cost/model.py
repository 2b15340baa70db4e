"""Prices of ops and collectives on one cluster: measured ones first, then tables, then models.

Ops: `roofline` on a gpu, `roofline_cpu` where the host is the device. Collectives: `collectives`. All arithmetic is on integers, so that
every machine gives the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dmlc.cluster import Cluster
from dmlc.cost import gloo, roofline, work
from dmlc.cost.collectives import KINDS, Collectives, sent_bytes
from dmlc.cost.cost import Cost
from dmlc.cost.measured import Measurements
from dmlc.cost.roofline_cpu import Processor
from dmlc.cost.samples import corrected, like
from dmlc.cost.work import bytes_of, type_bytes
from dmlc.ir import registry
from dmlc.ir.core import Module, Op, Value
from dmlc.ir.open_sizes import pricing, representative
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import TensorType
from dmlc.ops import control
from dmlc.ops.base import signature
from dmlc.ops.comm import base_name
from dmlc.ops.kernel import find_kernel

__all__ = ["CostModel", "bytes_of", "type_bytes", "view_operand"]

COPIED = {"comm.reduce_scatter": 2, "comm.all_to_all": 2}  # how often the operands are copied: once for each member of the group, once for all
LATE = 25  # percent: forward passes of ranks on one machine took so much longer beside others than alone


def view_operand(op: Op) -> int | None:
    """The operand that result 0 aliases, or None."""
    found = registry.lookup(op.name)
    return found.view if found is not None else None


class CostModel:
    """Prices on one cluster. All sizes are a rank's own (local).

    `defaults` lists what was priced for want of anything better: kind of op -> how many different ones.
    """

    def __init__(self, cluster: Cluster, measured: Measurements | None = None):
        self.cluster, self.measured = cluster, measured
        self.collectives = Collectives(cluster)
        self.processor = Processor(cluster.device, measured) if cluster.device.kind == "cpu" else None
        self.defaults: dict[str, int] = {}
        self._ops: dict[tuple, Cost] = {}
        self._groups: dict[tuple, Cost] = {}
        self._moved: dict[tuple, Cost] = {}

    @classmethod
    def of(cls, module: Module) -> CostModel:
        """The prices that the module's text asks for: its cluster, and the measurements it names."""
        return cls(Cluster.of(module), Measurements.of(module))

    # -------------------------------------------------- computation

    def op(self, op: Op) -> Cost:
        """What running `op` once costs a rank; regions count their body, a loop as often as it runs."""
        if op.dialect == "comm" and op.name != "comm.axis_index":
            return self._comm_op(op)
        if op.regions and op.name != "kernel.fused":
            return self._region_op(op)
        if op.name == "kernel.fused":
            return self._priced(op)
        key = signature(op)
        if key not in self._ops:
            self._ops[key] = self._priced(op)
        return self._ops[key]

    def _priced(self, op: Op) -> Cost:
        with pricing():
            return self._price(op)

    def _price(self, op: Op) -> Cost:
        time = self.measured.op(op) if self.measured is not None else None
        found = self.group([op], op.operands, op.results) if not work.is_view(op) else self._view(op)
        if time is not None:
            return Cost(time, found.bytes, found.flops, "measured")
        if found.source == "default":
            self.defaults[op.name] = self.defaults.get(op.name, 0) + 1
        return found

    def _view(self, op: Op) -> Cost:
        """Nothing on a gpu, a call on a processor."""
        return Cost() if self.processor is None else Cost(self.processor.time(op, 0)[0])

    def group(self, ops: Sequence[Op], reads: Iterable[Value], writes: Iterable[Value]) -> Cost:
        """Ops in one kernel that reads and writes the given values; on a processor they run one after the other."""
        inner = [o for op in ops for o in parts(op)]
        reads, writes = dict.fromkeys(reads), list(writes)
        key = (tuple(map(signature, inner)), tuple([v.type for v in reads]), tuple([v.type for v in writes]), len(ops) == 1 and inner[0] is ops[0])
        found = self._groups.get(key)
        if found is None:
            with pricing():
                found = self._groups[key] = self._grouped(ops, inner, reads, writes)
        return found

    def _grouped(self, ops: Sequence[Op], inner: list[Op], reads: Iterable[Value], writes: Iterable[Value]) -> Cost:
        if self.processor is not None and (len(inner) > 1 or inner != list(ops)):
            return sum((self._single(o) for o in inner), Cost())
        moved = work.read_bytes(inner, reads) + bytes_of(writes)
        source = "model" if all(work.kind_of(o) is not None or work.is_view(o) for o in inner) else "default"
        flops = 2 * sum(map(work.multiply_adds, inner))
        if self.processor is not None:
            time, measured = self.processor.time(inner[0], moved)
            return Cost(time, moved, flops, "measured" if measured else source)
        time = roofline.kernel(self.cluster.device, inner, moved)
        found = self._sampled(inner[0], moved, time) if self.measured is not None and len(inner) == 1 else None
        return Cost(time, moved, flops, source) if found is None else Cost(found, moved, flops, "measured")

    def _sampled(self, op: Op, moved: int, time: int) -> int | None:
        """The model's time of an op on a gpu, corrected by the samples that are like it; None without any."""
        assert self.measured is not None
        dtype, measured, device = (op.results[0].dtype if op.results else "f32"), self.measured, self.cluster.device
        kind, features = like(op, work.kind_of(op), moved, lambda name: bool(measured.samples(name, dtype)))
        samples = measured.samples(kind, dtype)
        return corrected(time, features, tuple((f, t, roofline.sampled(device, kind, f, dtype)) for f, t in samples)) if samples else None

    def _single(self, op: Op) -> Cost:
        """One op of a fused region on a processor."""
        return self.op(op)

    def host(self, op: Op) -> int:
        """Picoseconds in which the host issues `op` to the device; 0 where the host is the device."""
        with pricing():
            return 0 if self.processor is not None else roofline.issue(op)

    def _region_op(self, op: Op) -> Cost:
        bodies = [sum((self.op(o) for o in region.block), Cost()) for region in op.regions]
        if op.name == "dmlc.cond":
            return max(bodies, key=lambda c: c.time)
        if op.name == "dmlc.while" and "count" not in op.attrs:
            self.defaults[op.name] = self.defaults.get(op.name, 0) + 1
        if op.name == "dmlc.scan":  # each row is copied into its stack
            rows = op.region.block.terminator.operands[len(control.parts(op, op.operands)[0]) :]
            bodies += [self.op(Op("dmlc.copy", [Value(r.type)], [r.type])) for r in rows]
        return sum(bodies, Cost()).times(control.trips(op))

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
        part of it for all-to-all. The result's bytes are those that a rank sends. Raises `DmlcError` for a kind it does not know.
        """
        bytes = representative(bytes)
        if self.measured is not None and kind in KINDS:
            found = self._measured(kind, bytes, axes, mesh)
            if found is not None:
                return found
        return self.collectives.price(kind, bytes, axes, mesh)

    def _measured(self, kind: str, size: int, axes: Sequence[str], mesh: Mesh) -> Cost | None:
        """A measured price. A kind that was not measured where all-reduce was costs as much more than the model says as that did."""
        assert self.measured is not None
        ranks = mesh.extent(axes)
        if ranks == 1:
            return Cost()
        link = self.collectives.path(axes, mesh).outer.name
        time = self.measured.collective(kind, size, ranks, link)
        if time is None:
            reduced = self.measured.collective("all_reduce", size, ranks, link)
            if reduced is None:
                return None
            model, known = (max(self.collectives.price(k, size, axes, mesh).time, 1) for k in (kind, "all_reduce"))
            time = reduced * model // known
        return Cost(time, sent_bytes(kind, size, ranks), 0, "measured")

    def copies(self, op: Op) -> tuple[int, int]:
        """Picoseconds that a collective (or its start) takes of its own rank before it begins, calling and packing, and after it is done,
        unpacking: as measured, else `call` with `packing`, and nothing."""
        if "axes" not in op.attrs:
            return 0, 0
        mesh = Mesh.around(op)
        call, packing = self.call(op.attrs["axes"], mesh), self.packing([op], mesh)
        if self.measured is None:
            return call + packing, 0
        link = self.collectives.path(op.attrs["axes"], mesh).outer.name
        return self.measured.before(op, link, call, packing), self.measured.after(op)

    def starting(self, ops: Sequence[Op]) -> int:
        """Picoseconds that the start of one collective for the operands of all `ops` takes of its rank: calling and packing."""
        if len(ops) == 1:
            return self.copies(ops[0])[0]
        mesh = Mesh.around(ops[0])
        return self.call(ops[0].attrs["axes"], mesh) + self.packing(ops, mesh)

    def packing(self, ops: Sequence[Op], mesh: Mesh) -> int:
        """Picoseconds in which a rank copies the operands of `ops` into one buffer, by the price of a concatenation; an all-reduction of one tensor
        that nothing else reads works in its memory. Where a host issues to a device it is left out: the device's memory is a hundred times as fast as
        its links."""
        if self.processor is None or self.collectives.path(ops[0].attrs["axes"], mesh).outer.backend != "gloo":
            return 0
        values = [v for op in ops for v in op.operands]
        kind = base_name(ops[0])
        if kind == "comm.all_reduce" and len(values) == 1 and _is_given(values[0], ops[0]):
            return 0
        flat = TensorType((sum(representative(v.tensor.numel) for v in values),), values[0].dtype)
        return self.op(Op("dmlc.concat", [Value(flat)], [flat], {"dim": 0})).time * COPIED.get(kind, 1)

    def call(self, axes: Sequence[str], mesh: Mesh) -> int:
        """Picoseconds of computation that starting a collective over `axes` takes of its rank, whatever its size: measured, or Gloo's; where
        a host issues to a device it is among the host's."""
        link = self.collectives.path(axes, mesh).outer
        known = self.measured.calls.get(link.name) if self.measured is not None else None
        return known if known is not None else gloo.CALL if link.backend == "gloo" else 0

    @property
    def late(self) -> int:
        """By how many percent computations and collectives may take longer than they are priced, which orders are prepared for. A processor's do:
        operands have left the caches, other ranks share the memory, its ranks are not in step."""
        return LATE if self.cluster.device.kind == "cpu" else 0

    def startup(self, kind: str, axes: Sequence[str], mesh: Mesh) -> int:
        """Picoseconds a collective takes however small it is: what merging two saves."""
        return self.collective(kind, 0, axes, mesh).time

    def slow_down(self, axes: Sequence[str], mesh: Mesh) -> tuple[int, int]:
        """Percent of its speed that computation keeps while a collective over `axes` moves, and that the collective keeps while it does:
        measured, stated by the link, or for Gloo by its share of the core."""
        where = self.collectives.path(axes, mesh)
        link = where.outer
        if self.measured is not None and (found := self.measured.slow_down(link.name)) is not None:
            return found
        if (link.computing, link.moving) != (100, 100) or link.backend != "gloo":
            return link.computing, link.moving
        core = self.measured.core(link.name) if self.measured is not None else None
        if core is None:
            core = gloo.core_percent(where.ranks, link.alpha, link.bandwidth, self.cluster.device.bandwidth)
        return gloo.slow_down(core)

    def link_index(self, axes: Sequence[str], mesh: Mesh) -> int:
        """A number for the physical link that collectives over `axes` take: equal for those that share one."""
        return self.collectives.level(axes, mesh)


def _is_given(value: Value, op: Op) -> bool:
    """Whether a collective may work in the memory of its operand: an op next to it made it, and nothing else reads it."""
    return value.op is not None and value.op.block is op.block and bool(value.tensor.rank) and len(value.uses) == 1 and view_operand(value.op) is None


def parts(op: Op) -> list[Op]:
    """The ops that a kernel runs; an op that is none is its own only part."""
    if op.name == "kernel.call":
        return [o for o in find_kernel(op).region.block if o.name != "func.return"]
    if op.regions:
        return [o for o in op.walk() if o is not op and not o.regions and o.name != "kernel.yield"]
    return [op]
