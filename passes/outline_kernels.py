"""outline-kernels: every `kernel.fused` becomes a call of a private function; equal regions share one, so that a kernel is built once for all layers.

Two regions are equal when they have the same ops with the same own attributes, types and connections; names, ids and places do not count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dmlc.ir.core import Block, BlockArgument, Function, Module, Op, Value
from dmlc.ops.base import own_attrs, own_key
from dmlc.ops.kernel import is_free
from dmlc.passmanager import Context, Pass

NAMED_OPS = 3  # op names that a kernel's name is made of


@dataclass(frozen=True)
class OutlineKernels(Pass):
    """No options."""

    name = "outline-kernels"
    numerics = "exact"
    ensures = ("outlined",)

    def run(self, module: Module, context: Context) -> bool:
        outliner = _Outliner(module)
        regions = [op for op in module.walk() if op.name == "kernel.fused"]
        for op in regions:
            outliner.outline(op)
        return bool(regions)


class _Outliner:
    def __init__(self, module: Module):
        self.module = module
        self.taken = {op.attrs["sym_name"] for op in module.body if "sym_name" in op.attrs}
        self.known: dict[Any, str] = {
            structure(f.body): f.name for f in module.functions if f.op.attrs.get("sym_visibility") == "private" and f.name.startswith("fused_")
        }

    def outline(self, fused: Op) -> None:
        block = fused.region.block
        key = structure(block)
        if key not in self.known:
            self.known[key] = self._function(fused).name
        attrs = {"kernel": self.known[key], **fused.attrs}
        call = Op("kernel.call", fused.operands, [r.type for r in fused.results], attrs, loc=fused.loc)
        assert fused.block is not None
        fused.block.insert_before(fused, call)
        fused.replace(call.results)

    def _function(self, fused: Op) -> Function:
        block = fused.region.block
        function = self.module.add_function(self._fresh(name_of(block)), [a.type for a in block.args], argument_names(fused))
        function.op.attrs["sym_visibility"] = "private"
        mapping: dict[Value, Value] = dict(zip(block.args, function.args))
        for number, op in enumerate(block.ops[:-1]):
            copy = op.clone(mapping)
            copy.attrs = own_attrs(op) | {"dmlc.id": str(number)}
            function.body.append(copy)
        function.body.append(Op("func.return", [mapping[v] for v in block.terminator.operands]))
        return function

    def _fresh(self, base: str) -> str:
        number = 0
        while f"{base}_{number}" in self.taken:
            number += 1
        self.taken.add(f"{base}_{number}")
        return f"{base}_{number}"


def structure(block: Block) -> Any:
    """What makes two kernels the same: a hashable description of a region or of a function's body."""
    number: dict[Value, int] = {a: i for i, a in enumerate(block.args)}
    ops = []
    for op in block:
        name = "yield" if op is block.last else op.name
        attrs = own_key(op)
        ops.append((name, repr(attrs), tuple(number[v] for v in op.operands), tuple(r.type for r in op.results)))
        for r in op.results:
            number[r] = len(number)
    return tuple(a.type for a in block.args), tuple(ops)


def name_of(block: Block) -> str:
    """`fused_add_layer_norm`: the first ops that do something."""
    shorts = dict.fromkeys(op.name.split(".", 1)[1] for op in block.ops[:-1] if not is_free(op) and op.name != "dmlc.cast")
    return "_".join(["fused", *list(shorts)[:NAMED_OPS]])


def argument_names(fused: Op) -> list[str]:
    """Where the first call's operands come from: the last part of an argument's name in the model, else the op that made the value."""
    names: list[str] = []
    for value in fused.operands:
        base = re.sub(r"\W", "_", _origin(value)).strip("_") or "x"
        base = f"x{base}" if base[0].isdigit() else base
        name, n = base, 0
        while name in names:
            n += 1
            name = f"{base}_{n}"
        names.append(name)
    return names


def _origin(value: Value) -> str:
    if isinstance(value, BlockArgument):
        known = value.attrs.get("dmlc.names") or (value.attrs.get("dmlc.name", value.name),)
        return known[0].split(".")[-1].split("/")[-1]
    op = value.op
    return "x" if op is None or op.dialect == "kernel" else op.name.split(".", 1)[1]
