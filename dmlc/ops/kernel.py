"""Fused regions and calls of the kernels made from them, and which ops a generated kernel can hold."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dmlc.ir import registry
from dmlc.ir.builder import Builder
from dmlc.ir.core import Block, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ops.base import REQUIRED, definition, signature
from dmlc.ops.structural import RegionOp, Structural

# Reductions a row kernel knows, with the combiner of each.
REDUCTIONS = {
    "dmlc.reduce_sum": "sum",
    "dmlc.reduce_prod": "prod",
    "dmlc.reduce_max": "max",
    "dmlc.reduce_min": "min",
    "dmlc.reduce_and": "and",
    "dmlc.reduce_or": "or",
}
# Ops without work of their own: a kernel computes them again rather than read them from memory.
SOURCES = frozenset({"dmlc.full", "dmlc.iota"})
KERNEL_DTYPES = frozenset({"f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "ui8", "i1"})


class Fused(RegionOp):
    """A region that becomes one kernel. It sees nothing from outside: its block arguments are the operands, `kernel.yield` gives the results."""

    name = "kernel.fused"
    same_dtype = False
    cost = "bytes"

    @classmethod
    def check(cls, op: Op) -> None:
        if len(op.regions) != 1 or len(op.region.blocks) != 1:
            raise DmlcError("'kernel.fused' has one region of one block", op.loc)
        block = op.region.block
        if not op.operands or not op.results:
            raise DmlcError("'kernel.fused' reads and gives at least one tensor", op.loc)
        _same_types("arguments of the region", [a.type for a in block.args], [v.type for v in op.operands], op)
        if block.last is None or block.last.name != "kernel.yield":
            raise DmlcError("the region of 'kernel.fused' ends in 'kernel.yield'", op.loc)
        _same_types("values the region yields", [v.type for v in block.last.operands], [r.type for r in op.results], op)
        check_body(block)


class KernelYield(Structural):
    """Ends a fused region; its operands are what leaves the kernel."""

    name = "kernel.yield"
    results = 0
    given = True


class Call(Structural):
    """Runs the kernel made from the private function named `kernel`."""

    name = "kernel.call"
    given = True
    cost = "bytes"
    attributes = {"kernel": REQUIRED}

    @classmethod
    def check(cls, op: Op) -> None:
        callee = find_kernel(op)
        body = callee.region.block
        _same_types(f"arguments of @{op.attrs['kernel']}", [a.type for a in body.args], [v.type for v in op.operands], op)
        _same_types(f"results of @{op.attrs['kernel']}", [v.type for v in body.terminator.operands], [r.type for r in op.results], op)


def find_kernel(call: Op) -> Op:
    """The `func.func` that a `kernel.call` names. Raises `DmlcError` at the call when there is none."""
    top = call
    while top.parent is not None:
        top = top.parent
    for op in top.region.block if top.name == "builtin.module" else ():
        if op.name == "func.func" and op.attrs["sym_name"] == call.attrs["kernel"]:
            return op
    raise DmlcError(f"'kernel.call' names @{call.attrs['kernel']}, which is no function of the module", call.loc)


def _same_types(what: str, actual: list[Any], wanted: list[Any], op: Op) -> None:
    if actual != wanted:
        raise DmlcError(f"{what} of '{op.name}' have types ({', '.join(map(str, actual))}) but the op has ({', '.join(map(str, wanted))})", op.loc)


def check_body(block: Block) -> None:
    """Every op of a kernel's block is one a kernel can hold and uses only values of that block."""
    known: set[Value] = set(block.args)
    for op in block:
        for value in op.operands:
            if value not in known:
                raise DmlcError(f"'{op.name}' in a kernel uses a value from outside of it", op.loc)
        if op is not block.last and not in_kernel(op):
            raise DmlcError(f"'{op.name}' cannot stand in a kernel: it has no Triton text", op.loc)
        known.update(op.results)


# ---------------------------------------------------------------- what fits in a kernel


def is_primitive(op: Op) -> bool:
    """Whether a kernel has one line of text for the op: pointwise ops, reductions, sources, masks, views that only add or drop size-1 dims."""
    if op.name == "dmlc.reshape":
        return is_free(op)
    if op.name in REDUCTIONS or op.name in SOURCES or op.name in ("dmlc.broadcast", "dmlc.copy", "dmlc.mask_pad"):
        return True
    text = triton_text(op)
    return text is not None and "{axis}" not in text


def triton_text(op: Op) -> str | None:
    """The op's raw Triton text on widened blocks, None when it has none."""
    text = definition(op).triton
    return text(op) if callable(text) else text  # type: ignore[reportReturnType]


def in_kernel(op: Op) -> bool:
    """Whether a generated kernel can hold the op, by its kind and dtypes (whether its dims fit is `dmlc.ops.iteration`'s question)."""
    found = registry.lookup(op.name)
    if found is None or op.regions or not op.results:
        return False
    tensors = [*op.operands, *op.results]
    if any(getattr(v.type, "dtype", None) not in KERNEL_DTYPES for v in tensors):
        return False
    return is_primitive(op) or (getattr(found, "decompose", None) is not None and decomposed(op) is not None)


def decomposed(op: Op) -> Block | None:
    """A block computing a composite from primitives, its arguments the operands, ending in `kernel.yield`; None when some part is no primitive."""
    return _decomposed(*signature(op))


@lru_cache(maxsize=4096)
def _decomposed(name: str, operands: tuple, results: tuple, attrs: tuple) -> Block | None:
    block = Block(operands)
    whole = Op(name, block.args, results, dict(attrs))
    b = Builder(block)
    values = definition(whole).decompose(b, whole)
    whole.operands = ()
    b.insert(Op("kernel.yield", values))
    return lowered(block)


def lowered(block: Block) -> Block | None:
    """A copy of a kernel's block in which every composite is replaced by its primitives; None when one has other parts."""
    copy, mapping = Block(), {}
    for arg in block.args:
        mapping[arg] = copy.add_arg(arg.type, arg.name)
    for op in block:
        if op is block.last or is_primitive(op):
            copy.append(op.clone(mapping))
            continue
        parts = decomposed(op) if definition(op).decompose is not None else None
        if parts is None:
            return None
        inner = dict(zip(parts.args, [mapping[v] for v in op.operands]))
        for part in parts:
            if part is not parts.last:
                copy.append(_part(part, op, inner, part.results[0] not in parts.terminator.operands))
        mapping.update(zip(op.results, [inner[v] for v in parts.terminator.operands]))
    return copy


def _part(part: Op, whole: Op, mapping: dict[Value, Value], inside: bool) -> Op:
    """A primitive of a composite. `dmlc.part` says where its value stays: a composite computes in one precision from its operands to its results."""
    clone = part.clone(mapping)
    clone.loc = whole.loc
    clone.attrs |= {"dmlc.part": "inside" if inside else "result", "dmlc.composite": whole.attrs.get("dmlc.composite", whole.name)}
    return clone


def is_free(op: Op) -> bool:
    """A source or view that a kernel recomputes instead of reading: constants, counters, broadcasts, added or dropped size-1 dims."""
    if op.name == "dmlc.reshape":
        return [n for n in op.operands[0].shape if n != 1] == [n for n in op.result.shape if n != 1]
    return op.name in SOURCES or op.name == "dmlc.broadcast"
