"""Convolutions over 1, 2 or 3 spatial dims, channels second, and their gradients (which are convolutions too)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import Size, TensorType
from dmlc.ops.base import InferError, Sample, attribute
from dmlc.ops.contraction import Contraction
from dmlc.ops.emit import f32
from dmlc.ops.rule import Rule
from dmlc.ops.sized import sized_rule
from dmlc.ops.windows import Windows, names, windows_of

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder

GEOMETRY = {"stride": (), "padding": (), "dilation": (), "groups": 1}


def _attrs(op: Op, **changes: Any) -> dict[str, Any]:
    """The window attributes of `op`, for another convolution over the same windows."""
    return {k: attribute(op, k) for k in GEOMETRY if k in op.attrs} | changes


def _rule(op: Any, order: str) -> str | Rule:
    """The rule of a convolution-like op: `order` says which of image (x), weight (w), output (y) are its operands and result."""
    groups = attribute(op, "groups")
    n = len(op.operands[0].shape) - 2
    c, o = ("(g c)", "(g o)") if groups != 1 else ("c", "o")
    terms = {"x": f"n {c} " + names("s", n, "!"), "w": f"{o} c " + names("k", n, "!"), "y": f"n {o} " + names("y", n, "!")}
    left, right = order.split("->")
    text = ", ".join(terms[t] for t in left) + " -> " + terms[right]
    return text if groups == 1 else sized_rule(op, text, g=groups)


def _helper_arguments(op: Op, kernel: tuple) -> str:
    w = windows_of(op, kernel)
    padding = tuple(p for pair in zip(w.low, w.high) for p in pair)
    return f"stride={w.stride}, padding={padding}, dilation={w.dilation}, groups={attribute(op, 'groups')}"


def _local_groups(env: Any, op: Op, axes: Any) -> dict[str, Any]:
    """Groups may be split over ranks: a rank's number of groups follows from its channels (one, if the channels of a group are split too)."""
    groups = attribute(op, "groups")
    if groups == 1:
        return {}
    dim = 0 if op.name == "dmlc.conv_weight_grad" else 1
    return {"groups": max(env.local_types[0].shape[dim] * groups // op.result.shape[dim], 1)}


class Convolution(Contraction):
    """Base: geometry attributes, groups that may be split over ranks."""

    attributes = GEOMETRY
    local = _local_groups

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        if attribute(op, "groups") < 1:
            raise DmlcError(f"'{op.name}' needs at least one group", op.loc)
        if not 3 <= len(op.operands[0].shape) <= 5 or len({len(v.shape) for v in (*op.operands, *op.results)}) != 1:
            raise DmlcError(f"'{op.name}' takes tensors of one rank from 3 to 5", op.loc)
        if cls.given:
            _check_counts(op)


def _check_counts(op: Op) -> None:
    """A gradient's types must be those of a convolution over its windows."""
    first, second, result = *op.operands, op.result
    x, w, y = (result, second, first) if op.name == "dmlc.conv_input_grad" else (first, result, second)
    counts = windows_of(op, w.shape[2:]).count(x.shape[2:])
    if counts != y.shape[2:]:
        raise DmlcError(f"'{op.name}' takes a gradient of {y.shape[2:]} windows, but there are {counts}", op.loc)


class Conv(Convolution):
    """Cross-correlation of x [n, c, s...] with w [o, c / groups, k...], zeros outside: the convolution of neural networks."""

    name = "dmlc.conv"

    @staticmethod
    def rule(op: Any) -> str | Rule:
        return _rule(op, "xw->y")

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, w = types
        if x.rank != w.rank or x.rank < 3:
            raise InferError(f"'dmlc.conv' takes x and w of one rank, 3 or more, not {x.rank} and {w.rank}")
        groups = attrs["groups"]
        if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups != 0:
            raise InferError(f"'dmlc.conv': {x.shape[1]} channels do not fit weights [{w.shape[0]}, {w.shape[1]}, ...] in {groups} groups")
        return [x.with_shape((x.shape[0], w.shape[0], *Windows.of(attrs, w.shape[2:]).count(x.shape[2:])))]

    @staticmethod
    def torch(op: Op) -> str:
        w = windows_of(op, op.operands[1].shape[2:])
        groups = "" if attribute(op, "groups") == 1 else ", groups={groups}"
        n = len(w.kernel)
        x = "{0}" if w.symmetric else f"F.pad({{0}}, {_pads(w)})"
        padding = w.low if w.symmetric else (0,) * n
        return f"F.conv{n}d({x}, {{1}}, None, {w.stride}, {padding}, {w.dilation}{groups})"

    @staticmethod
    def flops(op: Op) -> int:
        return op.result.tensor.numel * math.prod(op.operands[1].shape[1:])

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        (g,), (x, w) = grads, op.operands
        attrs = _attrs(op)
        return [b.op("dmlc.conv_input_grad", [g, w], attrs, [x.type]).result, b.op("dmlc.conv_weight_grad", [x, g], attrs, [w.type]).result]

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((f32(*x), f32(*w)), AttrDict(attrs)) for x, w, attrs in SHAPES]


def _pads(w: Windows) -> tuple[int, ...]:
    """`F.pad` lists the last dim first."""
    return tuple(p for pair in reversed(list(zip(w.low, w.high))) for p in pair)


# image, weight, attributes: irregular, asymmetric, grouped, depthwise, 1-d, 3-d, size 1, size 0
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 7, 6), (4, 3, 3, 2), {"stride": (2, 1), "padding": (1, 1, 0, 0), "dilation": (1, 2)}),
    ((1, 2, 5, 5), (3, 2, 3, 3), {"padding": (2, 0, 0, 1)}),
    ((2, 4, 5, 4), (6, 2, 3, 3), {"padding": (1, 1, 1, 1), "groups": 2}),
    ((2, 3, 5, 4), (3, 1, 3, 3), {"stride": (2, 2), "padding": (1, 1, 1, 1), "groups": 3}),
    ((3, 2, 9), (4, 2, 3), {"stride": (2,), "dilation": (2,)}),
    ((1, 2, 4, 3, 4), (2, 2, 2, 3, 2), {"padding": (0, 1, 1, 1, 0, 0)}),
    ((2, 2, 5, 3, 4), (4, 1, 3, 3, 3), {"stride": (2, 2, 2), "padding": (1, 1, 1, 1, 1, 1), "groups": 2}),
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((0, 2, 4, 4), (3, 2, 3, 3), {}),
]


def _output_shape(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> tuple[Size, ...]:
    return (x[0], w[0], *Windows.of(attrs, w[2:]).count(x[2:]))


class ConvInputGrad(Convolution):
    """The gradient of `dmlc.conv` in its input: g [n, o, y...] and w [o, c / groups, k...] give [n, c, s...] (the result type is given)."""

    name = "dmlc.conv_input_grad"
    given = True

    @staticmethod
    def rule(op: Any) -> str | Rule:
        return _rule(op, "yw->x")

    @staticmethod
    def torch(op: Op) -> str:
        return "conv_input_grad({0}, {1}, {r0.shape}, " + _helper_arguments(op, op.operands[1].shape[2:]) + ")"

    @staticmethod
    def flops(op: Op) -> int:
        return op.operands[0].tensor.numel * math.prod(op.operands[1].shape[1:])

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        (h,), (g, w) = grads, op.operands
        return [b.op("dmlc.conv", [h, w], _attrs(op)).result, b.op("dmlc.conv_weight_grad", [h, g], _attrs(op), [w.type]).result]

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((f32(*_output_shape(x, w, a)), f32(*w)), AttrDict(a), (f32(*x),)) for x, w, a in SHAPES]


class ConvWeightGrad(Convolution):
    """The gradient of `dmlc.conv` in its weight: x [n, c, s...] and g [n, o, y...] give [o, c / groups, k...] (the result type is given)."""

    name = "dmlc.conv_weight_grad"
    given = True

    @staticmethod
    def rule(op: Any) -> str | Rule:
        return _rule(op, "xy->w")

    @staticmethod
    def torch(op: Op) -> str:
        return "conv_weight_grad({0}, {1}, {r0.shape}, " + _helper_arguments(op, op.result.shape[2:]) + ")"

    @staticmethod
    def flops(op: Op) -> int:
        return op.operands[1].tensor.numel * math.prod(op.result.shape[1:])

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        (h,), (x, g) = grads, op.operands
        return [b.op("dmlc.conv_input_grad", [g, h], _attrs(op), [x.type]).result, b.op("dmlc.conv", [x, h], _attrs(op)).result]

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((f32(*x), f32(*_output_shape(x, w, a))), AttrDict(a), (f32(*w),)) for x, w, a in SHAPES]


class ConvTranspose(Convolution):
    """The transpose of `dmlc.conv` over the same windows: x [n, o, y...] and w [o, c / groups, k...] give [n, c, s...].

    s = (y - 1) stride + (k - 1) dilation + 1 - low - high + output_padding.
    """

    name = "dmlc.conv_transpose"
    attributes = {**GEOMETRY, "output_padding": ()}

    @staticmethod
    def rule(op: Any) -> str | Rule:
        return _rule(op, "yw->x")

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, w = types
        if x.rank != w.rank or x.rank < 3:
            raise InferError(f"'dmlc.conv_transpose' takes x and w of one rank, 3 or more, not {x.rank} and {w.rank}")
        if x.shape[1] != w.shape[0] or w.shape[0] % attrs["groups"] != 0:
            raise InferError(f"'dmlc.conv_transpose': {x.shape[1]} channels do not fit weights [{w.shape[0]}, {w.shape[1]}, ...] in {attrs['groups']} groups")
        extra = attrs["output_padding"] or (0,) * (x.rank - 2)
        return [x.with_shape((x.shape[0], w.shape[1] * attrs["groups"], *Windows.of(attrs, w.shape[2:]).source(x.shape[2:], extra)))]

    @staticmethod
    def torch(op: Op) -> str:
        kernel = op.operands[1].shape[2:]
        w, extra = windows_of(op, kernel), attribute(op, "output_padding") or (0,) * len(kernel)
        if w.symmetric and all(e < max(s, d) for e, s, d in zip(extra, w.stride, w.dilation)):
            return f"F.conv_transpose{len(kernel)}d({{0}}, {{1}}, None, {w.stride}, {w.low}, {extra}, {{groups}}, {w.dilation})"
        return "conv_input_grad({0}, {1}, {r0.shape}, " + _helper_arguments(op, kernel) + ")"

    flops = ConvInputGrad.flops

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        """With the output padding taken off the high padding, the windows over the result are exactly those of x."""
        (h,), (x, weight) = grads, op.operands
        w, extra = windows_of(op, weight.shape[2:]), attribute(op, "output_padding") or (0,) * len(weight.shape[2:])
        padding = tuple(p for low, high, e in zip(w.low, w.high, extra) for p in (low, high - e))
        attrs = _attrs(op, padding=padding)
        return [b.op("dmlc.conv", [h, weight], attrs).result, b.op("dmlc.conv_weight_grad", [h, x], attrs, [weight.type]).result]

    @staticmethod
    def samples() -> list[Sample]:
        cases = [
            ((2, 4, 4, 3), (4, 3, 3, 2), {"stride": (2, 1), "padding": (1, 1, 0, 0)}),
            ((1, 3, 4, 4), (3, 2, 3, 3), {"stride": (2, 2), "padding": (1, 1, 1, 1), "output_padding": (1, 1)}),
            ((1, 3, 4, 4), (3, 2, 3, 3), {"stride": (2, 3), "padding": (0, 1, 2, 0), "output_padding": (1, 2)}),
            ((2, 4, 3, 4), (4, 3, 2, 2), {"groups": 2}),
            ((3, 2, 5), (2, 4, 3), {"stride": (2,), "dilation": (2,)}),
            ((1, 2, 2, 3, 2), (2, 2, 2, 2, 3), {"stride": (2, 1, 1)}),
            ((2, 4, 2, 3, 2), (4, 1, 2, 2, 2), {"stride": (2, 2, 2), "groups": 2}),
            ((1, 1, 1, 1), (1, 1, 1, 1), {}),
            ((0, 2, 3, 3), (2, 3, 3, 3), {}),
        ]
        return [Sample((f32(*x), f32(*w)), AttrDict(a)) for x, w, a in cases]
