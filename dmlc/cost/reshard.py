"""From one sharding to another: the communication it takes. `plan` prices these steps, `partition` emits them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dmlc.ir.attributes import AttrDict, Sharding
from dmlc.ir.open_sizes import representative
from dmlc.ir.sharding import Mesh


@dataclass(frozen=True)
class Step:
    """One step: `slice` (no traffic) or a collective with its attributes; `after` is the sharding it leaves.

    A reduction over sequential axes is a step of its own, an accumulation over iterations without traffic.
    """

    kind: str
    axes: tuple[str, ...]
    attrs: AttrDict
    after: Sharding

    def is_local(self, mesh: Mesh) -> bool:
        """Whether nothing is sent."""
        return self.kind == "slice" or all(a in mesh.axes.sequential for a in self.axes)


def reshard(mesh: Mesh, source: Sharding, target: Sharding, shape: Sequence[int]) -> list[Step] | None:
    """Steps from `source` to `target` for a tensor of global `shape`; None when there is no way (a complete value cannot become
    unreduced, parts that different iterations make cannot be joined). Free slices come first, then reductions (scattering where the target is split by the same axes), then moves and gathers."""
    return _cached(mesh, source, target, tuple(shape))


@lru_cache(maxsize=1 << 16)
def _cached(mesh: Mesh, source: Sharding, target: Sharding, shape: tuple[int, ...]) -> list[Step] | None:
    return _Walk(mesh, source, target, shape).steps()


class _Walk:
    def __init__(self, mesh: Mesh, source: Sharding, target: Sharding, shape: tuple[int, ...]):
        self.mesh, self.target, self.shape = mesh, target, shape
        self.dims = [tuple(d) for d in source.dims]
        self.grains = [source.grain(d) for d in range(len(shape))]
        self.unreduced = dict(source.unreduced)
        self.out: list[Step] = []

    def steps(self) -> list[Step] | None:
        wanted = dict(self.target.unreduced)
        if any(self.unreduced.get(a) != c for a, c in wanted.items()):
            return None
        if self._here() == self.target:
            return []
        self._slices()
        if not self._reductions({a: c for a, c in self.unreduced.items() if a not in wanted}):
            return None
        self._slices()
        for d in range(len(self.dims)):
            if not self._reached(d):
                if not self._undo(d):
                    return None
                self._slices()
        assert self._here() == self.target, (self._here(), self.target)
        return self.out

    # -------------------------------------------------- helpers

    def _here(self) -> Sharding:
        return self.mesh.sharding(self.dims, self.unreduced, self.grains, self.shape)

    def _reached(self, d: int) -> bool:
        return self.dims[d] == self.target.dims[d] and (not self.dims[d] or self._grain_fits(d))

    def _grain_fits(self, d: int) -> bool:
        """The current split of dim d has the windows the target's grain asks for."""
        axes = self.dims[d]
        if not axes or self.grains[d] == self.target.grain(d):
            return True
        return all(self.mesh.is_even(self.shape[d], axes, g) for g in (self.grains[d], self.target.grain(d)))

    def _inner(self, d: int) -> int:
        """Size of dim d as it lies now on a rank."""
        return self.mesh.local_size(self.shape[d], self.dims[d], self.grains[d])

    def _add(self, kind: str, over: tuple[str, ...], **attrs) -> None:
        self.out.append(Step(kind, over, AttrDict(attrs), self._here()))

    def _busy(self) -> set[str]:
        return {a for dim in self.dims for a in dim} | set(self.unreduced)

    def _slices(self) -> None:
        """Split further where the target only adds axes that are free."""
        for d, want in enumerate(self.target.dims):
            have = self.dims[d]
            extra = want[len(have) :]
            if want[: len(have)] != have or not extra or set(extra) & self._busy() or not self._grain_fits(d):
                continue
            size, grain = self._inner(d), self.target.grain(d)
            self.dims[d], self.grains[d] = want, grain
            self._add("slice", extra, dim=d, size=size, grain=grain)

    def _reductions(self, left: dict[str, str]) -> bool:
        """Complete the axes that the target does not keep: sums over iterations first, then one collective a combiner. False: iterations
        only add up."""
        for combiner in dict.fromkeys(left.values()):
            axes = self.mesh.sorted(a for a in left if left[a] == combiner)
            repeated = tuple(a for a in axes if a in self.mesh.axes.sequential)
            if repeated and combiner != "sum":
                return False
            for a in repeated:
                del self.unreduced[a]
            if repeated:
                self._add("comm.all_reduce", repeated, axes=repeated, combiner=combiner)
            axes = tuple(a for a in axes if a not in repeated)
            if not axes:
                continue
            for a in axes:
                del self.unreduced[a]
            d = next((d for d in range(len(self.dims)) if self._scatters(d, axes)), None)
            if d is None:
                self._add("comm.all_reduce", axes, axes=axes, combiner=combiner)
                continue
            size, grain = self._inner(d), self.target.grain(d)
            self.dims[d], self.grains[d] = self.target.dims[d], grain
            self._add("comm.reduce_scatter", axes, axes=axes, combiner=combiner, dims=(d,), sizes=(size,), grains=(grain,))
        return True

    def _scatters(self, d: int, axes: tuple[str, ...]) -> bool:
        return self.target.dims[d] == self.dims[d] + axes and self._grain_fits(d)

    def _undo(self, d: int) -> bool:
        """Give up the axes of dim d that the target does not want there: moved to another dim if it wants them, else gathered. False: no way."""
        have, want = self.dims[d], self.target.dims[d]
        keep = 0
        while keep < min(len(have), len(want)) and have[keep] == want[keep] and self._grain_fits(d):
            keep += 1
        axes, outer = have[keep:], have[:keep]
        if any(a in self.mesh.axes.sequential for a in axes):
            return False
        e = next((e for e in range(len(self.dims)) if e != d and self._moves(e, axes)), None)
        size, grain = self.mesh.local_size(self.shape[d], outer, self.grains[d]), self.grains[d]
        if e is None:
            self.dims[d] = outer
            self._add("comm.all_gather", axes, axes=axes, dims=(d,), sizes=(size,), grains=(grain,))
            return True
        split, split_grain = self._inner(e), self.target.grain(e)
        self.dims[d] = outer
        self.dims[e], self.grains[e] = self.target.dims[e], split_grain
        self._add("comm.all_to_all", axes, axes=axes, split_dims=(e,), split_sizes=(split,), split_grains=(split_grain,), dims=(d,), sizes=(size,), grains=(grain,))
        return True

    def _moves(self, e: int, axes: tuple[str, ...]) -> bool:
        return self.target.dims[e] == self.dims[e] + axes and self._grain_fits(e)


def step_bytes(mesh: Mesh, before: Sharding, step: Step, shape: Sequence[int], item: int) -> int:
    """Bytes of the larger of a rank's tensors before and after a collective: what cost formulas take."""
    return item * max(math.prod(map(representative, mesh.local_shape(shape, s))) for s in (before, step.after))
