"""Reading elements at computed positions. Indices are non-negative; a frontend turns negative ones round with `select`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.types import INTEGERS, Size, TensorType
from dmlc.ops.base import REQUIRED, InferError, OpDef, Sample, Strategy, attribute
from dmlc.ops.folding import moved
from dmlc.ops.pointwise import Maker, integers
from dmlc.ops.pointwise_binary import SELECTING
from dmlc.ops.reduction import check_dims
from dmlc.ops.scan import whole_dim
from dmlc.ops.terms import Term, full

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder


class Lookup(OpDef):
    """Operand 0 is read; the others are integer indices."""

    same_dtype = False
    index = (1,)
    linear = [{0}]
    selects = SELECTING

    @classmethod
    def dtype(cls, types: Sequence[TensorType], attrs: dict[str, Any]) -> str:
        check_indices(cls.name, types[1:])
        return types[0].dtype


def check_indices(name: str, types: Sequence[TensorType]) -> None:
    for t in types:
        if t.dtype not in INTEGERS:
            raise InferError(f"'{name}' takes integer indices, not {t}")


def indexed(shape: tuple[int, ...], index: Sequence[tuple[int, ...]], bound: int, dtype: str = "f32", index_dtype: str = "i64", attrs: Any = (), maker: Maker | None = None) -> Sample:
    """A sample whose operands 1, 2, … are indices below `bound`."""
    values = AttrDict({str(i + 1): maker or integers(0, max(bound, 1)) for i in range(len(index))})
    return Sample((TensorType(shape, dtype), *(TensorType(s, index_dtype) for s in index)), AttrDict(attrs), values=values)


def broadcast_shape(shapes: Sequence[tuple[Size, ...]]) -> tuple[Size, ...]:
    rank = max((len(s) for s in shapes), default=0)
    aligned = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(next((n for n in each if n != 1), 1) for each in zip(*aligned))


# ---------------------------------------------------------------- embedding


def own_rows(env: Any, ids: Value, rows: int) -> tuple[Term, Term]:
    """Ids relative to this rank's window of a table of `rows` rows (0 where they lie outside), and whether they lie inside."""
    b = env.b
    start, valid = (Term(b, b.emit("dmlc.cast", v, to=ids.dtype)) for v in env.window(rows, 1))
    local = Term(b, ids) - start
    inside = (local >= 0).logical_and(local < valid)
    return inside.select(local, 0), inside


def per_row(b: Builder, inside: Term, like: Value) -> Term:
    """The mask of ids against rows: one more dim."""
    flag = TensorType((*inside.value.shape, 1), "i1")
    return Term(b, b.emit("dmlc.reshape", inside.value, types=[flag])) if like.tensor.rank else inside


def vocabulary_rows(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
    """Each rank looks up the ids of its rows and gives zeros for the others: the sum over ranks is the result (Megatron-LM, arXiv:1909.08053)."""
    table, ids = operands
    local, inside = own_rows(env, ids, op.operands[0].shape[0])
    rows = Term(env.b, env.b.emit("dmlc.embedding", table, local.value))
    return [per_row(env.b, inside, rows.value).select(rows, 0).value]


class Embedding(Lookup):
    """Row ids[...] of a table of rows."""

    name = "dmlc.embedding"
    rule = "v! d, ... -> ... d"
    torch = "F.embedding({1}, {0})"
    strategies = staticmethod(lambda op: [Strategy("vocabulary", (0, None), (("unreduced", "sum"),), vocabulary_rows)])
    fold = staticmethod(moved("{0}[{1}]"))

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        return [b.emit("dmlc.index_add", grads[0], op.operands[1], types=[op.operands[0].tensor]), None]

    @staticmethod
    def samples() -> list[Sample]:
        return [indexed((5, 3), [(7,)], 5), indexed((7, 2), [(3, 5)], 7, index_dtype="i32"), indexed((1, 1), [(1,)], 1), indexed((4, 3), [(0, 2)], 4), indexed((5, 3), [()], 5), indexed((5, 3), [(4,)], 5, "bf16")]


# ---------------------------------------------------------------- take, take_along, index


class Take(Lookup):
    """x at `index` along `dim`: x's dims before, the index's dims, x's dims after (ONNX Gather)."""

    name = "dmlc.take"
    attributes = {"dim": REQUIRED}
    torch = "torch.index_select({0}, {dim}, {1}.reshape(-1)).reshape({r0.shape})"
    fold = staticmethod(moved("np.take({0}, {1}, axis={dim})"))

    @staticmethod
    def rule(op: Any) -> str:
        x, index = (v.shape for v in op.operands)
        dim = attribute(op, "dim")
        check_dims("dmlc.take", (dim,), len(x))
        before, after = [f"a{d}" for d in range(dim)], [f"z{d}" for d in range(dim + 1, len(x))]
        places = [f"i{d}" for d in range(len(index))]
        return f"{' '.join([*before, 'c!', *after])}, {' '.join(places) or '()'} -> {' '.join([*before, *places, *after]) or '()'}"

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        """`index_add` works on leading dims: the index's dims and `dim` go to the front and back."""
        x, index = op.operands
        dim, count, rank = op.attrs["dim"], index.tensor.rank, grads[0].tensor.rank
        front = (*range(dim, dim + count), *range(dim), *range(dim + count, rank))
        g = grads[0] if dim == 0 else b.emit("dmlc.transpose", grads[0], perm=front)
        moved_shape = (x.shape[dim], *x.shape[:dim], *x.shape[dim + 1 :])
        added = b.emit("dmlc.index_add", g, index, types=[x.tensor.with_shape(moved_shape)])
        back = (*range(1, dim + 1), 0, *range(dim + 1, x.tensor.rank))
        return [added if dim == 0 else b.emit("dmlc.transpose", added, perm=back), None]

    @staticmethod
    def samples() -> list[Sample]:
        return [
            indexed((5, 3), [(7,)], 5, attrs={"dim": 0}), indexed((2, 5, 3), [(4, 3)], 5, attrs={"dim": 1}), indexed((5, 3), [()], 3, attrs={"dim": 1}),
            indexed((1, 1), [(1,)], 1, attrs={"dim": 0}), indexed((0, 4), [(3,)], 4, attrs={"dim": 1}), indexed((5,), [(2, 3)], 5, "i64", "i32", {"dim": 0}),
        ]  # fmt: skip


def own_picks(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
    """Each rank picks what lies in its part of the dim and gives zeros for the rest."""
    x, index = operands
    dim = attribute(op, "dim")
    local, inside = own_rows(env, index, op.operands[0].shape[dim])
    picked = Term(env.b, env.b.emit("dmlc.take_along", x, local.value, dim=dim))
    return [inside.select(picked, 0).value]


class TakeAlong(Lookup):
    """x[..., index[...], ...] along `dim`, position by position (torch.gather); sizes agree in all other dims."""

    name = "dmlc.take_along"
    attributes = {"dim": REQUIRED}
    torch = "torch.gather({0}, {dim}, {1}.long())"
    strategies = staticmethod(lambda op: [Strategy("vocabulary", (attribute(op, "dim"), None), (("unreduced", "sum"),), own_picks)])
    fold = staticmethod(moved("np.take_along_axis({0}, {1}.astype('int64'), axis={dim})"))

    @staticmethod
    def rule(op: Any) -> str:
        rank, dim = len(op.operands[0].shape), attribute(op, "dim")
        return "{0}, {1} -> {1}".format(whole_dim(rank, dim), whole_dim(rank, dim, "i"))

    @classmethod
    def dtype(cls, types: Sequence[TensorType], attrs: dict[str, Any]) -> str:
        check_along(cls.name, types, attrs["dim"])
        return super().dtype(types, attrs)

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        zeros = full(b, op.operands[0].tensor, 0)
        return [b.emit("dmlc.scatter", zeros, op.operands[1], grads[0], dim=op.attrs["dim"], reduce="add"), None]

    @staticmethod
    def samples() -> list[Sample]:
        return [
            indexed((5, 3), [(5, 7)], 3, attrs={"dim": 1}), indexed((2, 5, 3), [(2, 4, 3)], 5, attrs={"dim": 1}), indexed((1, 1), [(1, 1)], 1, attrs={"dim": 0}),
            indexed((0, 4), [(0, 2)], 4, attrs={"dim": 1}), indexed((5, 3), [(2, 3)], 5, "i64", "i32", {"dim": 0}),
        ]  # fmt: skip


def check_along(name: str, types: Sequence[TensorType], dim: int) -> None:
    """All tensors have one rank and, but for `dim`, one shape."""
    check_dims(name, (dim,), types[0].rank)
    rest = [(*t.shape[:dim], *t.shape[dim + 1 :]) for t in types]
    if any(r != rest[0] for r in rest):
        raise InferError(f"'{name}' along dim {dim} of {', '.join(map(str, types))}: the other dims must agree")


class Index(Lookup):
    """x[i0, i1, …] over the leading dims; the index tensors broadcast against each other."""

    name = "dmlc.index"
    index = staticmethod(lambda op: tuple(range(1, len(op.operands))))
    torch = staticmethod(lambda op: "{0}[" + ", ".join(f"{{{i}}}" for i in range(1, len(op.operands))) + "]")
    fold = staticmethod(moved(lambda op: "{0}[" + ", ".join(f"{{{i}}}" for i in range(1, len(op.operands))) + "]"))

    @staticmethod
    def rule(op: Any) -> str:
        count, rank = len(op.operands) - 1, len(op.operands[0].shape)
        if not 1 <= count <= rank:
            raise InferError(f"'dmlc.index' of a tensor of rank {rank} with {count} indices")
        rest = "".join(f" d{d}" for d in range(count, rank))
        return f"{' '.join(f'c{d}!' for d in range(count))}{rest}, {', '.join(['...'] * count)} -> ...{rest}"

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        indices = op.operands[1:]
        return [b.emit("dmlc.index_add", grads[0], *indices, types=[op.operands[0].tensor]), *([None] * len(indices))]

    @staticmethod
    def samples() -> list[Sample]:
        return [
            indexed((5, 3), [(7,)], 5), indexed((4, 5, 3), [(2, 1), (3,)], 4), indexed((3, 3), [(5,), (5,)], 3),
            indexed((1, 1), [(1,)], 1), indexed((4, 3), [(0,)], 4), indexed((5, 3), [()], 5), indexed((5, 3), [(4,)], 5, "i64", "i32"),
        ]  # fmt: skip
