"""Free sizes of an exported program: their names, what they are bound to, which input dims are the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch
import torch.utils._pytree as pytree
from torch.export.graph_signature import InputKind

from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError
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
    for name, tensor in input_leaves(program):
        if not isinstance(tensor, torch.Tensor):
            continue
        for d, n in enumerate(tensor.shape):
            if isinstance(n, int) or not n.node.expr.is_Symbol or n.node.expr in found:
                continue
            symbol = n.node.expr
            taken = {s.name for s in found.values()}
            label = _given_name(shapes, name, d) or ("batch" if d == 0 and "batch" not in taken else f"{name}_{d}")
            limits = program.range_constraints.get(symbol)
            highest = int(limits.upper) if limits is not None and getattr(limits.upper, "is_Integer", False) else None
            found[symbol] = FreeSize(label, symbol, int(n.node.hint), int(limits.lower) if limits is not None else 0, highest)
    return list(found.values())


def _given_name(shapes: Any, input_name: str, dim: int) -> str | None:
    given = shapes.get(input_name) if isinstance(shapes, Mapping) else None
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
        shape, value = tuple(arg.shape), given.get(arg.name)
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
