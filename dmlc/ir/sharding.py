"""Mesh arithmetic: coordinates, groups, local sizes and windows of sharded dims.

Ranks are numbered row-major, first axis slowest. A dim of n elements with grain g has n/g units; axes on one dim nest in the order
listed, each taking the ceiling of the capacity before it, so a rank's start and count are clamped level by level:
7 over 2 then 3 gives (0,2)(2,2)(4,0) | (4,2)(6,1)(8,0).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dmlc.ir.attributes import Axes, Sharding
from dmlc.ir.core import Module, Op
from dmlc.ir.dims import ceildiv as open_ceildiv
from dmlc.ir.types import TensorType


def ceildiv(a: int, b: int) -> int:
    """Of a size as well, in its normal form."""
    return -(-a // b) if isinstance(a, int) and isinstance(b, int) else open_ceildiv(a, b)  # type: ignore[return-value]  # an open size counts as a number


@dataclass(frozen=True)
class Mesh:
    """Named axes of devices. `sequential` axes run one after another in time and take no ranks."""

    axes: Axes
    name: str = "mesh"

    @classmethod
    def make(cls, **sizes: int) -> Mesh:
        return cls(Axes(tuple(sizes.items())))

    @classmethod
    def of(cls, module: Module) -> Mesh:
        """The module's mesh; without a `dmlc.mesh` op a mesh of one rank and no axes."""
        op = module.mesh_op
        return cls(Axes(())) if op is None else cls(op.attrs["axes"], op.attrs["sym_name"])

    @classmethod
    def around(cls, op: Op) -> Mesh:
        """The mesh of the module that contains `op`."""
        top = op
        while top.parent is not None:
            top = top.parent
        return cls.of(Module(top)) if top.name == "builtin.module" else cls(Axes(()))

    @cached_property
    def sizes(self) -> dict[str, int]:
        return dict(self.axes.sizes)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Axis names in mesh order."""
        return tuple(name for name, _ in self.axes.sizes)

    @property
    def device_axes(self) -> tuple[str, ...]:
        return tuple(a for a in self.order if a not in self.axes.sequential)

    @property
    def devices(self) -> int:
        """Number of ranks."""
        sizes = self.sizes
        return math.prod(sizes[a] for a in self.device_axes)

    def devices_of(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Those of the axes that are device axes."""
        return tuple(a for a in axes if a not in self.axes.sequential)

    def extent(self, axes: Sequence[str]) -> int:
        """Product of the axes' sizes."""
        sizes = self.sizes
        return math.prod(sizes[a] for a in axes)

    def sorted(self, axes) -> tuple[str, ...]:
        """The axes in mesh order."""
        wanted = set(axes)
        return tuple(a for a in self.order if a in wanted)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Axis -> index of a rank (device axes only)."""
        found: dict[str, int] = {}
        sizes = self.sizes
        for a in reversed(self.device_axes):
            found[a] = rank % sizes[a]
            rank //= sizes[a]
        return found

    def rank(self, coordinates: Mapping[str, int]) -> int:
        number = 0
        for a in self.device_axes:
            number = number * self.sizes[a] + coordinates[a]
        return number

    def group(self, rank: int, axes: Sequence[str]) -> tuple[int, ...]:
        """Ranks that differ from `rank` in `axes` only, ordered by their index along `axes`, first listed slowest."""
        here = self.coordinates(rank)
        ranges = [range(self.sizes[a]) for a in axes]
        return tuple(self.rank({**here, **dict(zip(axes, index))}) for index in itertools.product(*ranges))

    def groups(self, axes: Sequence[str]) -> list[tuple[int, ...]]:
        """All groups along `axes`, by smallest rank."""
        found: list[tuple[int, ...]] = []
        seen: set[int] = set()
        for rank in range(self.devices):
            if rank not in seen:
                found.append(self.group(rank, axes))
                seen.update(found[-1])
        return found

    # -------------------------------------------------- sizes

    def local_size(self, n: int, axes: Sequence[str], grain: int = 1) -> int:
        """Elements every rank stores of a dim of n (padding included)."""
        if not axes:
            return n
        units = ceildiv(n, grain)
        for a in axes:
            units = ceildiv(units, self.sizes[a])
        return units * grain

    def is_even(self, n: int, axes: Sequence[str], grain: int = 1) -> bool:
        """Whether no rank has padding."""
        if n % grain:
            return not axes
        units = n // grain
        for a in axes:
            if units % self.sizes[a]:
                return False
            units //= self.sizes[a]
        return True

    def window(self, n: int, axes: Sequence[str], coordinates: Mapping[str, int], grain: int = 1) -> tuple[int, int]:
        """Global start and number of valid elements of a rank's part of a dim."""
        return window(n, [coordinates[a] for a in axes], [self.sizes[a] for a in axes], grain)

    def local_shape(self, shape: Sequence[int], sharding: Sharding) -> tuple[int, ...]:
        return tuple(self.local_size(n, axes, sharding.grain(d)) for d, (n, axes) in enumerate(zip(shape, sharding.dims)))

    def local_type(self, type_: TensorType, sharding: Sharding) -> TensorType:
        return type_.with_shape(self.local_shape(type_.shape, sharding))

    # -------------------------------------------------- shardings

    def sharding(self, dims: Sequence[Sequence[str]], unreduced: Mapping[str, str] | None = None, grains: Sequence[int] = (), shape: Sequence[int] | None = None) -> Sharding:
        """A sharding in normal form: unreduced axes in mesh order, grains dropped where they make no difference
        (unsharded dims, and evenly split ones when `shape` is given)."""
        unreduced = unreduced or {}
        kept = list(grains) or [1] * len(dims)
        for d, axes in enumerate(dims):
            if not axes or (shape is not None and self.is_even(shape[d], axes, kept[d])):
                kept[d] = 1
        ordered = tuple((a, unreduced[a]) for a in self.order if a in unreduced)
        return Sharding(self.name, tuple(tuple(d) for d in dims), ordered, tuple(kept) if any(g != 1 for g in kept) else ())

    def replicated(self, rank: int) -> Sharding:
        return Sharding(self.name, ((),) * rank)


def window(n: int, indices: Sequence[int], counts: Sequence[int], grain: int = 1) -> tuple[int, int]:
    """Start and valid count (in elements) of the part with the given index at each nesting level."""
    capacity = valid = ceildiv(n, grain)
    start = 0
    for index, count in zip(indices, counts, strict=True):
        width = ceildiv(capacity, count)
        offset = min(index * width, capacity)
        start += offset
        valid = min(max(valid - offset, 0), width)
        capacity = width
    return start * grain, min(valid * grain, max(n - start * grain, 0))
