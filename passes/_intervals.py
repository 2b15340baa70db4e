"""Which neighbours in a row of collectives become one: their order is given, so a bucket is an interval of it.

Collectives of one stream run one after another, an interval when its last member is ready: it ends at max(end of the one before,
ready) + t(bytes), with t(M) = a + b M. `merge_rule` decides as it goes along; `best_intervals` is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    """The intervals that end first; among equals the fewest. Dynamic programming over where the last interval begins: what comes before
    it should only end early. Quadratic time. An interval of more than one member has at most `limit` bytes (0: any number)."""
    best: list[tuple[int, int]] = [(0, 0)]  # prefix -> (end, number of intervals)
    begins = [0]
    for stop in range(1, len(ready) + 1):
        options = []
        total = 0
        for first in range(stop - 1, -1, -1):
            total += sizes[first]
            if limit and total > limit and first < stop - 1:
                break
            options.append((max(best[first][0], ready[stop - 1]) + time(total), best[first][1] + 1, first))
        end, count, first = min(options)
        best.append((end, count))
        begins.append(first)
    found: list[Interval] = []
    stop = len(ready)
    while stop:
        found.append((begins[stop], stop))
        stop = begins[stop]
    return found[::-1]
