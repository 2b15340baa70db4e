"""Interpolation to another size, by the rules of ONNX Resize; every dim is a linear map of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.dims import Size
from dmlc.ir.location import DmlcError
from dmlc.ops.base import OpDef, Sample, attribute, own_attrs
from dmlc.ops.emit import f32

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder

MODES = ("nearest", "linear", "cubic")
COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
OPTIONS = "{scales}, {mode}, {coordinate}, {nearest_mode}, {cubic_coeff_a}, {exclude_outside}, {antialias}"


class Resizing(OpDef):
    """Base. `scales` has one number a dim (0: the ratio of the sizes), or none; a dim that keeps its size and scale may be split."""

    given = True
    linear = [{0}]
    attributes = {
        "mode": "nearest",
        "coordinate": "half_pixel",
        "nearest_mode": "round_prefer_floor",
        "scales": (),
        "cubic_coeff_a": -0.75,
        "exclude_outside": False,
        "antialias": False,
    }

    @staticmethod
    def rule(op: Any) -> str:
        x, y = op.operands[0].shape, op.results[0].shape
        kept = [_is_kept(op, d) for d in range(len(x))]
        return " ".join(f"e{d}" if k else f"x{d}!" for d, k in enumerate(kept)) + " -> " + " ".join(f"e{d}" if k else f"y{d}!" for d, k in enumerate(kept) if d < len(y))

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        rank = len(op.operands[0].shape)
        for key, known in (("mode", MODES), ("coordinate", COORDINATES), ("nearest_mode", ROUNDINGS)):
            if attribute(op, key) not in known:
                raise DmlcError(f"'{op.name}' has no {key} \"{attribute(op, key)}\"; it is one of {', '.join(known)}", op.loc)
        if len(op.result.shape) != rank or len(attribute(op, "scales")) not in (0, rank):
            raise DmlcError(f"'{op.name}' keeps the rank {rank}, and takes a scale for each dim or none", op.loc)


def _is_kept(op: Any, dim: int) -> bool:
    scales = attribute(op, "scales")
    return op.operands[0].shape[dim] == op.results[0].shape[dim] and (not scales or scales[dim] in (0, 1))


def _times(size: Size, scale: float) -> Any:
    """size * scale, exactly; of an open size by whole numbers only (None: not known)."""
    if isinstance(size, int):
        return scale * size
    return size * int(scale) if scale == int(scale) else None


def _native_mode(op: Op) -> str | None:
    """PyTorch's name for an interpolation that means the same, of the spatial dims alone and by the ratio of the sizes."""
    x, y = op.operands[0].shape, op.result.shape
    scales = attribute(op, "scales") or (0,) * len(x)
    same_ratio = all(s == 0 or _times(n, s) == m for s, n, m in zip(scales, x, y))
    if not same_ratio or not all(_is_kept(op, d) for d in (0, 1)) or not 3 <= len(x) <= 5 or 0 in (*x, *y) or attribute(op, "antialias"):
        return None
    mode, coordinate = attribute(op, "mode"), attribute(op, "coordinate")
    whole = all(m % n == 0 for n, m in zip(x, y))
    if mode == "nearest" and whole and (coordinate, attribute(op, "nearest_mode")) == ("asymmetric", "floor"):
        return "nearest"
    if mode == "linear" and coordinate == "half_pixel" and op.result.tensor.is_float:
        return {3: "linear", 4: "bilinear", 5: "trilinear"}[len(x)]
    return None


class Resize(Resizing):
    """x interpolated to the sizes of the result, which are given."""

    name = "dmlc.resize"

    @staticmethod
    def torch(op: Op) -> str:
        mode = _native_mode(op)
        return f"resize({{0}}, {{r0.shape}}, {OPTIONS})" if mode is None else f'F.interpolate({{0}}, {{r0.shape}}[2:], mode="{mode}")'

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        return [b.op("dmlc.resize_grad", [grads[0]], own_attrs(op), [op.operands[0].type]).result]

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((f32(*x),), AttrDict(a), (f32(*y),)) for x, y, a in CASES]


class ResizeGrad(Resizing):
    """The adjoint of `dmlc.resize`."""

    name = "dmlc.resize_grad"
    torch = f"resize_grad({{0}}, {{r0.shape}}, {OPTIONS})"

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        return [b.op("dmlc.resize", [grads[0]], own_attrs(op), [op.operands[0].type]).result]

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((f32(*y),), AttrDict(a), (f32(*x),)) for x, y, a in CASES]


CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 2, 3, 3), (1, 2, 4, 4), {"scales": (1.0, 1.0, 1.5, 1.5)}),
    ((2, 3, 4, 5), (2, 3, 8, 10), {"coordinate": "asymmetric", "nearest_mode": "floor"}),
    ((2, 3, 4, 5), (2, 3, 7, 3), {"mode": "linear"}),
    ((2, 3, 4, 5), (2, 3, 7, 3), {"mode": "linear", "antialias": True}),
    ((1, 2, 5), (1, 2, 8), {"mode": "linear", "coordinate": "align_corners"}),
    ((1, 2, 4, 4), (1, 2, 7, 3), {"mode": "cubic"}),
    ((1, 2, 4, 4), (1, 2, 6, 6), {"mode": "cubic", "exclude_outside": True, "coordinate": "half_pixel_symmetric"}),
    ((3, 4), (5, 2), {"mode": "linear", "coordinate": "pytorch_half_pixel"}),
    ((1, 2, 2, 3, 2), (1, 2, 4, 5, 4), {"mode": "linear"}),
    ((2, 1, 2, 3, 2), (2, 1, 4, 6, 4), {"coordinate": "asymmetric", "nearest_mode": "floor"}),
    ((1, 2, 5), (1, 2, 7), {"coordinate": "tf_half_pixel_for_nn"}),
    ((1, 1, 1, 1), (1, 1, 1, 1), {"mode": "linear"}),
    ((0, 2, 4, 4), (0, 2, 8, 8), {}),
]
