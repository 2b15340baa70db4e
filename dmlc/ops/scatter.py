"""Writing elements at computed positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ops.base import REQUIRED, InferError, OpDef, Sample, Strategy, attribute
from dmlc.ops.gather import broadcast_shape, check_along, check_indices, own_rows, per_row
from dmlc.ops.pointwise import Maker, integers
from dmlc.ops.scan import whole_dim
from dmlc.ops.terms import Term, full

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder


def distinct(bound: int, dim: int) -> Maker:
    """Indices without repetition along `dim`: where several writes meet, the result is not defined."""
    return lambda rng, shape, dtype: rng.permuted(rng.permuted(_ramp(shape, dim) % max(bound, 1), axis=dim), axis=dim)


def _ramp(shape: tuple[int, ...], dim: int) -> Any:
    import numpy as np

    return np.broadcast_to(np.arange(shape[dim]).reshape([-1 if d == dim else 1 for d in range(len(shape))]), shape)


# ---------------------------------------------------------------- index_add: the adjoint of the lookups


def own_rows_added(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
    """Each rank adds what belongs to its rows of the result and drops the rest."""
    values, ids = operands
    local, inside = own_rows(env, ids, op.result.shape[0])
    mine = per_row(env.b, inside, values) if len(values.shape) > len(ids.shape) else inside
    kept = mine.select(Term(env.b, values), 0)
    return [env.b.emit("dmlc.index_add", kept.value, local.value, types=[env.local_types[0]])]


def rows_strategy(op: Op) -> list[Strategy]:
    """For one index into rows of one further dim: the gradient of an embedding."""
    if len(op.operands) != 2 or op.result.tensor.rank != 2:
        return []
    return [Strategy("vocabulary", (None, None), (0,), own_rows_added, work=lambda k: 1.0)]


class IndexAdd(OpDef):
    """Zeros of the result's shape with values[...] added at [i0, i1, …] over the leading dims; the index tensors broadcast to values' leading dims."""

    name = "dmlc.index_add"
    given = True
    same_dtype = False
    linear = [{0}]
    index = staticmethod(lambda op: tuple(range(1, len(op.operands))))
    strategies = staticmethod(rows_strategy)
    torch = staticmethod(lambda op: "index_add({r0.shape}, {0}, " + ", ".join(f"{{{i}}}" for i in range(1, len(op.operands))) + ")")

    @staticmethod
    def rule(op: Op) -> str:
        count = len(op.operands) - 1
        rest = "".join(f" d{d}" for d in range(count, op.result.tensor.rank))
        return f"...{rest}, {', '.join(['...'] * count)} -> {' '.join(f'c{d}!' for d in range(count))}{rest}"

    @classmethod
    def check(cls, op: Op) -> None:
        values, count, target = op.operands[0].tensor, len(op.operands) - 1, op.result.tensor
        check_indices(cls.name, [v.tensor for v in op.operands[1:]])
        places = broadcast_shape([v.shape for v in op.operands[1:]])
        if count < 1 or values.shape != (*places, *target.shape[count:]) or values.dtype != target.dtype:
            raise DmlcError(f"'dmlc.index_add' of {values} at {count} indices into {target}", op.loc)

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        indices = op.operands[1:]
        return [b.emit("dmlc.index", grads[0], *indices), *([None] * len(indices))]

    @staticmethod
    def samples() -> list[Sample]:
        def of(values: tuple[int, ...], indices: Sequence[tuple[int, ...]], target: tuple[int, ...], bound: int, dtype: str = "f32", index: str = "i64") -> Sample:
            makers = AttrDict({str(i + 1): integers(0, bound) for i in range(len(indices))})
            return Sample((TensorType(values, dtype), *(TensorType(s, index) for s in indices)), AttrDict(), (TensorType(target, dtype),), makers)

        return [
            of((7, 3), [(7,)], (5, 3), 5), of((2, 5, 3), [(2, 5)], (7, 3), 7, index="i32"), of((2, 3, 2), [(2, 1), (3,)], (4, 5, 2), 4), of((1, 1), [(1,)], (1, 1), 1),
            of((0, 3), [(0,)], (5, 3), 5), of((3,), [()], (5, 3), 5), of((7, 3), [(7,)], (5, 3), 5, "i64"), of((7,), [(7,)], (5,), 5),
        ]  # fmt: skip


# ---------------------------------------------------------------- scatter and index_put

REDUCES = {"none": "", "add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def own_positions_added(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
    """Each rank adds what belongs to its part of the dim and drops the rest."""
    x, index, src = operands
    dim = attribute(op, "dim")
    local, inside = own_rows(env, index, op.operands[0].shape[dim])
    kept = inside.select(Term(env.b, src), 0)
    return [env.b.emit("dmlc.scatter", x, local.value, kept.value, dim=dim, reduce="add")]


def positions_strategy(op: Op) -> list[Strategy]:
    """For sums, the gradient of `dmlc.take_along`: the dim split, without traffic."""
    dim = attribute(op, "dim")
    return [Strategy("vocabulary", (dim, None, None), (dim,), own_positions_added, work=lambda k: 1.0)] if attribute(op, "reduce") == "add" else []


def extremum_gradient(b: Builder, op: Op, g: Value) -> list[Value | None]:
    """Of max and min: what reached the extreme shares the gradient evenly, as in PyTorch."""
    (x, at, src), dim = (Term(b, v) for v in op.operands), attribute(op, "dim")
    mine = x.eq(Term(b, op.result)).cast(to=g.dtype)
    theirs = src.eq(Term(b, op.result).take_along(at, dim=dim)).cast(to=g.dtype)
    share = Term(b, g) / mine.scatter(at, theirs, dim=dim, reduce="add")
    return [(mine * share).value, None, (theirs * share.take_along(at, dim=dim)).value]


def product_gradient(b: Builder, op: Op, g: Value) -> list[Value | None]:
    """The product of all others: of the factors that are not zero, divided by one's own, where no other one is zero."""
    (x, at, src), dim = (Term(b, v) for v in op.operands), attribute(op, "dim")
    zero = [f.eq(0).cast(to=g.dtype) for f in (x, src)]
    safe = [f.eq(0).select(f.number(1), f) for f in (x, src)]
    product = Term(b, g) * safe[0].scatter(at, safe[1], dim=dim, reduce="mul")
    zeros = zero[0].scatter(at, zero[1], dim=dim, reduce="add")
    here = [(product, zeros), (product.take_along(at, dim=dim), zeros.take_along(at, dim=dim))]
    own, theirs = ((z - mine).eq(0).select(p / s, 0).value for (p, z), mine, s in zip(here, zero, safe))
    return [own, None, theirs]


class Scatter(OpDef):
    """x with src written (or combined by `reduce`) at index along `dim`, position by position; sizes of all other dims agree.

    With reduce none, several writes to one place leave any of them.
    """

    name = "dmlc.scatter"
    same_dtype = False
    index = (1,)
    attributes = {"dim": REQUIRED, "reduce": "none"}
    strategies = staticmethod(positions_strategy)
    linear = staticmethod(lambda op: [{0, 2}] if attribute(op, "reduce") in ("none", "add") else [])

    @staticmethod
    def rule(op: Any) -> str:
        rank, dim = len(op.operands[0].shape), attribute(op, "dim")
        return "{0}, {1}, {1} -> {0}".format(whole_dim(rank, dim), whole_dim(rank, dim, "i"))

    @classmethod
    def dtype(cls, types: Sequence[TensorType], attrs: dict[str, Any]) -> str:
        check_along(cls.name, types, attrs["dim"])
        check_indices(cls.name, types[1:2])
        if types[0].dtype != types[2].dtype or types[1].shape != types[2].shape or attrs["reduce"] not in REDUCES:
            raise InferError(f"'dmlc.scatter' of {types[2]} at {types[1]} into {types[0]}, reduce \"{attrs['reduce']}\"")
        return types[0].dtype

    @staticmethod
    def torch(op: Op) -> str:
        how = attribute(op, "reduce")
        if how in ("none", "add"):
            return f"torch.scatter{'_add' if how == 'add' else ''}({{0}}, {{dim}}, {{1}}.long(), {{2}})"
        return f"torch.scatter_reduce({{0}}, {{dim}}, {{1}}.long(), {{2}}, {REDUCES[how]!r})"

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        _, index, src = op.operands
        dim, how, g = op.attrs["dim"], attribute(op, "reduce"), grads[0]
        if how not in ("none", "add"):
            return product_gradient(b, op, g) if how == "mul" else extremum_gradient(b, op, g)
        picked = b.emit("dmlc.take_along", g, index, dim=dim)
        kept = g if how == "add" else b.emit("dmlc.scatter", g, index, full(b, src.tensor, 0), dim=dim, reduce="none")
        return [kept, None, picked]

    @staticmethod
    def samples() -> list[Sample]:
        def of(shape: tuple[int, ...], index: tuple[int, ...], dim: int, reduce: str = "none", dtype: str = "f32", repeats: bool = False) -> Sample:
            maker = integers(0, shape[dim]) if repeats else distinct(shape[dim], dim)
            types = (TensorType(shape, dtype), TensorType(index, "i64"), TensorType(index, dtype))
            return Sample(types, AttrDict(dim=dim, reduce=reduce), values=AttrDict({"1": maker}))

        plain = [of((5, 3), (5, 2), 1), of((5, 3), (4, 3), 0), of((1, 1), (1, 1), 0), of((0, 4), (0, 2), 1), of((5, 3), (5, 2), 1, dtype="i64")]
        zeros = AttrDict({"1": integers(0, 3), **{k: lambda rng, shape, dtype: rng.integers(-1, 3, shape).astype(dtype) for k in ("0", "2")}})
        with_zeros = Sample(tuple(TensorType(s, t) for s, t in (((4, 3), "f32"), ((4, 5), "i64"), ((4, 5), "f32"))), AttrDict(dim=1, reduce="mul"), values=zeros)
        return [*plain, *(of((5, 3), (5, 7), 1, how, repeats=True) for how in ("add", "mul", "max", "min")), with_zeros]


class IndexPut(OpDef):
    """x with values[...] written (or added, if `accumulate`) at [i0, i1, …] over the leading dims. Operands: x, values, then the indices."""

    name = "dmlc.index_put"
    same_dtype = False
    attributes = {"accumulate": False}
    linear = [{0, 1}]
    index = staticmethod(lambda op: tuple(range(2, len(op.operands))))
    torch = staticmethod(lambda op: "torch.index_put({0}, (" + ", ".join(f"{{{i}}}" for i in range(2, len(op.operands))) + ",), {1}, accumulate={accumulate})")

    @staticmethod
    def rule(op: Any) -> str:
        x, values, *indices = (v.shape for v in op.operands)
        count, spread = len(indices), len(values) - (len(x) - len(indices))
        rest = "".join(f" d{d}" for d in range(count, len(x)))
        places = [f"i{d}!" for d in range(spread)]
        target = " ".join(f"c{d}!" for d in range(count)) + rest
        each = ", ".join(" ".join(places[spread - len(s) :]) or "()" for s in indices)
        return f"{target}, {' '.join(places)}{rest}, {each} -> {target}" if places or rest else f"{target}, (), {each} -> {target}"

    @classmethod
    def dtype(cls, types: Sequence[TensorType], attrs: dict[str, Any]) -> str:
        x, values, *indices = types
        check_indices(cls.name, indices)
        expected = (*broadcast_shape([t.shape for t in indices]), *x.shape[len(indices) :])
        if not indices or values.shape != expected or values.dtype != x.dtype:
            raise InferError(f"'dmlc.index_put' of {values} at {len(indices)} indices into {x}")
        return x.dtype

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        _, values, *indices = op.operands
        picked = b.emit("dmlc.index", grads[0], *indices)
        kept = grads[0] if attribute(op, "accumulate") else b.emit("dmlc.index_put", grads[0], full(b, values.tensor, 0), *indices)
        return [kept, picked, *([None] * len(indices))]

    @staticmethod
    def samples() -> list[Sample]:
        def of(x: tuple[int, ...], values: tuple[int, ...], indices: Sequence[tuple[int, ...]], bound: int, add: bool, dtype: str = "f32") -> Sample:
            makers = AttrDict({str(i + 2): integers(0, bound) if add else distinct(bound, 0) for i in range(len(indices))})
            return Sample((TensorType(x, dtype), TensorType(values, dtype), *(TensorType(s, "i64") for s in indices)), AttrDict(accumulate=add), values=makers)

        return [
            of((5, 3), (4, 3), [(4,)], 5, False), of((5, 3), (7, 3), [(7,)], 5, True), of((4, 4, 2), (3, 2), [(3,), (3,)], 4, False), of((4, 4, 2), (2, 3, 2), [(2, 1), (3,)], 4, True),
            of((1, 1), (1, 1), [(1,)], 1, True), of((5, 3), (0, 3), [(0,)], 5, True), of((5, 3), (4, 3), [(4,)], 5, False, "i64"),
        ]  # fmt: skip
