"""Strides, dilations and padding of convolutions and poolings, as attributes of the IR's ops. (Registers no operator.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dmlc.frontend.onnx.node import Node
from dmlc.ir.location import DmlcError


def window_attributes(n: Node, sizes: Sequence[int], kernel: Sequence[int]) -> dict[str, Any]:
    """stride, padding (low and high, dim after dim) and dilation of a convolution or pooling over `sizes`."""
    rank = len(sizes)
    stride, dilation = positive(n, "strides", rank), positive(n, "dilations", rank)
    return {"stride": stride, "padding": paired(_pads(n, sizes, kernel, stride, dilation)), "dilation": dilation}


def positive(n: Node, name: str, rank: int) -> tuple[int, ...]:
    values = n.ints_attr(name, rank, 1)
    if any(v < 1 for v in values):
        raise DmlcError(f"attribute '{name}' is {list(values)}")
    return values


def paired(pads: Sequence[int]) -> tuple[int, ...]:
    """ONNX lists all lows, then all highs; the IR a low and a high for each dim."""
    half = len(pads) // 2
    return tuple(p for pair in zip(pads[:half], pads[half:]) for p in pair)


def _pads(n: Node, sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """SAME pads so that the result has ceil(size / stride) places, the odd cell high (UPPER) or low (LOWER)."""
    auto = n.attr("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        return n.ints_attr("pads", 2 * len(sizes), 0)
    if auto == "VALID":
        return (0,) * 2 * len(sizes)
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise DmlcError(f"auto_pad '{auto}' is not known")
    total = [max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size) for size, k, s, d in zip(sizes, kernel, stride, dilation)]
    return split_pads(total, auto)


def split_pads(total: Sequence[int], auto: str) -> tuple[int, ...]:
    small, large = [t // 2 for t in total], [t - t // 2 for t in total]
    return tuple(small + large) if auto != "SAME_LOWER" else tuple(large + small)


def conv_transpose_padding(n: Node, sizes: Sequence[int], kernel: Sequence[int]) -> dict[str, Any]:
    """Attributes of a transposed convolution; `output_shape` and auto_pad choose the pads that give the wanted sizes."""
    rank = len(sizes)
    stride, dilation, extra = positive(n, "strides", rank), positive(n, "dilations", rank), n.ints_attr("output_padding", rank, 0)
    full = [(size - 1) * s + (k - 1) * d + 1 + e for size, k, s, d, e in zip(sizes, kernel, stride, dilation, extra)]
    auto, wanted = n.attr("auto_pad", "NOTSET"), n.attr("output_shape", ())
    if wanted:
        pads = _pads_to([f - w for f, w in zip(full, wanted[-rank:])], auto)
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = _pads_to([max(0, f - size * s) for f, size, s in zip(full, sizes, stride)], auto)  # nothing is added where the windows leave gaps
    else:
        pads = (0,) * 2 * rank if auto == "VALID" else n.ints_attr("pads", 2 * rank, 0)
    return {"stride": stride, "padding": paired(pads), "dilation": dilation, "output_padding": extra}


def _pads_to(total: Sequence[int], auto: str) -> tuple[int, ...]:
    """The specification puts the odd cell low for SAME_UPPER and high otherwise. A result larger than what the windows cover goes on at the end."""
    small = [max(t, 0) // 2 for t in total]
    large = [max(t, 0) - lesser for t, lesser in zip(total, small)]
    low, high = (small, large) if auto == "SAME_UPPER" else (large, small)
    return tuple(low + [h + min(t, 0) for h, t in zip(high, total)])
