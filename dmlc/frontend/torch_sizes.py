"""Free sizes of an exported program: their names, what they are bound to, which input dims are the batch."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch
import torch.utils._pytree as pytree
from torch.export.graph_signature import InputKind

from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError
from dmlc.ir.open_sizes import OpenSize, OpenSizes, representative
from dmlc.ir.suggest import did_you_mean


@dataclass(frozen=True)
class FreeSize:
    """A symbol of the program with its name, the example's size, and the range it was exported for."""

    name: str
    symbol: Any
    example: int
    lowest: int
    highest: int | None


def input_leaves(program: torch.export.ExportedProgram) -> list[tuple[str, Any]]:
    """(name, traced value) of each flattened input, in calling order; plain numbers too."""
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    specs = [s for s in program.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
    return [(s.arg.name, values.get(s.arg.name)) for s in specs]


def free_sizes(program: torch.export.ExportedProgram, shapes: Any) -> list[FreeSize]:
    """Every free size once. Its name is that of its `torch.export.Dim` in `shapes`, else `batch` for a dim 0, else `input_dim`."""
    found: dict[Any, FreeSize] = {}
    places = [(i, name, d, n) for i, (name, x) in enumerate(input_leaves(program)) if isinstance(x, torch.Tensor) for d, n in enumerate(x.shape) if not isinstance(n, int)]
    for i, name, d, n in sorted(places, key=lambda place: not place[3].node.expr.is_Symbol):  # plain ones give the names
        for symbol in sorted(n.node.expr.free_symbols - set(found), key=str):
            taken = {s.name for s in found.values()}
            plain = n.node.expr.is_Symbol
            label = (_given_name(shapes, i, name, d) if plain else None) or ("batch" if plain and d == 0 and "batch" not in taken else f"{name}_{d}")
            lowest, highest = _range(program, symbol)
            found[symbol] = FreeSize(_unused(label, taken), symbol, _example(n, symbol), lowest, highest)
    order = [n.node.expr for _, _, _, n in places]
    return sorted(found.values(), key=lambda s: next(k for k, e in enumerate(order) if s.symbol in e.free_symbols))


def _range(program: torch.export.ExportedProgram, symbol: Any) -> tuple[int, int | None]:
    """The sizes a symbol was exported for; at least 1."""
    limits = program.range_constraints.get(symbol)
    if limits is None:
        return 1, None
    highest = int(limits.upper) if getattr(limits.upper, "is_Integer", False) else None
    return max(int(limits.lower), 1), highest if highest is None or highest < sys.maxsize // 2 else None


def _example(size: torch.SymInt, symbol: Any) -> int:
    """The symbol's value in the example, from that of a size it stands in."""
    expression, hint = size.node.expr, int(size.node.hint)
    if expression.is_Symbol:
        return hint
    import sympy

    solved = sympy.solve(expression - hint, symbol)
    return int(solved[0]) if len(solved) == 1 and solved[0].is_Integer else 2


def _unused(label: str, taken: set[str]) -> str:
    base = re.sub(r"\W", "_", label)
    base = f"_{base}" if base[:1].isdigit() else base
    name, n = base, 1
    while name in taken:
        n += 1
        name = f"{base}_{n}"
    return name


def _given_name(shapes: Any, position: int, input_name: str, dim: int) -> str | None:
    """The name of the `torch.export.Dim` that a dim was exported with."""
    given = shapes.get(input_name) if isinstance(shapes, Mapping) else shapes[position] if isinstance(shapes, (list, tuple)) and position < len(shapes) else None
    if isinstance(given, Mapping):
        return getattr(given.get(dim), "__name__", None)
    return getattr(given[dim], "__name__", None) if isinstance(given, (list, tuple)) and dim < len(given) else None


def bind(sizes: list[FreeSize], dims: Mapping[str, int]) -> dict[str, int]:
    """Name -> integer: what `dims` says, else the example's size. Raises `DmlcError` for unknown names and sizes out of range."""
    known = {s.name: s for s in sizes}
    for name, n in dims.items():
        if name not in known:
            raise DmlcError(f"the model has no free size '{name}'{did_you_mean(name, known)}; free are: {', '.join(known) or 'none'}")
        low, high = known[name].lowest, known[name].highest
        if n < low or (high is not None and n > high):
            raise DmlcError(f"{name}={n} is outside the range {low} to {high if high is not None else 'any'} that the model was exported for")
    return {s.name: dims.get(s.name, s.example) for s in sizes}


def left_open(sizes: list[FreeSize], fixed: Mapping[str, int], like: Mapping[str, int]) -> OpenSizes:
    """The sizes that nobody fixed, each priced as `like` says, else as the example has it."""
    bind(sizes, like)
    kept = [s for s in sizes if s.name not in fixed]
    return OpenSizes({s.name: OpenSize(s.lowest, s.highest, like.get(s.name, s.example)) for s in kept}, may_narrow=True)


def tag_batch(module: Module) -> None:
    """Mark dim 0 of the inputs as the batch: of those that share its size (two at least), or of a lone input of rank 2 or more; where a handler
    marked some, of the others with these' size."""
    inputs = [a for a in module.main.args if a.attrs.get("dmlc.role") == "input" and a.tensor.rank > 0]
    known = {a.shape[a.attrs["dmlc.batch_dim"]] for a in inputs if "dmlc.batch_dim" in a.attrs}
    if known:
        for a in inputs:
            if "dmlc.batch_dim" not in a.attrs and a.shape[0] in known:
                a.attrs["dmlc.batch_dim"] = 0
        return
    if not inputs or (len(inputs) == 1 and inputs[0].tensor.rank < 2):
        return
    sizes = [a.shape[0] for a in inputs]
    commonest = max(sizes, key=sizes.count)
    if len(inputs) > 1 and sizes.count(commonest) < 2:
        return
    for a in inputs:
        if a.shape[0] == commonest:
            a.attrs["dmlc.batch_dim"] = 0


def example_inputs(program: torch.export.ExportedProgram, module: Module) -> dict[str, numpy.ndarray]:
    """The example the program was exported with, where it kept one, repeated or cut to the bound sizes; else seeded values."""
    given = dict(zip([name for name, _ in input_leaves(program)], _flat_example(program)))
    generator = numpy.random.default_rng(0)
    examples = {}
    for arg in module.main.args:
        if arg.attrs.get("dmlc.role") != "input":
            continue
        shape, value = tuple(map(representative, arg.shape)), given.get(arg.name)
        if isinstance(value, torch.Tensor) and not value.is_meta:
            examples[arg.name] = _fitted(value.detach().cpu(), shape)
        elif arg.tensor.is_float:
            examples[arg.name] = generator.standard_normal(shape).astype("float32")
        else:
            examples[arg.name] = generator.integers(0, 2, shape).astype("bool" if arg.dtype == "i1" else "int64")
    return examples


def _flat_example(program: torch.export.ExportedProgram) -> list[Any]:
    if program.example_inputs is None:
        return []
    return list(pytree.tree_leaves(program.example_inputs))


def _fitted(value: torch.Tensor, shape: tuple[int, ...]) -> numpy.ndarray:
    """The value taken cyclically along each dim to the wanted shape."""
    for d, n in enumerate(shape):
        if value.shape[d] != n:
            value = value.index_select(d, torch.arange(n) % max(value.shape[d], 1))
    bits = value.contiguous()
    return (bits.view(torch.uint16) if bits.dtype == torch.bfloat16 else bits).numpy()
