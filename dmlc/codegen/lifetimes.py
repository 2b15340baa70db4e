"""When the variables of the emitted program are needed last, and where what a step replaces is put back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dmlc.ir.core import Block, BlockArgument, Function, Op, Value
from dmlc.ir.types import FutureType
from dmlc.ops.base import attribute, definition
from dmlc.ops.contraction import Contraction
from dmlc.ops.norm import Norm
from dmlc.ops.pointwise import Pointwise
from dmlc.ops.reduction import Reduction

MAKERS = frozenset(
    f"dmlc.{name}"
    for name in "embedding index_add attention_grad conv conv_input_grad conv_weight_grad batch_norm_train batch_norm_grad max_pool_grad max_pool_index_grad avg_pool_grad gelu_grad silu_grad "
    "layer_norm_grad layer_norm_weight_grad cross_entropy cross_entropy_grad adam_update relu gelu silu tanh sigmoid exp batch_norm channel_moments batch_norm_sums batch_norm_rank_grad rank_moments running_part softmax log_softmax square_sum".split()
)
EXCHANGED = ("comm.reduce_scatter", "comm.all_reduce")


def root(value: Value) -> Value:
    """What a variable holds: barriers give their operand on under its own name."""
    while value.op is not None and value.op.name == "dmlc.barrier":
        value = value.op.operands[0]
    return value


def ancestor(op: Op, block: Block) -> Op:
    """The op of `block` that holds `op`."""
    while op.block is not block:
        parent = op.parent
        assert parent is not None
        op = parent
    return op


def last_uses(block: Block) -> dict[Op, list[Value]]:
    """Op of the block -> values made in the block that nobody needs afterwards, in the order they were made. Scalars are left to Python."""
    position = {op: i for i, op in enumerate(block)}
    found: dict[Op, list[Value]] = {}
    for op in block:
        for r in op.results if op.name != "dmlc.barrier" else ():
            if isinstance(r.type, FutureType) or r.tensor.rank:
                last = max((ancestor(u, block) for u in readers(r)), key=lambda u: position[u], default=op)
                if last is not block.last:
                    found.setdefault(last, []).append(r)
    return found


def readers(value: Value) -> Iterable[Op]:
    """Ops that read the variable of a value. A barrier itself reads nothing: it is not printed."""
    for op in value.users:
        if op.name != "dmlc.barrier":
            yield op
        elif op.operands[0] is value:
            yield from readers(op.results[0])


def replaced(function: Function) -> dict[Op, list[tuple[BlockArgument, Value]]]:
    """Op of the body -> arguments that may be replaced after it (by the value named): their new value is there, their old one is read no more.

    So a rank never holds all old and all new parameters at once. Scalars are left to the caller.
    """
    body = function.body
    position = {op: i for i, op in enumerate(body)}
    args = {a.name: a for a in function.args}
    found: dict[Op, list[tuple[BlockArgument, Value]]] = {}
    for value, attrs in zip(function.results, function.result_attrs):
        arg = args.get(attrs.get("dmlc.updates", ""))
        made = root(value).op
        if arg is None or made is None or not arg.tensor.rank:
            continue
        places = [ancestor(u, body) for u in readers(arg)]
        after = max([made, *places], key=lambda u: position[u])
        if after is not body.last:
            found.setdefault(after, []).append((arg, value))
    return found


def makes_memory(op: Op) -> bool:
    """Whether each result surely has new memory of its own. Others may give an operand back, whole or in part: views, casts, masks, what does
    nothing."""
    if op.dialect != "dmlc" or op.regions:
        return False
    found = definition(op)
    if issubclass(found, Reduction):
        return bool(attribute(op, "dims"))
    if op.name == "dmlc.contract" and len(op.operands) == 1:
        return False  # may be a transposition
    return op.name in MAKERS or issubclass(found, (Contraction, Norm)) or (issubclass(found, Pointwise) and len(op.operands) > 1)


def is_fresh(value: Value, yielded: Iterable[Value]) -> bool:
    """Whether the first thing that a loop yields may be added to in place: memory of its own, which no other variable shows."""
    op: Any = value.op
    if op is None or not value.tensor.rank or list(yielded).count(value) != 1:
        return False
    return (op.name in EXCHANGED or makes_memory(op)) and list(value.users) == [op.block.last]
