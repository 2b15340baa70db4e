"""Types of values: tensors, futures of collectives, functions.

Sizes are integers or symbolic dimensions (`dmlc.ir.dims.Dim`). Data types carry MLIR's short names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Union

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


class TensorType(Type):
    """A dense tensor. `shape` holds integers or `Dim`s; rank 0 is a scalar.

    Equal types are one object: types are in every key that passes look up, and comparing and hashing objects costs nothing.
    """

    __slots__ = ("shape", "dtype", "rank", "is_float", "is_static", "_bytes")
    __match_args__ = ("shape", "dtype")
    _known: ClassVar[dict[tuple, TensorType]] = {}

    shape: tuple[Size, ...]
    dtype: str
    rank: int
    is_float: bool
    is_static: bool
    _bytes: int

    def __new__(cls, shape: Iterable[Size], dtype: str) -> TensorType:
        shape = tuple(shape)
        found = cls._known.get((shape, dtype))
        return found if found is not None else cls._make(shape, dtype)

    @classmethod
    def _make(cls, shape: tuple[Size, ...], dtype: str) -> TensorType:
        made = object.__new__(cls)
        static = all(isinstance(n, int) for n in shape)
        facts = {"shape": shape, "dtype": dtype, "rank": len(shape), "is_float": dtype in FLOATS, "is_static": static}
        facts["_bytes"] = math.prod(n if isinstance(n, int) else 1 for n in shape) * BYTES[dtype]
        for name, value in facts.items():
            object.__setattr__(made, name, value)
        return cls._known.setdefault((shape, dtype), made)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a type cannot be changed ({name})")

    def __reduce__(self) -> tuple:
        return TensorType, (self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"TensorType(shape={self.shape!r}, dtype={self.dtype!r})"

    @property
    def numel(self) -> int:
        """Number of elements; a `Dim` where sizes are open."""
        return math.prod(self.shape)  # type: ignore[arg-type]

    @property
    def bytes(self) -> int:
        """Size in bytes of a dense copy, at the representative sizes where some are open."""
        return self._bytes if self.is_static else self._open_bytes()

    @property
    def least_bytes(self) -> int:
        """Size in bytes at the representative sizes; one that nothing is known of counts as 1."""
        return self._bytes if self.is_static else self._open_bytes()

    def _open_bytes(self) -> int:
        from dmlc.ir.open_sizes import representative_bytes

        return representative_bytes(self, BYTES[self.dtype])

    def with_shape(self, shape: Iterable[Size]) -> TensorType:
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
