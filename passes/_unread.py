"""What loops and branches take and give without need: results nobody reads, operands that nothing inside reads.

A carried value whose result is not read still matters if something inside that matters reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dmlc.ir.core import Block, Op, Value
from dmlc.ir.types import FutureType
from dmlc.ops.control import LOOPS, arguments, bodies, parts, passed

REGIONS = ("dmlc.cond", *LOOPS)
Erase = Callable[[Block], bool]


def drop_unread(op: Op, erase_unused: Erase, removable: Callable[[Op], bool]) -> bool:
    """Drop them, and with `erase_unused` the ops inside that only they needed; whether there were any. Ops that are not `removable` count as needed."""
    if any(isinstance(v.type, FutureType) for v in (*op.operands, *op.results)):
        return False
    carried = 0 if op.name == "dmlc.cond" else len(parts(op, op.operands)[0])
    needed = _needed_states(op, carried, removable) if carried else set()
    dead = {i for i, r in enumerate(op.results) if not r.uses and i not in needed}
    if dead:
        for block in bodies(op):
            block.terminator.operands = [v for i, v in enumerate(block.terminator.operands) if i not in dead]
        op.results = [r for i, r in enumerate(op.results) if i not in dead]
        for i, r in enumerate(op.results):
            r.index = i
        for region in op.regions:
            erase_unused(region.block)
    return _drop_operands(op, {i for i in dead if i < carried}, carried) or bool(dead)


def _needed_states(op: Op, carried: int, removable: Callable[[Op], bool]) -> set[int]:
    """Carried values that are results, that the condition or a stack reads, or that such a one is made of."""
    body = bodies(op)[0]
    last = body.terminator
    states = {a: i for i, a in enumerate(arguments(op, body)[:carried])}
    needed = {i for i in range(carried) if op.results[i].uses}
    for region in op.regions:
        read = [v for o in region.block if o is not region.block.last and not removable(o) for v in o.operands]
        read += region.block.terminator.operands if region.block is not body else []
        needed |= {a.index for a in _sources(read, region.block) & set(region.block.args[:carried])} if region.block is not body else set()  # type: ignore[attr-defined]
        needed |= {states[v] for v in _sources(read, region.block) if v in states}
    stacks = [v for v, r in zip(last.operands[carried:], op.results[carried:]) if r.uses]
    needed |= {states[v] for v in _sources(stacks, body) if v in states}
    new = set(needed)
    while new:
        new = {states[v] for v in _sources([last.operands[i] for i in new], body) if v in states} - needed
        needed |= new
    return needed


def _sources(values: Iterable[Value], block: Block) -> set[Value]:
    """All values of a block that some values are made of, themselves too."""
    found: set[Value] = set()
    work = list(values)
    while work:
        value = work.pop()
        if value in found:
            continue
        found.add(value)
        top = value.op
        while top is not None and top.block is not block:
            top = top.parent
        if top is not None:
            work += [v for o in top.walk() for v in o.operands]
    return found


def _drop_operands(op: Op, states: set[int], carried: int) -> bool:
    """The carried operands at `states`, and those scanned and shared ones that nothing inside reads."""
    blocks, outer = [region.block for region in op.regions], passed(op)
    unread = {k for k in range(carried, len(outer)) if not any(arguments(op, b)[k].uses for b in blocks)}
    gone = states | unread
    if not gone:
        return False
    for block in blocks:
        for arg in [arguments(op, block)[k] for k in sorted(gone)]:
            block.erase_arg(arg)  # type: ignore[arg-type]
    kept = [v for k, v in enumerate(outer) if k not in gone]
    scanned = range(carried, carried + op.attrs.get("scanned", 0))
    fewer = {"scanned": len(unread & set(scanned)), "shared": len(unread - set(scanned))}
    op.operands = [*op.operands[: len(op.operands) - len(outer)], *kept]
    for key, count in fewer.items() if op.name in LOOPS else ():
        if count:
            op.attrs[key] -= count
            if not op.attrs[key]:
                del op.attrs[key]
    return True
