"""Parameters that lie in parts and are gathered twice in a microbatch: for the forward pass and again for the backward pass.

A parameter with `dmlc.regather = "per-microbatch"` is read by the backward pass through a barrier, one for each (parameter, group of
segments). `partition` puts the second gather behind the barrier, so that the first one's result need not live from pass to pass.
"""

from __future__ import annotations

from dmlc.ir.core import BlockArgument, Op, Value
from dmlc.passes._clones import is_clonable
from dmlc.passes._segments import Step

KEY, TWICE = "dmlc.regather", "per-microbatch"
KEPT = "dmlc.kept"  # what is gathered lives from the forward to the backward pass, so once a microbatch is enough


def regathered(step: Step) -> list[BlockArgument | Op]:
    """The parameters in question, and forward ops made from them and other values that are the same in every microbatch (a cast to the
    working precision): made again from the part, they are what is gathered."""
    found: dict[BlockArgument | Op, None] = {a: None for a in step.function.args if a.attrs.get(KEY) == TWICE and KEPT not in a.attrs}
    for op in step.ops:
        if step.is_forward(op) and op not in step.batched and is_clonable(op) and any(_source(v) in found for v in op.operands):
            found[op] = None
    return list(found)


def _source(value: Value) -> BlockArgument | Op | None:
    return value if isinstance(value, BlockArgument) else value.op
