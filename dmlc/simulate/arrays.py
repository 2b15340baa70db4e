"""Units as plain arrays: what the simulator and the searches work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dmlc.simulate.clocks import Streams
from dmlc.simulate.liveness import LiveRange, Storage, live_ranges, peak_bytes

COMPUTE = -1  # the stream of computation; collectives run on streams 0, 1, …


@dataclass(frozen=True)
class Units:
    """Plain arrays over units 0..n-1, listed in an order that respects `preds`.

    time     picoseconds
    stream   COMPUTE, or the index into `streams` (mesh axes) of a collective
    scratch  bytes a unit needs for itself while it runs
    host     picoseconds in which the host issues a unit (empty: none)
    rates    what slows streams and computation down (None: nothing)
    call     picoseconds of computation that the start of a collective takes of its rank: calling, packing (empty: none)
    waits    collectives that a unit needs
    """

    ids: tuple[str, ...]
    time: tuple[int, ...]
    stream: tuple[int, ...]
    preds: tuple[tuple[int, ...], ...]
    streams: tuple[tuple[str, ...], ...] = ()
    storages: tuple[Storage, ...] = ()
    scratch: tuple[int, ...] = ()
    nodes: tuple[tuple[int, ...], ...] = ()
    host: tuple[int, ...] = ()
    rates: Streams | None = None
    call: tuple[int, ...] = ()
    succs: tuple[tuple[int, ...], ...] = field(init=False, default=())
    waits: tuple[tuple[int, ...], ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        following: list[list[int]] = [[] for _ in self.ids]
        for u, before in enumerate(self.preds):
            for p in before:
                following[p].append(u)
        object.__setattr__(self, "succs", tuple(map(tuple, following)))
        object.__setattr__(self, "waits", tuple(tuple(p for p in before if self.stream[p] != COMPUTE) for before in self.preds))

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def plain(self) -> bool:
        """Whether nothing slows anything down, and neither the host nor starts cost time: each stream has one clock, and a unit's run one length."""
        return not any(self.host) and not any(self.call) and (self.rates is None or self.rates.independent)

    @property
    def communicates(self) -> bool:
        return any(s != COMPUTE for s in self.stream)

    def is_legal(self, order: Sequence[int]) -> bool:
        """Whether `order` is a permutation of the units in which all predecessors come first."""
        position = {u: i for i, u in enumerate(order)}
        return len(position) == len(self) == len(order) and all(position[p] < position[u] for u in order for p in self.preds[u])

    def releases(self, order: Sequence[int]) -> list[int]:
        """Unit -> the position at which its operands are free: its own, or its first consumer's for a collective (the end if none)."""
        position = [0] * len(self)
        for i, u in enumerate(order):
            position[u] = i
        return [position[u] if self.stream[u] == COMPUTE else min((position[s] for s in self.succs[u]), default=len(order)) for u in range(len(self))]

    def live_ranges(self, order: Sequence[int]) -> list[LiveRange]:
        """Buffers' lives when the units run in `order`; position = index in `order`."""
        position = [0] * len(self)
        for i, u in enumerate(order):
            position[u] = i
        return live_ranges(self.storages, position, self.releases(order), len(order))

    def peak(self, order: Sequence[int]) -> int:
        """Most bytes alive at a time."""
        return peak_bytes(self.live_ranges(order), [self.scratch[u] for u in order] if self.scratch else ())
