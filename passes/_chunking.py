"""Cutting connected ops into chunks along one dim: shared by overlap-split and tensor-partition.

Ops that carry `dmlc.chunks = k` and are connected by values form a piece of program that is made k times, each time on a part of one
dim; what comes in is sliced, what goes out is joined. The dim follows the factor rules through the piece, so every op in it must
treat the rows it is cut by independently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dmlc.ir.attributes import AttrDict
from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Block, Module, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.registry import lookup
from dmlc.ir.sharding import ceildiv
from dmlc.ir.types import TensorType
from dmlc.ops.base import rule_of
from dmlc.ops.comm import is_collective, is_start
from dmlc.passes._reorder import sort_block
from dmlc.simulate import Choice
from dmlc.simulate.choice import regions_of

KEY = "dmlc.chunks"
PART = "dmlc.chunk"
FIXED_DIMS = ("dims", "split_dims")  # dims that a collective itself cuts or joins


def spread(block: Block, seed: Op) -> list[Op]:
    """All ops around `seed` that can be cut with it along the first of its dims for which they are a convex piece, in program order."""
    number = numbered(block)
    for dim, size in enumerate(seed.results[0].shape):
        if isinstance(size, int) and size > 1:
            members = _flood(seed, dim)
            if members and is_convex(members, number):
                return [op for op in block if op in members]
    return []


def _flood(seed: Op, dim: int) -> dict[Op, None]:
    """Ops reached from the seed's result by carrying its cut on, collectives too; those that cannot follow end it."""
    dims, waiting = {seed.results[0]: dim}, [seed.results[0]]
    members: dict[Op, None] = {}
    while waiting:
        value = waiting.pop()
        for op in ([value.op] if value.op else []) + value.users:
            if op in members or op.block is not seed.block or not is_splittable(op):
                continue
            found = op_dims(op, value, dims[value])
            if found is None or any(dims.get(v, d) != d for v, d in found.items()) or any(r not in found for r in op.results):
                continue
            members[op] = None
            waiting += [v for v in found if v not in dims]
            dims.update(found)
    return members


def is_contraction(op: Op) -> bool:
    found = lookup(op.name)
    return found is not None and found.cost == "mac" and not op.regions


def is_splittable(op: Op) -> bool:
    """Whether the op may be part of a piece at all."""
    if is_collective(op):
        return not is_start(op) and len(op.operands) == 1
    found = lookup(op.name)
    return found is not None and not op.regions and not found.effects and found.local is None and found.rule is not None


# ---------------------------------------------------------------- which dim


@dataclass(frozen=True)
class Cut:
    """Value -> the dim it is cut along; values that are not named stay whole. `size` is the dim's size."""

    dims: dict[Value, int]
    size: int


def find_cut(ops: Sequence[Op], chunks: int) -> Cut | None:
    """A dim along which all of `ops` (in program order) can be cut into `chunks`, leading dims first; None when there is none."""
    if not all(map(is_splittable, ops)):
        return None
    seed = next((op for op in ops if is_contraction(op)), ops[0])
    value = seed.results[0]
    for dim, size in enumerate(value.shape):
        if isinstance(size, int) and size >= chunks:
            dims = _propagate(ops, value, dim)
            if dims is not None:
                return Cut(dims, size)
    return None


def _propagate(ops: Sequence[Op], value: Value, dim: int) -> dict[Value, int] | None:
    """The cut of `value` at `dim` carried to all values of `ops`; None when an op cannot follow or would be left out."""
    dims, waiting = {value: dim}, [value]
    members = dict.fromkeys(ops)
    while waiting:
        known = waiting.pop()
        for op in [o for o in ([known.op] if known.op else []) + known.users if o in members]:
            found = op_dims(op, known, dims[known])
            if found is None or any(dims.get(v, d) != d for v, d in found.items()):
                return None
            waiting += [v for v in found if v not in dims]
            dims.update(found)
    return dims if _is_consistent(ops, dims) else None


def op_dims(op: Op, value: Value, dim: int) -> dict[Value, int] | None:
    """The dims at which an op's operands and results are cut when `value`, one of them, is cut at `dim`."""
    if is_collective(op):
        fixed = {d for key in FIXED_DIMS for d in op.attrs.get(key, ())}
        return None if dim in fixed else {op.operands[0]: dim, op.results[0]: dim}
    rule = rule_of(op)
    sides = [*zip(op.operands, rule.operands), *zip(op.results, rule.results)]
    named = {factors[dim] for v, factors in sides if v is value}
    if len(named) != 1 or len(next(iter(named))) != 1:
        return None
    (factor,) = next(iter(named))
    if factor in rule.whole or factor not in rule.result_factors or factor not in rule.operand_factors:
        return None
    found: dict[Value, int] = {}
    for v, factors in sides:
        at = [d for d, fs in enumerate(factors) if factor in fs]
        if len(at) > 1 or any(factors[d] != (factor,) for d in at) or (at and found.setdefault(v, at[0]) != at[0]):
            return None
    return found


def _is_consistent(ops: Sequence[Op], dims: dict[Value, int]) -> bool:
    """Every op sees its values cut exactly where its rule says, and every result is cut."""
    for op in ops:
        expected = op_dims(op, op.results[0], dims[op.results[0]]) if op.results[0] in dims else None
        if expected is None:
            return False
        if any(expected.get(v) != dims.get(v) for v in (*op.operands, *op.results)):
            return False
    return True


# ---------------------------------------------------------------- pieces


def pieces(block: Block, chunks: AttrDict) -> Iterator[tuple[list[Op], int]]:
    """Connected ops with equal entries in `chunks`, in program order, and their number of chunks."""
    marked = [op for op in block if op.id in chunks]
    seen: set[Op] = set()
    for op in marked:
        if op in seen:
            continue
        piece, waiting = {op}, [op]
        while waiting:
            for other in _neighbours(waiting.pop()):
                if other.block is block and other not in piece and chunks.get(other.id) == chunks[op.id]:
                    piece.add(other)
                    waiting.append(other)
        seen |= piece
        yield [o for o in marked if o in piece], chunks[op.id]


def _neighbours(op: Op) -> list[Op]:
    return [v.op for v in op.operands if v.op is not None] + [u for r in op.results for u in r.users]


def apply(target: Module | Block, choice: Choice) -> bool:
    """Cut every piece that `choice.chunks` marks. Raises `DmlcError` naming an op of a piece that cannot be cut."""
    blocks = [target] if isinstance(target, Block) else [b for f in target.functions for _, b in regions_of(f)]
    changed = False
    for block in blocks:
        number, ids = numbered(block), IdPool(block.terminator.function or block.terminator)
        for ops, count in list(pieces(block, choice.chunks)):
            cut = find_cut(ops, count)
            if cut is None or not is_convex(ops, number):
                why = f"{len(ops)} connected ops share no dim that all of them treat row by row"
                raise DmlcError(f"'{ops[0].name}' cannot be cut into {count} chunks: {why}", ops[0].loc)
            split(ops, cut, count, ids)
            changed = True
        if changed:
            sort_block(block)
    return changed


def is_cuttable(block: Block, ops: Sequence[Op], count: int) -> bool:
    """Whether `apply` can cut a piece."""
    return find_cut(ops, count) is not None and is_convex(ops, numbered(block))


def is_convex(ops: Iterable[Op], number: dict[Op, int]) -> bool:
    """Whether no path leaves the ops and comes back. `number` gives the position of each op of the block."""
    members = set(ops)
    last = max(number[op] for op in members)
    waiting = [u for op in members for r in op.results for u in r.users if u not in members]
    seen = set(waiting)
    while waiting:
        op = waiting.pop()
        for user in (u for r in op.results for u in r.users if number.get(u, last) <= last):
            if user in members:
                return False
            if user not in seen:
                seen.add(user)
                waiting.append(user)
    return True


def numbered(block: Block) -> dict[Op, int]:
    return {op: i for i, op in enumerate(block)}


def split(ops: Sequence[Op], cut: Cut, count: int, ids: IdPool) -> list[list[Op]]:
    """Replace `ops` by `count` copies on parts of the cut dim; gives the copies, chunk by chunk."""
    b = Builder.after(ops[-1], ids)
    parts = [_copy(ops, cut, b, i, start, stop) for i, (start, stop) in enumerate(ranges(cut.size, count))]
    members = set(ops)
    for op in ops:
        for result in op.results:
            if any(u not in members for u in result.users):
                joined = _join(b, op, [part[result] for part in parts], cut.dims[result], result.tensor)
                result.replace_uses(joined, lambda user: user not in members)
    made = [[owner for op in ops if (owner := part[op.results[0]].op) is not None] for part in parts]
    for op in reversed(ops):
        op.erase()
    return made


def ranges(size: int, count: int) -> list[tuple[int, int]]:
    """Where the chunks of a dim begin and end: equal ones, the last shorter; fewer than `count` where the size is small."""
    width = ceildiv(size, count)
    return [(at, min(at + width, size)) for at in range(0, size, width)]


def _join(b: Builder, op: Op, values: list[Value], dim: int, whole: TensorType) -> Value:
    name = {"dmlc.name": op.attrs["dmlc.name"]} if "dmlc.name" in op.attrs else {}
    with b.for_op(op):
        return b.op("dmlc.concat", values, {"dim": dim, **name}, [whole], tag="join").result


def _copy(ops: Sequence[Op], cut: Cut, b: Builder, index: int, start: int, stop: int) -> dict[Value, Value]:
    """One chunk: old value -> the chunk's."""
    mapping: dict[Value, Value] = {}
    for op in ops:
        with b.for_op(op):
            for v in op.operands:
                if v in cut.dims and v not in mapping:
                    type_ = narrowed(v.tensor, cut.dims[v], stop - start)
                    mapping[v] = b.emit("dmlc.slice", v, dim=cut.dims[v], start=start, stop=stop, step=1, types=[type_], tag=f"in{index}")
            attrs = {k: v for k, v in op.attrs.items() if k not in ("dmlc.id", KEY)}
            if "dmlc.name" in attrs:
                attrs["dmlc.name"] = f"{attrs['dmlc.name']}.{index}"
            if is_collective(op):
                attrs[PART] = index  # later passes neither merge nor cut it again
            types = [narrowed(r.tensor, cut.dims.get(r), stop - start) for r in op.results]
            made = b.op(op.name, [mapping.get(v, v) for v in op.operands], attrs, types, tag=f"c{index}")
        mapping.update(zip(op.results, made.results))
    return mapping


def narrowed(type_: TensorType, dim: int | None, size: int) -> TensorType:
    return type_ if dim is None else type_.with_shape((*type_.shape[:dim], size, *type_.shape[dim + 1 :]))
