"""Pools over 1, 2 or 3 spatial dims, and their gradients. Batch and channel dims may be split; spatial ones are whole."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ops.base import REQUIRED, InferError, OpDef, Sample, attribute, own_attrs
from dmlc.ops.emit import f32, i64
from dmlc.ops.residual import residual
from dmlc.ops.windows import Windows, names

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder

SECOND_ORDER = "gradients of this gradient are not taken"


def _windows(op: Op) -> Windows:
    return Windows.of({k: attribute(op, k) for k in ("stride", "padding", "dilation") if k in op.attrs}, attribute(op, "kernel"))


def _native(w: Windows, sizes: tuple) -> bool:
    """Whether the library's own pool takes these windows: equal paddings of at most half a window, and cells at all."""
    return w.symmetric and all(2 * p <= e for p, e in zip(w.low, w.extent)) and 0 not in sizes


def _flat(w: Windows) -> tuple[int, ...]:
    """(low, high) of each dim, one after the other."""
    return tuple(p for pair in zip(w.low, w.high) for p in pair)


class Pool(OpDef):
    """Base: n and c are split freely. Every operand is an image [n, c, s...], or a gradient of its windows."""

    @staticmethod
    def rule(op: Any) -> str:
        terms = [f"n c {names(p, len(v.shape) - 2, '!')}" for p, v in zip("xyz", (*op.operands, *op.results[:1]))]
        return ", ".join(terms[: len(op.operands)]) + " -> " + ", ".join(terms[-1:] * max(len(op.results), 1))

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        (x,) = types
        if len(attrs["kernel"]) != x.rank - 2 or not 3 <= x.rank <= 5:
            raise InferError(f"a kernel of {len(attrs['kernel'])} dims does not fit a tensor of rank {x.rank} (batch, channel, 1 to 3 spatial dims)")
        return [x.with_shape((*x.shape[:2], *Windows.of(attrs, attrs["kernel"]).count(x.shape[2:], attrs["ceil_mode"])))]


class MaxPool(Pool):
    """The largest cell of each window; cells outside do not count. With `ceil_mode` a last window may hang over the end.

    Residual, for windows that the library takes: the position of that cell among the image's spatial cells, row-major (i64).
    """

    name = "dmlc.max_pool"
    attributes = {"kernel": REQUIRED, "stride": (), "padding": (), "dilation": (), "ceil_mode": False, "residuals": ()}
    residuals = ("indices",)

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        (y,) = Pool.infer(types, attrs)
        return [y, *[y.with_dtype("i64")] * len(attrs["residuals"])]

    @staticmethod
    def residual_type(op: Op, name: str) -> TensorType:
        return op.results[0].tensor.with_dtype("i64")

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        kept = attribute(op, "residuals")
        if kept not in ((), cls.residuals) or (kept and not _native(_windows(op), op.operands[0].shape)):
            raise DmlcError(f"'{op.name}' has the residual indices, where paddings are equal and at most half a window", op.loc)

    @staticmethod
    def torch(op: Op) -> str:
        w = _windows(op)
        if _native(w, op.operands[0].shape):
            kept = ", True" if attribute(op, "residuals") else ""
            return f"F.max_pool{len(w.kernel)}d({{0}}, {{kernel}}, {w.stride}, {w.low}, {w.dilation}, {{ceil_mode}}{kept})"
        return f"max_pool({{0}}, {{r0.shape}}[2:], {{kernel}}, {w.stride}, {_flat(w)}, {w.dilation})"

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value | None]) -> list[Value | None]:
        """By the positions of the largest cells, where the library gives them. Through these there is none."""
        g, x = grads[0], op.operands[0]
        if g is None:
            return [None]
        attrs = {k: v for k, v in own_attrs(op).items() if k != "residuals"}
        if _native(_windows(op), x.shape):
            return [b.op("dmlc.max_pool_index_grad", [g, residual(op, "indices")], attrs, [x.type]).result]
        return [b.op("dmlc.max_pool_grad", [g, x], {k: v for k, v in attrs.items() if k != "ceil_mode"}, [x.type]).result]

    @staticmethod
    def samples() -> list[Sample]:
        kept = [Sample((f32(*s),), AttrDict({**a, "residuals": ("indices",)}), vjp=False, why=KEPT) for s, a, _ in MAXIMA]
        cases = [((2, 3, 7, 6), {"kernel": (3, 2), "stride": (2, 2), "padding": (1, 0, 0, 1)}), ((0, 2, 4, 4), {"kernel": (2, 2), "stride": (2, 2)})]
        return [Sample((f32(*s),), AttrDict(a)) for s, a in (*cases, *(m[:2] for m in MAXIMA))] + kept


KEPT = "the positions are kept for gradients, and have none"
# image, attributes, windows; all by the library
MAXIMA: list[tuple[tuple[int, ...], dict[str, Any], tuple[int, ...]]] = [
    ((1, 2, 7, 5), {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1), "ceil_mode": True}, (1, 2, 4, 3)),
    ((2, 2, 9), {"kernel": (3,), "dilation": (2,)}, (2, 2, 5)),
    ((1, 2, 4, 3, 5), {"kernel": (2, 2, 2), "stride": (2, 1, 2)}, (1, 2, 2, 2, 2)),
    ((2, 1, 5, 4, 5), {"kernel": (3, 2, 3), "stride": (2, 2, 2), "padding": (1, 1, 0, 0, 1, 1), "ceil_mode": True}, (2, 1, 3, 2, 3)),
    ((1, 1, 1, 1), {"kernel": (1, 1)}, (1, 1, 1, 1)),
]


class MaxPoolIndexGrad(Pool):
    """Each window's gradient at the position that `dmlc.max_pool` kept: g and positions [n, c, y...] give [n, c, s...] (the result type is given)."""

    name = "dmlc.max_pool_index_grad"
    attributes = {k: v for k, v in MaxPool.attributes.items() if k != "residuals"}
    given = True
    same_dtype = False
    index = (1,)
    linear = [{0}]
    no_vjp = SECOND_ORDER

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        (g, at), w = (v.tensor for v in op.operands), _windows(op)
        windows = w.count(op.result.shape[2:], attribute(op, "ceil_mode"))
        if at != g.with_dtype("i64") or g.shape != (*op.result.shape[:2], *windows) or not _native(w, ()):
            raise DmlcError(f"'{op.name}' takes a gradient of {windows} windows with equal paddings and as many positions (i64), not {g} and {at}", op.loc)

    @staticmethod
    def torch(op: Op) -> str:
        w = _windows(op)
        return f"max_pool_index_grad({{0}}, {{1}}, {{r0.shape}}, {{kernel}}, {w.stride}, {w.low}, {w.dilation}, {{ceil_mode}})"

    @staticmethod
    def samples() -> list[Sample]:
        nothing: tuple[Any, ...] = ((0, 2, 7), {"kernel": (2,), "stride": (2,)}, (0, 2, 3))
        return [_positions(s, a, y) for s, a, y in (*MAXIMA, nothing)]


def _positions(image: tuple[int, ...], attrs: dict[str, Any], windows: tuple[int, ...]) -> Sample:
    cells = AttrDict({"1": lambda rng, shape, dtype: rng.integers(0, math.prod(image[2:]), shape)})
    return Sample((f32(*windows), i64(*windows)), AttrDict(attrs), (f32(*image),), values=cells)


class MaxPoolGrad(Pool):
    """Each window's gradient at its first largest cell: g [n, c, y...] and x [n, c, s...] give [n, c, s...]."""

    name = "dmlc.max_pool_grad"
    attributes = {"kernel": REQUIRED, "stride": (), "padding": (), "dilation": ()}
    linear = [{0}]
    no_vjp = SECOND_ORDER

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        return [types[1]]

    @staticmethod
    def torch(op: Op) -> str:
        w = _windows(op)
        return f"max_pool_grad({{0}}, {{1}}, {{kernel}}, {w.stride}, {_flat(w)}, {w.dilation})"

    @staticmethod
    def samples() -> list[Sample]:
        return [
            Sample((f32(2, 3, 4, 3), f32(2, 3, 7, 6)), AttrDict(kernel=(3, 2), stride=(2, 2), padding=(1, 1, 0, 0))),
            Sample((f32(1, 2, 3, 2), f32(1, 2, 7, 4)), AttrDict(kernel=(3, 3), stride=(2, 2), padding=(0, 1, 1, 0))),
            Sample((f32(2, 3, 2, 2, 2), f32(2, 3, 5, 3, 4)), AttrDict(kernel=(3, 2, 2), stride=(2, 1, 2))),
            Sample((f32(1, 2, 3, 3), f32(1, 2, 5, 5)), AttrDict(kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1))),
            Sample((f32(1, 1, 1), f32(1, 1, 1)), AttrDict(kernel=(1,))),
            Sample((f32(0, 2, 2), f32(0, 2, 4)), AttrDict(kernel=(2,), stride=(2,))),
        ]


def _avg_text(op: Op, head: str) -> str:
    w = _windows(op)
    return f"{head}, {{kernel}}, {w.stride}, {_flat(w)}, {{count_include_pad}})"


class AvgPool(Pool):
    """The mean of each window over its cells; those of the padding count too if `count_include_pad`, those past it never do."""

    name = "dmlc.avg_pool"
    attributes = {"kernel": REQUIRED, "stride": (), "padding": (), "ceil_mode": False, "count_include_pad": True}
    linear = [{0}]

    @staticmethod
    def torch(op: Op) -> str:
        w = _windows(op)
        if _native(w, op.operands[0].shape):
            return f"F.avg_pool{len(w.kernel)}d({{0}}, {{kernel}}, {w.stride}, {w.low}, {{ceil_mode}}, {{count_include_pad}})"
        return _avg_text(op, "avg_pool({0}, {r0.shape}[2:]")

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        return [b.op("dmlc.avg_pool_grad", [grads[0]], own_attrs(op), [op.operands[0].type]).result]

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((f32(*s),), a) for s, a, _ in AVERAGES]


# image, attributes, windows
AVERAGES: list[tuple[tuple[int, ...], AttrDict, tuple[int, ...]]] = [
    ((2, 3, 7, 6), AttrDict(kernel=(3, 2), stride=(2, 2), padding=(1, 0, 0, 1), count_include_pad=False), (2, 3, 3, 3)),
    ((1, 1, 4, 4), AttrDict(kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1), ceil_mode=True), (1, 1, 3, 3)),
    ((1, 3, 2, 2), AttrDict(kernel=(3, 3), stride=(3, 3), padding=(1, 1, 1, 1), ceil_mode=True), (1, 3, 1, 1)),
    ((2, 2, 9), AttrDict(kernel=(4,), stride=(3,), padding=(3, 2)), (2, 2, 4)),
    ((1, 2, 4, 3, 5), AttrDict(kernel=(2, 2, 2), stride=(2, 1, 2)), (1, 2, 2, 2, 2)),
    ((1, 1, 1, 1), AttrDict(kernel=(1, 1)), (1, 1, 1, 1)),
    ((0, 2, 4, 4), AttrDict(kernel=(2, 2), stride=(2, 2)), (0, 2, 2, 2)),
]


class AvgPoolGrad(Pool):
    """The adjoint of `dmlc.avg_pool`: g [n, c, y...] gives [n, c, s...] (the result type is given)."""

    name = "dmlc.avg_pool_grad"
    attributes = AvgPool.attributes
    given = True
    linear = [{0}]

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        windows = _windows(op).count(op.result.shape[2:], attribute(op, "ceil_mode"))
        if windows != op.operands[0].shape[2:]:
            raise DmlcError(f"'{op.name}' takes a gradient of {op.operands[0].shape[2:]} windows, but there are {windows}", op.loc)

    @staticmethod
    def torch(op: Op) -> str:
        return _avg_text(op, "avg_pool_grad({0}, {r0.shape}")

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        return [b.op("dmlc.avg_pool", [grads[0]], own_attrs(op)).result]

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((f32(*y),), a, (f32(*s),)) for s, a, y in AVERAGES]


class Adaptive(Pool):
    """Base: a result of given spatial sizes, each of whose cells averages the input cells it overlaps (PyTorch's adaptive pool)."""

    given = True
    linear = [{0}]

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        x, y = op.operands[0].shape, op.result.shape
        if len(x) != len(y) or not 3 <= len(x) <= 5 or x[:2] != y[:2]:
            raise DmlcError(f"'{op.name}' keeps the batch and channel dims of a tensor of rank 3 to 5", op.loc)


class AdaptiveAvgPool(Adaptive):
    """Cell o of m averages input cells floor(o n / m) to ceil((o + 1) n / m) - 1."""

    name = "dmlc.adaptive_avg_pool"

    @staticmethod
    def torch(op: Op) -> str:
        return f"F.adaptive_avg_pool{len(op.result.shape) - 2}d({{0}}, {{r0.shape}}[2:])"

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        return [b.op("dmlc.adaptive_avg_pool_grad", [grads[0]], {}, [op.operands[0].type]).result]

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((f32(*s),), results=(f32(*y),)) for s, y in ADAPTIVE]


ADAPTIVE = [((2, 3, 7, 5), (2, 3, 3, 2)), ((1, 2, 4), (1, 2, 6)), ((1, 2, 4, 3, 5), (1, 2, 1, 1, 1)), ((1, 1, 1, 1), (1, 1, 1, 1)), ((0, 2, 4, 4), (0, 2, 2, 2))]


class AdaptiveAvgPoolGrad(Adaptive):
    """The adjoint of `dmlc.adaptive_avg_pool`."""

    name = "dmlc.adaptive_avg_pool_grad"
    torch = "adaptive_avg_pool_grad({0}, {r0.shape})"

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        return [b.op("dmlc.adaptive_avg_pool", [grads[0]], {}, [op.operands[0].type]).result]

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((f32(*y),), results=(f32(*s),)) for s, y in ADAPTIVE]
