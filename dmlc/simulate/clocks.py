"""The clocks of one rank: its computation, its streams of communication, the host that issues for it.

Units are issued in order. While computation runs and collectives move, each side is slowed down; collectives that move over one physical
link share it; a unit begins no earlier than the host has issued it. What is left to do is counted in picoseconds at full speed, so that
all arithmetic is on integers: work at a rate of r percent takes ceil(100 * work / r), and in a time t floor(t * r / 100) of it is done.

A state does not name absolute times but for `now` and `host`: what is in flight is known by what is left of it. So two runs that meet in
the same queues go on alike, shifted by one constant, which is what a search over orders saves its time with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FULL = 100  # percent


@dataclass(frozen=True)
class Streams:
    """Communication streams 0, 1, …: percent of full speed of both sides while computation runs beside a collective, and each one's link."""

    computing: tuple[int, ...]
    moving: tuple[int, ...]
    link: tuple[int, ...]

    @classmethod
    def plain(cls, count: int) -> Streams:
        """No slow-down, a link each."""
        return cls((FULL,) * count, (FULL,) * count, tuple(range(count)))

    @property
    def independent(self) -> bool:
        """Whether nothing a stream does changes the speed of another or of computation."""
        return all(p == FULL for p in (*self.computing, *self.moving)) and len(set(self.link)) == len(self.link)

    def __len__(self) -> int:
        return len(self.link)


State = tuple[int, int, list[tuple[int, ...]], list[int]]  # now, host, queues, what is left of each one's first


class Clocks:
    """Runs units one after another.

    now     when computation issued so far is done, and with it when the next unit may begin
    host    when the host has issued the last unit
    queues  stream -> collectives in flight, the moving one first
    left    stream -> what is left of the moving one
    stalled, starved  time that computation spent waiting for collectives and for the host
    called  time that starts of collectives took of it
    margin  how far the host was ahead of the last unit that it issued
    """

    __slots__ = ("streams", "time", "call", "now", "host", "queues", "left", "active", "stalled", "starved", "begins", "ends", "crowded", "margin", "called")

    def __init__(self, streams: Streams, time: Sequence[int], call: Sequence[int] = (), record: bool = False):
        """By unit: picoseconds it takes, and picoseconds of computation that its start takes of the rank (for collectives; empty: none)."""
        self.streams, self.time, self.call = streams, time, call
        self.now = self.host = self.stalled = self.starved = self.margin = self.called = 0
        self.queues: list[tuple[int, ...]] = [()] * len(streams)
        self.left = [0] * len(streams)
        self.active: list[int] = []  # streams with something in flight
        self.begins: dict[int, int] | None = {} if record else None
        self.ends: dict[int, int] = {}
        self.crowded = len(set(streams.link)) < len(streams)

    # -------------------------------------------------- states

    def state(self) -> State:
        return self.now, self.host, self.queues[:], self.left[:]

    def restore(self, state: State) -> None:
        self.now, self.host, queues, left = state
        self.queues, self.left = queues[:], left[:]
        self.active = [s for s, q in enumerate(queues) if q]

    # -------------------------------------------------- issuing

    def issue(self, unit: int, stream: int, waits: Iterable[int], host: int = 0) -> None:
        """Issue a unit that needs the collectives `waits` (units; each may be done long since). `stream` < 0: computation."""
        if self.active:
            for collective in waits:
                self._wait(collective)
        if stream >= 0 and self.call:
            before = self.now
            self._compute(self.call[unit])
            self.called += self.now - before
        if host:
            self.host += host
            self.margin = self.now - self.host
            if self.now < self.host:
                self._starve()
        elif self.host:
            self.margin = self.now - self.host
        if stream < 0:
            if self.begins is not None:
                self.begins[unit] = self.now
            self._compute(self.time[unit])
            self.ends[unit] = self.now
        else:
            self._start(unit, stream)

    def finish(self) -> int:
        """The end of the last unit: what is in flight runs out."""
        while self.active:
            self._advance(self._next_end(), 0)
        return self.now

    def _start(self, unit: int, stream: int) -> None:
        queue = self.queues[stream]
        self.queues[stream] = (*queue, unit)
        if not queue:
            self.left[stream] = self.time[unit]
            self.active.append(stream)
            self.active.sort()
            if self.begins is not None:
                self.begins[unit] = self.now

    def _wait(self, collective: int) -> None:
        for stream in self.active:
            if collective in self.queues[stream]:
                before = self.now
                while collective in self.queues[stream]:
                    self._advance(self._next_end(), 0)
                self.stalled += self.now - before
                return

    def _starve(self) -> None:
        """Idle until the host has issued the unit; collectives go on at full speed."""
        self.starved += self.host - self.now
        while self.active and self.now < self.host:
            self._advance(min(self.host - self.now, self._next_end()), 0)
        self.now = max(self.now, self.host)

    def _compute(self, work: int) -> None:
        computing, moving = self.streams.computing, self.streams.moving
        if len(self.active) == 1:  # one collective that outlasts the computation: by far the most frequent case
            (s,) = self.active
            elapsed = -(-work * FULL // computing[s])
            if elapsed * moving[s] < self.left[s] * FULL:
                self.left[s] -= elapsed * moving[s] // FULL
                self.now += elapsed
                return
        while work and self.active:
            rate = min([computing[s] for s in self.active])
            elapsed = -(-work * FULL // rate)
            end = min([-(-self.left[s] * FULL * self._share(s) // moving[s]) for s in self.active])
            step = min(elapsed, end)
            work = 0 if step == elapsed else work - step * rate // FULL
            self._advance(step, 1)
        self.now += work

    # -------------------------------------------------- moving

    def _share(self, stream: int) -> int:
        """How many collectives move over the stream's link."""
        if not self.crowded:
            return 1
        link = self.streams.link
        return [link[s] for s in self.active].count(link[stream])

    def _next_end(self) -> int:
        """How long until a collective ends while computation stands still."""
        return min([self.left[s] * self._share(s) for s in self.active])

    def _advance(self, step: int, computing: int) -> None:
        """All moving collectives go on for `step`, of which none ends earlier; those that end now leave their queues."""
        self.now += step
        done = []
        for s in self.active:
            rate = self.streams.moving[s] if computing else FULL
            share = FULL * self._share(s)
            if -(-self.left[s] * share // rate) <= step:
                done.append(s)
            else:
                self.left[s] -= step * rate // share
        for s in done:
            self._end(s)

    def _end(self, stream: int) -> None:
        unit, *rest = self.queues[stream]
        self.queues[stream] = tuple(rest)
        self.left[stream] = self.time[rest[0]] if rest else 0
        if not rest:
            self.active.remove(stream)
        self.ends[unit] = self.now
        if self.begins is not None and rest:
            self.begins[rest[0]] = self.now
