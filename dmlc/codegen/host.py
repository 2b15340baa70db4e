"""Which scalars of a program stay on the host: counters, hyper-parameters, sizes and what is computed from them alone.

On the host they cost no launch, and PyTorch mixes them with tensors of any device in arithmetic; elsewhere they are sent along.
"""

from __future__ import annotations

from dmlc.ir.core import BlockArgument, Op, Value
from dmlc.ops.control import LOOPS, bodies, parts

ROLES = ("state", "hyper", "size", "seed")
MADE_THERE = ("comm.axis_index", "dmlc.full", "dmlc.window")
REGIONS = ("dmlc.cond", *LOOPS)
_ASSUMED: set[tuple[Op, int]] = set()  # carried values that are being looked at
NEED_ONE_DEVICE = ("dmlc.select", "dmlc.concat", "dmlc.index", "dmlc.take", "dmlc.embedding", "dmlc.scatter", "dmlc.index_put")


def on_host(value: Value) -> bool:
    """Whether a value is a scalar on the host."""
    if not hasattr(value.type, "rank") or value.tensor.rank:
        return False
    if isinstance(value, BlockArgument):
        owner = value.block.region.op if value.block.region is not None else None
        if owner is not None and owner.name in REGIONS:
            return _argument_on_host(value, owner)
        return owner is None or owner.name != "func.func" or value.attrs.get("dmlc.role", "input") in ROLES  # a loop's index
    op = value.op
    assert op is not None
    if op.name in MADE_THERE:
        return True
    if op.name in LOOPS and value.index < len(carried := parts(op, op.operands)[0]):  # type: ignore[attr-defined]
        return _carried_on_host(op, value.index, carried[value.index])  # type: ignore[attr-defined]
    return not op.regions and op.dialect == "dmlc" and bool(op.operands) and all(on_host(v) for v in op.operands)


def _argument_on_host(arg: BlockArgument, owner: Op) -> bool:
    """The index of a loop is; a row is none; what is carried is, if it begins there and stays there; what is shared is as it is outside."""
    place = arg.index - (owner.name == "dmlc.scan")
    if place < 0:
        return True
    if owner.name == "dmlc.cond":
        return on_host(owner.operands[1 + place])
    carried, scanned, _ = parts(owner, owner.operands)
    if place < len(carried):
        return _carried_on_host(owner, place, carried[place])
    return place >= len(carried) + len(scanned) and on_host(owner.operands[place])


def _carried_on_host(loop: Op, index: int, start: Value) -> bool:
    """Whether a carried scalar is there from the start and after every iteration (taken for granted while that is looked at)."""
    key = loop, index
    if key in _ASSUMED:
        return True
    if not on_host(start):
        return False
    _ASSUMED.add(key)
    try:
        return on_host(bodies(loop)[0].terminator.operands[index])
    finally:
        _ASSUMED.discard(key)


def sent(op: Op, index: int) -> bool:
    """Whether operand `index` has to be brought to the device for this op: the op takes no mixture, and others of its operands are there."""
    if not on_host(op.operands[index]):
        return False
    if op.name == "kernel.call" or op.dialect == "comm":
        return True
    return op.name in NEED_ONE_DEVICE and not all(on_host(v) for v in op.operands)
