"""Which neighbours in a row of collectives become one: their order is given, so a bucket is an interval of it.

Collectives of one stream run one after another, an interval when its last member is ready: it ends at max(end of the one before,
ready) + t(bytes), with t(M) = a + b M. `merge_rule` decides as it goes along; `best_intervals` is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

Time = Callable[[int], int]
Interval = tuple[int, int]  # first member, one past the last


def finish(intervals: Sequence[Interval], ready: Sequence[int], sizes: Sequence[int], time: Time) -> int:
    """When the last interval ends. `ready` ascends; units are those of `time`."""
    end = 0
    for first, stop in intervals:
        end = max(end, ready[stop - 1]) + time(sum(sizes[first:stop]))
    return end


def merge_rule(ready: Sequence[int], sizes: Sequence[int], time: Time, limit: int = 0) -> list[Interval]:
    """MG-WFBP's rule (Shi, Chu, Li, INFOCOM 2019): the next one joins when it is ready before the bucket's communication would end, and
    waiting for it delays the bucket by less than a start-up. Linear time; up to a third above the best in bad cases."""
    startup = time(0)
    found: list[Interval] = []
    first = free = 0
    for i in range(1, len(ready) + 1):
        total = sum(sizes[first:i])
        begin = max(free, ready[i - 1])
        joins = i < len(ready) and ready[i] < begin + time(total) and ready[i] - begin < startup
        if joins and (not limit or total + sizes[i] <= limit):
            continue
        found.append((first, i))
        first, free = i, begin + time(total)
    return found


def best_intervals(ready: Sequence[int], sizes: Sequence[int], time: Time, limit: int = 0) -> list[Interval]:
    """The intervals that end first. Dynamic programming over where the last interval begins: what comes before it should only end early.
    Quadratic time. An interval of more than one member has at most `limit` bytes (0: any number).

    Among intervals that end first they are long ones: what would be sent in time anyway joins others where that saves the link more
    start-ups than it makes the first of them wait.
    """
    ends = [0]  # prefix -> when it ends at best
    for stop in range(1, len(ready) + 1):
        ends.append(min(max(ends[first], ready[stop - 1]) + time(total) for first, total in _openings(sizes, stop, limit)))
    found: list[Interval] = []
    stop, deadline = len(ready), ends[-1]
    while stop:
        fits = [(first, total) for first, total in _openings(sizes, stop, limit) if max(ends[first], ready[stop - 1]) + time(total) <= deadline]
        worth = [f for f in fits if ready[stop - 1] - ready[f[0]] <= (stop - f[0] - 1) * time(0)]
        first, total = (worth or fits[:1])[-1]
        found.append((first, stop))
        stop, deadline = first, deadline - time(total)
    return found[::-1]


def _openings(sizes: Sequence[int], stop: int, limit: int) -> Iterator[tuple[int, int]]:
    """(first member, bytes) of the intervals that end before `stop`, shortest first."""
    total = 0
    for first in range(stop - 1, -1, -1):
        total += sizes[first]
        if limit and total > limit and first < stop - 1:
            return
        yield first, total
