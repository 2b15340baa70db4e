"""Bytes alive while a window's units are issued one by one, whatever the order and the sets.

After the same atoms have been issued the same buffers are alive, but for the operands of buckets: they go when any member is first read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dmlc.simulate.joint_problem import COMPUTE, Members
from dmlc.simulate.joint_state import Change, Schedule

ALWAYS = -1  # a mask of all atoms, issued or not


@dataclass(frozen=True)
class _Buffer:
    """makers: mask, ALWAYS if it is there before the window. all_of: atoms that must have been issued before it goes; collectives:
    those that must have been read; lasting: something behind the window holds it."""

    bytes: int
    makers: int
    all_of: int
    collectives: Members
    lasting: bool
    inner: int  # all its atoms if they are in the window and one unit of them all makes it needless, else 0


class WindowMemory:
    """The schedule must stand as it is before the window's search changes homes."""

    def __init__(self, schedule: Schedule, lo: int, hi: int, bit: dict[int, int]):
        self.schedule, self.lo, self.hi, self.bit = schedule, lo, hi, bit
        touched = schedule.affected(Change(lo, hi, tuple(schedule.order[lo:hi])))
        self.buffers = [self._buffer(b) for b in touched]
        lives = [schedule.life(b) for b in touched]
        self.steady = schedule.alive[lo] - sum(b.bytes for b, (begin, end) in zip(self.buffers, lives) if begin <= lo <= end)

    def _buffer(self, index: int) -> _Buffer:
        schedule, layout = self.schedule, self.schedule.layout
        b = layout.buffers[index]
        inside = all(a in self.bit for a in (*b.makers, *b.users))
        makers = ALWAYS if not all(a in self.bit for a in b.makers) or not b.makers else self._mask(b.makers)
        all_of, collectives, lasting = 0, [], b.kept
        for a in (*b.makers, *b.users):
            if layout.atom_stream[a] != COMPUTE:
                collectives.append(a)
            elif a in self.bit:
                all_of |= self.bit[a]
            else:
                lasting |= schedule.place[schedule.home[a]] >= self.hi
        inner = self._mask((*b.makers, *b.users)) if inside and b.makers and b.users and not b.kept else 0
        return _Buffer(b.bytes, makers, all_of, tuple(collectives), lasting, inner)

    def _mask(self, atoms: Sequence[int]) -> int:
        mask = 0
        for a in atoms:
            mask |= self.bit[a]
        return mask

    def need(self, issued: int, mask: int, unit: int) -> int:
        """Bytes at the position of a unit (of the atoms `mask`) that comes after `issued`."""
        total, after = self.steady + self.schedule.layout.scratch[unit], issued | mask
        for b in self.buffers:
            if b.makers & after and not (b.inner and b.inner & ~mask == 0) and (b.lasting or not self._gone(b, issued)):
                total += b.bytes
        return total

    def _gone(self, b: _Buffer, issued: int) -> bool:
        return b.makers & issued != 0 and b.all_of & ~issued == 0 and all([self.released(a, issued) for a in b.collectives])

    def released(self, atom: int, issued: int) -> bool:
        """Whether a collective that has been issued has been read too."""
        layout, home, place, bit = self.schedule.layout, self.schedule.home, self.schedule.place, self.bit
        if atom in bit and not bit[atom] & issued:
            return False
        if atom not in bit and place[home[atom]] >= self.hi:
            return False
        for member in layout.members[home[atom]]:
            for reader in layout.succs[member]:
                if bit.get(reader, 0) & issued or (reader not in bit and place[home[reader]] < self.lo):
                    return True
        return False

    def holding(self, path: Sequence[int], issued: int) -> tuple[int, ...]:
        """Collectives of a path that still hold their operands."""
        layout = self.schedule.layout
        found = [u for u in path if layout.stream[u] != COMPUTE and not self.released(layout.members[u][0], issued)]
        return tuple(sorted(found))
