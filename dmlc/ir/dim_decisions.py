"""Questions about symbolic sizes whose answers depend on where they are asked: under the ranges in force, or where prices are taken."""

from __future__ import annotations

import math

from dmlc.ir.dims import Dim, Size, bounds, floordiv, symbols_of
from dmlc.ir.open_sizes import UnknownSize, current, is_pricing, representative


def number_of(size: Dim) -> int:
    """See `dmlc.ir.dims.number_of`."""
    if is_pricing():
        return representative(size)
    raise UnknownSize.of(size, f"the size {size} is not known at compile time")


def decide(big: Size, small: Size, margin: int, said: str) -> bool:
    """Whether big - small >= margin."""
    if is_pricing():
        return representative(big) - representative(small) >= margin
    low, high = bounds(big - small)
    if low is not None and low >= margin:
        return True
    if high is not None and high < margin:
        return False
    sizes = current()
    if sizes is not None:
        return sizes.decide(big - small, margin, said)
    raise UnknownSize.of(big - small, f"'{said}' is not decided for all sizes; give values for {', '.join(symbols_of(big - small))}")


def scaled(size: Size, factor: float) -> Size:
    """floor(size * factor). Of an open size by a whole number or its inverse; raises `UnknownSize` for others."""
    if isinstance(size, int):
        return math.floor(size * factor)
    if factor >= 1 and factor == int(factor):
        return size * int(factor)
    if 0 < factor < 1 and 1 / factor == int(1 / factor):
        return floordiv(size, int(1 / factor))
    return math.floor(number_of(size) * factor)
