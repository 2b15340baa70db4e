"""The event engine: ranks of several classes run their programs side by side, each with a stream of computation and one for each set of
mesh axes, and meet in collectives.

A rank issues its units in order. A computation runs when the one before is done. A start costs the compute stream nothing; its
collective moves when everything issued before is done, what is before it on its stream is done and the last rank of its group has come
that far. A wait holds up what is issued after it. A message is a collective of its two ranks, and both wait for it. The host issues
unit after unit; a unit begins no earlier than that, and waits do not hold up the host.

While a rank computes and collectives of its move, computation keeps `computing` percent of its speed (the least of the moving streams) and
each collective `moving` percent, and of that 1/k where k collectives of the rank move over one physical link; a collective of several
classes is as fast as the slowest of them lets it be. What is left to do is counted in picoseconds at full speed: at a rate of r percent
it takes ceil(100 left / r), and floor(r t / 100) of it is done in a time t. The account is made up at each event of a rank: a unit's
or a collective's begin or end. All of it is integers, and ties go by number: the same program gives the same events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dmlc.ir.location import DmlcError
from dmlc.simulate.events_lanes import COMPUTING, FINISHED, NEVER, RUNNING, STARVED, WAITING, Lane, Transfer
from dmlc.simulate.events_loops import Repeat, Skipper
from dmlc.simulate.events_program import ALIAS, BACK, COMPUTE, ENTER, FINISH, HEAD, NO_OP, POST, UNLESS_FIRST, WAIT, Channel, Instruction, Program


class Engine:
    """Runs the programs of `classes`; class i is lane i. `meets[channel]` are the lanes that meet there; a channel of () is a lane's own."""

    def __init__(self, classes: Sequence[Program], meets: Mapping[Channel, Sequence[int]] | None = None):
        self.lanes = [Lane(program, i) for i, program in enumerate(classes)]
        self.meets = {channel: [self.lanes[i] for i in members] for channel, members in (meets or {}).items()}
        self.now = 0
        self.moving: list[Transfer] = []
        self.repeats: list[Repeat] = []
        self._open: dict[tuple[Channel, int], Transfer] = {}  # posted by some lanes, awaited from others
        self._touched: list[Lane] = []
        self._skipper = Skipper(self)

    def run(self) -> int:
        """The time at which the last unit ends. Raises `DmlcError` where ranks wait for each other forever."""
        self._go_on(self.lanes)
        while (now := self._next()) < NEVER:
            self._step(now)
        stuck = [lane for lane in self.lanes if lane.state != FINISHED]
        if stuck:
            raise _deadlock(stuck)
        return self.now

    def _next(self) -> int:
        return min([lane.wake for lane in self.lanes] + [t.end for t in self.moving])

    def _step(self, now: int) -> None:
        """Everything that happens at one time: first all that ends is accounted for, then what follows begins."""
        self.now = now
        ended = [t for t in self.moving if t.end == now]
        woken = [lane for lane in self.lanes if lane.wake == now]
        for lane in [*woken, *(lane for t in ended for lane in t.lanes)]:
            self._touch(lane)
        for transfer in ended:
            self._end(transfer)
        for lane in woken:
            self._wake(lane)
        self._go_on([lane for lane in self.lanes if lane in woken or (lane.state == WAITING and lane.awaited.done)])  # type: ignore[union-attr]

    def _go_on(self, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            self._touch(lane)
            self._go(lane)
        for lane in self._touched:
            lane.retime()
        self._touched.clear()
        self._skipper.look()

    def _touch(self, lane: Lane) -> None:
        """Make up a lane's account before anything of it changes."""
        if lane not in self._touched:
            lane.settle(self.now)
            self._touched.append(lane)

    def _wake(self, lane: Lane) -> None:
        if lane.state == COMPUTING:
            _, item, _, _, _ = lane.code[lane.pc]
            lane.record(item, lane.begin, self.now, issued=lane.host)
            lane.pc += 1
        lane.state, lane.wake = RUNNING, NEVER

    # -------------------------------------------------- instructions

    def _go(self, lane: Lane) -> None:
        """Run instructions until the lane has to wait for something."""
        code = lane.code
        while True:
            instruction = code[lane.pc]
            if not OF_KIND[instruction[0]](self, lane, instruction):
                return

    def _compute(self, lane: Lane, instruction: Instruction) -> bool:
        if not lane.flying:
            return self._run_ahead(lane)
        _, item, time, host, mark = instruction
        if not self._issued(lane, host):
            return False
        lane.mark(mark, self.now)
        if time:
            lane.state, lane.left, lane.begin = COMPUTING, time, self.now
            return False
        lane.record(item, self.now, self.now, issued=lane.host)
        lane.pc += 1
        return True

    def _run_ahead(self, lane: Lane) -> bool:
        """Computation while nothing is in flight: one unit after the other, whatever the other lanes do."""
        now, pc, code = self.now, lane.pc, lane.code
        while code[pc][0] == COMPUTE:
            _, item, time, host, mark = code[pc]
            if not lane.issued:
                lane.issue(host)
            lane.issued = False
            if lane.host > now:
                lane.now = now
                lane.starve()
                now = lane.host
            lane.mark(mark, now)
            lane.record(item, now, now + time, NO_OP, lane.host)
            now += time
            pc += 1
        lane.pc, lane.now = pc, now
        if now == self.now:
            return True
        lane.wake = now
        return False

    def _issued(self, lane: Lane, host: int) -> bool:
        """Whether the host has issued the unit by now; if not, the lane wakes when it has."""
        if not lane.issued:
            lane.issue(host)
        if lane.host > self.now:
            lane.starve()
            lane.state, lane.wake = STARVED, lane.host
            return False
        lane.issued = False
        return True

    def _post(self, lane: Lane, instruction: Instruction) -> bool:
        _, item, slot, stream, time, host, mark, channel = instruction
        if not self._issued(lane, host):
            return False
        lane.mark(mark, self.now)
        transfer = self._meet(lane, channel, lane.program.items[item].kind)
        transfer.left = max(transfer.left, time)
        transfer.absent -= 1
        transfer.numbers[lane.number] = (stream, item, lane.serial, lane.host)
        lane.serial += 1
        lane.flying += 1
        lane.slots[slot] = transfer
        lane.queues[stream].append(transfer)
        self._begin_if_ready(transfer)
        lane.pc += 1
        return True

    def _meet(self, lane: Lane, channel: Channel, kind: str) -> Transfer:
        """The collective that this lane is to take part in next on a channel."""
        members = self.meets.get(channel) if channel else None
        if members is None or len(members) == 1:
            return Transfer([lane], kind)
        number = lane.posted.get(channel, 0)
        lane.posted[channel] = number + 1
        transfer = self._open.setdefault((channel, number), Transfer(members, kind))
        if not MATCHES.get(transfer.kind, transfer.kind) == MATCHES.get(kind, kind):
            raise DmlcError(
                f"ranks of one group issue different collectives at the same place: {transfer.kind} and {kind}",
                lane.program.items[lane.code[lane.pc][1]].op.loc,
            )
        if transfer.absent == 1:
            del self._open[channel, number]
        return transfer

    def _wait(self, lane: Lane, instruction: Instruction) -> bool:
        _, item, slot, mark = instruction
        transfer = lane.slots[slot]
        if transfer is None:
            raise DmlcError("a rank waits for a collective that it has not started", lane.program.items[item].op.loc)
        if lane.awaited is None:
            lane.mark(mark, self.now)
            lane.begin, lane.awaited = self.now, transfer
        if not transfer.done:
            lane.state, lane.wake = WAITING, NEVER
            return False
        lane.sums[-3] += self.now - lane.begin
        lane.record(item, lane.begin, self.now, transfer.numbers[lane.number][2])
        lane.awaited, lane.state = None, RUNNING
        lane.pc += 1
        return True

    def _alias(self, lane: Lane, instruction: Instruction) -> bool:
        taken = [lane.slots[source] for _, source in instruction[1]]
        for (name, _), transfer in zip(instruction[1], taken):
            lane.slots[name] = transfer
        lane.pc += 1
        return True

    def _enter(self, lane: Lane, instruction: Instruction) -> bool:
        _, loop, end, mark = instruction
        lane.mark(mark, self.now)
        lane.counters[loop] = 0
        lane.pc = lane.pc + 1 if lane.program.counts[loop] else end
        return True

    def _head(self, lane: Lane, instruction: Instruction) -> bool:
        self._skipper.arrive(lane, instruction[1])
        lane.pc += 1
        return True

    def _back(self, lane: Lane, instruction: Instruction) -> bool:
        _, loop, head = instruction
        lane.counters[loop] += 1
        lane.pc = head if lane.counters[loop] < lane.program.counts[loop] else lane.pc + 1
        return True

    def _unless_first(self, lane: Lane, instruction: Instruction) -> bool:
        _, loop, after = instruction
        lane.pc = lane.pc + 1 if lane.counters[loop] else after
        return True

    def _finish(self, lane: Lane, instruction: Instruction) -> bool:
        lane.state, lane.wake = FINISHED, NEVER
        return False

    # -------------------------------------------------- transfers

    def _begin_if_ready(self, transfer: Transfer) -> None:
        """A collective moves once all lanes have posted it and each has it first in its queue."""
        if transfer.absent or transfer.moves or not all(lane.queues[transfer.numbers[lane.number][0]][0] is transfer for lane in transfer.lanes):
            return
        for lane in transfer.lanes:
            self._touch(lane)
            lane.moving = sorted([*lane.moving, (transfer.numbers[lane.number][0], transfer)], key=lambda m: m[0])
        transfer.begin = transfer.since = self.now
        transfer.moves = True
        self.moving.append(transfer)

    def _end(self, transfer: Transfer) -> None:
        transfer.done, transfer.left = True, 0
        self.moving.remove(transfer)
        for lane in transfer.lanes:
            stream, item, number, issued = transfer.numbers[lane.number]
            lane.moving = [m for m in lane.moving if m[1] is not transfer]
            lane.queues[stream].pop(0)
            lane.flying -= 1
            lane.record(item, transfer.begin, self.now, number, issued)
            lane.sums[2 * lane.items + stream] += self.now - transfer.begin
        for lane in transfer.lanes:
            queue = lane.queues[transfer.numbers[lane.number][0]]
            if queue:
                self._begin_if_ready(queue[0])


OF_KIND = {
    COMPUTE: Engine._compute, POST: Engine._post, WAIT: Engine._wait, ALIAS: Engine._alias,
    ENTER: Engine._enter, HEAD: Engine._head, BACK: Engine._back, FINISH: Engine._finish, UNLESS_FIRST: Engine._unless_first,
}  # fmt: skip
MATCHES = {"recv": "send"}  # the two ends of a message


def makespan(program: Program) -> int:
    """How long a rank takes that meets only ranks like itself."""
    return Engine([program]).run()


def _deadlock(stuck: Sequence[Lane]) -> DmlcError:
    """Who waits where: no lane can go on."""
    notes, first = [], None
    for lane in stuck:
        assert lane.awaited is not None
        _, item, _, _ = lane.awaited.numbers[lane.number]
        op = lane.program.items[item].op
        first = first or op
        missing = [other.number for other in lane.awaited.lanes if other.number not in lane.awaited.numbers]
        notes.append(f"class {lane.number} waits for '{op.name}' [{op.id}] at {op.loc}" + (f", which class {missing[0]} does not reach" if missing else ""))
    assert first is not None
    return DmlcError("the ranks deadlock: no class of ranks can go on", first.loc, tuple(notes))
