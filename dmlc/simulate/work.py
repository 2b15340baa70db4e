"""How much a program computes: the floating-point operations of its contractions, by type.

`plan` counts the whole-batch program before anything is recomputed, repeated on several ranks or padded, and keeps that in the text as
`dmlc.work`: what a step has to compute on all devices together, however it is carried out.
"""

from __future__ import annotations

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Block, Module, Op
from dmlc.ops.base import flops_of
from dmlc.ops.control import trips
from dmlc.ops.kernel import find_kernel


def work_of(block: Block) -> dict[str, int]:
    """Type of the first operand -> floating-point operations (a multiply-add is two) of the block's contractions, loops as often as they run."""
    total: dict[str, int] = {}
    for op in block:
        for dtype, flops in _work(op).items():
            total[dtype] = total.get(dtype, 0) + flops
    return total


def _work(op: Op) -> dict[str, int]:
    if op.name == "kernel.call":
        return work_of(find_kernel(op).region.block)
    if op.regions:
        inner = [work_of(block) for region in op.regions for block in region.blocks]
        found = max(inner, key=lambda work: sum(work.values()), default={})  # a rank takes one branch
        return {dtype: flops * trips(op) for dtype, flops in found.items()}
    flops = 2 * flops_of(op)
    return {op.operands[0].dtype: flops} if flops else {}


def note_work(module: Module) -> None:
    """Keep the work of a global program in its text."""
    module.attrs["dmlc.work"] = AttrDict(work_of(module.main.body))
