"""Remove what nobody uses: ops, what loops and branches take and give, stored weights in inference, private functions.

Before: an op whose result is unused.   After: gone, and what only it used.
Keeps messages between ranks (send and receive), inputs, and under training every parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from dmlc.ir.attributes import SymbolRef
from dmlc.ir.core import Block, Function, Module, Op
from dmlc.ir.registry import lookup
from dmlc.passes._derive import is_stored
from dmlc.passes._unread import REGIONS, drop_unread
from dmlc.passmanager.base import Numerics, Pass
from dmlc.passmanager.context import Context

KEPT = frozenset({"comm.send", "comm.recv", "comm.send_start", "comm.recv_start"})  # their partner on another rank waits


@dataclass(frozen=True)
class Dce(Pass):
    name: ClassVar[str] = "dce"
    numerics: ClassVar[Numerics] = "exact"

    def run(self, module: Module, context: Context) -> bool:
        changed = any([erase_unused(f.body) for f in module.functions])
        changed |= drop_unused_weights(module)
        return drop_unused_functions(module) or changed


def erase_unused(block: Block) -> bool:
    """Backwards, so that one walk also removes what only removed ops used."""
    changed = False
    op = block.last
    while op is not None:
        previous = op.prev
        for region in op.regions:
            for inner in region.blocks:
                changed |= erase_unused(inner)
        if op.unused and removable(op):
            op.erase()
            changed = True
        elif op.name in REGIONS:
            changed |= drop_unread(op, erase_unused, removable)
        op = previous
    return changed


def removable(op: Op) -> bool:
    """Whether nothing but its results makes the op worth running. A collective runs on all its ranks or on none, so it may go."""
    if not (op.results or op.name in REGIONS) or op.name in KEPT or lookup(op.name) is None:
        return False
    return all(removable(o) for r in op.regions for b in r.blocks for o in b if o is not b.last)


def drop_unused_weights(module: Module) -> bool:
    """Unused constants go, unless callers may override them; unused parameters and buffers too unless the program trains them."""
    training = module.attrs.get("dmlc.mode") == "train"
    roles = ("const",) if training else ("const", "param", "buffer")
    changed = False
    for function in module.functions:
        updated = {attrs.get("dmlc.updates") for attrs in function.op.attrs.get("res_attrs", ())}
        for arg in [] if is_private(function) else list(function.args):
            if not arg.uses and is_stored(arg, roles) and arg.name not in updated:
                function.body.erase_arg(arg)
                changed = True
    return changed


def drop_unused_functions(module: Module) -> bool:
    """Private functions that nothing names any more: recipes of weights, kernels."""
    changed = False
    while True:
        named = set(_named(module))
        dead = [f for f in module.functions if is_private(f) and f.name not in named]
        if not dead:
            return changed
        for function in dead:
            function.op.erase()
        changed = True


def is_private(function: Function) -> bool:
    return function.op.attrs.get("sym_visibility") == "private"


def _named(module: Module) -> Iterator[str]:
    for op in module.walk():
        if op.name == "kernel.call":
            yield op.attrs["kernel"]
        for value in op.attrs.values():
            yield from _symbols(value)
        for region in op.regions:
            for block in region.blocks:
                for arg in block.args:
                    for value in arg.attrs.values():
                        yield from _symbols(value)


def _symbols(value: Any) -> Iterator[str]:
    if isinstance(value, SymbolRef):
        yield value.name
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _symbols(item)
    elif isinstance(value, dict) or hasattr(value, "values"):
        for item in value.values():
            yield from _symbols(item)
