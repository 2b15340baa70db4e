"""What a name of an ONNX graph stands for during import: an IR value, an array known at import, or a weight of the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Union

import numpy as np

from dmlc.frontend.onnx.loader import Source
from dmlc.frontend.onnx.tensors import array_from, python_value
from dmlc.ir.core import BlockArgument, Value

FOLD_LIMIT = 1 << 22  # elements of the largest value made while folding at import
INTEGERS_AT_IMPORT = 1 << 16  # integer initializers up to this many elements are sizes, axes, indices and the like: read at import


@dataclass(eq=False)
class Known:
    """An array known at import (weight store's form). It becomes an argument of role `const`, or a `dmlc.full`, when a tensor op needs it.

    A `literal` one stands in the file as a node: some exporters write weights so, and in a weight's place it is one.
    """

    array: np.ndarray
    dtype: str
    name: str = ""
    literal: bool = False
    arg: BlockArgument | None = None
    _weight: Weight | None = None

    @classmethod
    def of(cls, array: object, dtype: str = "i64") -> Known:
        return cls(array_from(array, dtype), dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def weight(self) -> Weight:
        if self._weight is None:
            self._weight = Weight(Source(self.name, self.shape, self.dtype, lambda: self.array))
        return self._weight

    @property
    def uniform(self) -> bool | int | float | None:
        """The one value of all elements, or None when they differ or there are none (NaNs differ from themselves only by bits)."""
        if not self.array.size or self.array.dtype == object:
            return None
        first = self.array.reshape(-1)[:1]
        bits = np.dtype(f"u{self.array.dtype.itemsize}")
        same = all(s == 0 for s, n in zip(self.array.strides, self.shape) if n > 1) or bool((self.array.view(bits) == first.view(bits)).all())
        return python_value(first, self.dtype) if same else None


@dataclass(eq=False)
class Weight:
    """An initializer. `overridable`: the file lists it as an input too, so a caller may give another value and it must not be folded."""

    source: Source
    overridable: bool = False
    pinned: bool = False  # the user named it trainable: it stays an argument whatever its size
    arg: BlockArgument | None = None
    roles: set[str] = field(default_factory=set)
    known: Known | None = None

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    @property
    def dtype(self) -> str:
        return self.source.dtype

    @property
    def constant_like(self) -> bool:
        """Small integers and single numbers: read at import rather than kept as weights, unless a caller may replace them."""
        if self.overridable or self.pinned:
            return False
        return self.source.numel == 1 or (self.dtype in ("i64", "i32", "i1") and self.source.numel <= INTEGERS_AT_IMPORT)

    def read(self) -> Known:
        if self.known is None:
            self.known = Known(self.source.load(), self.dtype, self.name)
        return self.known


class Poison:
    """The result of a node that cannot be imported; what reads it is passed over, so that all such nodes are reported at once."""


POISON = Poison()

Tensor = Union[Value, Known, Weight]
