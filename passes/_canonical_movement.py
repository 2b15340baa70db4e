"""Rules of `canonicalize` about data movement: what moves nothing goes, two moves become one, moved constants are constants."""

from __future__ import annotations

from dmlc.ir.builder import Builder
from dmlc.ir.core import Op, Value
from dmlc.ops.base import attribute
from dmlc.passes._canonical import made_by, rule, uniform

# bits of significand, of exponent: a float whose two numbers are no smaller holds every value of the other
PRECISION = {"f64": (53, 11), "f32": (24, 8), "bf16": (8, 8), "f16": (11, 5), "f8E4M3FN": (4, 4), "f8E5M2": (3, 5)}
# sign bit, value bits
WIDTH = {"i64": (1, 63), "i32": (1, 31), "i16": (1, 15), "i8": (1, 7), "ui8": (0, 8), "i1": (0, 1)}


def holds_all(wide: str, narrow: str) -> bool:
    """Whether every value of dtype `narrow` is one of `wide`."""
    if wide in PRECISION and narrow in PRECISION:
        return wide == narrow or all(a >= b for a, b in zip(PRECISION[wide], PRECISION[narrow]))
    if wide in WIDTH and narrow in WIDTH:
        return WIDTH[wide][0] >= WIDTH[narrow][0] and WIDTH[wide][1] >= WIDTH[narrow][1]
    return wide in PRECISION and narrow in WIDTH and PRECISION[wide][0] >= WIDTH[narrow][1]


@rule("dmlc.reshape", "dmlc.broadcast", "dmlc.cast", "dmlc.slice")
def drop_same_type(op: Op, b: Builder) -> Value | None:
    """A reshape, broadcast, cast or slice that gives its operand's type gives its operand."""
    return op.operands[0] if op.operands[0].type == op.result.type else None


@rule("dmlc.reshape", "dmlc.broadcast")
def merge_same_moves(op: Op, b: Builder) -> Value | None:
    """Reshape of a reshape; broadcast of a broadcast (both right-aligned, so the outer one alone says it)."""
    inner = made_by(op.operands[0], op.name)
    return b.emit(op.name, inner.operands[0], types=[op.result.type]) if inner is not None else None


@rule("dmlc.transpose")
def merge_transposes(op: Op, b: Builder) -> Value | None:
    """Dim i of the outer result is dim outer[i] of the inner one, which is dim inner[outer[i]] of its operand."""
    perm, source = tuple(op.attrs["perm"]), op.operands[0]
    if perm == tuple(range(len(perm))):
        return source
    inner = made_by(source, "dmlc.transpose")
    if inner is None:
        return None
    return b.emit("dmlc.transpose", inner.operands[0], perm=tuple(inner.attrs["perm"][i] for i in perm))


@rule("dmlc.cast")
def merge_casts(op: Op, b: Builder) -> Value | None:
    """A cast there and back goes only when the middle dtype holds every value: never float32 -> float16 -> float32."""
    inner = made_by(op.operands[0], "dmlc.cast")
    if inner is None or not holds_all(inner.result.dtype, inner.operands[0].dtype):
        return None
    return b.emit("dmlc.cast", inner.operands[0], to=op.result.dtype)


@rule("dmlc.slice")
def merge_slices(op: Op, b: Builder) -> Value | None:
    """A slice of a slice along the same dim."""
    inner = made_by(op.operands[0], "dmlc.slice")
    if inner is None or inner.attrs["dim"] != op.attrs["dim"] or not _static(op, inner):
        return None
    start, stop, step = _bounds(op)
    first, _, stride = _bounds(inner)
    last = first + (stop - 1) * stride + 1 if stop > start else first + start * stride
    return b.emit("dmlc.slice", inner.operands[0], dim=op.attrs["dim"], start=first + start * stride, stop=last, step=step * stride)


def _static(*slices: Op) -> bool:
    return all(isinstance(n, int) for op in slices for n in _bounds(op))


def _bounds(op: Op) -> tuple[int, int, int]:
    return attribute(op, "start"), attribute(op, "stop"), attribute(op, "step")


@rule("dmlc.concat")
def drop_empty_parts(op: Op, b: Builder) -> Value | None:
    """Parts of size 0 add nothing; one part alone is the result."""
    dim = op.attrs["dim"]
    parts = [v for v in op.operands if v.shape[dim] != 0] or [op.operands[0]]
    if len(parts) == 1:
        return parts[0]
    return b.emit("dmlc.concat", *parts, dim=dim) if len(parts) < len(op.operands) else None


@rule("dmlc.concat")
def merge_concats(op: Op, b: Builder) -> Value | None:
    """A part that is itself a concatenation along the same dim, used only here, gives its own parts."""
    dim, parts = op.attrs["dim"], []
    for value in op.operands:
        inner = made_by(value, "dmlc.concat")
        joins = inner is not None and inner.attrs["dim"] == dim and len(value.uses) == 1
        parts += inner.operands if joins and inner is not None else [value]
    return b.emit("dmlc.concat", *parts, dim=dim) if len(parts) > len(op.operands) else None


@rule("dmlc.concat")
def join_neighbouring_slices(op: Op, b: Builder) -> Value | None:
    """Slices of one value that follow each other without a gap are one slice."""
    dim, slices = op.attrs["dim"], [made_by(v, "dmlc.slice") for v in op.operands]
    first = slices[0]
    for left, right in zip(slices, slices[1:]):
        if left is None or right is None or left.operands != right.operands or {left.attrs["dim"], right.attrs["dim"]} != {dim}:
            return None
        if _bounds(left)[1] != _bounds(right)[0] or _bounds(left)[2] != 1 or _bounds(right)[2] != 1:
            return None
    if first is None or slices[-1] is None or len(slices) < 2:
        return None
    return b.emit("dmlc.slice", first.operands[0], dim=dim, start=_bounds(first)[0], stop=_bounds(slices[-1])[1], step=1)


@rule("dmlc.pad")
def drop_empty_pad(op: Op, b: Builder) -> Value | None:
    return op.operands[0] if not any((*op.attrs["low"], *op.attrs["high"])) else None


@rule("dmlc.reshape", "dmlc.broadcast", "dmlc.transpose", "dmlc.slice", "dmlc.concat", "dmlc.flip")
def move_constants(op: Op, b: Builder) -> Value | None:
    """However it is moved, a tensor of equal numbers stays one."""
    numbers = [uniform(v) for v in op.operands]
    if None in numbers or any(repr(n) != repr(numbers[0]) for n in numbers):
        return None
    return b.emit("dmlc.full", types=[op.result.type], value=numbers[0])


@rule("dmlc.linear", "dmlc.matmul")
def absorb_transposed_weight(op: Op, b: Builder) -> Value | None:
    """x times a transposed matrix is the other of the two products that differ in the matrix's layout."""
    moved = made_by(op.operands[1], "dmlc.transpose")
    if moved is None or tuple(moved.attrs["perm"]) != (1, 0):
        return None
    other = "dmlc.matmul" if op.name == "dmlc.linear" else "dmlc.linear"
    return b.emit(other, op.operands[0], moved.operands[0]) if len(op.operands[0].shape) >= 2 else None
