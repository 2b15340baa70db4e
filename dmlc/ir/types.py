"""Types of values: tensors, futures of collectives, functions.

Sizes are integers or symbolic dimensions (`dmlc.ir.dims.Dim`). Data types carry MLIR's short names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from dmlc.ir.dims import Dim

Size = Union[int, "Dim"]

FLOATS = ("f64", "f32", "f16", "bf16", "f8E4M3FN", "f8E5M2")
INTEGERS = ("i64", "i32", "i16", "i8", "ui8")
DTYPES = (*FLOATS, *INTEGERS, "i1")
BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "f8E4M3FN": 1, "f8E5M2": 1, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "ui8": 1, "i1": 1}


class Type:
    """Base of all types; subclasses are immutable, hashable and compare by content."""

    __slots__ = ()

    def __str__(self) -> str:
        from dmlc.ir.attribute_printer import type_text

        return type_text(self)


@dataclass(frozen=True, slots=True)
class TensorType(Type):
    """A dense tensor. `shape` holds integers or `Dim`s; rank 0 is a scalar."""

    shape: tuple[Size, ...]
    dtype: str

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def is_static(self) -> bool:
        return all(isinstance(n, int) for n in self.shape)

    @property
    def numel(self) -> int:
        """Number of elements (static shapes only)."""
        return math.prod(self.shape)  # type: ignore[arg-type]

    @property
    def bytes(self) -> int:
        """Size in bytes of a dense copy (static shapes only)."""
        return self.numel * BYTES[self.dtype]

    def with_shape(self, shape) -> TensorType:
        return TensorType(tuple(shape), self.dtype)

    def with_dtype(self, dtype: str) -> TensorType:
        return TensorType(self.shape, dtype)


@dataclass(frozen=True, slots=True)
class FutureType(Type):
    """Results of an asynchronous collective, not there before its `comm.wait`."""

    types: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class FunctionType(Type):
    inputs: tuple[Type, ...]
    results: tuple[Type, ...]
