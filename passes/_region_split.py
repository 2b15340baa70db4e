"""Partition of loops and branches of which each rank runs its part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dmlc.ir.attributes import Sharding
from dmlc.ir.builder import Builder
from dmlc.ir.core import Block, Op, Region, Value
from dmlc.ir.types import TensorType
from dmlc.ops.base import rule_of
from dmlc.ops.place import Place
from dmlc.ops.region_rule import region_flow
from dmlc.passes._reverse import captured

if TYPE_CHECKING:
    from dmlc.passes.partition import Partitioner


class RegionSplitter:
    """An op with regions of which each rank runs its part: so does each op inside. Captured values are replicated before."""

    def __init__(self, outer: Partitioner, op: Op, place: Place):
        self.outer, self.op, self.place, self.flow = outer, op, place, region_flow(op)

    def made(self, operands: list[Value], types: list[TensorType]) -> Op:
        outer, op = self.outer, self.op
        for v in captured(op):
            outer.get(v, outer.mesh.replicated(v.tensor.rank))
        attrs = {k: v for k, v in op.attrs.items() if k != "dmlc.place"}
        regions = [self._region(region.block) for region in op.regions]
        return outer.b.op(op.name, operands, attrs, types, regions=regions)

    def _region(self, block: Block) -> Region:
        outer, new = self.outer, Block()
        for arg in block.args:
            sharding = self._sharding(arg)
            outer._bind(arg, sharding, new.add_arg(outer.mesh.local_type(arg.tensor, sharding), arg.name, dict(arg.attrs)))
        saved = outer.b
        outer.b = Builder(new, None, outer.ids)
        for op in block:
            with outer.b.for_op(op):
                if op is block.last:
                    outer.b.op(op.name, [outer.get(v, self._sharding(v)) for v in op.operands], dict(op.attrs), ())
                else:
                    outer._place_op(op, self._inner(op))
        outer.b = saved
        return Region([new])

    def _sharding(self, value: Value) -> Sharding:
        names = [self.flow.factor(value, d) for d in range(value.tensor.rank)]
        axes = [self.place.axes_of(f) if f else () for f in names]
        return self.outer.mesh.sharding(axes, {}, [self.place.grain_of(f) if f else 1 for f in names], value.shape)

    def _inner(self, op: Op) -> Place:
        """The op's own factors on the dims that are split."""
        rule, axes, grains = rule_of(op), {}, {}
        for value, dims in (*zip(op.operands, rule.operands), *zip(op.results, rule.results)):
            for d, factors in enumerate(dims):
                name = self.flow.factor(value, d)
                if factors and name is not None and self.place.axes_of(name):
                    axes[factors[0]], grains[factors[0]] = self.place.axes_of(name), self.place.grain_of(name)
        return Place.make(axes, grains=grains)
