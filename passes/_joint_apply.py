"""A joint plan written into the text: chunks become ops, kernels and buckets are numbered (`dmlc.group`, `dmlc.bucket`), and the ops stand in
the order of the plan.

`fuse{given}`, `tensor-fusion{given}` and `schedule{given}` do the rest: members of a set stand together, so that merging them moves nothing, and
a collective that begins where it stands is waited for before its first reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dmlc.ir.builder import TERMINATORS, IdPool
from dmlc.ir.core import Block, Op, Value
from dmlc.ir.types import TensorType
from dmlc.passes import _chunking
from dmlc.passes._joint_region import JointRegion
from dmlc.passes._reorder import place
from dmlc.simulate.joint_problem import CUT, JOIN, Plan, Unit
from dmlc.simulate.liveness import outside_values


def write(region: JointRegion, plan: Plan, first_group: int = 0, first_bucket: int = 0) -> tuple[int, int]:
    """Change the region's block into what `plan` says. Sets are numbered from the given numbers on; returns the next free ones."""
    block = region.block
    pieces = _cut(region, plan)
    order = [op for unit in plan.sequence for op in _ops(region, unit, pieces)]
    numbers = _number_sets(region, plan, first_group, first_bucket)
    barriers = [op for op in block if op.name == "dmlc.barrier"]
    place(list(_with_others(block, order)), block)
    _retrigger(block, barriers)
    return numbers


# ---------------------------------------------------------------- chunks


def _cut(region: JointRegion, plan: Plan) -> dict[int, list[Op]]:
    """Node -> its chunks, made where the whole stood."""
    ids = IdPool(region.block.terminator.function or region.block.terminator)
    made = {}
    for number, count in plan.chunks.items():
        op = region.nodes[number].op
        cut = _chunking.find_cut([op], count)
        assert cut is not None, "a way to cut was offered that there is not"
        made[number] = [chunk for (chunk,) in _chunking.split([op], cut, count, ids)]
    return made


def _ops(region: JointRegion, unit: Unit, pieces: dict[int, list[Op]]) -> list[Op]:
    """The ops of a unit, without what is left out of the nodes."""
    if unit.part is None:
        return [region.nodes[n].op for n in unit.nodes]
    chunks = pieces[unit.nodes[0]]
    if unit.part == CUT:
        return [v.op for c in chunks for v in c.operands if v.op is not None and v.op.name == "dmlc.slice"]
    if unit.part == JOIN:
        return list(dict.fromkeys(u for u in chunks[0].results[0].users if u.name == "dmlc.concat"))[:1]
    return [chunks[unit.part]]


# ---------------------------------------------------------------- sets


def _number_sets(region: JointRegion, plan: Plan, group: int, bucket: int) -> tuple[int, int]:
    """Numbers on the members of kernels and buckets. An op that is a kernel of several primitives by itself is one, as `fuse` has it."""
    for unit in plan.sequence:
        if unit.part is not None:
            continue
        nodes = [region.nodes[n] for n in unit.nodes]
        if nodes[0].key is not None and len(nodes) > 1:
            _mark([n.op for n in nodes], "dmlc.bucket", bucket)
            bucket += 1
        elif all(region.able[n] for n in unit.nodes) and region.kernels.is_worth([n.op for n in nodes]):
            _mark([n.op for n in nodes], "dmlc.group", group)
            group += 1
    return group, bucket


def _mark(ops: Sequence[Op], key: str, number: int) -> None:
    for op in ops:
        op.attrs[key] = number


# ---------------------------------------------------------------- order


def _with_others(block: Block, order: Sequence[Op]) -> Iterator[Op]:
    """`order` with every op that it leaves out before its first reader: views, constants, joins, waits; what has no reader at the end."""
    listed = set(order)
    placed: set[Op] = set()

    def needed(value: Value) -> Iterator[Op]:
        op = value.op
        if op is None or op.block is not block or op in listed or op in placed:
            return
        placed.add(op)
        read = op.operands[:1] if op.name == "dmlc.barrier" else outside_values(op)
        for operand in read:
            yield from needed(operand)
        yield op

    for op in order:
        for value in outside_values(op):
            yield from needed(value)
        yield op
    for op in list(block):
        if op not in listed and op not in placed and op.name not in TERMINATORS:
            for result in op.results:
                yield from needed(result)


def _retrigger(block: Block, barriers: Sequence[Op]) -> None:
    """A barrier whose trigger now stands behind it opens with the last tensor made before it instead, or with nothing where there is none:
    then its value is taken as it is."""
    if not barriers:
        return
    position = {op: i for i, op in enumerate(block)}
    ops = list(block)
    for barrier in barriers:
        trigger = barrier.operands[1].op
        if trigger is None or position.get(trigger, -1) < position[barrier]:
            continue
        found = _last_tensor(ops[: position[barrier]])
        if found is not None:
            barrier.set_operand(1, found)
        else:
            barrier.replace([barrier.operands[0]])


def _last_tensor(ops: Sequence[Op]) -> Value | None:
    """The result of the last computation that stands alone: what a kernel makes would have to leave it."""
    for op in reversed(ops):
        if op.dialect != "comm" and op.results and isinstance(op.results[0].type, TensorType) and "dmlc.group" not in op.attrs and op.name != "dmlc.barrier":
            return op.results[0]
    return None
