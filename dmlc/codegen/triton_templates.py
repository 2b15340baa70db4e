"""The three templates: the lines of a Triton function's body.

flat        one index over all elements
persistent  a tile of rows by all columns, each row kept in registers
looped      a tile of rows, columns in steps: one loop for each reduction in a row that another depends on, one more to write whole rows;
            what varies over columns is computed again in every loop rather than kept
"""

from __future__ import annotations

from dmlc.codegen.triton_body import Extent, KernelBody
from dmlc.codegen.triton_index import Index
from dmlc.codegen.triton_launch import Launch
from dmlc.codegen.triton_text import combine, identity_number, identity_of, narrowed, number, pointwise, reduction, rounded, widened
from dmlc.ir.core import Op, Value
from dmlc.ir.dims import Dim
from dmlc.ir.types import FLOATS
from dmlc.ops.base import attribute
from dmlc.ops.iteration import UNIT
from dmlc.ops.kernel import REDUCTIONS
from dmlc.ops.pointwise import triton_dtype
from dmlc.ops.size_text import python_text

TILE_NAME = {"flat": "BLOCK", "persistent": "ROWS", "looped": "ROWS"}


def kernel_lines(body: KernelBody, launch: Launch) -> list[str]:
    """The body of the Triton function, unindented."""
    emitter = Emitter(body, launch)
    if launch.template == "looped":
        emitter.looped()
    else:
        emitter.whole()
    return emitter.lines


class Emitter:
    """Collects lines; every value is computed once in each scope that needs it."""

    def __init__(self, body: KernelBody, launch: Launch):
        self.body, self.launch = body, launch
        self.lines: list[str] = []
        self.indent = ""
        self.flat = launch.template == "flat"
        self.index = Index(body, "at" if self.flat else "row", "col")
        self.one = "[1]" if self.flat else "[1, 1]"
        self.done: dict[Value, str] = {}  # text of each value there is in the present scope
        self.announced = ""  # the composite whose parts are being written
        self.every_value = _rounding(body) == "every-value"

    def line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    # -------------------------------------------------- templates

    def whole(self) -> None:
        """Flat and persistent: everything once."""
        self._rows()
        if not self.flat:
            self._columns(f"tl.arange(0, {self.launch.columns})[None, :]")
        for op in self.body.steps:
            if self._alive(op):
                self.need(op.results[0])
        for value, name in zip(self.body.outputs, self.body.output_names):
            self.store(value, name)

    def looped(self) -> None:
        body = self.body
        self._rows()
        for stage in range(body.stages + 1):
            reductions = [op for op in body.reductions(stage) if self._alive(op)]
            stored = [(v, n) for v, n in zip(body.outputs, body.output_names) if self._by_column(v) and body.stage[v] == stage]
            if reductions or stored:
                self._loop(reductions, stored)
        for value, name in zip(body.outputs, body.output_names):
            if not self._by_column(value):
                self.store(value, name)

    def _loop(self, reductions: list[Op], stored: list[tuple[Value, str]]) -> None:
        """One walk over the columns: running totals of `reductions`, and writing of the results known by now."""
        for value in self._row_values([op.operands[0] for op in reductions] + [v for v, _ in stored]):
            self.need(value)
        totals = {op: f"{self.body.names[op.result]}_of" for op in reductions}
        for op, total in totals.items():
            shape = f"[ROWS, {self.launch.columns}]"
            self.line(f"{total} = tl.full({shape}, {_bare(identity_of(op, self.one))}, {triton_dtype(op.operands[0].dtype)})")
        outside, self.done, self.indent = self.done, dict(self.done), "    "
        self.lines.append(f"for start in range(0, {python_text(self.body.space.width)}, {self.launch.columns}):")
        self._columns(f"start + tl.arange(0, {self.launch.columns})[None, :]")
        for op, total in totals.items():
            self.line(f"{total} = {combine(op, total, self._operand(op))}")
        for value, name in stored:
            self.store(value, name)
        self.done, self.indent = outside, ""
        for op, total in totals.items():
            self.line(f"{self.body.names[op.result]} = {reduction(op, total)}")
            self.done[op.result] = self.body.names[op.result]

    def _row_values(self, values: list[Value]) -> list[Value]:
        """What `values` depend on that has no column dim: computed before the loop, in program order."""
        found: dict[Value, None] = {}
        pending = list(reversed(values))
        while pending:
            value = pending.pop()
            if not self.body.extent[value].cols:
                if value not in self.done and not _is_constant(value):
                    found[value] = None
            elif value.op is not None:
                pending.extend(reversed(value.op.operands))
        return list(found)

    # -------------------------------------------------- indices

    def _rows(self) -> None:
        tile, wide = TILE_NAME[self.launch.template], ".to(tl.int64)" if self.launch.wide else ""
        lanes = f"tl.arange(0, {tile})" + ("" if self.flat else "[:, None]")
        self.line(f"{self.index.row} = tl.program_id(0){wide} * {tile} + {lanes}")
        self.line(f"{self._row_mask} = {self.index.row} < {python_text(self.launch.size)}")

    def _columns(self, text: str) -> None:
        self.line(f"col = {text}")
        if self._ragged:
            self.line(f"cols_in = col < {python_text(self.body.space.width)}")

    @property
    def _row_mask(self) -> str:
        return "in_range" if self.flat else "rows_in"

    @property
    def _ragged(self) -> bool:
        """Whether the last block of columns is not full."""
        return not self.flat and (self.body.space.width == 0 or self.body.space.width % self.launch.columns != 0)

    def _mask(self, extent: Extent) -> str:
        masks = [self._row_mask] * extent.rows + ["cols_in"] * (extent.cols and self._ragged)
        return " & ".join(masks)

    def _varying(self, value: Value) -> Extent:
        varies = self.body.space.varies(value) if value in self.body.space.axes else frozenset()
        return Extent(bool(varies & set(self.body.space.row_axes)), bool(varies & set(self.body.space.column_axes)))

    def _by_column(self, value: Value) -> bool:
        return self._varying(value).cols

    # -------------------------------------------------- values

    def _alive(self, op: Op) -> bool:
        return any(r.uses for r in op.results)

    def need(self, value: Value) -> str:
        """The text of a value, after the lines that compute it."""
        if value not in self.done:
            self.done[value] = self._load(value) if value.op is None else self._compute(value.op)
        return self.done[value]

    def _load(self, value: Value) -> str:
        name = self.body.names[value]
        offset, mask = self.index.offset(value), self._mask(self.body.extent[value])
        address = f"{name}_ptr + {offset}" if offset else f"{name}_ptr"
        guard = f", mask={mask}, other=0" + (".0" if value.dtype in FLOATS else "") if mask else ""
        self.line(f"{name} = {widened(f'tl.load({address}{guard})', value)}")
        return name

    def _compute(self, op: Op) -> str:
        if op.name == "dmlc.full" and isinstance(attribute(op, "value"), Dim):
            return f"tl.full({self.one}, {python_text(attribute(op, 'value'))}, {triton_dtype(op.result.dtype)})"
        if op.name == "dmlc.full":
            return number(attribute(op, "value"), op.result.dtype, self.one)
        if self._passes_on(op):
            return self.need(op.operands[0])
        if op.name in REDUCTIONS:
            text = reduction(op, self._operand(op))
        elif op.name == "dmlc.iota":
            text = self._iota(op)
        elif op.name == "dmlc.mask_pad":
            text = self._mask_pad(op)
        else:
            bare = all(not self.need(v).isidentifier() for v in op.operands)
            text = pointwise(op, [self._full(v) if bare else self.need(v) for v in op.operands])
        if self.every_value and op.attrs.get("dmlc.part") != "inside":
            text = rounded(text, op)
        self._announce(op)
        self.line(f"{self.body.names[op.result]} = {text}")
        return self.body.names[op.result]

    def _announce(self, op: Op) -> None:
        """A comment where the parts of a composite begin."""
        whole = op.attrs.get("dmlc.composite", "")
        if whole and whole != self.announced:
            self.line(f"# {whole.split('.', 1)[1]}")
        self.announced = whole

    def _passes_on(self, op: Op) -> bool:
        """Whether a value inside the kernel is its operand: views, reductions of size-1 dims, a composite's own casts between floats."""
        if op.name == "dmlc.cast" and "dmlc.part" in op.attrs and not self.every_value:
            return triton_dtype(op.operands[0].dtype) == triton_dtype(op.result.dtype)
        return op.name in ("dmlc.broadcast", "dmlc.reshape", "dmlc.copy") or (op.name in REDUCTIONS and not self.body.reduces(op))

    def _full(self, value: Value) -> str:
        """A value's text; a bare number becomes a block, for texts that call methods on it."""
        text = self.need(value)
        return text if text.isidentifier() or text.startswith("tl.full") else f"tl.full({self.one}, {_bare(text)}, {triton_dtype(value.dtype)})"

    def _operand(self, op: Op) -> str:
        """What a reduction runs over: its operand with a column dim, masked with the identity."""
        value = op.operands[0]
        text = self._full(value)
        if self._ragged:
            return f"tl.where(cols_in, {text}, {identity_of(op, self.one)})"
        if self.body.extent[value].cols:
            return text
        rows = TILE_NAME[self.launch.template] if self.body.extent[value].rows else "1"
        return f"tl.broadcast_to({text}, [{rows}, {self.launch.columns}])"

    def _iota(self, op: Op) -> str:
        """start + index * step in the op's dtype."""
        step = attribute(op, "step")
        text = f"{_parenthesised(self._coordinate(op))}.to(tl.int64)" + (f" * {step}" if step != 1 else "")
        text = f"{self.need(op.operands[0])} + {text}" if op.operands else text
        return text if op.result.dtype == "i64" else f"({text}).to({triton_dtype(op.result.dtype)})"

    def _mask_pad(self, op: Op) -> str:
        identity, dtype = attribute(op, "identity"), op.result.dtype
        value = number(identity_number(identity, dtype) if isinstance(identity, str) else identity, dtype, self.one)
        return f"tl.where({self._coordinate(op)} < {self.need(op.operands[1])}, {self._full(op.operands[0])}, {value})"

    def _coordinate(self, op: Op) -> str:
        """The index along the op's `dim`."""
        axis = self.body.space.axes[op.result][attribute(op, "dim")]
        return self.index.coordinate(axis, axis) if axis != UNIT else f"tl.full({self.one}, 0, tl.int64)"

    def store(self, value: Value, name: str) -> None:
        text = self._full(value)
        offset = self.index.offset(value) or self.index.row
        varying = self._varying(value)
        mask = self._mask(varying if varying.rows or varying.cols else Extent(rows=True))
        self.line(f"tl.store({name}_ptr + {offset}, {narrowed(text, value)}" + (f", mask={mask})" if mask else ")"))


def _is_constant(value: Value) -> bool:
    """Whether a value is a constant, perhaps seen through broadcasts and reshapes."""
    while value.op is not None and value.op.name in ("dmlc.broadcast", "dmlc.reshape", "dmlc.copy"):
        value = value.op.operands[0]
    return value.op is not None and value.op.name == "dmlc.full"


def _bare(text: str) -> str:
    """The number inside a constant's text."""
    return text.split(", ")[-2] if text.startswith("tl.full") else text.strip("()") if text.startswith("(-") else text


def _rounding(body: KernelBody) -> str:
    module = body.function.op.parent
    return module.attrs.get("dmlc.rounding", "stores") if module is not None else "stores"


def _parenthesised(text: str) -> str:
    return text if text.isidentifier() or text.startswith("tl.full") else f"({text})"
