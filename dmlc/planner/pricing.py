"""Prices of candidates and reshards, as the integer programme sees them (picoseconds, cached by shape)."""

from __future__ import annotations

import math
from typing import Any

from dmlc.cost.model import CostModel
from dmlc.cost.reshard import reshard, step_bytes
from dmlc.ir.attributes import Sharding
from dmlc.ir.core import Op, Value
from dmlc.ir.open_sizes import representative
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import BYTES, TensorType
from dmlc.ops.base import definition, flops_of, own_attrs, region_key
from dmlc.ops.place import Place, share
from dmlc.planner.candidates import Candidate


def signature(op: Op) -> tuple:
    """What decides an op's candidates and prices: equal for the same op in every layer (of which parameter something is the gradient says nothing)."""
    own = tuple(sorted((kv for kv in own_attrs(op).items() if kv[0] != "param"), key=lambda kv: kv[0]))
    key = (op.name, tuple(v.type for v in op.operands), tuple(r.type for r in op.results), own)
    return (*key, region_key(op)) if op.regions else key


class Pricing:
    def __init__(self, mesh: Mesh, cost: CostModel):
        self.mesh, self.cost = mesh, cost
        self._reshards: dict[Any, int | None] = {}

    def local_bytes(self, type_: TensorType, sharding: Sharding) -> int:
        return math.prod(map(representative, self.mesh.local_shape(type_.shape, sharding))) * BYTES[type_.dtype]

    def work(self, op: Op, place: Place) -> int:
        """Multiply-adds one rank does."""
        return math.ceil(flops_of(op) * share(self.mesh, op, place))

    def op(self, op: Op, candidate: Candidate) -> int:
        """Time of the op on a rank's part, without the launch, which every place pays alike."""
        d = definition(op)
        device = self.cost.cluster.device
        moved = sum(self.local_bytes(v.tensor, s) for v, s in zip(op.operands, candidate.operands))
        moved += sum(self.local_bytes(r.tensor, s) for r, s in zip(op.results, candidate.results))
        if d.view is not None or d.cost == "free":
            return 0
        macs = self.work(op, candidate.place)
        rate = device.rate(op.operands[0].dtype if op.operands else "f32")
        time = max(2 * macs * 10**12 // rate, moved * 10**12 // device.bandwidth) * 10 // 7
        return time + self._own_traffic(op, candidate.place)

    def _own_traffic(self, op: Op, place: Place) -> int:
        """Collectives inside a strategy."""
        if place.strategy is None:
            return 0
        name, axes = place.strategy
        chosen = next(s for s in (definition(op).strategies or (lambda o: []))(op) if s.name == name)
        ranks = self.mesh.extent(axes)
        return sum(self.cost.collective(kind.removeprefix("comm."), n, axes, self.mesh).time for kind, n in chosen.traffic(op, ranks))

    def reshard(self, source: Sharding, target: Sharding, type_: TensorType) -> int | None:
        """Time from one sharding to another; None when there is no way."""
        key = (source, target, type_)
        if key not in self._reshards:
            self._reshards[key] = self._price(source, target, type_)
        return self._reshards[key]

    def _price(self, source: Sharding, target: Sharding, type_: TensorType) -> int | None:
        steps = reshard(self.mesh, source, target, type_.shape)
        if steps is None:
            return None
        total, here, item = 0, source, BYTES[type_.dtype]
        for step in steps:
            if step.is_local(self.mesh):
                total += self.local_bytes(type_, step.after) * 10**12 // self.cost.cluster.device.bandwidth + 1
            else:
                size = step_bytes(self.mesh, here, step, type_.shape, item)
                total += self.cost.collective(step.kind.removeprefix("comm."), size, step.axes, self.mesh).time
            here = step.after
        return total


def is_matrix(value: Value) -> bool:
    """Weights that tensor parallelism is meant to divide: matrices, tables and convolution weights above 64 KiB."""
    return value.tensor.rank >= 2 and value.tensor.bytes > 65536
