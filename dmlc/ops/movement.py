"""Data movement: reshape, transpose, broadcast, slice, concat, flip, roll, copy, triangles. Padding is in `padding`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import Size, TensorType
from dmlc.ops.base import REQUIRED, InferError, OpDef, Sample, attribute
from dmlc.ops.folding import moved
from dmlc.ops.pointwise_binary import SELECTING
from dmlc.ops.reduction import check_dims
from dmlc.ops.rule import Rule, open_view_rule, view_rule
from dmlc.ops.scan import whole_dim
from dmlc.ops.terms import unbroadcast

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder


class Movement(OpDef):
    """Elements move and stay what they are: linear, any combiner passes, any dtype."""

    linear = [{0}]
    selects = SELECTING


def cases(*shapes_and_attrs: tuple[tuple[int, ...], dict[str, Any]], dtypes: Sequence[str] = ("i64",)) -> list[Sample]:
    """One sample a case in f32, and the first case in every other dtype."""
    made = [Sample((TensorType(s, "f32"),), AttrDict(a)) for s, a in shapes_and_attrs]
    shape, attrs = shapes_and_attrs[0]
    return made + [Sample((TensorType(shape, t),), AttrDict(attrs)) for t in dtypes]


class GivenMovement(Movement):
    """The result's shape is part of the op; its dtype is the operand's."""

    given = True

    @classmethod
    def check(cls, op: Op) -> None:
        if len(op.operands) != 1 or len(op.results) != 1 or op.operands[0].dtype != op.result.dtype:
            raise DmlcError(f"'{op.name}' takes one tensor and keeps its dtype", op.loc)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [Sample((TensorType(a, t),), results=(TensorType(b, t),)) for a, b, t in cls.shapes()]

    @classmethod
    def shapes(cls) -> list[tuple[tuple[int, ...], tuple[int, ...], str]]:
        return []


class Reshape(GivenMovement):
    """The same elements, row-major, in the result's shape."""

    name = "dmlc.reshape"
    torch = "{0}.reshape({r0.shape})"
    view = 0
    cost = "free"
    fold = staticmethod(moved("{0}.reshape({r0.shape})"))

    @staticmethod
    def rule(op: Op) -> Rule:
        source, target = op.operands[0].tensor, op.result.tensor
        known = source.is_static and target.is_static
        return (view_rule if known else open_view_rule)(source.shape, target.shape)  # type: ignore[arg-type]

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        source, target = op.operands[0].tensor, op.result.tensor
        if source.numel != target.numel:
            raise DmlcError(f"'dmlc.reshape' of {source.numel} elements into {target.numel}", op.loc)

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        return [b.emit("dmlc.reshape", grads[0], types=[op.operands[0].tensor])]

    @classmethod
    def shapes(cls) -> list[tuple[tuple[int, ...], tuple[int, ...], str]]:
        pairs = [((5, 6), (5, 2, 3)), ((2, 3, 5), (6, 5)), ((4, 6), (8, 3)), ((4, 9), (6, 6)), ((1, 5, 1), (5,)), ((6,), (1, 2, 3, 1)), ((), (1, 1)), ((0, 4), (2, 0)), ((3, 4, 5), (12, 5))]
        return [(a, b, "f32") for a, b in pairs] + [((5, 6), (30,), "i64")]


class Broadcast(GivenMovement):
    """Right-aligned expansion: size-1 and missing leading dims are repeated."""

    name = "dmlc.broadcast"
    rule = "... -> ..."
    torch = "{0}.expand({r0.shape})"
    view = 0
    cost = "free"
    fold = staticmethod(moved("np.broadcast_to({0}, {r0.shape})"))

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        source, target = op.operands[0].shape, op.result.shape
        aligned = zip(reversed(source), reversed(target))
        if len(source) > len(target) or any(n not in (1, m) for n, m in aligned):
            raise DmlcError(f"'dmlc.broadcast' of {op.operands[0].type} to {op.result.type}", op.loc)

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        return [unbroadcast(b, grads[0], op.operands[0].tensor)]

    @classmethod
    def shapes(cls) -> list[tuple[tuple[int, ...], tuple[int, ...], str]]:
        pairs = [((5, 1), (5, 3)), ((1, 3), (2, 5, 3)), ((), (5,)), ((1,), (1,)), ((1, 4), (0, 4)), ((5, 3), (5, 3)), ((3, 1, 2), (3, 5, 2))]
        return [(a, b, "f32") for a, b in pairs] + [((5, 1), (5, 3), "i1")]


class Transpose(Movement):
    """Result dim i is operand dim perm[i]."""

    name = "dmlc.transpose"
    attributes = {"perm": REQUIRED}
    torch = "{0}.permute({perm})"
    view = 0
    cost = "free"
    fold = staticmethod(moved("np.transpose({0}, {perm})"))

    @staticmethod
    def rule(op: Any) -> str:
        perm = attribute(op, "perm")
        return f"{' '.join(f'd{d}' for d in range(len(perm))) or '()'} -> {' '.join(f'd{d}' for d in perm) or '()'}"

    @staticmethod
    def dtype(types: Sequence[TensorType], attrs: dict[str, Any]) -> str:
        if sorted(attrs["perm"]) != list(range(types[0].rank)):
            raise InferError(f"'dmlc.transpose' of a tensor of rank {types[0].rank} with perm {tuple(attrs['perm'])}")
        return types[0].dtype

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        perm = op.attrs["perm"]
        return [b.emit("dmlc.transpose", grads[0], perm=tuple(perm.index(d) for d in range(len(perm))))]

    @staticmethod
    def samples() -> list[Sample]:
        return cases(((2, 5, 3), {"perm": (2, 0, 1)}), ((5, 3), {"perm": (1, 0)}), ((1, 1), {"perm": (1, 0)}), ((0, 4), {"perm": (1, 0)}), ((3,), {"perm": (0,)}))


class Slice(Movement):
    """Elements start, start + step, … below stop of one dim; 0 <= start <= stop <= n, step > 0."""

    name = "dmlc.slice"
    attributes = {"dim": REQUIRED, "start": 0, "stop": REQUIRED, "step": 1}
    view = 0
    cost = "free"

    @staticmethod
    def rule(op: Any) -> str:
        rank, dim = len(op.operands[0].shape), attribute(op, "dim")
        return f"{whole_dim(rank, dim)} -> {whole_dim(rank, dim, 'r')}"

    @staticmethod
    def infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        dim, start, stop, step = (attrs[k] for k in ("dim", "start", "stop", "step"))
        check_dims("dmlc.slice", (dim,), types[0].rank)
        n = types[0].shape[dim]
        if step < 1 or not 0 <= start <= stop <= n:
            raise InferError(f"'dmlc.slice' from {start} to {stop} by {step} of a dim of {n}")
        size = stop - start if step == 1 else (stop - start + step - 1) // step
        return [types[0].with_shape(size if d == dim else m for d, m in enumerate(types[0].shape))]

    @staticmethod
    def text(op: Op) -> str:
        step = "" if attribute(op, "step") == 1 else ":{step}"
        return "{0}[" + ":, " * attribute(op, "dim") + "{start}:{stop}" + step + "]"

    torch = text
    fold = staticmethod(moved(text))

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        """Zeros around g; with a step, each element first grows to a run of one element and step - 1 zeros."""
        dim, start, step = (attribute(op, k) for k in ("dim", "start", "step"))
        g, rank, n = grads[0], op.operands[0].tensor.rank, op.operands[0].shape[dim]
        if step > 1:
            shape = g.shape
            g = b.emit("dmlc.reshape", g, types=[g.tensor.with_shape((*shape[: dim + 1], 1, *shape[dim + 1 :]))])
            g = zero_pad(b, g, dim + 1, 0, step - 1)
            g = b.emit("dmlc.reshape", g, types=[g.tensor.with_shape((*shape[:dim], shape[dim] * step, *shape[dim + 1 :]))])
        assert len(g.shape) == rank
        return [zero_pad(b, g, dim, start, n - start - g.shape[dim])]

    @staticmethod
    def samples() -> list[Sample]:
        return cases(
            ((5, 3), {"dim": 0, "start": 1, "stop": 4}), ((7, 3), {"dim": 0, "start": 1, "stop": 7, "step": 2}), ((2, 5, 3), {"dim": 1, "start": 0, "stop": 5}),
            ((5, 8), {"dim": 1, "start": 0, "stop": 8, "step": 3}), ((1, 1), {"dim": 0, "start": 0, "stop": 1}), ((5, 3), {"dim": 0, "start": 2, "stop": 2}), ((0, 4), {"dim": 1, "start": 1, "stop": 3}),
        )  # fmt: skip


def zero_pad(b: Builder, x: Value, dim: int, low: Size, high: Size) -> Value:
    """Zeros before and after along one dim; negative counts cut."""
    zeros = [0] * x.tensor.rank
    return b.emit("dmlc.pad", x, low=(*zeros[:dim], low, *zeros[dim + 1 :]), high=(*zeros[:dim], high, *zeros[dim + 1 :]))


class Concat(Movement):
    """Operands one after another along `dim`; all other sizes agree."""

    name = "dmlc.concat"
    attributes = {"dim": REQUIRED}
    torch = "torch.cat([{*}], {dim})"
    linear = staticmethod(lambda op: [set(range(len(op.operands)))])

    @staticmethod
    def rule(op: Any) -> str:
        rank, dim = len(op.operands[0].shape), attribute(op, "dim")
        return ", ".join(whole_dim(rank, dim, f"c{i}") for i in range(len(op.operands))) + " -> " + whole_dim(rank, dim, "r")

    @staticmethod
    def infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if not types:
            raise InferError("'dmlc.concat' takes at least one tensor")
        dim, rank = attrs["dim"], types[0].rank
        check_dims("dmlc.concat", (dim,), rank)
        rest = [(*t.shape[:dim], *t.shape[dim + 1 :]) for t in types]
        if any(t.rank != rank for t in types) or any(r != rest[0] for r in rest):
            raise InferError(f"'dmlc.concat' along dim {dim} of {', '.join(map(str, types))}")
        total = types[0].shape[dim]
        for t in types[1:]:
            total = total + t.shape[dim]
        return [types[0].with_shape(total if d == dim else n for d, n in enumerate(types[0].shape))]

    @staticmethod
    def fold(op: Op, operands: Sequence[Any]) -> list[Any] | None:
        names = ", ".join(f"{{{i}}}" for i in range(len(operands)))
        return moved(f"np.concatenate([{names}], {{dim}})")(op, operands)

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        dim, start, found = op.attrs["dim"], 0, []
        for v in op.operands:
            stop = start + v.shape[dim]
            found.append(b.emit("dmlc.slice", grads[0], dim=dim, start=start, stop=stop, step=1))
            start = stop
        return found

    @staticmethod
    def samples() -> list[Sample]:
        shapes = [([(5, 3), (2, 3)], 0, "f32"), ([(5, 3), (5, 1), (5, 2)], 1, "f32"), ([(1,), (1,)], 0, "f32"), ([(0, 4), (0, 2)], 1, "f32"), ([(3, 2), (0, 2)], 0, "f32"), ([(5, 3)], 1, "f32"), ([(5, 3), (5, 2)], 1, "i64")]
        return [Sample(tuple(TensorType(s, t) for s in each), AttrDict(dim=d)) for each, d, t in shapes]


def whole_dims(op: Any) -> str:
    """The dims listed in `dims` are whole, in place."""
    text = " ".join(f"d{d}!" if d in attribute(op, "dims") else f"d{d}" for d in range(len(op.operands[0].shape))) or "()"
    return f"{text} -> {text}"


class Flip(Movement):
    """Reversed along `dims`."""

    name = "dmlc.flip"
    attributes = {"dims": REQUIRED}
    rule = staticmethod(whole_dims)
    torch = "torch.flip({0}, {dims})"
    fold = staticmethod(moved("np.flip({0}, {dims})"))

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        return [b.emit("dmlc.flip", grads[0], dims=op.attrs["dims"])]

    @staticmethod
    def samples() -> list[Sample]:
        return cases(((5, 3), {"dims": (0,)}), ((2, 5, 3), {"dims": (0, 2)}), ((1, 1), {"dims": (0,)}), ((0, 4), {"dims": (1,)}))


class Roll(Movement):
    """Rotated along `dim` by `shift` places towards the end."""

    name = "dmlc.roll"
    attributes = {"shift": REQUIRED, "dim": REQUIRED}
    rule = staticmethod(lambda op: "{0} -> {0}".format(whole_dim(len(op.operands[0].shape), attribute(op, "dim"))))
    torch = "torch.roll({0}, {shift}, {dim})"
    fold = staticmethod(moved("np.roll({0}, {shift}, {dim})"))

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        return [b.emit("dmlc.roll", grads[0], shift=-op.attrs["shift"], dim=op.attrs["dim"])]

    @staticmethod
    def samples() -> list[Sample]:
        return cases(((5, 3), {"shift": 2, "dim": 0}), ((2, 5, 3), {"shift": -1, "dim": 1}), ((1, 1), {"shift": 3, "dim": 0}), ((0, 4), {"shift": 1, "dim": 1}))


class Copy(Movement):
    """The same tensor in memory of its own, row-major."""

    name = "dmlc.copy"
    rule = "... -> ..."
    torch = "{0}.clone(memory_format=torch.contiguous_format)"
    triton = "{0}"
    fold = staticmethod(moved("{0}"))

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        return [grads[0]]

    @staticmethod
    def samples() -> list[Sample]:
        return cases(((5, 3), {}), ((1,), {}), ((0, 4), {}), ((), {}))


class StopGradient(Movement):
    """The same tensor, which gradients do not pass: they treat it as a constant. `autodiff` removes it."""

    name = "dmlc.stop_gradient"
    rule = "... -> ..."
    torch = "{0}"
    triton = "{0}"
    view = 0
    no_vjp = "it is there to have none"
    fold = staticmethod(moved("{0}"))

    @staticmethod
    def samples() -> list[Sample]:
        return cases(((5, 3), {}), ((1,), {}), ((0, 4), {}), ((), {}))


class Triangle(Movement):
    """Of the matrices in the last two dims."""

    attributes = {"diagonal": 0}

    @staticmethod
    def rule(op: Any) -> str:
        return "... r! c! -> ... r! c!"

    @staticmethod
    def vjp(b: Builder, op: Op, grads: Sequence[Value]) -> list[Value | None]:
        return [b.emit(op.name, grads[0], diagonal=attribute(op, "diagonal"))]

    @staticmethod
    def samples() -> list[Sample]:
        return cases(((5, 3), {}), ((2, 3, 5), {"diagonal": 1}), ((3, 4, 4), {"diagonal": -2}), ((1, 1), {}), ((2, 0, 4), {}))


class Tril(Triangle):
    """Zero above the diagonal."""

    name = "dmlc.tril"
    selects = ()
    torch = "torch.tril({0}, {diagonal})"
    fold = staticmethod(moved("np.tril({0}, {diagonal})"))


class Triu(Triangle):
    """Zero below the diagonal."""

    name = "dmlc.triu"
    selects = ()
    torch = "torch.triu({0}, {diagonal})"
    fold = staticmethod(moved("np.triu({0}, {diagonal})"))
