"""Placing buffers in one arena: offsets such that no two that live at a time overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 256  # bytes: what vectorised kernels and NCCL want at least


@dataclass(frozen=True)
class Buffer:
    """`bytes` needed at positions `begin` to `end`, both included."""

    begin: int
    end: int
    bytes: int

    def meets(self, other: Buffer) -> bool:
        """Whether both live at some position."""
        return self.begin <= other.end and other.begin <= self.end


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    return -(-size // alignment) * alignment


def place(buffers: Sequence[Buffer], alignment: int = ALIGNMENT) -> list[int]:
    """Offsets by best fit, largest first: each buffer goes to the smallest gap that holds it between those that live with it.

    Ties by begin, then by number, so that equal programs get equal plans.
    """
    offsets = [0] * len(buffers)
    placed: list[int] = []
    for i in sorted(range(len(buffers)), key=lambda i: (-buffers[i].bytes, buffers[i].begin, i)):
        busy = sorted((offsets[j], offsets[j] + aligned(buffers[j].bytes, alignment)) for j in placed if buffers[j].meets(buffers[i]))
        offsets[i] = _best_gap(busy, buffers[i].bytes)
        placed.append(i)
    return offsets


def _best_gap(busy: Sequence[tuple[int, int]], size: int) -> int:
    """Start of the smallest gap of at least `size` between busy ranges (sorted), else the end of the last one."""
    end, best, best_room = 0, -1, 0
    for low, high in busy:
        room = low - end
        if room >= size and (best < 0 or room < best_room):
            best, best_room = end, room
        end = max(end, high)
    return end if best < 0 else best


def arena_size(buffers: Sequence[Buffer], offsets: Sequence[int]) -> int:
    return max((o + b.bytes for b, o in zip(buffers, offsets)), default=0)


def overlaps(buffers: Sequence[Buffer], offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs that live at a time and share a byte: what a plan must not have. A sweep over positions, independent of `place`."""
    starting = sorted(range(len(buffers)), key=lambda i: buffers[i].begin)
    alive: list[int] = []
    found = []
    for i in starting:
        alive = [j for j in alive if buffers[j].end >= buffers[i].begin]
        low, high = offsets[i], offsets[i] + buffers[i].bytes
        found += [(j, i) for j in alive if offsets[j] < high and low < offsets[j] + buffers[j].bytes and buffers[i].bytes and buffers[j].bytes]
        alive.append(i)
    return found
