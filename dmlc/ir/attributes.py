"""Attribute values beyond Python's own.

An attribute is a `bool`, `int`, `float`, `str`, `None`, a type, a tuple (of attributes), an `AttrDict`, a `Dim`,
or one of the classes below. All are immutable and hashable. How they print:

    3 -> `3 : i64`          1e-5 -> `1.0e-05 : f64`       "s" -> `"s"`        True -> `true`      None -> `unit`
    (2, 4) -> `array<i64: 2, 4>`        ("a", 1) -> `["a", 1 : i64]`          () -> `[]`
    (Dim, 8) -> `#dmlc.dims<["batch", 8]>`     AttrDict(i=("data",)) -> `{i = ["data"]}`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dmlc.ir.types import Size, TensorType


class AttrDict(Mapping[str, Any]):
    """An immutable, hashable dictionary attribute that keeps the order of its keys; equality ignores order."""

    __slots__ = ("_items", "_hash")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._items: dict[str, Any] = dict(*args, **kwargs)
        self._hash = None

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:  # type: ignore[override]
        if self._hash is None:
            self._hash = hash(frozenset(self._items.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttrDict) and self._items == other._items

    def __repr__(self) -> str:
        return f"AttrDict({self._items!r})"

    def with_(self, **changes: Any) -> AttrDict:
        return AttrDict(self._items | changes)


@dataclass(frozen=True, slots=True)
class SymbolRef:
    """`@name`."""

    name: str


@dataclass(frozen=True, slots=True)
class DenseResource:
    """`dense_resource<key> : type`: bytes that lie outside the text (see the module's `dmlc.weights`)."""

    key: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Axes:
    """`#dmlc.axes<["data"=2, "model"=4]>`: a mesh's axes, first axis slowest.

    `sequential` names the axes that run one after another in time (microbatches): they print as `"micro"=4:sequential`.
    """

    sizes: tuple[tuple[str, int], ...]
    sequential: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a tensor lies on a mesh, in Shardy's notation.

    `dims[d]` names the mesh axes that split dim d, major first. `unreduced` pairs an axis with the combiner
    (`sum max min and or`) that completes the value over it. `grains[d]` is the indivisible run of dim d
    (empty = all 1): the local size on every rank is grain * ceil((n / grain) / k).
    """

    mesh: str
    dims: tuple[tuple[str, ...], ...]
    unreduced: tuple[tuple[str, str], ...] = ()
    grains: tuple[Size, ...] = ()

    def grain(self, dim: int) -> Any:
        return self.grains[dim] if self.grains else 1

    @property
    def is_replicated(self) -> bool:
        return not self.unreduced and not any(self.dims)
