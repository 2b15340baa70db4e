"""Ops that need a whole dim: cumulative sums and products, positions of extrema, sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.types import TensorType
from dmlc.ops.base import REQUIRED, InferError, OpDef, Sample, attribute
from dmlc.ops.folding import exact, rounded
from dmlc.ops.reduction import check_dims, exclusive_product
from dmlc.ops.terms import Term, full

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder

CASES = (((5, 3), 0), ((2, 5, 3), 1), ((1, 1), 1), ((0, 4), 1), ((5, 3), 1))


def whole_dim(rank: int, dim: int, name: str = "c") -> str:
    """Factors of a tensor whose dim `dim` is whole: `d0 c! d2`."""
    return " ".join(f"{name}!" if d == dim else f"d{d}" for d in range(rank)) or "()"


class DimOp(OpDef):
    """One operand; the dim `dim` is whole, the others go through."""

    rule = staticmethod(lambda op: "{0} -> {0}".format(whole_dim(len(op.operands[0].shape), attribute(op, "dim"))))

    @classmethod
    def dtype(cls, types: Sequence[TensorType], attrs: dict[str, Any]) -> str:
        check_dims(cls.name, (attrs["dim"],), types[0].rank)
        return types[0].dtype


class CumSum(DimOp):
    """Running sum along `dim`, from the end if `reverse`, without the element itself if `exclusive`."""

    name = "dmlc.cumsum"
    attributes = {"dim": REQUIRED, "exclusive": False, "reverse": False}
    linear = [{0}]
    precision = "high"
    torch = "cumulative_sum({0}, {dim}, {exclusive}, {reverse})"

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        return [b.emit("dmlc.cumsum", grads[0], dim=op.attrs["dim"], exclusive=attribute(op, "exclusive"), reverse=not attribute(op, "reverse"))]

    @staticmethod
    def fold(op: Op, operands: Sequence[Any]) -> list[Any] | None:
        if attribute(op, "exclusive") or attribute(op, "reverse"):
            return None
        return exact("np.cumsum({0}, axis={dim}, dtype={0}.dtype)")(op, operands)

    @staticmethod
    def samples() -> list[Sample]:
        made = [Sample((TensorType(s, "f32"),), AttrDict(dim=d)) for s, d in CASES]
        flags = [AttrDict(dim=1, exclusive=e, reverse=r) for e, r in ((True, False), (False, True), (True, True))]
        return made + [Sample((TensorType((5, 3), "f32"),), a) for a in flags] + [Sample((TensorType((5, 3), "i32"),), AttrDict(dim=0))]


class CumProd(DimOp):
    """Running product along `dim`."""

    name = "dmlc.cumprod"
    attributes = {"dim": REQUIRED}
    precision = "high"
    torch = "torch.cumprod({0}, {dim}, dtype={r0.dtype})"
    fold = staticmethod(exact("np.cumprod({0}, axis={dim}, dtype={0}.dtype)"))

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        """dx_j = (product before j) * sum over i >= j of g_i (product of j+1..i). No division, so zeros are allowed; the square of the dim in memory."""
        x, dim = op.operands[0], op.attrs["dim"]
        n = x.shape[dim]
        square = TensorType((*x.shape[:dim], n, *x.shape[dim:]), x.dtype)

        def as_columns(value: Value) -> Term:
            """Element i of `dim` in every row j."""
            line = TensorType((*x.shape[:dim], 1, *x.shape[dim:]), x.dtype)
            return Term(b, b.emit("dmlc.broadcast", b.emit("dmlc.reshape", value, types=[line]), types=[square]))

        row = Term(b, b.emit("dmlc.iota", types=[square.with_dtype("i64")], dim=dim))
        column = Term(b, b.emit("dmlc.iota", types=[square.with_dtype("i64")], dim=dim + 1))
        between = (column > row).select(as_columns(x), 1).cumprod(dim=dim + 1)
        suffix = (column >= row).select(between * as_columns(grads[0]), 0).reduce_sum(dims=(dim + 1,))
        return [(suffix * Term(b, exclusive_product(b, x, dim))).value]

    @staticmethod
    def samples() -> list[Sample]:
        with_zero = AttrDict({"0": lambda rng, shape, dtype: rng.integers(-1, 3, shape).astype(dtype)})
        return [Sample((TensorType(s, "f32"),), AttrDict(dim=d)) for s, d in CASES] + [Sample((TensorType((5, 3), "f32"),), AttrDict(dim=0), values=with_zero), Sample((TensorType((5, 3), "i64"),), AttrDict(dim=1))]


class ArgExtremum(OpDef):
    """Position along `dim` (i64): the first of equals; the first NaN, if there is one."""

    attributes = {"dim": REQUIRED, "keepdim": False}
    no_vjp = "integer valued"

    @staticmethod
    def rule(op: Any) -> str:
        dim, rank = attribute(op, "dim"), len(op.operands[0].shape)
        right = [("1" if d == dim else f"d{d}") for d in range(rank) if attribute(op, "keepdim") or d != dim]
        return f"{whole_dim(rank, dim)} -> {' '.join(right) or '()'}"

    @classmethod
    def dtype(cls, types: Sequence[TensorType], attrs: dict[str, Any]) -> str:
        check_dims(cls.name, (attrs["dim"],), types[0].rank)
        if types[0].shape[attrs["dim"]] == 0:
            raise InferError(f"'{cls.name}' over a dim of size 0")
        return "i64"

    @staticmethod
    def samples() -> list[Sample]:
        ties = AttrDict({"0": lambda rng, shape, dtype: rng.integers(0, 3, shape)})
        made = [Sample((TensorType(s, "f32"),), AttrDict(dim=d, keepdim=k)) for (s, d), k in zip(CASES, (False, True, False, False, True))]
        return made + [Sample((TensorType((5, 7), "i64"),), AttrDict(dim=1), values=ties), Sample((TensorType((5, 7), "f32"),), AttrDict(dim=0), values=ties)]


class ArgMax(ArgExtremum):
    name = "dmlc.argmax"
    torch = "torch.argmax({0}, {dim}, keepdim={keepdim})"
    fold = staticmethod(rounded("np.expand_dims(np.argmax({0}, axis={dim}), {dim}) if {keepdim} else np.argmax({0}, axis={dim})"))


class ArgMin(ArgExtremum):
    name = "dmlc.argmin"
    torch = "torch.argmin({0}, {dim}, keepdim={keepdim})"
    fold = staticmethod(rounded("np.expand_dims(np.argmin({0}, axis={dim}), {dim}) if {keepdim} else np.argmin({0}, axis={dim})"))


class Ordered(OpDef):
    """Two results: values and their positions (i64). Equal elements keep their order; NaN counts as the largest."""

    results = 2

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value | None]) -> list[Value | None]:
        if grads[0] is None:
            return [None]
        zeros = full(b, op.operands[0].tensor, 0)
        return [b.emit("dmlc.scatter", zeros, op.results[1], grads[0], dim=op.attrs["dim"], reduce="add")]


class TopK(Ordered):
    """The `k` largest (or smallest) along `dim`, best first."""

    name = "dmlc.topk"
    attributes = {"k": REQUIRED, "dim": REQUIRED, "largest": True, "sorted": True}
    torch = "topk({0}, {k}, {dim}, {largest})"

    @staticmethod
    def rule(op: Any) -> str:
        rank, dim = len(op.operands[0].shape), attribute(op, "dim")
        return "{0} -> {1}, {1}".format(whole_dim(rank, dim), whole_dim(rank, dim, "k"))

    @staticmethod
    def infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        dim, k = attrs["dim"], attrs["k"]
        check_dims("dmlc.topk", (dim,), types[0].rank)
        if isinstance(types[0].shape[dim], int) and not 0 <= k <= types[0].shape[dim]:
            raise InferError(f"'dmlc.topk' of {k} elements from a dim of {types[0].shape[dim]}")
        shape = tuple(k if d == dim else n for d, n in enumerate(types[0].shape))
        return [types[0].with_shape(shape), TensorType(shape, "i64")]

    @staticmethod
    def samples() -> list[Sample]:
        ties = AttrDict({"0": lambda rng, shape, dtype: rng.integers(0, 3, shape)})
        cases = [((5, 3), 3, 0, True), ((2, 5, 3), 2, 1, False), ((1, 1), 1, 1, True), ((0, 4), 2, 1, True), ((5, 3), 0, 1, True)]
        return [Sample((TensorType(s, "f32"),), AttrDict(k=k, dim=d, largest=g)) for s, k, d, g in cases] + [Sample((TensorType((3, 7), "i64"),), AttrDict(k=4, dim=1), values=ties)]


class Sort(Ordered):
    """All elements along `dim` in order."""

    name = "dmlc.sort"
    attributes = {"dim": REQUIRED, "descending": False, "stable": True}
    torch = "tuple(torch.sort({0}, dim={dim}, descending={descending}, stable=True))"

    @staticmethod
    def rule(op: Any) -> str:
        return "{0} -> {0}, {0}".format(whole_dim(len(op.operands[0].shape), attribute(op, "dim")))

    @staticmethod
    def infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        check_dims("dmlc.sort", (attrs["dim"],), types[0].rank)
        return [types[0], types[0].with_dtype("i64")]

    @staticmethod
    def samples() -> list[Sample]:
        ties = AttrDict({"0": lambda rng, shape, dtype: rng.integers(0, 3, shape)})
        made = [Sample((TensorType(s, "f32"),), AttrDict(dim=d, descending=i % 2 == 1)) for i, (s, d) in enumerate(CASES)]
        return made + [Sample((TensorType((3, 7), "i64"),), AttrDict(dim=1), values=ties), Sample((TensorType((3, 7), "i64"),), AttrDict(dim=1, descending=True), values=ties)]
