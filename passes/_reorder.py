"""Putting ops into an order that respects data: shared by the passes that merge, split and schedule."""

from __future__ import annotations

from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Block, Op
from dmlc.simulate.liveness import outside_values
from dmlc.simulate.units import topological


def sort_block(block: Block) -> bool:
    """Move ops behind what they read, and else leave them where they stand. True if the order changed."""
    ops = [op for op in block if op.name not in TERMINATORS]
    number = {op: i for i, op in enumerate(ops)}
    preds: list[dict[int, None]] = []
    last_message = None
    for i, op in enumerate(ops):
        before = {number[v.op]: None for v in outside_values(op) if v.op is not None and v.op in number}
        if op.name in ("comm.send", "comm.recv"):
            if last_message is not None:
                before[last_message] = None
            last_message = i
        preds.append(before)
    order, rest = topological(preds)
    assert not rest, "ops depend on each other in a circle"
    return place([ops[i] for i in order], block)


def place(ops: list[Op], block: Block) -> bool:
    """Give the block this order of its ops (the terminator stays last). True if it changed."""
    last = block.last
    wanted = [*ops, last] if last is not None and last.name in TERMINATORS else ops
    if wanted == block.ops:
        return False
    block.reorder(wanted)
    return True
