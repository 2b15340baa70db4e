"""Which buffer lives from when to when: the one account that plan, memory planning and the simulator share.

A view (facet `view`) shares its operand's buffer. What a start delivers lives from the start; its operands live until the wait.
Values of an enclosing region that a loop's body reads count as read by the loop. Function results live to the end, arguments too unless a
result replaces them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dmlc.cost.model import type_bytes, view_operand
from dmlc.ir.builder import TERMINATORS
from dmlc.ir.core import Block, Function, Op, Value


@dataclass(frozen=True)
class Storage:
    """A buffer: `value` is the first value to name it, `bytes` its size.

    maker  index of the node that makes it, -1 for an argument or a value from outside
    users  indices of the nodes that read it, through views too, ascending
    kept   it leaves the block as a result
    """

    value: Value
    bytes: int
    maker: int
    users: tuple[int, ...]
    kept: bool


@dataclass(frozen=True)
class LiveRange:
    """Positions, both included, at which a buffer must be there."""

    storage: Storage
    begin: int
    end: int


def outside_values(op: Op) -> list[Value]:
    """Operands, and values from outside that the op's regions read, each once."""
    seen = dict.fromkeys(op.operands)
    if not op.regions:
        return list(seen)
    inside = [o for region in op.regions for block in region.blocks for o in block]
    if inside:
        nested = [o for top in inside for o in top.walk()]
        made = {v for o in nested for v in o.results} | {a for o in [op, *nested] for r in o.regions for b in r.blocks for a in b.args}
        seen.update(dict.fromkeys(v for o in nested for v in o.operands if v not in made))
    return list(seen)


def read_values(op: Op) -> list[Value]:
    """Outside values whose contents the op reads: a barrier's trigger only orders it."""
    return [op.operands[0]] if op.name == "dmlc.barrier" else outside_values(op)


def root_of(value: Value) -> Value:
    """The value whose buffer `value` uses: itself unless a view makes it."""
    while value.op is not None:
        base = view_operand(value.op) if value is value.op.results[0] else None
        if base is None:
            return value
        value = value.op.operands[base]
    return value


def storages(nodes: Sequence[Sequence[Op]], arguments: Sequence[Value] = (), kept: Iterable[Value] = ()) -> list[Storage]:
    """Buffers of a program given as nodes: each the ops that run as one (one op, a start with its wait, a fused group).

    What is made and read inside one node only has no buffer. Order: arguments, then by maker.
    """
    ops = [op for node in nodes for op in node]
    position = {op: i for i, node in enumerate(nodes) for op in node}
    maker: dict[Value, int] = dict.fromkeys(arguments, -1)
    readers: dict[Value, dict[int, None]] = {}
    roots: dict[Value, Value] = {}  # of what is read, each looked for once

    def root(value: Value) -> Value:
        found = roots.get(value)
        if found is None:
            found = roots[value] = root_of(value)
        return found

    for op in ops:
        here = position[op]
        for value in read_values(op):
            readers.setdefault(root(value), {})[here] = None
        for i, result in enumerate(op.results):
            if i or view_operand(op) is None:
                maker[result] = here
    leaving = {root(v) for v in kept}
    found = []
    for value, made in maker.items():
        users = tuple(sorted(u for u in readers.get(value, ()) if u != made))
        size = type_bytes(value.type)
        if size and (users or value in leaving or not readers.get(value)) and not _is_future(value):
            found.append(Storage(value, size, made, users, value in leaving))
    return found


def _is_future(value: Value) -> bool:
    op = value.op
    return op is not None and op.dialect == "comm" and op.name.endswith("_start")


def live_ranges(buffers: Sequence[Storage], begin: Sequence[int], release: Sequence[int], end: int) -> list[LiveRange]:
    """When each buffer lives, if node i starts at position begin[i] and lets its operands go after release[i]
    (later than `begin` only for a collective in flight, where it is the wait's position). `end` is the last position."""
    ranges = []
    for s in buffers:
        first = begin[s.maker] if s.maker >= 0 else 0
        last = max((release[u] for u in s.users), default=first)
        ranges.append(LiveRange(s, first, end if s.kept else max(last, release[s.maker] if s.maker >= 0 else first)))
    return ranges


def peak_bytes(ranges: Sequence[LiveRange], scratch: Sequence[int] = ()) -> int:
    """Most bytes alive at one position; `scratch[p]` are bytes that only position p needs."""
    if not ranges and not scratch:
        return 0
    size = max([r.end for r in ranges] + [len(scratch) - 1]) + 2
    change = [0] * size
    for r in ranges:
        change[r.begin] += r.storage.bytes
        change[r.end + 1] -= r.storage.bytes
    alive = peak = 0
    for p in range(size - 1):
        alive += change[p]
        peak = max(peak, alive + (scratch[p] if p < len(scratch) else 0))
    return peak


# ---------------------------------------------------------------- a block as it stands


@dataclass(frozen=True)
class BlockLiveness:
    """Live ranges over the ops of a block, position = index of the op; scratch = what loops need inside."""

    ops: tuple[Op, ...]
    ranges: tuple[LiveRange, ...]
    scratch: tuple[int, ...]

    @property
    def peak(self) -> int:
        return peak_bytes(self.ranges, self.scratch)


def block_liveness(block: Block, with_arguments: bool = True, inside: bool = True) -> BlockLiveness:
    """Liveness of a block in its present order. Arguments live throughout when counted. Without `inside`, what loops need is left out of `scratch`."""
    ops = [op for op in block if op.name not in TERMINATORS]
    waits = {op.operands[0]: i for i, op in enumerate(ops) if op.name == "comm.wait"}
    # a wait belongs to its start: what it delivers has been there since
    owner = {op: op.operands[0].op if op.name == "comm.wait" else op for op in ops}
    nodes: list[list[Op]] = [[] for _ in ops]
    index = {op: i for i, op in enumerate(ops)}
    for op in ops:
        home = owner[op]
        nodes[index[home] if home in index else index[op]].append(op)
    release = [waits.get(op.results[0], i) if op.results else i for i, op in enumerate(ops)]
    arguments = list(block.args) if with_arguments else []
    last = block.last
    kept = list(last.operands) if last is not None and last.name in TERMINATORS else []
    replaced = replaced_arguments(block)
    buffers = storages(nodes, arguments, [*kept, *(a for a in arguments if a not in replaced)])
    ranges = live_ranges(buffers, list(range(len(ops))), release, max(len(ops) - 1, 0))
    made = {r.storage.value: r.begin for r in ranges}
    ranges = [replace(r, end=max(r.end, made.get(replaced[v], r.end))) if (v := r.storage.value) in replaced else r for r in ranges]
    return BlockLiveness(tuple(ops), tuple(ranges), tuple(region_bytes(op) for op in ops) if inside else (0,) * len(ops))


def replaced_arguments(block: Block) -> dict[Value, Value]:
    """Arguments of a function that a result updates, and the buffer that takes their place: the old one goes when the new one is there and
    nobody reads it any more."""
    owner = block.region.op if block.region is not None else None
    if owner is None or owner.name != "func.func" or block.last is None or block.last.name not in TERMINATORS:
        return {}
    function = Function(owner)
    by_name = {a.name: a for a in function.args}
    found = {by_name[name]: root_of(v) for v, attrs in zip(function.results, function.result_attrs) if (name := attrs.get("dmlc.updates")) in by_name}
    return {a: new for a, new in found.items() if new is not a}


def region_bytes(op: Op) -> int:
    """Bytes that the regions of an op need beside its operands and results."""
    if op.name == "kernel.fused" or not op.regions:
        return 0
    return max(block_liveness(b).peak for r in op.regions for b in r.blocks)
