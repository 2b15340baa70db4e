"""Operators that cut, join, pad and reorder."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dmlc.frontend.onnx.emit import type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.table import op
from dmlc.frontend.onnx.values import Tensor
from dmlc.frontend.onnx.versions import REFINED, checked_sizes
from dmlc.ir.core import Value
from dmlc.ir.dims import Dim, Size
from dmlc.ir.location import DmlcError
from dmlc.ir.open_sizes import LARGEST, UnknownSize, larger, smaller


@op("Slice", 1)
def slice_attributes(n: Node) -> Tensor:
    starts, ends = n.attr("starts"), n.attr("ends")
    return _slice(n, starts, ends, n.attr("axes", tuple(range(len(starts)))), (1,) * len(starts))


@op("Slice", 10, 11, 13)
def slice_(n: Node) -> Tensor:
    starts, ends = n.ints(1, "starts"), n.ints(2, "ends")
    axes = n.ints(3, "axes") if n.has(3) else tuple(range(len(starts)))
    return _slice(n, starts, ends, axes, n.ints(4, "steps") if n.has(4) else (1,) * len(starts))


def _slice(n: Node, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int]) -> Tensor:
    """Python's slice rules: they clamp any start and end, the "to the end" values included, but backwards a start before the first place is that
    place (Python begins nowhere). A negative step flips the dim first."""
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise DmlcError(f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps do not go together")
    if 0 in steps:
        raise DmlcError("a step is 0")
    x = n[0]
    n.axes(axes, n.rank(0))
    for start, end, axis, step in zip(starts, ends, axes, steps):
        dim = n.axis(axis, n.rank(0))
        size_ = type_of(x).shape[dim]
        if any(isinstance(v, Dim) for v in (size_, start, end)):
            x = _open_slice(n, x, dim, start, end, step)
            continue
        places = range(size_)[start if step > 0 else max(start, -size_) : end : step]
        x = take_range(n, x, dim, places)
    return x


def _open_slice(n: Node, x: Tensor, dim: int, start: Size, end: Size, step: int) -> Tensor:
    """A slice whose bounds depend on open sizes: INT32_MAX and INT64_MAX are past every dim, and nothing is added to them."""
    size_ = type_of(x).shape[dim]
    if step < 0:
        from_the_end = start in (-1, size_ - 1) or (isinstance(start, int) and start >= LARGEST)
        if step == -1 and from_the_end and isinstance(end, int) and end < -LARGEST:
            return n.emit("dmlc.flip", x, dims=(dim,))
        raise UnknownSize.of(next(v for v in (size_, start, end) if isinstance(v, Dim)), "a slice from the back has to know its dim")
    low, high = (clamped(v, size_) for v in (start, end))
    return n.slice(x, dim, low, larger(low, high), step)


def clamped(place: Size, size_: Size) -> Size:
    """A bound of a slice inside 0 to the dim's size, counted from the front."""
    if isinstance(place, int) and place >= LARGEST:
        return size_
    if isinstance(place, int) and place <= -LARGEST:
        return 0
    return smaller(larger(place + size_ if place < 0 else place, 0), size_)


def take_range(n: Node, x: Tensor, dim: int, places: range) -> Tensor:
    """The places of a dim given by a range inside it, in the range's order."""
    if places.step < 0 and len(places) > 1:
        size_ = type_of(x).shape[dim]
        x = n.emit("dmlc.flip", x, dims=(dim,))
        places = range(size_ - 1 - places[0], size_ - places[-1], -places.step)
    start = places[0] if len(places) else 0
    return n.slice(x, dim, start, places[-1] + 1 if len(places) else 0, abs(places.step) if len(places) > 1 else 1)


@op("Split", 1, 2, 11)
def split_attribute(n: Node) -> list[Tensor]:
    return _split(n, n.attr("split", None))


@op("Split", 13, 18)
def split(n: Node) -> list[Tensor]:
    return _split(n, n.ints(1, "the sizes") if n.has(1) else None)


def _split(n: Node, sizes: Sequence[int] | None) -> list[Tensor]:
    axis = n.axis(n.attr("axis", 0), n.rank(0))
    total = n.shape(0)[axis]
    if sizes is None:
        count = len(n.proto.output)
        if n.attr("num_outputs", count) != count:
            raise DmlcError(f"num_outputs is {n.attr('num_outputs')}, but the node has {count} results")
        part = -(-total // count)
        sizes = [max(0, min(part, total - i * part)) for i in range(count)]
    if sum(checked_sizes(sizes)) != total:
        raise DmlcError(f"sizes {list(sizes)} do not add up to {total}")
    starts = list(itertools.accumulate(sizes, initial=0))
    return [n.slice(n[0], axis, low, high) for low, high in zip(starts, starts[1:])]


@op("Concat", 4, 11, 13)
def concat(n: Node) -> Tensor:
    return _concat(n, n.attr("axis"))


@op("Concat", 1)
def concat_default(n: Node) -> Tensor:
    return _concat(n, n.attr("axis", 1))


def _concat(n: Node, axis: int) -> Tensor:
    """A float initializer that is joined to data is learned, as a class token is."""
    return n.concat([n.param(i) if n.is_weight(n[i]) or isinstance(n[i], Value) else n[i] for i in range(len(n.operands))], n.axis(axis, n.rank(0)))


@op("Pad", 2)
def pad_attributes(n: Node) -> Tensor:
    return _pad(n, n.attr("pads"), tuple(range(n.rank(0))), n.attr("value", 0.0))


@op("Pad", 11, 13, 18, 19, *REFINED)
def pad(n: Node) -> Tensor:
    value = n.number(2) if n.has(2) else 0
    pads, axes = n.ints(1, "the pads"), n.ints(3, "the axes") if n.has(3) else tuple(range(n.rank(0)))
    if value is not None:
        return _pad(n, pads, axes, value)
    inside = _pad(n, pads, axes, 0, n.full(True, "i1", n.shape(0)))  # the value depends on the data: it is chosen where the padding is
    return n.select(inside, _pad(n, pads, axes, 0), n.reshape(n[2], ())) if n.attr("mode", "constant") == "constant" else _pad(n, pads, axes, 0)


def _pad(n: Node, pads: Sequence[int], axes: Sequence[int], value: float, x: Tensor | None = None) -> Tensor:
    """Pads list all lows, then all highs, of the named axes; a negative one crops."""
    x = n[0] if x is None else x
    rank = n.rank(0)
    if len(pads) != 2 * len(axes):
        raise DmlcError(f"{len(pads)} pads for {len(axes)} axes")
    n.axes(axes, rank)
    low, high = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        low[axis % rank], high[axis % rank] = pads[i], pads[i + len(axes)]
    if not any(low) and not any(high):
        return x
    mode = n.attr("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise DmlcError(f"mode '{mode}' is not known")
    number = float(value) if type_of(x).is_float else bool(value) if type_of(x).dtype == "i1" else int(value)
    return n.emit("dmlc.pad", x, low=tuple(low), high=tuple(high), mode=mode, value=number)


@op("Trilu", 14)
def trilu(n: Node) -> Tensor:
    diagonal = n.ints(1, "k")[0] if n.has(1) else 0
    return n.emit("dmlc.triu" if n.attr("upper", 1) else "dmlc.tril", n[0], diagonal=diagonal)


@op("ReverseSequence", 10, 28)
def reverse_sequence(n: Node) -> Tensor:
    """Place t of sequence b takes place length[b] - 1 - t while t < length[b]."""
    time, batch = n.attr("time_axis", 0), n.attr("batch_axis", 1)
    shape_ = n.shape(0)
    if {time, batch} != {0, 1}:
        raise DmlcError("time_axis and batch_axis must be 0 and 1")
    lengths = n.reshape(n.cast(n[1], "i64"), [shape_[batch] if d == batch else 1 for d in range(len(shape_))])
    places = n.reshape(n.iota((shape_[time],)), [shape_[time] if d == time else 1 for d in range(len(shape_))])
    back = n.pointwise("dmlc.sub", n.pointwise("dmlc.sub", lengths, 1), places)
    index = n.select(n.pointwise("dmlc.lt", places, lengths), back, places)
    return n.emit("dmlc.take_along", n[0], n.broadcast(index, shape_), dim=time)


@op("CenterCropPad", 18)
def center_crop_pad(n: Node) -> Tensor:
    """Each named axis is cropped or zero-padded around its middle; the odd one falls on the high side."""
    rank, wanted = n.rank(0), n.ints(1, "the shape")
    axes = n.attr("axes", tuple(range(rank)))
    x = n[0]
    for axis, size_ in zip(axes, wanted, strict=True):
        dim = n.axis(axis, rank)
        have = type_of(x).shape[dim]
        start = (have - size_) // 2
        x = n.slice(x, dim, start, start + size_) if have >= size_ else _grow(n, x, dim, (size_ - have) // 2, size_ - have - (size_ - have) // 2)
    return x


def _grow(n: Node, x: Tensor, dim: int, low: int, high: int) -> Tensor:
    rank = len(type_of(x).shape)
    value = 0.0 if type_of(x).is_float else 0
    return n.emit("dmlc.pad", x, low=tuple(low if d == dim else 0 for d in range(rank)), high=tuple(high if d == dim else 0 for d in range(rank)), mode="constant", value=value)
