"""Moving the ops of decided units into `kernel.fused` regions and putting the block into the units' order."""

from __future__ import annotations

from collections.abc import Sequence

from dmlc.ir.builder import IdPool
from dmlc.ir.core import Block, Op, Region, Value
from dmlc.ir.location import DmlcError
from dmlc.ops.iteration import common_space
from dmlc.ops.kernel import is_free
from dmlc.passes._quotient import Quotient, Unit

DROPPED = ("dmlc.group",)


def gather(quotient: Quotient, units: Sequence[Unit]) -> None:
    """Make a kernel of each unit. Free ops are copied into every kernel that reads them; what nobody reads any more is erased."""
    block = quotient.block
    function = block.region.op.function if block.region is not None and block.region.op is not None else None
    assert function is not None
    ids = IdPool(function)
    chosen = set(units)
    sequence = [_kernel(unit, quotient, ids) if unit in chosen else unit.ops[0] for unit in quotient.order]
    _reorder(block, sequence)


def _kernel(unit: Unit, quotient: Quotient, ids: IdPool) -> Op:
    """The region op of a unit, standing where the unit's first op stood; uses outside take its results."""
    ops, leaving = unit.ops, quotient.escaping(unit.ops)
    inner = Block()
    mapping: dict[Value, Value] = {}
    inputs: list[Value] = []
    members = set(ops)

    def inside(value: Value) -> Value:
        if value in mapping:
            return mapping[value]
        op = value.op
        if op is not None and op not in members and is_free(op):
            copy = op.clone({v: inside(v) for v in op.operands})
            copy.attrs["dmlc.id"] = ids.fresh(f"{op.id}.in")
            inner.append(copy)
            mapping[value] = copy.results[0]
        else:
            inputs.append(value)
            mapping[value] = inner.add_arg(value.type)
        return mapping[value]

    anchor = Op("kernel.fused")
    ops[0].block.insert_before(ops[0], anchor)  # type: ignore[union-attr]
    for op in ops:
        operands = [inside(v) for v in op.operands]
        inner.append(op.remove())
        op.operands = operands
        mapping.update(zip(op.results, op.results))
        for key in DROPPED:
            op.attrs.pop(key, None)
    return _finish(anchor, ops, leaving, inputs, inner, ids)


def _finish(anchor: Op, ops: Sequence[Op], leaving: Sequence[Value], inputs: Sequence[Value], inner: Block, ids: IdPool) -> Op:
    names = [v.op.attrs.get("dmlc.name") for v in leaving if v.op is not None]
    attrs = {"dmlc.id": ids.fresh(f"{ops[0].id}.fused")} | ({"dmlc.name": names[0]} if len(names) == 1 and names[0] else {})
    if all(op.attrs.get("dmlc.phase") == "update" for op in ops):
        attrs["dmlc.phase"] = "update"
    kernel = Op("kernel.fused", inputs, [v.type for v in leaving], attrs, [Region([inner])], ops[-1].loc)
    assert anchor.block is not None
    anchor.block.insert_before(anchor, kernel)
    anchor.erase()
    for value, result in zip(leaving, kernel.results):
        value.replace_uses(result, lambda user: user.block is not inner)
    inner.append(Op("kernel.yield", leaving))
    space = common_space(inner.ops[:-1], leaving)
    if isinstance(space, str):
        raise DmlcError(f"a group cannot be one kernel: {space}", ops[0].loc)
    return kernel


def _reorder(block: Block, sequence: Sequence[Op]) -> None:
    """The block in the order of `sequence`, free ops before their first reader; those that lost all readers go."""
    wanted = dict.fromkeys(sequence)
    placed: dict[Op, None] = {}

    def place(op: Op) -> None:
        if op in placed or op.block is not block:
            return
        for nested in op.walk():
            for value in nested.operands:
                if value.op is not None and value.op not in wanted:
                    place(value.op)
        placed[op] = None

    for op in sequence:
        place(op)
    for op in reversed(block.ops):
        if op not in placed:
            op.erase()
    block.reorder(list(placed))
