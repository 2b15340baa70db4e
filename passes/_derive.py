"""New arguments made from stored ones by a recipe: a private function that the loader evaluates."""

from __future__ import annotations

import re
from collections.abc import Callable

from dmlc.ir.attributes import SymbolRef
from dmlc.ir.builder import Builder
from dmlc.ir.core import BlockArgument, Module, Op, Value
from dmlc.ir.location import Loc

Recipe = Callable[[Builder, Value], Value]


def derived_argument(module: Module, source: BlockArgument, recipe: Recipe, name: str) -> BlockArgument:
    """An argument of @main that holds `recipe(source)`, named near `name`. A source that has a recipe itself lends it: recipes don't chain."""
    taken = {f.name for f in module.functions} | {a.name for f in module.functions for a in f.args}
    function = module.add_function(_fresh("derived", taken))
    function.op.attrs["sym_visibility"] = "private"
    value = _source(module, source, function.body)
    value = recipe(Builder.at_end(function.body), value)
    function.body.append(Op("func.return", [value], loc=Loc()))
    attrs = {"dmlc.role": source.attrs["dmlc.role"], "dmlc.derived": SymbolRef(function.name), "dmlc.name": name}
    return module.main.body.add_arg(value.type, _fresh(re.sub(r"\W+", "_", name).strip("_"), taken), attrs)


def _source(module: Module, source: BlockArgument, body) -> Value:
    """The source as a value inside the new recipe."""
    if "dmlc.derived" not in source.attrs:
        return body.add_arg(source.type, source.name, dict(source.attrs))
    old = next(f for f in module.functions if f.name == source.attrs["dmlc.derived"].name)
    mapping: dict[Value, Value] = {a: body.add_arg(a.type, a.name, dict(a.attrs)) for a in old.args}
    for op in old.body:
        if op is not old.return_op:
            body.append(op.clone(mapping))
    return mapping[old.results[0]]


def _fresh(stem: str, taken: set[str]) -> str:
    name, n = stem, 0
    while name in taken:
        n += 1
        name = f"{stem}_{n}"
    taken.add(name)
    return name
