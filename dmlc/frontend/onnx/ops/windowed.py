"""What the IR's own pools do not do: dilated means, positions of maxima, and putting cells back where windows took them from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dmlc.frontend.onnx.emit import concrete, type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.ops.windows import positive
from dmlc.frontend.onnx.table import op
from dmlc.frontend.onnx.values import Known, Tensor
from dmlc.ir.location import DmlcError
from dmlc.ops.windows import Windows


def _cells(windows: Windows, d: int, count: int) -> np.ndarray:
    """[window, tap]: where the taps of each window lie along dim d, before the first cell negative."""
    taps = np.arange(int(windows.kernel[d])) * windows.dilation[d]
    return np.arange(count)[:, None] * windows.stride[d] - windows.low[d] + taps[None, :]


def window_sum(n: Node, x: Tensor, windows: Windows, ceil: bool) -> Tensor:
    """The sum over each window: a convolution with ones, channel by channel."""
    shape = concrete(x)
    sizes, spatial = shape[2:], range(len(shape) - 2)
    counts = [int(c) for c in windows.count(sizes, ceil)]
    ends = [(c - 1) * s + int(e) - size - low for c, s, e, size, low in zip(counts, windows.stride, windows.extent, sizes, windows.low)]
    padding = tuple(p for low, end in zip(windows.low, ends) for p in (low, max(end, 0)))
    ones = n.full(1.0, type_of(x).dtype, (1, 1, *(int(k) for k in windows.kernel)))
    rows = n.reshape(x, (shape[0] * shape[1], 1, *sizes))
    y: Tensor = n.emit("dmlc.conv", rows, ones, groups=1, stride=windows.stride, padding=padding, dilation=windows.dilation)
    for d in spatial:
        y = n.slice(y, d + 2, 0, counts[d])
    return n.reshape(y, (*shape[:2], *counts))


def window_mean(n: Node, x: Tensor, windows: Windows, ceil: bool, count_padding: bool) -> Tensor:
    """The sum over the number of cells; cells of the padding count if told so, what ceil mode adds never does."""
    sizes = concrete(x)[2:]
    total = np.ones(())
    for d, (size, count) in enumerate(zip(sizes, windows.count(sizes, ceil))):
        cells = _cells(windows, d, int(count))
        low, high = (-windows.low[d], size + windows.high[d]) if count_padding else (0, size)
        total = total[..., None] * ((cells >= low) & (cells < high)).sum(1)
    return n.pointwise("dmlc.div", window_sum(n, x, windows, ceil), Known.of(total, type_of(x).dtype))


def window_maxima(n: Node, x: Tensor, windows: Windows, ceil: bool, column_major: bool) -> list[Tensor]:
    """The largest cell of each window and its position in the flattened x (`column_major`: spatial dims counted first dim fastest)."""
    shape = concrete(x)
    sizes, rank = shape[2:], len(shape) - 2
    counts = [int(c) for c in windows.count(sizes, ceil)]
    flat, counted, inside = np.zeros((), np.int64), np.zeros((), np.int64), np.ones((), bool)
    for d in range(rank):
        cells = _cells(windows, d, counts[d]).reshape([s for k in range(rank) for s in (counts[d] if k == d else 1,)] + [int(windows.kernel[d]) if k == d else 1 for k in range(rank)])
        inside = inside & (cells >= 0) & (cells < sizes[d])
        clipped = np.clip(cells, 0, sizes[d] - 1)
        flat = flat + clipped * math.prod(sizes[d + 1 :])
        counted = counted + clipped * math.prod(sizes[:d] if column_major else sizes[d + 1 :])
    places, taps, cells_of_image = math.prod(counts), math.prod(int(k) for k in windows.kernel), math.prod(sizes)
    table = [np.broadcast_to(t, (*counts, *(int(k) for k in windows.kernel))).reshape(places, taps) for t in (flat, counted, inside)]
    read = n.emit("dmlc.take", n.reshape(x, (*shape[:2], cells_of_image)), Known.of(table[0]), dim=2)
    lowest = -math.inf if type_of(x).is_float else int(np.iinfo({"i8": np.int8, "ui8": np.uint8}[type_of(x).dtype]).min)
    read = n.select(Known.of(table[2], "i1"), read, lowest)
    first = n.emit("dmlc.argmax", read, dim=3, keepdim=False)  # [n, c, window]
    position = n.emit("dmlc.take", Known.of(table[1].reshape(-1)), n.pointwise("dmlc.add", first, Known.of(np.arange(places) * taps)), dim=0)
    start = Known.of(np.arange(shape[0] * shape[1]).reshape(*shape[:2], 1) * cells_of_image)
    return [n.reshape(t, (*shape[:2], *counts)) for t in (n.reduce("max", read, (3,), False), n.pointwise("dmlc.add", position, start))]


@op("MaxUnpool", 9, 11, 22)
def max_unpool(n: Node) -> Tensor:
    """Each cell at its position in a flattened image of zeros, of the size that the pool's windows cover; a larger one may be wanted."""
    shape, kernel = n.shape(0), n.attr("kernel_shape")
    rank = len(shape) - 2
    pads, stride = n.ints_attr("pads", 2 * rank, 0), positive(n, "strides", rank)
    image = tuple((shape[d + 2] - 1) * stride[d] - pads[d] - pads[rank + d] + kernel[d] for d in range(rank))
    total, count = math.prod(shape[:2]) * math.prod(image), math.prod(shape)
    zeros = n.full(0.0, n.dtype(0), (total,))
    y: Tensor = n.emit("dmlc.scatter", zeros, n.cast(n.reshape(n[1], (count,)), "i64"), n.reshape(n[0], (count,)), dim=0, reduce="none")
    y = n.reshape(y, (*shape[:2], *image))
    wanted = n.ints(2, "the result's shape") if n.has(2) else (*shape[:2], *image)
    more = [w - have for w, have in zip(wanted, (*shape[:2], *image), strict=True)]
    if min(more) < 0:
        raise DmlcError(f"the result's shape {list(wanted)} is smaller than the {[*shape[:2], *image]} that the windows cover")
    return n.emit("dmlc.pad", y, low=(0,) * len(shape), high=tuple(more), mode="constant", value=0.0) if any(more) else y


@op("Col2Im", 18)
def col2im(n: Node) -> Tensor:
    """Columns [n, c taps, windows] added up where the windows took them from."""
    image, kernel = n.ints(1, "the image's shape"), n.ints(2, "the block's shape")
    rank = len(image)
    pads, (batch, wide, columns) = n.ints_attr("pads", 2 * rank, 0), n.shape(0)
    padding = tuple(p for d in range(rank) for p in (pads[d], pads[rank + d]))
    windows = Windows.of({"padding": padding, "stride": positive(n, "strides", rank), "dilation": positive(n, "dilations", rank)}, kernel)
    counts, taps = [int(c) for c in windows.count(image)], math.prod(kernel)
    if wide % taps or columns != math.prod(counts):
        raise DmlcError(f"columns of shape {list(n.shape(0))} do not come from blocks of {list(kernel)} of an image of {list(image)}")
    padded = [size + int(low) + int(high) for size, low, high in zip(image, windows.low, windows.high)]
    rows = batch * (wide // taps)
    index = n.broadcast(Known.of(_flat_cells(windows, counts, padded).reshape(1, -1)), (rows, taps * columns))
    zeros = n.full(0.0 if type_of(n[0]).is_float else 0, n.dtype(0), (rows, math.prod(padded)))
    y: Tensor = n.emit("dmlc.scatter", zeros, index, n.reshape(n[0], (rows, taps * columns)), dim=1, reduce="add")
    y = n.reshape(y, (batch, wide // taps, *padded))
    for d, (low, size) in enumerate(zip(windows.low, image)):
        y = n.slice(y, d + 2, low, low + size)
    return y


def _flat_cells(windows: Windows, counts: Sequence[int], padded: Sequence[int]) -> np.ndarray:
    """[taps, windows]: cells of the flattened padded image."""
    rank, flat = len(counts), np.zeros((), np.int64)
    for d in range(rank):
        cells = (_cells(windows, d, counts[d]) + windows.low[d]).T  # [tap, window]
        shape = [cells.shape[0] if k == d else 1 for k in range(rank)] + [cells.shape[1] if k == d else 1 for k in range(rank)]
        flat = flat + cells.reshape(shape) * math.prod(padded[d + 1 :])
    return flat.reshape(-1)
