"""Which scalars of a program stay on the host: counters, hyper-parameters, sizes and what is computed from them alone.

On the host they cost no launch, and PyTorch mixes them with tensors of any device in arithmetic; elsewhere they are sent along.
"""

from __future__ import annotations

from dmlc.ir.core import BlockArgument, Op, Value

ROLES = ("state", "hyper", "size", "seed")
MADE_THERE = ("comm.axis_index", "dmlc.full", "dmlc.window")
NEED_ONE_DEVICE = ("dmlc.select", "dmlc.concat", "dmlc.index", "dmlc.take", "dmlc.embedding", "dmlc.scatter", "dmlc.index_put")


def on_host(value: Value) -> bool:
    """Whether a value is a scalar on the host."""
    if not hasattr(value.type, "rank") or value.tensor.rank:
        return False
    if isinstance(value, BlockArgument):
        owner = value.block.region.op if value.block.region is not None else None
        return owner is None or owner.name != "func.func" or value.attrs.get("dmlc.role", "input") in ROLES  # a loop's index
    op = value.op
    assert op is not None
    if op.name in MADE_THERE:
        return True
    return not op.regions and op.dialect == "dmlc" and bool(op.operands) and all(on_host(v) for v in op.operands)


def sent(op: Op, index: int) -> bool:
    """Whether operand `index` has to be brought to the device for this op: the op takes no mixture, and others of its operands are there."""
    if not on_host(op.operands[index]):
        return False
    if op.name == "kernel.call" or op.dialect == "comm":
        return True
    return op.name in NEED_ONE_DEVICE and not all(on_host(v) for v in op.operands)
