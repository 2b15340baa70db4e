"""Piecewise linear curves through known points, on integers: one more byte never takes less time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate


class Curve:
    """Picoseconds over sizes. Points are (size, picoseconds) in any order; one that lies below a smaller size's is lifted to it.

    Outside the points the curve goes on along the line through the nearest two, never below zero. A single point is a price a byte
    above its size and a constant below. Raises `ValueError` without points.
    """

    def __init__(self, points: Iterable[tuple[int, int]]):
        ordered = dict(sorted(points))
        if not ordered:
            raise ValueError("a curve needs at least one point")
        self.sizes = tuple(ordered)
        self.times = tuple(accumulate(ordered.values(), max))

    def at(self, size: int) -> int:
        """Time of `size`, rounded up."""
        if len(self.sizes) == 1:
            return max(self.times[0], -(-self.times[0] * size // max(self.sizes[0], 1)))
        i = min(max(bisect_right(self.sizes, size), 1), len(self.sizes) - 1)
        x, y, t, u = self.sizes[i - 1], self.sizes[i], self.times[i - 1], self.times[i]
        return max(0, t - (u - t) * (x - size) // (y - x))
