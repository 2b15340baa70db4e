"""Offsets of a value's elements as text, and the width of the integers they need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dmlc.codegen.triton_body import KernelBody
from dmlc.ir.core import Value
from dmlc.ir.dims import Size, bounds
from dmlc.ops.iteration import UNIT, Axes
from dmlc.ops.size_text import python_text

LIMIT = 2**31  # offsets below it fit 32 bits


@dataclass(frozen=True)
class Run:
    """Iteration dims `first`..`last` that stand side by side in a value: one coordinate, `stride` elements apart."""

    first: int
    last: int
    stride: Size


def runs_of(axes: Axes, sizes: Sequence[Size], borders: Sequence[int]) -> list[Run]:
    """The runs of a dense row-major value. A run never crosses a border (the first column: rows and columns have their own index)."""
    dims = [a for a in axes if a != UNIT]
    strides = [math.prod(sizes[a] for a in dims[i + 1 :]) for i in range(len(dims))]
    runs: list[Run] = []
    for axis, stride in zip(dims, strides):
        if runs and runs[-1].last + 1 == axis and axis not in borders:
            runs[-1] = Run(runs[-1].first, axis, stride)
        else:
            runs.append(Run(axis, axis, stride))
    return runs


class Index:
    """Texts of offsets in a kernel whose flat row index is `row` (elements, when there are no columns) and column index `col`.

    `*`, `//` and `%` bind alike and from the left, so the texts need no parentheses; indices are never negative, so Triton's rounding
    of quotients towards zero is Python's.
    """

    def __init__(self, body: KernelBody, row: str, col: str = ""):
        self.space, self.row, self.col = body.space, row, col
        self.first_column = len(self.space.row_axes)

    def coordinate(self, first: int, last: int) -> str:
        """The index over dims first..last taken together."""
        in_rows = first < self.first_column
        flat, begin, end = (self.row, 0, self.first_column) if in_rows else (self.col, self.first_column, len(self.space.sizes))
        inner = math.prod(self.space.sizes[last + 1 : end])
        text = flat if inner == 1 else f"{flat} // {factor(inner)}"
        return text if first == begin else f"{text} % {factor(math.prod(self.space.sizes[first : last + 1]))}"

    def offset(self, value: Value) -> str:
        """The element offset of a dense value; "" for a value of one element."""
        runs = runs_of(self.space.axes.get(value, ()), self.space.sizes, (self.first_column,))
        return " + ".join(self.coordinate(r.first, r.last) + (f" * {factor(r.stride)}" if r.stride != 1 else "") for r in runs)


def factor(size: Size) -> str:
    """A size as an operand of `*`, `//` or `%`."""
    text = python_text(size)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def needs_64_bits(body: KernelBody, padded: Size) -> bool:
    """Whether an offset, of a real element or of a masked one of the last block, may not fit 32 bits; of open sizes, of the largest allowed.

    `padded`: elements of the space rounded up to whole blocks. Decided by the largest address, not by the number of elements of one tensor.
    """
    ranges = body.ranges()
    most = [bounds(n, ranges)[1] for n in (padded, *(v.tensor.numel for v in [*body.inputs, *body.outputs]))]
    return any(n is None or n >= LIMIT for n in most)
