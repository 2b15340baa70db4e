"""plan-memory: an offset in one arena for every value of the per-rank program.

Attributes: `dmlc.offset` on an op, one entry a result (of a start: a delivered value), -1 where the result has no buffer of its own
(a view, an output, which its caller owns); `dmlc.in_place = i` where the result takes operand i's buffer over; `dmlc.scratch` on a
loop, where its body's own arena begins; `dmlc.arena` on the function, bytes in all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dmlc.ir.core import Block, Module, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ops.base import definition, index_of, rule_of
from dmlc.ops.comm import is_start
from dmlc.passmanager import Context, Pass
from dmlc.simulate.arena import Buffer, aligned, arena_size, overlaps, place
from dmlc.simulate.liveness import BlockLiveness, LiveRange, block_liveness, root_of


@dataclass(frozen=True)
class PlanMemory(Pass):
    """Annotates only; the plan is checked before it is written down."""

    name = "plan-memory"
    decides = True
    numerics = "exact"
    requires = ("partitioned",)

    def run(self, module: Module, context: Context) -> bool:
        plan = decide(module.main.body)
        check(plan)
        context.remark(module.main.op, f"{plan.size} bytes of arena for {len(plan.places)} values that add up to {plan.total}; {len(plan.in_place)} in place")
        return apply(module, plan)


@dataclass
class MemoryPlan:
    """buffers and offsets of a block; a value's place is the number of its buffer. Loop bodies have plans of their own."""

    liveness: BlockLiveness
    buffers: list[Buffer] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    places: dict[Value, int] = field(default_factory=dict)
    in_place: dict[Op, int] = field(default_factory=dict)
    scratch: dict[Op, int] = field(default_factory=dict)
    inner: dict[Op, list[MemoryPlan]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return aligned(arena_size(self.buffers, self.offsets))

    @property
    def total(self) -> int:
        return sum(r.storage.bytes for r in self.liveness.ranges if r.storage.value in self.places)


# ---------------------------------------------------------------- decision


def decide(block: Block) -> MemoryPlan:
    """Offsets for the values of a block in its present order."""
    plan = MemoryPlan(block_liveness(block))
    owned = {r.storage.value: r for r in plan.liveness.ranges if not r.storage.kept and r.storage.maker >= 0}
    lives: list[list[int]] = []
    for position, op in enumerate(plan.liveness.ops):
        for value in op.results:
            if value in owned:
                _take(plan, op, value, position, owned, lives)
        if op.regions and not op.name.startswith("kernel."):
            _take_scratch(plan, op, position, lives)
    plan.buffers = [Buffer(*life) for life in lives]
    plan.offsets = place(plan.buffers)
    return plan


def _take(plan: MemoryPlan, op: Op, value: Value, position: int, owned: dict[Value, LiveRange], lives: list[list[int]]) -> None:
    """A buffer for `value`: that of an operand which ends here, or a new one."""
    life = owned[value]
    operand = reusable_operand(op, position, owned)
    if operand is None:
        plan.places[value] = len(lives)
        lives.append([life.begin, life.end, life.storage.bytes])
        return
    number = plan.places[op.operands[operand]]
    plan.places[value], plan.in_place[op] = number, operand
    lives[number][1] = life.end


def reusable_operand(op: Op, position: int, owned: dict[Value, LiveRange]) -> int | None:
    """The operand whose buffer the op's result may take over: read element by element at the same places, by nobody later,
    not itself a view, an argument, an output or in flight."""
    if len(op.results) != 1 or not _is_elementwise(op):
        return None
    for i, v in enumerate(op.operands):
        life = owned.get(v)
        if life is None or life.end != position or v.type != op.result.type or not _same_places(op, i):
            continue
        if all(o is v or root_of(o) is not v for o in op.operands):
            return i
    return None


def _is_elementwise(op: Op) -> bool:
    if op.regions or op.dialect != "dmlc" or definition(op).rule is None or definition(op).view is not None or index_of(op):
        return False
    rule = rule_of(op)
    return not rule.whole and not rule.reduced and not rule.new


def _same_places(op: Op, operand: int) -> bool:
    rule = rule_of(op)
    return rule.operands[operand] == rule.results[0]


def _take_scratch(plan: MemoryPlan, op: Op, position: int, lives: list[list[int]]) -> None:
    """Room for the arenas of an op's regions (only one of them runs at a time)."""
    plans = [decide(b) for region in op.regions for b in region.blocks]
    plan.inner[op] = plans
    plan.scratch[op] = len(lives)
    lives.append([position, position, max(p.size for p in plans)])


def check(plan: MemoryPlan) -> None:
    """Raise when two values that live at a time overlap. It goes by the live ranges, value by value, not by the plan's buffers."""
    ranges = [(r, plan.places[r.storage.value]) for r in plan.liveness.ranges if r.storage.value in plan.places]
    handed_over = {(plan.places[op.operands[i]], plan.liveness.ops.index(op)) for op, i in plan.in_place.items()}
    buffers = [Buffer(r.begin, r.end - ((number, r.end) in handed_over), r.storage.bytes) for r, number in ranges]
    for a, b in overlaps(buffers, [plan.offsets[number] for _, number in ranges]):
        first, second = ranges[a][0].storage.value.op, ranges[b][0].storage.value.op
        assert first is not None and second is not None
        raise DmlcError(f"the memory plan lets '{second.id}' overwrite '{first.id}', which is still needed", second.loc)
    for plans in plan.inner.values():
        for inner in plans:
            check(inner)


# ---------------------------------------------------------------- application


def apply(module: Module, plan: MemoryPlan) -> bool:
    """Write the plan into the text."""
    before = [dict(op.attrs) for op in module.main.ops()]
    _annotate(plan)
    module.main.op.attrs["dmlc.arena"] = plan.size
    return [dict(op.attrs) for op in module.main.ops()] != before


def _annotate(plan: MemoryPlan) -> None:
    for op in plan.liveness.ops:
        for key in ("dmlc.offset", "dmlc.in_place", "dmlc.scratch"):
            op.attrs.pop(key, None)
        offsets = tuple(plan.offsets[plan.places[v]] if v in plan.places else -1 for v in delivered(op))
        if any(o >= 0 for o in offsets):
            op.attrs["dmlc.offset"] = offsets
        if op in plan.in_place:
            op.attrs["dmlc.in_place"] = plan.in_place[op]
        if op in plan.scratch:
            op.attrs["dmlc.scratch"] = plan.offsets[plan.scratch[op]]
        for inner in plan.inner.get(op, ()):
            _annotate(inner)


def delivered(op: Op) -> list[Value]:
    """Values whose buffers an op makes: its results; of a start, what its wait gives; of a wait nothing."""
    if op.name == "comm.wait":
        return []
    if is_start(op):
        return [v for wait in op.results[0].users for v in wait.results]
    return list(op.results)
