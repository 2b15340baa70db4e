"""Sliding windows: attributes and sizes that convolutions and pools share.

Attributes are per spatial dim: `stride`, `dilation`, `kernel` one number each, `padding` two (low, high), flattened. `()` stands for the default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dmlc.ir.types import Size
from dmlc.ops.base import InferError, attribute


@dataclass(frozen=True)
class Windows:
    """Windows over `spatial` dims: `kernel` cells `dilation` apart, every `stride` cells, over the dims padded by `low` and `high`."""

    kernel: tuple[Size, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    @classmethod
    def of(cls, attrs: dict[str, Any], kernel: Sequence[Size]) -> Windows:
        n = len(kernel)
        ones, padding = (1,) * n, tuple(attrs.get("padding") or (0,) * (2 * n))
        stride, dilation = tuple(attrs.get("stride") or ones), tuple(attrs.get("dilation") or ones)
        if not (len(stride) == len(dilation) == n and len(padding) == 2 * n):
            raise InferError(f"stride {stride}, dilation {dilation} and padding {padding} do not fit {n} spatial dims")
        if any(s < 1 for s in stride + dilation):
            raise InferError(f"stride {stride} and dilation {dilation} must be positive")
        return cls(tuple(kernel), stride, dilation, padding[::2], padding[1::2])

    @property
    def extent(self) -> tuple[Size, ...]:
        """Cells from a window's first to its last."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation))

    @property
    def symmetric(self) -> bool:
        return self.low == self.high and min(self.low, default=0) >= 0

    def count(self, sizes: Sequence[Size], ceil: bool = False) -> tuple[Size, ...]:
        """Number of windows along each dim. With `ceil` a last window may hang over the end, unless it would start past the cells and the low padding."""
        out: list[Size] = []
        for n, e, s, low, high in zip(sizes, self.extent, self.stride, self.low, self.high):
            rest = n + low + high - e
            windows = (rest + (s - 1 if ceil else 0)) // s + 1
            if ceil and isinstance(windows, int) and isinstance(n, int) and (windows - 1) * s >= n + low:
                windows -= 1
            if isinstance(windows, int) and windows < 0:
                windows = 0
            if isinstance(rest, int) and rest < 0 and not (isinstance(n, int) and n == 0):
                raise InferError(f"a window of {e} cells does not fit a dim of {n} padded by {low} and {high}")
            out.append(windows)
        return tuple(out)

    def source(self, counts: Sequence[Size], output_padding: Sequence[int]) -> tuple[Size, ...]:
        """Sizes that `counts` windows cover without the padding: what a transposed convolution gives."""
        cells = zip(counts, self.extent, self.stride, self.low, self.high, output_padding)
        return tuple((n - 1) * s + e - low - high + extra for n, e, s, low, high, extra in cells)


def windows_of(op: Any, kernel: Sequence[Size]) -> Windows:
    """The windows an op's attributes describe."""
    keys = [k for k in ("stride", "padding", "dilation") if k in op.attrs]
    return Windows.of({k: attribute(op, k) for k in keys}, kernel)


def names(prefix: str, n: int, mark: str = "") -> str:
    """`s0! s1!`: factor names of `n` dims."""
    return " ".join(f"{prefix}{i}{mark}" for i in range(n))
