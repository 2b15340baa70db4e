"""joint: fusion groups, buckets, chunks, order and prefetch decided together, by the simulated time of the whole and under the memory cap.

A search (`dmlc.simulate.joint`) moves over sets and sequences at once; it starts from the program as it stands, from what `fuse`,
`tensor-fusion`, `tensor-partition` and `schedule` choose by themselves and from these passes in sequence, so that it is never worse than they are.
Inner regions come first: a loop takes as long as its body.

The decision stands in the text: chunks are ops, kernels carry `dmlc.group`, buckets `dmlc.bucket`, and the ops are in the chosen order. It can be edited;
`fuse{given}`, `tensor-fusion{given}` and `schedule{given}` carry it out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dmlc.cost import CostModel
from dmlc.ir.core import Block, Function, Module, Op
from dmlc.passes import _chunking, fuse, schedule, tensor_fusion, tensor_partition
from dmlc.passes._joint_apply import write
from dmlc.passes._joint_region import Body, JointRegion, source_bytes
from dmlc.passes._joint_starts import Start, starts
from dmlc.passes._kernels import Limits
from dmlc.passmanager import Context, Pass
from dmlc.simulate import Choice
from dmlc.simulate.choice import regions_of
from dmlc.simulate.joint import Result, search
from dmlc.simulate.liveness import block_liveness
from dmlc.simulate.step import simulate_step

EFFORT = 1500
PASSES = (tensor_fusion.TensorFusion(), tensor_partition.TensorPartition(), schedule.Schedule())  # after `fuse`
GIVEN = (fuse.Fuse(given=True), tensor_fusion.TensorFusion(given=True), tensor_partition.TensorPartition(given=True), schedule.Schedule(given=True))


@dataclass(frozen=True)
class Joint(Pass):
    """`effort` bounds the search: units simulated for each op of a region. The other options are those of `fuse`. What the text has decided already (`dmlc.group`, `dmlc.bucket`,
    `dmlc.chunks`) is carried out first and stays."""

    name = "joint"
    decides = True
    numerics = "exact"
    requires = ("partitioned",)

    effort: int = EFFORT
    max_ops: int = 32
    min_ops: int = 2
    max_inputs: int = 24

    def run(self, module: Module, context: Context) -> bool:
        changed = apply_given(module)
        limits = Limits(self.max_ops, self.min_ops, self.max_inputs)
        apart, together = module.clone(), _Joint(module, self.effort, limits, context)
        for function in module.functions:
            if function.op.attrs.get("sym_visibility") != "private":
                changed |= together.function(function)
        return changed | self._keep_better(module, apart, context)

    def _keep_better(self, module: Module, apart: Module, context: Context) -> bool:
        """The search knows the price of a unit; what units share outside of kernels (constants that each kernel makes itself) it does not. So the
        passes one after another are carried out too, and their program is taken should it be shorter."""
        made = module.clone()
        for pass_ in GIVEN:
            pass_.run(made, Context())
        for pass_ in (fuse.Fuse(self.max_ops, self.min_ops, self.max_inputs), *PASSES):
            pass_.run(apart, Context())
        cost = CostModel.of(module)
        mine, theirs = simulate_step(made, cost), simulate_step(apart, cost)
        limit = module.attrs.get("dmlc.request", {}).get("memory", 0) or cost.cluster.memory
        if mine.time <= theirs.time or theirs.peak > max(limit, mine.peak):
            return False
        context.remark(module.main.op, "the passes one after another are shorter by what their kernels share")
        for function, other in zip(list(module.functions), list(apart.functions)):
            (region,) = other.op.regions
            function.op.regions[:] = [region]
            region.op = function.op
        return True


def apply_given(module: Module) -> bool:
    """Carry out what the text has decided."""
    given = Choice.of(module, order=False)
    return any([_chunking.apply(module, given), fuse.apply(module, given), tensor_fusion.apply(module, given)])


@dataclass
class _Joint:
    """The regions of a module, one after another."""

    module: Module
    effort: int
    limits: Limits
    context: Context
    bodies: dict[Op, Body] = field(default_factory=dict)
    numbers: tuple[int, int] = (0, 0)

    def function(self, function: Function) -> bool:
        cost = CostModel.of(self.module)
        before = [(op.id, dict(op.attrs)) for op in function.ops()]
        for _, block in reversed(list(regions_of(function))):
            self._block(block, cost)
        return [(op.id, dict(op.attrs)) for op in function.ops()] != before

    def _block(self, block: Block, cost: CostModel) -> None:
        region = JointRegion(block, cost, self.limits, self.bodies)
        if not region.nodes:
            return
        memory = self.module.attrs.get("dmlc.request", {}).get("memory", 0)
        plans = starts(region, memory)
        cap = max((memory or cost.cluster.memory) - self._around(block) - source_bytes(block), 1)
        result = search(region.problem, [s.plan for s in plans], cap, self.effort * len(region.nodes), late=cost.late)
        self.numbers = write(region, result.plan, *self.numbers)
        owner = block.region.op if block.region is not None else None
        if owner is not None and owner.name != "func.func":
            self._remember(owner, Body(result.time, result.peak))
        self.context.remark(owner, _summary(plans, result))

    def _remember(self, owner: Op, body: Body) -> None:
        """Regions of one op: of a branch the longest counts, else they run one after another."""
        known = self.bodies.get(owner, Body(0, 0))
        time = max(known.time, body.time) if owner.name == "dmlc.cond" else known.time + body.time
        self.bodies[owner] = Body(time, max(known.peak, body.peak))

    @staticmethod
    def _around(block: Block) -> int:
        """Bytes that are alive around a loop while its body runs, in the program's order."""
        owner = block.region.op if block.region is not None else None
        if owner is None or owner.name == "func.func" or owner.block is None:
            return 0
        liveness = block_liveness(owner.block)
        at = liveness.ops.index(owner)
        return sum(r.storage.bytes for r in liveness.ranges if r.begin <= at <= r.end) + _Joint._around(owner.block)


def _summary(plans: list[Start], result: Result) -> str:
    known = ", ".join(f"{s.name} {_micro(t)}" if t >= 0 else f"{s.name} does not fit" for s, t in zip(plans, result.starts))
    gap = f" (gap {result.time / result.bound - 1:.1%})" if result.bound else ""
    return f"{_micro(result.time)} with {result.evaluations} trials; by itself: {known}; no order of these units beats {_micro(result.bound)}{gap}"


def _micro(time: int) -> str:
    return f"{time / 1e6:.1f} us"
