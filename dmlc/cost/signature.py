"""The key under which an op's measured time is kept: what it computes on which types, never what it is called or where it stands."""

from __future__ import annotations

from dmlc.ir.attribute_printer import attribute_text, type_text
from dmlc.ir.core import Block, Op, Value
from dmlc.ir.sharding import Mesh
from dmlc.ops.base import own_attrs
from dmlc.ops.kernel import find_kernel


def op_key(op: Op) -> str:
    """`dmlc.exp(tensor<4xf32>) -> tensor<4xf32>`; own attributes in braces; of a collective the number of ranks along its axes. A fused
    region and a call of the kernel made from it have the same key, which is the kernel's body. A wait's is that of what it waits for."""
    if op.name == "comm.wait" and op.operands[0].op is not None:
        return f"wait {op_key(op.operands[0].op)}"
    if op.name == "kernel.fused":
        return _body_key(op.region.block)
    if op.name == "kernel.call":
        return _body_key(find_kernel(op).region.block)
    tail = "".join(f" [{_block_text(b)}]" for region in op.regions for b in region.blocks)
    return _head(op) + tail + (f" over {_ranks(op)}" if op.dialect == "comm" else "")


def _head(op: Op, operands: str | None = None) -> str:
    attrs = ", ".join(f"{k} = {attribute_text(v)}" for k, v in sorted(own_attrs(op).items()))
    types = ", ".join(type_text(v.type) for v in op.operands) if operands is None else operands
    results = ", ".join(type_text(r.type) for r in op.results)
    return f"{op.name}({types}) -> {results}" + (f" {{{attrs}}}" if attrs else "")


def _ranks(op: Op) -> int:
    axes = op.attrs.get("axes") or ((op.attrs["axis"],) if "axis" in op.attrs else ())
    return Mesh.around(op).extent(axes)


def _body_key(block: Block) -> str:
    return f"kernel({', '.join(type_text(a.type) for a in block.args)}): {_block_text(block)}"


def _block_text(block: Block) -> str:
    """Ops with their operands by number: the block's arguments first, then each result; `^` is a value from outside."""
    number: dict[Value, int] = {a: i for i, a in enumerate(block.args)}
    parts = []
    for op in block:
        given = ", ".join(str(number.get(v, "^")) for v in op.operands)
        inner = "".join(f" [{_block_text(b)}]" for region in op.regions for b in region.blocks)
        parts.append(f"yield({given})" if op is block.last else _head(op, given) + inner)
        for r in op.results:
            number[r] = len(number)
    return "; ".join(parts)
