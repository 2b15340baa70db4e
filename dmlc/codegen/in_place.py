"""Which ops of an emitted program leave their results in memory that is there: of arguments that they replace, of values that end with them.

Memory may be taken once nobody reads it any more, neither its value nor one that shares the memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dmlc.codegen.lifetimes import is_fresh, makes_memory, root
from dmlc.ir.core import Block, BlockArgument, Function, Op, Value
from dmlc.ir.types import TensorType
from dmlc.ops.base import definition
from dmlc.ops.comm import base_name
from dmlc.ops.kernel import find_kernel
from dmlc.ops.pointwise import Pointwise
from dmlc.simulate.liveness import outside_values

EITHER = ("dmlc.add", "dmlc.sub", "dmlc.mul")  # elementwise: the result may take the memory of one operand or the other
NOTHING: frozenset[Value] = frozenset()


@dataclass
class Reuse:
    """What `reuse` finds.

    taken   op -> by the number of a result the value whose memory it takes
    loops   results of loops that stay None where the loop runs no time: all that reads them is one sum, made in place
    merged  op -> the addition of its result to something that is there before it, which one library call does too
    given   all-reductions of one value that nothing else reads: they may work in its memory
    """

    taken: dict[Op, dict[int, Value]] = field(default_factory=dict)
    loops: set[Value] = field(default_factory=set)
    merged: dict[Op, Op] = field(default_factory=dict)
    given: set[Op] = field(default_factory=set)


def reuse(function: Function) -> Reuse:
    found = Reuse()
    memory, replaces = _Memory(function), _replaces(function)
    for block in memory.blocks:
        for position, op in enumerate(block):
            for places in _choices(op):
                taken = {i: op.operands[k] for i, k in places.items()}
                if places and all(memory.ends(v, position, op) and _fits(v, op.results[i], replaces) for i, v in taken.items()):
                    found.taken[op] = taken
                    break
    ops = [op for block in memory.blocks for op in block]
    found.loops = {r for op in ops if op.name == "dmlc.microbatch" for r in op.results if _may_be_none(op, r, found)}
    found.given = {op for op in ops if base_name(op) == "comm.all_reduce" and _is_given(op, memory)}
    for op in ops:
        addition = _only_addition(op)
        if addition is not None and (_adds_bias(op, addition) or _adds_rows(op, addition, found)):
            found.merged[op] = addition
    return found


def _is_given(op: Op, memory: _Memory) -> bool:
    """Whether the one operand has memory of its own and no other reader, so no value that shares it either."""
    value = op.operands[0]
    made = value.op is not None and value.op.block is op.block and bool(value.tensor.rank)
    return len(op.operands) == 1 and made and len(value.uses) == 1 and memory.shown.get(value) == frozenset({value})


def _only_addition(op: Op) -> Op | None:
    """The addition of the same block and type that alone reads the op's result."""
    if op.name not in ("dmlc.linear", "dmlc.index_add") or len(op.result.uses) != 1:
        return None
    user = op.result.users[0]
    return user if user.name == "dmlc.add" and user.block is op.block and user.result.type == op.result.type else None


def other(addition: Op, op: Op) -> Value:
    """What the addition adds to the op's result."""
    return addition.operands[1 if addition.operands[0] is op.result else 0]


def _adds_bias(op: Op, addition: Op) -> bool:
    bias = other(addition, op)
    return op.name == "dmlc.linear" and op.result.tensor.rank > 1 and isinstance(bias, BlockArgument) and bias.shape == op.result.shape[-1:]


def _adds_rows(op: Op, addition: Op, found: Reuse) -> bool:
    """Rows added to a tensor that is there already, read by nobody else, and whose memory the sum takes."""
    total = other(addition, op)
    there = total.op is not None and total.op.block is op.block and op.block is not None and list(op.block).index(total.op) < list(op.block).index(op)
    return op.name == "dmlc.index_add" and there and len(total.uses) == 1 and found.taken.get(addition, {}).get(0) is total and total not in found.loops


def _may_be_none(loop: Op, result: Value, found: Reuse) -> bool:
    """Whether the sum of a loop that may run no time is only added to one value, in the memory of either."""
    users = list(result.users)
    if not loop.operands or not result.tensor.rank or len(users) != 1 or users[0].name != "dmlc.add" or users[0].block is not loop.block:
        return False
    yielded = loop.region.block.terminator.operands
    taken = found.taken.get(users[0], {}).get(0)
    return taken is not None and taken is not result and is_fresh(yielded[result.index], yielded)  # type: ignore[attr-defined]


def _replaces(function: Function) -> dict[Value, BlockArgument]:
    """Results that replace an argument of the same type, and are no other result as well."""
    args = {a.name: a for a in function.args}
    found: dict[Value, BlockArgument] = {}
    for value, attrs in zip(function.results, function.result_attrs):
        arg = args.get(attrs.get("dmlc.updates", ""))
        if arg is not None and arg.tensor.rank and function.results.count(value) == 1:
            found[value] = arg
    return found


def _fits(value: Value, result: Value, replaces: dict[Value, BlockArgument]) -> bool:
    """An argument's memory is for what replaces the argument."""
    if value.type != result.type or not value.tensor.rank:
        return False
    return replaces.get(result) is value if isinstance(value, BlockArgument) else True


def _choices(op: Op) -> list[dict[int, int]]:
    """By the number of a result the operand whose memory it can take, best first."""
    if op.name in EITHER:
        added = op.operands[0].op is not None and op.operands[0].op.name in ("dmlc.index_add", "dmlc.microbatch")  # better added to the other
        return [{0: 1}, {0: 0}] if added else [{0: 0}, {0: 1}]
    if op.dialect not in ("dmlc", "kernel"):
        return []
    return [kernel_in_place(Function(find_kernel(op))) if op.name == "kernel.call" else dict(enumerate(definition(op).in_place_operands))]


def kernel_in_place(function: Function) -> dict[int, int]:
    """The same for a kernel that holds an op whose text takes a place for its results. That op alone reads the arguments in question, and what
    it gives leaves the kernel and is not read in it: each program then reads those elements once, before it writes the same ones."""
    update = updating_op(function)
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


def updating_op(function: Function) -> Op | None:
    """The op of a kernel that may work in place: one whose helper is told where, or told None. (A pointwise op's text knows no None.)"""
    return next((op for op in function.body.ops[:-1] if definition(op).in_place_operands and not issubclass(definition(op), Pointwise)), None)


# ---------------------------------------------------------------- who shows whose memory


class _Memory:
    """Owners of memory (arguments of the function, results of ops that make new memory), who shows whose, and where each is read last."""

    def __init__(self, function: Function):
        self.shown: dict[Value, frozenset[Value]] = {a: frozenset({a}) for a in function.args}
        self.last: dict[Value, tuple[int, frozenset[Value]]] = {}  # owner -> its last reader's position, and the values it is read through there
        self.blocks: list[Block] = []
        self._block(function.body)

    def ends(self, value: Value, position: int, op: Op) -> bool:
        """Whether `value` has memory of its own that is read last by `op`, once and through no other value."""
        own = self.shown.get(value) == frozenset({value}) and _block_of(value) is op.block
        return own and list(op.operands).count(value) == 1 and self.last.get(value) == (position, frozenset({value}))

    def _block(self, block: Block) -> None:
        self.blocks.append(block)
        for position, op in enumerate(block):
            readings: dict[Value, frozenset[Value]] = {}
            for value in outside_values(op):
                for owner in self.shown.get(value, NOTHING):
                    if _block_of(owner) is block:
                        readings[owner] = readings.get(owner, NOTHING) | {value}
            self.last.update({owner: (position, values) for owner, values in readings.items()})
            self._results(op)

    def _results(self, op: Op) -> None:
        """Add what the op's results show."""
        if op.name == "kernel.call":
            self._kernel(op)
            return
        for region in op.regions if not op.name.startswith("kernel.") else ():
            for block in region.blocks:
                for arg in block.args:
                    self.shown[arg] = self._shared(op.operands, arg)
                self._block(block)
        for i, result in enumerate(op.results):
            if op.name == "dmlc.microbatch":
                self.shown[result] = self._yielded(op.region.block, i, result)
            else:
                self.shown[result] = frozenset({result}) if makes_memory(op) else self._shared(outside_values(op), result)

    def _yielded(self, block: Block, index: int, result: Value) -> frozenset[Value]:
        """What a loop's result shows: itself, if the body yields memory of its own there and nowhere else."""
        shown = [self.shown.get(root(v), NOTHING) for v in block.terminator.operands]
        value = root(block.terminator.operands[index])
        lone = shown[index] == frozenset({value}) and _block_of(value) is block and not any(value in s for i, s in enumerate(shown) if i != index)
        return frozenset({result}) if lone else shown[index]

    def _shared(self, values: Iterable[Value], result: Value) -> frozenset[Value]:
        return NOTHING.union(*(self.shown.get(v, NOTHING) for v in values if _may_share(v, result)))

    def _kernel(self, op: Op) -> None:
        """Through the PyTorch form of the kernel: one variable an op. (The Triton form writes results of its own.)"""
        callee = Function(find_kernel(op))
        inside = _Memory(callee)
        outer: dict[Value, frozenset[Value]] = {a: self.shown.get(v, NOTHING) for a, v in zip(callee.args, op.operands)}
        for result, value in zip(op.results, callee.results):  # the first result with the memory of an inner value owns it
            if inside.shown.get(value, NOTHING) == frozenset({value}):
                outer.setdefault(value, frozenset({result}))
        for result, value in zip(op.results, callee.results):
            self.shown[result] = NOTHING.union(*(outer.get(owner, NOTHING) for owner in inside.shown.get(value, NOTHING)))


def _block_of(value: Value) -> Block | None:
    return value.block if isinstance(value, BlockArgument) else value.op.block if value.op is not None else None


def _may_share(operand: Value, result: Value) -> bool:
    """PyTorch shares memory between tensors of one dtype only (what a future holds is not asked)."""
    if not (isinstance(operand.type, TensorType) and isinstance(result.type, TensorType)):
        return True
    return bool(operand.tensor.rank) and operand.dtype == result.dtype
