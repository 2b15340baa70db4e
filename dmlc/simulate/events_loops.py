"""Iterations that only repeat what was before: counted instead of run.

When the last lane comes to an iteration's head, the state of all lanes is compared with what it was at earlier heads of that loop. Where the
two are equal but for a shift in time, all that follows is a shifted copy of what was between them, until a loop ends.

How far the host is ahead is no part of the state while it holds nothing up and does not fall behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dmlc.simulate.events_lanes import NEVER, WAITING, Lane, Transfer

if TYPE_CHECKING:
    from dmlc.simulate.events import Engine


@dataclass(frozen=True)
class Repeat:
    """What lies between two positions of a lane's lists happens `count` times more, each `period` later than the last and with numbers
    of collectives higher by `serials`; the host issues it each time `host` later."""

    lane: int
    events: tuple[int, int]
    marks: tuple[int, int]
    period: int
    count: int
    serials: int
    host: int


@dataclass(frozen=True)
class _Seen:
    """A lane at an iteration's head."""

    time: int
    iteration: int
    host: int
    serial: int
    events: int
    marks: int
    sums: tuple[int, ...]


class Skipper:
    """Watches the loops of an engine's lanes."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self._arrived: dict[tuple, int] = {}
        self._seen: dict[tuple, list[_Seen]] = {}
        self._due: int | None = None  # loop to look at

    def arrive(self, lane: Lane, loop: int) -> None:
        """A lane begins an iteration."""
        here = (loop, *lane.counters[: loop + 1])
        self._arrived[here] = self._arrived.get(here, 0) + 1
        if self._arrived[here] == len(self.engine.lanes):
            del self._arrived[here]
            self._due = loop

    def look(self) -> None:
        """Skip iterations if all lanes are where they were; called when nothing more happens at the present time."""
        if self._due is None:
            return
        loop, self._due = self._due, None
        lanes = self.engine.lanes
        state = (loop, *(_state(lane, lanes[0], loop, self.engine.now) for lane in lanes))
        now = [_Seen(self.engine.now, lane.counters[loop], lane.host, lane.serial, len(lane.events), len(lane.marks), tuple(lane.sums)) for lane in lanes]
        before = self._seen.get(state)
        self._seen[state] = now
        if before is not None and all(_host_repeats(*three) for three in zip(lanes, before, now)):
            self._skip(loop, before, now)
            self._seen.clear()

    def _skip(self, loop: int, before: list[_Seen], now: list[_Seen]) -> None:
        lanes, period = self.engine.lanes, now[0].time - before[0].time
        step = now[0].iteration - before[0].iteration
        count = min((lane.program.counts[loop] - 1 - lane.counters[loop]) // step for lane in lanes)
        if count <= 0:
            return
        for transfer in {id(t): t for lane in lanes for q in lane.queues for t in q}.values():
            _shift_transfer(transfer, period * count)
        for lane, old, new in zip(lanes, before, now):
            ranges = (old.events, new.events), (old.marks, new.marks)
            self.engine.repeats.append(Repeat(lane.number, *ranges, period, count, new.serial - old.serial, new.host - old.host))
            _shift_lane(lane, old, new, period * count, count)
            lane.counters[loop] += step * count
        self.engine.now += period * count


def _state(lane: Lane, first: Lane, loop: int, now: int) -> tuple:
    """All that decides what a lane does next, with times from `now` on and iterations of `loop` from those of the first lane on."""
    queues = tuple(tuple(_transfer_state(t, now) for t in q) for q in lane.queues)
    waiting = tuple((slot, *_place(lane, t)) for slot, t in enumerate(lane.slots) if t is not None and not t.done)
    own = (lane.pc, lane.state, lane.left, lane.issued, lane.now - now, lane.wake - now if lane.wake < NEVER else NEVER)
    begun = lane.begin - now if lane.left or lane.state == WAITING else 0
    iteration = (lane.counters[loop] == 0, lane.counters[loop] - first.counters[loop])  # a first iteration is not like the others
    return (own, begun, iteration, *lane.counters[:loop], *lane.counters[loop + 1 :], queues, waiting)


def _transfer_state(t: Transfer, now: int) -> tuple:
    return (t.left, t.absent) if not t.moves else (t.left, t.since - now, t.end - now, t.begin - now)


def _place(lane: Lane, transfer: Transfer) -> tuple[int, int]:
    stream = transfer.numbers[lane.number][0]
    return stream, lane.queues[stream].index(transfer)


def _host_repeats(lane: Lane, before: _Seen, now: _Seen) -> bool:
    """Whether the host goes on as it did: as far ahead as it was, or never in the way and ever further ahead."""
    issued, period = now.host - before.host, now.time - before.time
    return issued == period or (issued < period and lane.starved_at < before.time)


def _shift_transfer(transfer: Transfer, time: int) -> None:
    if transfer.moves:
        transfer.since, transfer.end, transfer.begin = transfer.since + time, transfer.end + time, transfer.begin + time


def _shift_lane(lane: Lane, before: _Seen, now: _Seen, time: int, count: int) -> None:
    lane.now += time
    lane.begin += time
    lane.wake += time if lane.wake < NEVER else 0
    lane.sums = [new + (new - old) * count for old, new in zip(before.sums, lane.sums, strict=True)]
    serials, host = (now.serial - before.serial) * count, (now.host - before.host) * count
    lane.serial += serials
    lane.host += host
    for transfer in {id(t): t for q in lane.queues for t in q}.values():
        stream, item, number, issued = transfer.numbers[lane.number]
        transfer.numbers[lane.number] = (stream, item, number + serials, issued + host)
