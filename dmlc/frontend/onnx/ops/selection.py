"""Operators whose result has as many rows as the data decides: computed at import when the data is known, refused otherwise."""

from __future__ import annotations

import numpy as np

from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.tensors import to_torch
from dmlc.frontend.onnx.values import Known, Weight
from dmlc.ir.location import DmlcError


def _array(n: Node, i: int, why: str) -> np.ndarray:
    t = n[i]
    if not isinstance(t, (Known, Weight)) or (isinstance(t, Weight) and t.overridable):
        raise Unsupported(why)
    return n.known(i, "the data")


@op("NonMaxSuppression", 10, 11, static=True)
def non_max_suppression(n: Node) -> Known:
    """Rows (batch, class, box): of each class the boxes by falling score that overlap no kept one by more than a share of their union."""
    boxes, scores = (_array(n, i, "how many boxes are kept is a size that depends on the data") for i in (0, 1))
    most, share, least = n.number(2) or 0, n.number(3) or 0.0, n.number(4)
    for i in (2, 3, 4):
        if n.has(i) and n.number(i) is None:
            raise Unsupported("how many boxes are kept is a size that depends on the data")
    low, high = _corners(boxes, bool(n.attr("center_point_box", 0)))
    rows = [(b, c, box) for b in range(scores.shape[0]) for c in range(scores.shape[1]) for box in _kept(low[b], high[b], scores[b, c], int(most), float(share), least)]
    return Known.of(np.array(rows, np.int64).reshape(-1, 3))


def _corners(boxes: np.ndarray, centers: bool) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest (first, second) coordinate of each box, which is given by two opposite corners or by its middle and size."""
    if boxes.ndim != 3 or boxes.shape[2] != 4:
        raise DmlcError(f"boxes of shape {list(boxes.shape)}, not [batch, boxes, 4]")
    a, b = boxes[..., :2], boxes[..., 2:]
    if centers:
        return a - b / 2, a + b / 2
    return np.minimum(a, b), np.maximum(a, b)


def _kept(low: np.ndarray, high: np.ndarray, scores: np.ndarray, most: int, share: float, least: bool | int | float | None) -> list[int]:
    kept: list[int] = []
    for box in np.argsort(-scores, kind="stable"):
        if len(kept) >= most:
            break
        if (least is None or scores[box] > least) and not any(_overlap(low, high, box, other) > share for other in kept):
            kept.append(int(box))
    return kept


def _overlap(low: np.ndarray, high: np.ndarray, a: int, b: int) -> float:
    """Intersection over union; 0 for boxes without an area."""
    sides = np.minimum(high[a], high[b]) - np.maximum(low[a], low[b])
    areas = np.prod(high - low, axis=1)
    if min(areas[a], areas[b]) <= 0 or (sides <= 0).any():
        return 0.0
    common = sides.prod()
    return float(common / (areas[a] + areas[b] - common))


@op("Unique", 11, 28, static=True)
def unique(n: Node) -> list[Known]:
    """The distinct values (slices along an axis), where each is first, which of them every place holds, and how often each occurs."""
    stored, dtype = _array(n, 0, "how many distinct values there are is a size that depends on the data"), n.dtype(0)
    axis = n.axis(n.attr("axis"), n.rank(0)) if "axis" in n.attributes else None
    wide = stored if dtype not in ("bf16", "f8E4M3FN", "f8E5M2") else to_torch(stored, dtype).float().numpy()
    _, first, places, counts = np.unique(wide, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    places = places.reshape(-1)
    if not n.attr("sorted", 1):
        order = np.argsort(first)
        first, counts, places = first[order], counts[order], np.argsort(order)[places]
    found = stored.reshape(-1)[first] if axis is None else np.take(stored, first, axis)
    return [Known(found, dtype), *(Known.of(a.astype(np.int64)) for a in (first, places, counts))]
