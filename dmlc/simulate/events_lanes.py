"""What the event engine keeps of a class of ranks and of a collective in flight: clocks, speeds, what is left to do, totals."""

from __future__ import annotations

from collections.abc import Sequence

from dmlc.simulate.events_program import NO_OP, Channel, Program

FULL = 100  # percent
NEVER = 1 << 200
RUNNING, COMPUTING, STARVED, WAITING, FINISHED = range(5)
# Item (NO_OP: a wait that is part of its collective's op), begin, end, number of the collective (its own, or the one waited for; NO_OP for
# computation), when the host had issued it.
RawEvent = tuple[int, int, int, int, int]
EVENTS_KEPT = 500_000  # of a lane, where iterations never come to repeat each other


class Transfer:
    """A collective or message: `left` picoseconds at full speed, done by `end` if nothing changes; moves once all `lanes` have it first in
    their queue (`absent` have not posted it yet)."""

    __slots__ = ("absent", "begin", "den", "done", "end", "kind", "lanes", "left", "moves", "num", "numbers", "since")

    def __init__(self, lanes: Sequence[Lane], kind: str):
        self.lanes, self.kind, self.absent = lanes, kind, len(lanes)
        self.left, self.since, self.end, self.begin = 0, 0, NEVER, NEVER
        self.num = self.den = 1
        self.moves = self.done = False
        self.numbers: dict[int, tuple[int, int, int, int]] = {}  # lane -> stream, item that posted it, running number, when the host had issued it

    def settle(self, now: int) -> None:
        """Count what has been done since the last account."""
        if now > self.since:
            self.left -= (now - self.since) * self.num // self.den
            self.since = now

    def retime(self) -> None:
        """The speed that the slowest lane allows, from now on."""
        num, den = self.lanes[0].speed_of(self)
        for lane in self.lanes[1:]:
            n, d = lane.speed_of(self)
            if n * den < num * d:
                num, den = n, d
        self.num, self.den = num, den
        self.end = self.since - (-self.left * den // num)


class Lane:
    """One class of ranks: where it is in its program, what it runs, what it has in flight.

    now       up to when its account is made up; `wake`: when it goes on by itself
    left      of the computation that runs; `host`: when the host has issued all units so far
    queues    stream -> transfers in order, the first one moving or waiting for other lanes; `flying` counts them
    sums      totals, to which a skipped iteration adds again: busy time by item, runs by item, busy time by stream, then time stalled, starved,
              of the host
    """

    def __init__(self, program: Program, number: int = 0):
        self.program, self.number, self.code = program, number, program.code
        self.pc = self.now = self.left = self.host = self.begin = self.flying = self.serial = 0
        self.state, self.wake, self.issued, self.rate = RUNNING, 0, False, FULL
        self.queues: list[list[Transfer]] = [[] for _ in program.streams]
        self.moving: list[tuple[int, Transfer]] = []  # (stream, transfer), by stream
        self.slots: list[Transfer | None] = [None] * program.slots
        self.awaited: Transfer | None = None
        self.counters = [0] * len(program.counts)
        self.posted: dict[Channel, int] = {}
        self.events: list[RawEvent] = []
        self.marks: list[tuple[int, int]] = []  # (time, mark)
        self.items = len(program.items)
        self.sums = [0] * (2 * self.items + len(program.streams) + 3)
        self.starved_at = -1  # when the host last held up a unit
        links = [s.link for s in program.streams]
        self.crowded = len(set(links)) < len(links)

    # -------------------------------------------------- speeds

    def speed_of(self, transfer: Transfer) -> tuple[int, int]:
        """Numerator and denominator of the speed at which this lane lets a transfer move."""
        streams = self.program.streams
        here = streams[transfer.numbers[self.number][0]]
        share = sum(1 for s, _ in self.moving if streams[s].link == here.link) if self.crowded else 1
        return (here.moving if self.state == COMPUTING else FULL), FULL * share

    def settle(self, now: int) -> None:
        """Make up the account of the computation and of all that moves."""
        if self.state == COMPUTING:
            self.left -= (now - self.now) * self.rate // FULL
        self.now = now
        for _, transfer in self.moving:
            transfer.settle(now)

    def retime(self) -> None:
        """New speeds after a change; the account is made up."""
        streams = self.program.streams
        self.rate = min([streams[s].computing for s, _ in self.moving], default=FULL)
        if self.state == COMPUTING:
            self.wake = self.now - (-self.left * FULL // self.rate)
        for _, transfer in self.moving:
            transfer.retime()

    # -------------------------------------------------- totals and events

    def issue(self, host: int) -> None:
        """The host issues the next unit."""
        self.host += host
        self.sums[-1] += host
        self.issued = True

    def starve(self) -> None:
        """The unit waits for the host."""
        self.sums[-2] += self.host - self.now
        self.starved_at = self.now

    def record(self, item: int, begin: int, end: int, number: int = NO_OP, issued: int = 0) -> None:
        """A run of an item."""
        if item != NO_OP:
            self.sums[item] += end - begin
            self.sums[self.items + item] += 1
        if len(self.events) < EVENTS_KEPT:
            self.events.append((item, begin, end, number, issued))

    def mark(self, mark: int, time: int) -> None:
        if mark >= 0 and len(self.marks) < EVENTS_KEPT:
            self.marks.append((time, mark))

    def busy(self, item: int) -> int:
        return self.sums[item]

    def runs(self, item: int) -> int:
        return self.sums[self.items + item]

    def moved(self, stream: int) -> int:
        """Time in which something moved on a stream."""
        return self.sums[2 * self.items + stream]

    @property
    def stalled(self) -> int:
        """Time that computation waited for collectives."""
        return self.sums[-3]

    @property
    def starved(self) -> int:
        """Time that computation waited for the host."""
        return self.sums[-2]

    @property
    def issuing(self) -> int:
        """The host's own time."""
        return self.sums[-1]
