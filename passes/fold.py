"""Compute once, before the program runs, what depends on constants alone.

Before: transpose of a stored weight, cast of a table.   After: an argument whose recipe (`dmlc.derived`) the loader evaluates.
Reads constants, and parameters and buffers only in inference: where the module has a `dmlc.mode`, they change. Arithmetic on plain numbers becomes a number.
Never folds what is random, communicates, is made from a value that callers may override, or would take more memory than it saves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dmlc.ir.attributes import SymbolRef
from dmlc.ir.core import BlockArgument, Function, Module, Op, Value
from dmlc.ir.registry import lookup
from dmlc.ir.types import BYTES, TensorType
from dmlc.passes._canonical import uniform
from dmlc.passes._derive import is_stored
from dmlc.passes._uniform import fold_uniform, inline_scalars
from dmlc.passmanager.base import Numerics, Pass
from dmlc.passmanager.context import Context

LAYOUT_ONLY = frozenset({"dmlc.reshape", "dmlc.broadcast"})  # free at run time: not worth a recipe of their own


@dataclass(frozen=True)
class Fold(Pass):
    """`limit`: bytes up to which a folded value may take memory beside what it is made from."""

    name: ClassVar[str] = "fold"
    numerics: ClassVar[Numerics] = "exact"
    requires: ClassVar[tuple[str, ...]] = ("global",)
    limit: int = 1 << 20

    def run(self, module: Module, context: Context) -> bool:
        public = [f for f in module.functions if f.op.attrs.get("sym_visibility") != "private"]
        return any([fold_function(f, module, context, self.limit) for f in public])


def fold_function(function: Function, module: Module, context: Context, limit: int) -> bool:
    changed = inline_scalars(function, context.weights)
    changed |= fold_uniform(function)
    state = Constants.of(module, function, limit)
    for value in frontier(function, state):
        changed |= derive(value, state)
    return changed


@dataclass
class Constants:
    """What is known before the program runs: `sources` gives for each constant value the stored arguments it is made from."""

    module: Module
    function: Function
    limit: int
    sources: dict[Value, frozenset[BlockArgument]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, module: Module, function: Function, limit: int) -> Constants:
        state = cls(module, function, limit)
        state.names = {f.name for f in module.functions} | {a.name for f in module.functions for a in f.args}
        changing = "dmlc.mode" in module.attrs  # a training step, or the evaluation program that reads the weights in between
        roles = ("const",) if changing else ("const", "param", "buffer")
        for arg in state.function.args:
            if is_stored(arg, roles) and ("dmlc.value" in arg.attrs or "dmlc.derived" in arg.attrs):
                state.sources[arg] = frozenset({arg})
        for op in state.function.body:
            if foldable(op) and all(v in state.sources for v in op.operands):
                made_from = frozenset().union(*(state.sources[v] for v in op.operands))
                state.sources.update(dict.fromkeys(op.results, made_from))
        return state

    def fresh(self, stem: str) -> str:
        """An unused symbol or argument name."""
        name, n = stem, 0
        while name in self.names:
            n += 1
            name = f"{stem}_{n}"
        self.names.add(name)
        return name


def foldable(op: Op) -> bool:
    definition = lookup(op.name)
    if definition is None or definition.effects or definition.torch is None or op.dialect != "dmlc":
        return False
    return bool(op.results) and not op.regions and all(_is_static(r) for r in op.results)


def _is_static(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.is_static


def frontier(function: Function, state: Constants) -> list[Value]:
    """Constant values, in program order, that ops which are not constant use or that the program returns."""
    found: dict[Value, None] = {}
    for op in function.ops():
        if not any(r in state.sources for r in op.results):
            found.update(dict.fromkeys(v for v in op.operands if v in state.sources))
    return list(found)


def derive(value: Value, state: Constants) -> bool:
    """Replace a constant value by an argument with a recipe; where that does not pay, try what it is made from."""
    op = value.op
    if op is None or not state.sources.get(value):
        return False
    recipe = recipe_of(value)
    if not pays(value, recipe, state):
        return any([derive(v, state) for v in op.operands])
    add_argument(value, recipe, state)
    return True


def recipe_of(value: Value) -> list[Op]:
    """The ops that make `value`, in program order."""
    needed: dict[Op, None] = {}
    todo = [value.op]
    while todo:
        op = todo.pop()
        if op is not None and op not in needed:
            needed[op] = None
            todo += [v.op for v in op.operands]
    first = value.op
    assert first is not None and first.block is not None
    return [op for op in first.block if op in needed]


def sources_of(recipe: list[Op], state: Constants) -> list[BlockArgument]:
    """The arguments that a recipe reads, in the function's order: since values folded before it are arguments now, not always those that
    `state.sources` names."""
    read = {v for op in recipe for v in op.operands}
    return [a for a in state.function.args if a in read]


def pays(value: Value, recipe: list[Op], state: Constants) -> bool:
    """Work is saved, and the stored bytes do not grow by more than the limit."""
    if all(op.name in LAYOUT_ONLY or uniform(op.results[0]) is not None for op in recipe):
        return False
    inside = set(recipe)
    freed = [a for a in sources_of(recipe, state) if all(user in inside for user in a.users)]
    return bytes_of(value) - sum(bytes_of(a) for a in freed) <= state.limit


def bytes_of(value: Value) -> int:
    type_ = value.tensor
    return type_.numel * BYTES[type_.dtype]


def add_argument(value: Value, recipe: list[Op], state: Constants) -> None:
    maker = state.module.add_function(state.fresh("derived"))
    maker.op.attrs["sym_visibility"] = "private"
    mapping: dict[Value, Value] = {}
    arguments = sources_of(recipe, state)
    for arg in arguments:
        mapping[arg] = maker.body.add_arg(arg.type, arg.name, dict(arg.attrs))
    for op in recipe:
        maker.body.append(op.clone(mapping))
    maker.body.append(Op("func.return", [mapping[value]]))
    attrs: dict[str, Any] = {"dmlc.role": role_of(arguments), "dmlc.derived": SymbolRef(maker.name)}
    new = state.function.body.add_arg(value.type, state.fresh(_stem(value, arguments)), attrs)
    state.sources[new] = frozenset({new})
    value.replace_uses(new)
    _erase_unused(recipe)


def role_of(arguments: list[BlockArgument]) -> str:
    """The most variable role among the sources."""
    roles = {a.attrs["dmlc.role"] for a in arguments}
    return next(r for r in ("param", "buffer", "const") if r in roles)


def _stem(value: Value, arguments: list[BlockArgument]) -> str:
    """A name that tells what the value is: the op's own, else the first source's with the last op's."""
    assert value.op is not None
    own = value.op.attrs.get("dmlc.name")
    text = own if own else f"{arguments[0].name}.{value.op.name.split('.')[-1]}"
    return re.sub(r"[^A-Za-z0-9_.$]", "_", text)


def _erase_unused(recipe: list[Op]) -> None:
    for op in reversed(recipe):
        if op.unused:
            op.erase()
