"""Memory over time: what is alive, by category, when each op of a program begins; in loops and branches on top of what lives around them.

All of it is the one liveness function's account (`dmlc.simulate.liveness`), whose positions the event engine gives times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dmlc.ir.core import Block, Function, Op, Value
from dmlc.simulate.categories import CATEGORIES, categories_of
from dmlc.simulate.liveness import BlockLiveness, block_liveness

Held = tuple[int, ...]  # bytes by category, in the order of CATEGORIES


@dataclass
class MemoryMap:
    """`marks` are the ops at which what is alive changes, numbered; `held[n]` is alive from mark n's begin on. `peak` is the first place with the
    most bytes: `at` is the op there (None in an empty program)."""

    marks: dict[Op, int] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    peak: Held = (0,) * len(CATEGORIES)
    at: Op | None = None

    @property
    def peak_bytes(self) -> int:
        return sum(self.peak)

    def by_category(self) -> dict[str, int]:
        return dict(zip(CATEGORIES, self.peak, strict=True))


Regions = Callable[[Op], Sequence[Block]]


def all_regions(op: Op) -> list[Block]:
    """Every block that an op may run."""
    return [b for r in op.regions for b in r.blocks]


def memory_map(function: Function, regions: Regions = all_regions) -> MemoryMap:
    """What a function holds at each op. `regions` says which blocks of an op a rank may run."""
    found = MemoryMap()
    _Walk(found, categories_of(function), regions).block(function.body, (0,) * len(CATEGORIES))
    return found


class _Walk:
    def __init__(self, found: MemoryMap, category: dict[Value, str], regions: Regions):
        self.found, self.regions = found, regions
        self.index = {value: CATEGORIES.index(name) for value, name in category.items()}
        self.usual = CATEGORIES.index("activations")

    def block(self, block: Block, around: Held) -> None:
        """Marks of a block that runs while `around` is alive outside of it."""
        liveness = block_liveness(block, inside=False)
        changes = self._changes(liveness)
        held = around
        for op, change in zip(liveness.ops, changes):
            held = self._at(op, held, change)
        if not liveness.ops:  # what comes in goes out again
            self._peak(_added(held, changes[0]), None)

    def _changes(self, liveness: BlockLiveness) -> list[dict[int, int]]:
        """Position -> category -> bytes by which it grows there; the last position is the block's end."""
        changes: list[dict[int, int]] = [{} for _ in range(len(liveness.ops) + 1)]
        for r in liveness.ranges:
            kind = self.index.get(r.storage.value, self.usual)
            for position, size in ((r.begin, r.storage.bytes), (r.end + 1, -r.storage.bytes)):
                if position < len(changes):
                    changes[position][kind] = changes[position].get(kind, 0) + size
        return changes

    def _at(self, op: Op, held: Held, change: dict[int, int]) -> Held:
        if any(change.values()) or not self.found.held or op.prev is None:
            held = _added(held, change)
            self.found.marks[op] = len(self.found.held)
            self.found.held.append(held)
            self._peak(held, op)
        if op.regions and op.name != "kernel.fused":
            for block in self.regions(op):
                self.block(block, held)
        elif op.prev is not None and op.prev.regions and op.prev.name != "kernel.fused" and op not in self.found.marks:
            self.found.marks[op] = len(self.found.held)  # what the region held is gone
            self.found.held.append(held)
        return held

    def _peak(self, held: Held, op: Op | None) -> None:
        if sum(held) > self.found.peak_bytes:
            self.found.peak, self.found.at = held, op


def _added(held: Held, change: dict[int, int]) -> Held:
    return tuple(h + change.get(i, 0) for i, h in enumerate(held))
