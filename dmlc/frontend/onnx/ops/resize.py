"""Resize and its predecessor Upsample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from dmlc.frontend.onnx.emit import concrete
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.ops.crop_resize import CROP, cropped
from dmlc.frontend.onnx.table import op
from dmlc.frontend.onnx.values import Tensor
from dmlc.ir.dim_decisions import scaled
from dmlc.ir.location import DmlcError


@op("Upsample", 7)
def upsample_attribute(n: Node) -> Tensor:
    return _interpolate(n, n.attr("scales"), "asymmetric", "floor")


@op("Upsample", 9)
def upsample(n: Node) -> Tensor:
    return _interpolate(n, _floats(n, 1), "asymmetric", "floor")


@op("Resize", 10)
def resize_first(n: Node) -> Tensor:
    """Version 10 had no coordinate rules yet: it is asymmetric, and nearest rounds down where it enlarges, up where it reduces (as in that version's
    node tests and in onnxruntime)."""
    scales = _floats(n, 1)
    if n.attr("mode", "nearest") != "nearest" or all(s >= 1 for s in scales):
        return _interpolate(n, scales, "asymmetric", "floor")
    reduced = _interpolate(n, [min(s, 1.0) for s in scales], "asymmetric", "ceil")
    return _interpolate(n, [max(s, 1.0) for s in scales], "asymmetric", "floor", x=reduced)


@op("Resize", 11, 13, 18, 19)
def resize(n: Node) -> Tensor:
    """Sizes or scales, of all dims or of `axes`; an operand without elements counts as absent."""
    rank = n.rank(0)
    axes = [n.axis(a, rank) for a in n.attr("axes", tuple(range(rank)))]
    coordinate = n.attr("coordinate_transformation_mode", "half_pixel")
    if coordinate == CROP:
        return cropped(n, axes, _crop_sizes(n, axes))
    if _given(n, 3):
        sizes = _spread(n, n.ints(3, "the sizes"), axes, n.shape(0))
        scales, target = _by_policy(n, sizes, axes)
        return _interpolate(n, scales, coordinate, n.attr("nearest_mode", "round_prefer_floor"), target)
    if not _given(n, 2):
        raise DmlcError("neither scales nor sizes are given")
    return _interpolate(n, _spread(n, _floats(n, 2), axes, [1.0] * rank), coordinate, n.attr("nearest_mode", "round_prefer_floor"))


def _crop_sizes(n: Node, axes: Sequence[int]) -> list[int]:
    """Sizes, given or by scales of the whole tensor: the text says of the region, but onnxruntime, `onnx.reference` and shape inference do so."""
    source = n.shape(0)
    if _given(n, 3):
        return _by_policy(n, _spread(n, n.ints(3, "the sizes"), axes, source), axes)[1]
    if not _given(n, 2):
        raise DmlcError("neither scales nor sizes are given")
    return [math.floor(x * s) for x, s in zip(source, _spread(n, _floats(n, 2), axes, [1.0] * len(source)))]


def _given(n: Node, i: int) -> bool:
    return n.has(i) and 0 not in n.shape(i)


def _floats(n: Node, i: int) -> tuple[float, ...]:
    return tuple(float(v) for v in n.known(i, "the scales").reshape(-1))


def _spread(n: Node, values: Sequence, axes: Sequence[int], rest: Sequence) -> list:
    if len(values) != len(axes):
        raise DmlcError(f"{len(values)} sizes or scales for {len(axes)} dims")
    named = dict(zip(axes, values))
    return [named.get(d, r) for d, r in enumerate(rest)]


def _by_policy(n: Node, sizes: Sequence[int], axes: Sequence[int]) -> tuple[list[float], list[int]]:
    """Scales and sizes for wanted sizes: each dim by itself, or one scale for all that keeps the aspect ratio."""
    source, policy = n.shape(0), n.attr("keep_aspect_ratio_policy", "stretch")
    ratios = [Fraction(s, x) if x else Fraction(1) for s, x in zip(sizes, source)]
    if policy == "stretch":
        return [float(r) for r in ratios], list(sizes)
    if policy not in ("not_larger", "not_smaller"):
        raise DmlcError(f"keep_aspect_ratio_policy '{policy}' is not known")
    scale = (min if policy == "not_larger" else max)(ratios[a] for a in axes)
    target = [math.floor(scale * x + Fraction(1, 2)) if d in axes else x for d, x in enumerate(source)]
    return [float(scale) if d in axes else 1.0 for d in range(len(source))], target


def _interpolate(n: Node, scales: Sequence[float], coordinate: str, rounding: str, target: Sequence[int] | None = None, x: Tensor | None = None) -> Tensor:
    """Of x, the node's first operand if none is given."""
    x = n[0] if x is None else x
    source, mode = concrete(x), n.attr("mode", "nearest")
    if len(scales) != len(source) or any(not math.isfinite(s) or s <= 0 for s, size in zip(scales, source) if size):
        raise DmlcError(f"scales {list(scales)} for a tensor of shape {list(source)}")
    shape = tuple(target) if target is not None else tuple(scaled(size, s) for size, s in zip(source, scales))
    if shape == source and all(s == 1 for s in scales):
        return x
    return n.emit_as(
        shape, n.dtype(0), "dmlc.resize", x, mode={"bilinear": "linear"}.get(mode, mode), coordinate=coordinate, nearest_mode=rounding, scales=tuple(scales),
        cubic_coeff_a=n.attr("cubic_coeff_a", -0.75), exclude_outside=bool(n.attr("exclude_outside", 0)), antialias=bool(n.attr("antialias", 0)),
    )  # fmt: skip
