"""New arguments made from stored ones by a recipe: a private function that the loader evaluates."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dmlc.ir.attributes import SymbolRef
from dmlc.ir.builder import Builder
from dmlc.ir.core import Block, BlockArgument, Module, Op, Value
from dmlc.ir.location import Loc

Recipe = Callable[..., Value]  # (builder, values of the sources) -> value


def is_stored(value: Value, roles: tuple[str, ...] = ("param", "const")) -> bool:
    """Whether a value is an argument of one of these roles whose content is known when the program is loaded, and stays."""
    if not isinstance(value, BlockArgument) or value.attrs.get("dmlc.role") not in roles:
        return False
    return not value.attrs.get("dmlc.overridable") and not is_replaced(value)


def is_replaced(arg: BlockArgument) -> bool:
    """Whether a result of the function takes the argument's place in the next run."""
    function = arg.block.region.op if arg.block.region is not None else None
    results = function.attrs.get("res_attrs", ()) if function is not None else ()
    return any(attrs.get("dmlc.updates") == arg.name for attrs in results)


def derived_argument(module: Module, sources: Sequence[Value], recipe: Recipe, name: str) -> BlockArgument:
    """An argument of @main that holds `recipe(builder, *sources)`, named near `name`, with the first source's role.

    A source that has a recipe itself lends it: recipes don't chain.
    """
    taken = {f.name for f in module.functions} | {a.name for f in module.functions for a in f.args}
    function = module.add_function(_fresh("derived", taken))
    function.op.attrs["sym_visibility"] = "private"
    known: dict[str, Value] = {}
    values = [_source(module, source, function.body, known) for source in sources]
    value = recipe(Builder.at_end(function.body), *values)
    function.body.append(Op("func.return", [value], loc=Loc()))
    first = sources[0]
    assert isinstance(first, BlockArgument)
    attrs = {"dmlc.role": first.attrs["dmlc.role"], "dmlc.derived": SymbolRef(function.name), "dmlc.name": name}
    return module.main.body.add_arg(value.type, _fresh(re.sub(r"\W+", "_", name).strip("_"), taken), attrs)


def _source(module: Module, source: Value, body: Block, known: dict[str, Value]) -> Value:
    """The source as a value inside the new recipe; `known` are the recipe's arguments so far."""
    assert isinstance(source, BlockArgument)
    if "dmlc.derived" not in source.attrs:
        return _argument(source, body, known)
    old = next(f for f in module.functions if f.name == source.attrs["dmlc.derived"].name)
    mapping: dict[Value, Value] = {a: _argument(a, body, known) for a in old.args}
    for op in old.body:
        if op is not old.return_op:
            body.append(op.clone(mapping))
    return mapping[old.results[0]]


def _argument(arg: BlockArgument, body: Block, known: dict[str, Value]) -> Value:
    if arg.name not in known:
        known[arg.name] = body.add_arg(arg.type, arg.name, dict(arg.attrs))
    return known[arg.name]


def _fresh(stem: str, taken: set[str]) -> str:
    name, n = stem, 0
    while name in taken:
        n += 1
        name = f"{stem}_{n}"
    taken.add(name)
    return name
