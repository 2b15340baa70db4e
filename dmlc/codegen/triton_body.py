"""A kernel's function made ready for emission: primitives only, its iteration space, the shape each value's block has, stages of reductions."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dmlc.ir.core import Block, Function, Module, Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.open_sizes import OpenSizes
from dmlc.ops.iteration import UNIT, Space, iteration_space
from dmlc.ops.kernel import REDUCTIONS, lowered
from dmlc.ops.size_text import kernel_symbols, variable

RESERVED = frozenset(
    {"tl", "triton", "torch", "math", "F", "row", "col", "at", "start", "mask", "rows_in", "cols_in", "in_range", "out", *keyword.kwlist, *dir(builtins)}
)
STEMS = {"reduce_sum": "total", "reduce_max": "largest", "reduce_min": "smallest", "reduce_prod": "product", "reduce_and": "all_of", "reduce_or": "any_of"}


class Names:
    """Readable identifiers, each given once."""

    def __init__(self) -> None:
        self.taken: set[str] = set(RESERVED)

    def fresh(self, wish: str) -> str:
        base = re.sub(r"\W", "_", wish).strip("_") or "v"
        base = f"v{base}" if base[0].isdigit() else base
        name, n = base, 0
        while name in self.taken or f"{name}_ptr" in self.taken:
            n += 1
            name = f"{base}_{n}"
        self.taken.add(name)
        return name


def sizes_of(function: Function) -> list[str]:
    """The variables of a kernel's open sizes, in the order of its arguments."""
    return [variable(s) for s in kernel_symbols(function.op)]


@dataclass(frozen=True)
class Extent:
    """Whether a value's block has a row and a column dim (of more than one element)."""

    rows: bool = False
    cols: bool = False

    def __or__(self, other: Extent) -> Extent:
        return Extent(self.rows or other.rows, self.cols or other.cols)


class KernelBody:
    """What the templates read.

    name      of the function, the wrapper and, with `_kernel` behind it, of the Triton function
    block     primitives only; its arguments are the kernel's inputs
    space     rows and columns
    names     of every value
    extent    shape of each value's block
    stage     how many reductions in a row a value waits for
    sizes     variables of the open sizes that it takes beside the tensors
    """

    def __init__(self, function: Function):
        self.function, self.name = function, function.name
        block = _lowered(function)
        self.block: Block = block
        self.steps = block.ops[:-1]
        self.inputs = block.args
        self.outputs: list[Value] = list(block.terminator.operands)
        self.space = _space(self.steps, self.inputs, self.outputs, function)
        self.extent: dict[Value, Extent] = {}
        self.stage: dict[Value, int] = {}
        self.names: dict[Value, str] = {}
        self.output_names: list[str] = []
        self.sizes = sizes_of(function)
        self._trace()
        self._name()

    def ranges(self) -> Mapping[str, tuple[int, int | None]]:
        """What is allowed of the open sizes."""
        top = self.function.op.parent
        return OpenSizes.of(Module(top)).ranges() if top is not None else {}

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute: no rows, or no elements at all."""
        return self.space.rows == 0 or all(v.tensor.numel == 0 for v in self.outputs)

    @property
    def read(self) -> list[Value]:
        """Inputs that some op or result uses."""
        return [v for v in self.inputs if v.uses]

    @property
    def stages(self) -> int:
        """The number of loops a kernel needs that cannot keep a row: one more than reductions in a row, if it writes whole rows."""
        return max((self.stage[v] for v in self.outputs), default=0)

    def reductions(self, stage: int) -> list[Op]:
        """Reductions whose operand is known after `stage` reductions."""
        return [op for op in self.steps if self.reduces(op) and self.stage[op.operands[0]] == stage]

    def reduces(self, op: Op) -> bool:
        """Whether an op runs over the columns (a reduction of size-1 dims only does not)."""
        space = self.space
        return op.name in REDUCTIONS and bool(space.varies(op.operands[0]) - space.varies(op.result))

    def _trace(self) -> None:
        rows, columns = set(self.space.row_axes), set(self.space.column_axes)
        for value in self.inputs:
            varies = self.space.varies(value) if value in self.space.axes else frozenset()
            self.extent[value], self.stage[value] = Extent(bool(varies & rows), bool(varies & columns)), 0
        for op in self.steps:
            extent, stage = self._step(op)
            for result in op.results:
                self.extent[result], self.stage[result] = extent, stage

    def _step(self, op: Op) -> tuple[Extent, int]:
        stage = max((self.stage[v] for v in op.operands), default=0)
        extent = Extent()
        for v in op.operands:
            extent |= self.extent[v]
        if op.name in ("dmlc.iota", "dmlc.mask_pad"):
            axis = self.space.axes[op.result][op.attrs.get("dim", 0)]
            extent |= Extent(axis in self.space.row_axes, axis in self.space.column_axes and axis != UNIT)
        if self.reduces(op):
            return Extent(extent.rows, False), stage + 1
        return extent, stage

    def _name(self) -> None:
        names = Names()
        names.taken.update(self.sizes)
        for value in self.inputs:
            self.names[value] = names.fresh(value.name)
        single = len(self.outputs) == 1
        self.output_names = [names.fresh("result" if single else f"result_{i}") for i in range(len(self.outputs))]
        for op in self.steps:
            short = op.name.split(".", 1)[1]
            for result in op.results:
                self.names[result] = names.fresh(STEMS.get(short, short))

    def live(self) -> int:
        """The most 32-bit words a row element needs at a time: values with a column dim, from first to last use."""
        order = {op: i for i, op in enumerate(self.steps)}
        words: dict[int, int] = {}
        for value in [*self.inputs, *(r for op in self.steps for r in op.results)]:
            if not self.extent[value].cols and self.space.columns:
                continue
            uses = [order.get(u, len(order)) for u in value.users]
            first = order[value.op] if value.op is not None else min(uses, default=0)
            for i in range(first, max(uses, default=first) + 1):
                words[i] = words.get(i, 0) + (2 if value.dtype in ("f64", "i64") else 1)
        return max(words.values(), default=1)


def _lowered(function: Function) -> Block:
    block = lowered(function.body)
    if block is None:
        raise DmlcError(f"kernel @{function.name} holds an op without Triton text", function.op.loc)
    return block


def _space(steps: list[Op], inputs: list, outputs: list[Value], function: Function) -> Space:
    """The kernel's space; a kernel that only passes an input on has none and is refused."""
    space = iteration_space(steps, outputs)
    if isinstance(space, str):
        raise DmlcError(f"kernel @{function.name}: {space}", function.op.loc)
    return space
