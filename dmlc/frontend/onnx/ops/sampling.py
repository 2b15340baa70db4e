"""Reading an image between its cells: GridSample, RoiAlign, DeformConv. Each place is a weighted sum of a few cells around it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dmlc.frontend.onnx.emit import Operand, concrete, type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.ops.contraction import channel_bias
from dmlc.frontend.onnx.ops.windows import window_attributes
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.values import Known, Tensor
from dmlc.ir.location import DmlcError
from dmlc.ops.windows import Windows


@dataclass
class Tap:
    """One cell along a dim: where it lies, and its share (None: all)."""

    index: Tensor
    weight: Tensor | None


def blended(n: Node, x: Tensor, lead: Sequence[Tensor], taps: Sequence[Sequence[Tap]], largest: bool = False) -> Tensor:
    """Weighted sum (or the largest term) over one tap a dim; `lead` indexes the dims of x before those, channels come last."""
    result: Tensor | None = None
    for chosen in itertools.product(*taps):
        part: Tensor = n.emit("dmlc.index", x, *lead, *(t.index for t in chosen))
        shares = [t.weight for t in chosen if t.weight is not None]
        if shares:
            share = shares[0]
            for other in shares[1:]:
                share = n.pointwise("dmlc.mul", share, other)
            part = n.pointwise("dmlc.mul", part, n.cast(n.reshape(share, (*concrete(share), 1)), type_of(part).dtype))
        result = part if result is None else n.pointwise("dmlc.maximum" if largest else "dmlc.add", result, part)
    assert result is not None
    return result


def _places(n: Node, size: int, d: int, rank: int) -> Tensor:
    """0, 1, … along dim d of `rank`."""
    return n.reshape(n.iota((size,)), [size if k == d else 1 for k in range(rank)])


def _arithmetic(n: Node, name: str, a: Operand, b: Operand) -> Tensor:
    return n.pointwise(f"dmlc.{name}", a, b)


# ---------------------------------------------------------------- GridSample

MODES = {"bilinear": "linear", "linear": "linear", "nearest": "nearest", "bicubic": "cubic", "cubic": "cubic"}


@op("GridSample", 16, 20, 22)
def grid_sample(n: Node) -> Tensor:
    """x [n, c, s…] at places grid [n, o…, d] in [-1, 1], the last spatial dim first."""
    mode, padding, align = MODES.get(n.attr("mode", "linear" if n.since >= 20 else "bilinear")), n.attr("padding_mode", "zeros"), bool(n.attr("align_corners", 0))
    if mode is None or padding not in ("zeros", "border", "reflection"):
        raise DmlcError(f"mode '{n.attr('mode', '')}' with padding_mode '{padding}' is not known")
    shape, grid = n.shape(0), n.shape(1)
    spatial, rank = len(shape) - 2, len(grid) - 1
    if grid[-1] != spatial or grid[0] != shape[0]:
        raise DmlcError(f"a grid of shape {list(grid)} for an image of shape {list(shape)}")
    taps = []
    for d in range(spatial):
        place = n.pick(n[1], rank, spatial - 1 - d)
        taps.append(_taps(n, n.cast(place, "f32") if type_of(place).dtype in ("f16", "bf16") else place, shape[2 + d], mode, padding, align))
    last = n.transpose(n[0], (0, *range(2, spatial + 2), 1))
    y = blended(n, last, [_places(n, shape[0], 0, rank)], taps)
    return n.transpose(y, (0, rank, *range(1, rank)))


def _taps(n: Node, place: Tensor, size: int, mode: str, padding: str, align: bool) -> list[Tap]:
    """The cells of one dim around places in [-1, 1]."""
    at = _arithmetic(n, "mul", _arithmetic(n, "add", place, 1.0), (size - 1) / 2 if align else size / 2)
    at = at if align else _arithmetic(n, "sub", at, 0.5)
    at = n.emit("dmlc.round", at) if mode == "nearest" else at
    if padding == "border":
        at = n.emit("dmlc.clamp", at, min=0.0, max=float(size - 1))
    elif padding == "reflection":
        at = _reflected(n, at, size, align)
    if mode == "nearest":
        return [_tap(n, at, None, size, padding, align)]
    low = n.emit("dmlc.floor", at)
    part = _arithmetic(n, "sub", at, low)
    weights = [_arithmetic(n, "sub", 1.0, part), part] if mode == "linear" else cubic_weights(n, part)
    first = 0 if mode == "linear" else -1
    return [_tap(n, _arithmetic(n, "add", low, float(first + k)), w, size, padding, align) for k, w in enumerate(weights)]


def _tap(n: Node, place: Tensor, weight: Tensor | None, size: int, padding: str, align: bool) -> Tap:
    """A whole place inside the dim; outside it the weight is 0, or the place is the nearest, or the mirrored one."""
    if padding == "zeros":
        inside = _arithmetic(n, "logical_and", _arithmetic(n, "ge", place, 0.0), _arithmetic(n, "le", place, float(size - 1)))
        weight = n.cast(inside, type_of(place).dtype) if weight is None else n.select(inside, weight, 0.0)
    elif padding == "reflection":
        place = _reflected(n, place, size, align)
    return Tap(n.cast(n.emit("dmlc.clamp", place, min=0.0, max=float(size - 1)), "i64"), weight)


def _reflected(n: Node, at: Tensor, size: int, align: bool) -> Tensor:
    """Mirrored at the outer cells' middles (`align`) or edges, as often as it takes."""
    low, span = (0.0, size - 1.0) if align else (-0.5, float(size))
    if span <= 0:
        return _arithmetic(n, "mul", at, 0.0)
    away = n.emit("dmlc.abs", _arithmetic(n, "sub", at, low))
    round_trip = n.pointwise("dmlc.rem", away, 2 * span, sign="dividend")
    back = n.select(_arithmetic(n, "gt", round_trip, span), _arithmetic(n, "sub", 2 * span, round_trip), round_trip)
    return _arithmetic(n, "add", back, low)


def cubic_weights(n: Node, t: Tensor, a: float = -0.75) -> list[Tensor]:
    """Weights of the four cells around a place (R. Keys, Cubic convolution interpolation, 1981), t past the second."""

    def polynomial(x: Tensor, *coefficients: float) -> Tensor:
        result: Operand = coefficients[0]
        for c in coefficients[1:]:
            result = _arithmetic(n, "add", _arithmetic(n, "mul", result, x), c)
        return result  # type: ignore[return-value]

    far, rest = _arithmetic(n, "add", t, 1.0), _arithmetic(n, "sub", 1.0, t)
    near = [polynomial(x, a + 2, -(a + 3), 0.0, 1.0) for x in (t, rest)]
    outer = [polynomial(x, a, -5 * a, 8 * a, -4 * a) for x in (far, _arithmetic(n, "add", rest, 1.0))]
    return [outer[0], *near, outer[1]]


# ---------------------------------------------------------------- RoiAlign


@op("RoiAlign", 10, 16, 22)
def roi_align(n: Node) -> Tensor:
    """x [n, c, h, w], regions [r, 4] as x1 y1 x2 y2, the image of each. A region's bins are sampled ratio x ratio times and averaged, or the largest taken."""
    ratio, mode, scale = n.attr("sampling_ratio", 0), n.attr("mode", "avg"), n.attr("spatial_scale", 1.0)
    half = n.since >= 16 and n.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    if ratio < 1:
        raise Unsupported("sampling_ratio = 0, which makes the number of samples depend on the regions")
    if mode not in ("avg", "max"):
        raise DmlcError(f"mode '{mode}' is neither avg nor max")
    _, channels, height, width = n.shape(0)
    regions = n.shape(1)[0]
    counts = n.attr("output_height", 1), n.attr("output_width", 1)
    corners = _arithmetic(n, "sub", _arithmetic(n, "mul", n[1], scale), 0.5 if half else 0.0)
    taps = []
    for k, (size, count) in enumerate(((height, counts[0]), (width, counts[1]))):
        low, high = n.slice(corners, 1, 1 - k, 2 - k), n.slice(corners, 1, 3 - k, 4 - k)
        extent = _arithmetic(n, "sub", high, low)
        extent = extent if half else _arithmetic(n, "maximum", extent, 1.0)
        steps = Known.of((np.arange(count * ratio) + 0.5) / (count * ratio), n.dtype(1))
        at = _arithmetic(n, "add", low, _arithmetic(n, "mul", extent, n.reshape(steps, (1, count * ratio))))
        wide = (regions, count * ratio, 1) if k == 0 else (regions, 1, count * ratio)
        taps.append(_clipped_taps(n, n.reshape(at, wide), size))
    batch = n.reshape(n.cast(n[2], "i64"), (regions, 1, 1))
    y = blended(n, n.transpose(n[0], (0, 2, 3, 1)), [batch], taps, largest=mode == "max")
    y = n.reshape(y, (regions, counts[0], ratio, counts[1], ratio, channels))
    y = n.reduce("max", y, (2, 4), False) if mode == "max" else n.mean(y, (2, 4), False)
    return n.transpose(y, (0, 3, 1, 2))


def _clipped_taps(n: Node, at: Tensor, size: int) -> list[Tap]:
    """Two cells around a place; up to one cell outside counts as the border, what is further is 0."""
    inside = _arithmetic(n, "logical_and", _arithmetic(n, "ge", at, -1.0), _arithmetic(n, "le", at, float(size)))
    at = n.emit("dmlc.clamp", at, min=0.0, max=float(size - 1))
    low = n.emit("dmlc.floor", at)
    part = _arithmetic(n, "sub", at, low)
    high = n.emit("dmlc.clamp", _arithmetic(n, "add", low, 1.0), min=0.0, max=float(size - 1))
    return [Tap(n.cast(p, "i64"), n.select(inside, w, 0.0)) for p, w in ((low, _arithmetic(n, "sub", 1.0, part)), (high, part))]


# ---------------------------------------------------------------- DeformConv


@op("DeformConv", 19, 22)
def deform_conv(n: Node) -> Tensor:
    """A convolution whose every tap is moved by an offset [n, groups taps 2, o…] and weighted by a mask [n, groups taps, o…]."""
    if n.rank(0) != 4:
        raise Unsupported(f"images of rank {n.rank(0)}")
    (batch, channels, *sizes), (out, part, *kernel) = n.shape(0), n.shape(1)
    windows = Windows.of(window_attributes(n, sizes, kernel), kernel)
    places, taps, groups, own = tuple(int(c) for c in windows.count(sizes)), math.prod(kernel), n.attr("group", 1), n.attr("offset_group", 1)
    offsets = n.reshape(n[2], (batch, own, *kernel, 2, *places))
    moved = [_arithmetic(n, "add", n.pick(offsets, 4, d), _grid(n, windows, places, d)) for d in range(2)]  # each [n, own, k, k, o, o]
    around = [_zero_taps(n, at, size) for at, size in zip(moved, sizes)]
    image = n.transpose(n.reshape(n[0], (batch, own, channels // own, *sizes)), (0, 1, 3, 4, 2))
    read = blended(n, image, [_places(n, batch, 0, 6), _places(n, own, 1, 6)], around)  # [n, own, k, k, o, o, c]
    if n.has(4):
        read = _arithmetic(n, "mul", read, n.reshape(n[4], (batch, own, *kernel, *places, 1)))
    columns = n.transpose(n.reshape(read, (batch, own, taps, math.prod(places), channels // own)), (0, 1, 4, 2, 3))
    columns = n.reshape(columns, (batch, groups, part * taps, math.prod(places)))
    weight = n.reshape(n.param(1), (groups, out // groups, part * taps))
    y = n.reshape(n.emit("dmlc.contract", weight, columns, equation="gok,ngkp->ngop"), (batch, out, *places))
    return channel_bias(n, n.value(y), 3)


def _grid(n: Node, windows: Windows, places: Sequence[int], d: int) -> Tensor:
    """Where a window's taps lie along dim d before they are moved: [1, 1, k, k, o, o], size 1 where it does not depend on the dim."""
    taps = np.arange(int(windows.kernel[d])) * windows.dilation[d]
    starts = np.arange(places[d]) * windows.stride[d] - windows.low[d]
    grid = taps[:, None] + starts[None, :]
    shape = [1] * 6
    shape[2 + d], shape[4 + d] = grid.shape
    return Known.of(grid.reshape(shape), n.dtype(2))


def _zero_taps(n: Node, at: Tensor, size: int) -> list[Tap]:
    low = n.emit("dmlc.floor", at)
    part = _arithmetic(n, "sub", at, low)
    return [_tap(n, _arithmetic(n, "add", low, float(k)), w, size, "zeros", True) for k, w in enumerate((_arithmetic(n, "sub", 1.0, part), part))]
