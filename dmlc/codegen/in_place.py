"""Which ops of an emitted step may leave their results in the memory of the arguments that those replace.

An argument's memory may be taken once nobody reads it any more, neither itself nor through a value that shares its memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from dmlc.codegen.lifetimes import root
from dmlc.ir.core import Block, BlockArgument, Function, Op, Value
from dmlc.ir.types import TensorType
from dmlc.ops.base import attribute, definition
from dmlc.ops.contraction import Contraction
from dmlc.ops.kernel import find_kernel
from dmlc.ops.norm import Norm
from dmlc.ops.pointwise import Pointwise
from dmlc.ops.reduction import Reduction
from dmlc.simulate.liveness import outside_values

Shown = dict[Value, frozenset[Value]]  # value -> the arguments whose memory it may show
NOTHING: frozenset[Value] = frozenset()


def overwritten(function: Function) -> dict[Op, dict[int, BlockArgument]]:
    """Op of the body -> by the number of a result the argument whose memory it takes, for ops that can and may do that."""
    replaces = _replaces(function)
    found = {op: taken for op in function.body if (taken := _taken(op, replaces))}
    if not found:
        return {}
    last = _last_reads(function)
    position = {op: i for i, op in enumerate(function.body)}
    return {op: taken for op, taken in found.items() if all(last[a] == (position[op], a) for a in taken.values())}


def _replaces(function: Function) -> dict[Value, BlockArgument]:
    """Results that replace an argument of the same type, and are no other result as well."""
    args = {a.name: a for a in function.args}
    found: dict[Value, BlockArgument] = {}
    for value, attrs in zip(function.results, function.result_attrs):
        arg = args.get(attrs.get("dmlc.updates", ""))
        if arg is not None and arg.type == value.type and arg.tensor.rank and function.results.count(value) == 1:
            found[value] = arg
    return found


def _taken(op: Op, replaces: dict[Value, BlockArgument]) -> dict[int, BlockArgument]:
    """By result the argument it replaces, where the op reads that at the place whose memory it can take and nowhere else; {} if one does not."""
    places = in_place_operands(op)
    taken = {i: replaces.get(op.results[i]) for i in places}
    fits = all(op.operands[k] is taken[i] and list(op.operands).count(op.operands[k]) == 1 for i, k in places.items())
    return taken if fits else {}  # type: ignore[return-value]


def in_place_operands(op: Op) -> dict[int, int]:
    """By the number of a result the operand whose memory it can take; {} where it cannot."""
    return kernel_in_place(Function(find_kernel(op))) if op.name == "kernel.call" else dict(enumerate(definition(op).in_place_operands))


def kernel_in_place(function: Function) -> dict[int, int]:
    """The same for a kernel that holds an op which can work in place. That op alone reads the arguments in question, and what it gives leaves
    the kernel and is not read in it: each program then reads those elements once, before it writes the same ones."""
    update = next((op for op in function.body.ops[:-1] if definition(op).in_place_operands), None)
    if update is None:
        return {}
    found: dict[int, int] = {}
    for result, place in zip(update.results, definition(update).in_place_operands):
        arg = update.operands[place]
        if not isinstance(arg, BlockArgument) or list(arg.uses) != [(update, place)] or arg.type != result.type or len(result.uses) != 1:
            return {}
        if result not in function.results:
            return {}
        found[list(function.results).index(result)] = arg.index
    return found


# ---------------------------------------------------------------- who shows whose memory


def _last_reads(function: Function) -> dict[Value, tuple[int, Value | None]]:
    """Index of the last op that reads an argument's memory, and through which value (None: through several)."""
    shown: Shown = {a: frozenset({a}) for a in function.args}
    last: dict[Value, tuple[int, Value | None]] = {}
    for i, op in enumerate(function.body):
        for value in outside_values(op):
            for arg in shown.get(value, NOTHING):
                last[arg] = (i, None if last.get(arg, (-1, None))[0] == i else value)
        _show(op, shown)
    return last


def _show(op: Op, shown: Shown) -> None:
    """Add the op's results to `shown`."""
    if op.name == "kernel.call":
        _show_kernel(op, shown)
    elif op.name == "dmlc.microbatch":
        for inner in op.region.block:
            _show(inner, shown)
        for result, value in zip(op.results, _yielded(op.region.block)):
            shown[result] = shown.get(value, NOTHING)
    elif not _fresh(op):
        for result in op.results:
            shown[result] = _union(shown.get(v, NOTHING) for v in outside_values(op) if _may_share(v, result))


def _show_kernel(op: Op, shown: Shown) -> None:
    """Through the PyTorch form of the kernel: one variable an op. (The Triton form writes results of its own.)"""
    callee = Function(find_kernel(op))
    inside: Shown = {a: frozenset({a}) for a in callee.args}
    for inner in callee.body.ops[:-1]:
        _show(inner, inside)
    outer = dict(zip(callee.args, op.operands))
    for result, value in zip(op.results, callee.results):
        shown[result] = _union(shown.get(outer[a], NOTHING) for a in inside.get(value, NOTHING))  # type: ignore[index]


def _yielded(block: Block) -> list[Value]:
    return [root(v) for v in block.terminator.operands]


def _union(sets: Iterable[frozenset[Value]]) -> frozenset[Value]:
    return NOTHING.union(*sets)


def _may_share(operand: Value, result: Value) -> bool:
    """PyTorch shares memory between tensors of one dtype only (what a future holds is not asked)."""
    if not (isinstance(operand.type, TensorType) and isinstance(result.type, TensorType)):
        return True
    return bool(operand.tensor.rank) and operand.dtype == result.dtype


def _fresh(op: Op) -> bool:
    """Whether the op surely makes new memory. Others may give an operand back, whole or in part: views, casts, masks, what does nothing."""
    if op.dialect != "dmlc" or op.regions:
        return False
    found = definition(op)
    if issubclass(found, Reduction):
        return bool(attribute(op, "dims"))
    return issubclass(found, (Contraction, Norm)) or bool(found.in_place_operands) or (issubclass(found, Pointwise) and len(op.operands) > 1)
