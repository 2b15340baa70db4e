"""Reductions over dims: a factor on the left only, with the op's combiner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.types import TensorType
from dmlc.ops.base import REQUIRED, InferError, OpDef, Sample, attribute
from dmlc.ops.folding import exact, rounded
from dmlc.ops.pointwise import KINDS, Maker
from dmlc.ops.terms import Term, full

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder


def reduction_rule(op: Any, whole: str = "") -> str:
    """`d0 d1 d2 -> d0 1 d2` for dims=(1,), keepdim."""
    dims, keep = attribute(op, "dims"), attribute(op, "keepdim")
    rank = len(op.operands[0].shape)
    left = [f"d{d}{whole if d in dims else ''}" for d in range(rank)]
    right = [("1" if d in dims else f"d{d}") for d in range(rank) if keep or d not in dims]
    return f"{' '.join(left) or '()'} -> {' '.join(right) or '()'}"


def check_dims(name: str, dims: Any, rank: int) -> None:
    """Dims are distinct and in range; negative ones are normalised by the frontends."""
    if len(set(dims)) != len(dims) or any(not 0 <= d < rank for d in dims):
        raise InferError(f"'{name}' over dims {tuple(dims)} of a tensor of rank {rank}")


class Reduction(OpDef):
    """Over `dims` (none: the operand itself); `keepdim` leaves them with size 1.

    No Triton text: how a kernel reduces its columns is the row templates' business, by the combiner (`dmlc.ops.kernel.REDUCTIONS`).
    """

    attributes = {"dims": REQUIRED, "keepdim": False}
    rule = staticmethod(reduction_rule)
    kind: ClassVar[str] = "number"
    values: ClassVar[dict[str, Maker]] = {}
    sample_dtypes: ClassVar[tuple[str, ...]] = ("f32", "i64")

    @classmethod
    def dtype(cls, types: Sequence[TensorType], attrs: dict[str, Any]) -> str:
        check_dims(cls.name, attrs["dims"], types[0].rank)
        if types[0].dtype not in KINDS[cls.kind]:
            raise InferError(f"'{cls.name}' takes a tensor of {cls.kind} dtype, not {types[0]}")
        return types[0].dtype

    @classmethod
    def samples(cls) -> list[Sample]:
        first, *others = cls.sample_dtypes
        cases = [((5, 3), (1,), False), ((5, 3), (0,), True), ((2, 5, 3), (0, 2), False), ((2, 5, 3), (1,), True), ((1, 1), (0,), False), ((0, 4), (1,), False), ((0, 4), (0,), False), ((5,), (0,), False), ((4, 2), (0, 1), False), ((5,), (), False)]
        made = [Sample((TensorType(s, first),), AttrDict(dims=d, keepdim=k), values=AttrDict(cls.values)) for s, d, k in cases]
        return made + [Sample((TensorType((5, 3), t),), AttrDict(dims=(1,), keepdim=False), values=AttrDict(cls.values)) for t in others]


def keep_shape(op: Op) -> TensorType:
    """The result's type as if keepdim."""
    dims = attribute(op, "dims") if "dims" in op.attrs else (attribute(op, "dim"),)
    return TensorType(tuple(1 if d in dims else n for d, n in enumerate(op.operands[0].shape)), op.results[0].dtype)


def kept(b: Builder, op: Op, value: Value) -> Value:
    """A value of the result's shape with its reduced dims back as size 1."""
    shape = keep_shape(op).with_dtype(value.dtype)
    return value if value.type == shape else b.emit("dmlc.reshape", value, types=[shape])


def spread(b: Builder, op: Op, value: Value) -> Value:
    """A value of the result's shape expanded to the operand's shape."""
    wide = op.operands[0].tensor.with_dtype(value.dtype)
    value = kept(b, op, value)
    return value if value.type == wide else b.emit("dmlc.broadcast", value, types=[wide])


class ReduceSum(Reduction):
    """Sum."""

    name = "dmlc.reduce_sum"
    linear = [{0}]
    precision = "high"
    torch = staticmethod(lambda op: "torch.sum({0}, {dims}, keepdim={keepdim}, dtype={r0.dtype})" if attribute(op, "dims") else "{0}")
    fold = staticmethod(exact("np.sum({0}, axis={dims}, keepdims={keepdim})"))

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        return [spread(b, op, grads[0])]


class ReduceProd(Reduction):
    """Product."""

    name = "dmlc.reduce_prod"
    combiner = "prod"
    precision = "high"
    torch = "reduce_prod({0}, {dims}, {keepdim})"
    fold = staticmethod(exact("np.prod({0}, axis={dims}, keepdims={keepdim})"))

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        """g times the product of all other elements, without a division (zeros are allowed): one dim at a time, last first."""
        dims = attribute(op, "dims")
        steps = [op.operands[0]]
        for d in dims:
            steps.append(b.emit("dmlc.reduce_prod", steps[-1], dims=(d,), keepdim=True))
        g = Term(b, kept(b, op, grads[0]))
        for d, x in zip(reversed(dims), reversed(steps[:-1])):
            before = Term(b, exclusive_product(b, x, d))
            flipped = exclusive_product(b, b.emit("dmlc.flip", x, dims=(d,)), d)
            g = g * before * Term(b, b.emit("dmlc.flip", flipped, dims=(d,)))
        return [g.value]


def exclusive_product(b: Builder, x: Value, dim: int) -> Value:
    """Product of all elements before each along `dim`."""
    n = x.shape[dim]
    if n == 0:
        return x
    one = tuple(1 if d == dim else m for d, m in enumerate(x.shape))
    ones = full(b, TensorType(one, x.dtype), 1)
    if n == 1:
        return ones
    head = b.emit("dmlc.slice", x, dim=dim, start=0, stop=n - 1, step=1)
    return b.emit("dmlc.cumprod", b.emit("dmlc.concat", ones, head, dim=dim), dim=dim)


class Extremum(Reduction):
    """NaN if any element is; over nothing, the identity (-inf or the smallest integer for max)."""

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        """Shared evenly between ties, as PyTorch does."""
        best = b.emit("dmlc.eq", op.operands[0], kept(b, op, op.result))
        hits = b.emit("dmlc.cast", best, to=op.result.dtype)
        count = b.emit("dmlc.reduce_sum", hits, dims=attribute(op, "dims"), keepdim=True)
        share = b.emit("dmlc.div", kept(b, op, grads[0]), count)
        return [b.emit("dmlc.mul", hits, share)]


class ReduceMax(Extremum):
    """Largest element."""

    name = "dmlc.reduce_max"
    combiner = "max"
    torch = "reduce_max({0}, {dims}, {keepdim})"
    fold = staticmethod(rounded("np.max({0}, axis={dims}, keepdims={keepdim}) if {0}.size else None"))


class ReduceMin(Extremum):
    """Smallest element."""

    name = "dmlc.reduce_min"
    combiner = "min"
    torch = "reduce_min({0}, {dims}, {keepdim})"
    fold = staticmethod(rounded("np.min({0}, axis={dims}, keepdims={keepdim}) if {0}.size else None"))


class Truth(Reduction):
    kind = "bool"
    sample_dtypes = ("i1",)
    no_vjp = "integer valued"


class ReduceAnd(Truth):
    """Whether all are true."""

    name = "dmlc.reduce_and"
    combiner = "and"
    torch = staticmethod(lambda op: "torch.all({0}, {dims}, keepdim={keepdim})" if attribute(op, "dims") else "{0}")
    fold = staticmethod(exact("np.all({0}, axis={dims}, keepdims={keepdim})"))


class ReduceOr(Truth):
    """Whether any is true."""

    name = "dmlc.reduce_or"
    combiner = "or"
    torch = staticmethod(lambda op: "torch.any({0}, {dims}, keepdim={keepdim})" if attribute(op, "dims") else "{0}")
    fold = staticmethod(exact("np.any({0}, axis={dims}, keepdims={keepdim})"))
