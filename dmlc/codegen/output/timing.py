"""Times every op of model.py while it runs: its source is read, a look at the clock is put after each op's lines, and that is what runs.

On a processor the clock is the process's; on a GPU each look records an event on the stream. Of a collective it is known when it was
called, when it was done (by its own future) and when it was waited for. `lines.json` says which op a line begins. `timeline.py` writes what
was found.
"""

import ast
import json
import platform
import sys
import time
import types
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
WARM = 3  # steps before anything is timed: the first ones build groups, fill caches, fault in memory
CALLED, WAITED = "called", "waited"


# ---------------------------------------------------------------- clocks


class HostClock:
    """Nanoseconds of this process's steady clock."""

    @staticmethod
    def synchronize():
        pass

    look = staticmethod(time.perf_counter_ns)
    stamp = staticmethod(time.perf_counter_ns)

    @staticmethod
    def nanoseconds(first, look):
        return look - first


class StreamClock:
    """Events on the current stream, which are used again in the next step; a `stamp` is an event of its own, on whatever stream."""

    def __init__(self):
        self.events, self.used = [], 0

    def synchronize(self):
        torch.cuda.synchronize()
        self.used = 0

    def look(self):
        if self.used == len(self.events):
            self.events.append(torch.cuda.Event(enable_timing=True))
        event = self.events[self.used]
        self.used += 1
        event.record()
        return event

    @staticmethod
    def stamp():
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @staticmethod
    def nanoseconds(first, look):
        return round(first.elapsed_time(look) * 1e6)


# ---------------------------------------------------------------- the program, with looks at the clock


def timed_class(path, lines, log, look):
    """The class `Program` of a model.py that calls `log((line, look()))` after each op, and with line 0 before the first."""
    tree = ast.parse(path.read_text(), str(path))
    program = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Program")
    call = next(n for n in program.body if isinstance(n, ast.FunctionDef) and n.name == "__call__")
    first = next((i for i, s in enumerate(call.body) if s.lineno in lines), len(call.body) - 1)
    call.body = [*call.body[:first], _mark(0), *_marked(call.body[first:], lines)]
    module = types.ModuleType("timed_model")
    module.__dict__.update(_log=log, _look=look)
    sys.modules[module.__name__] = module
    exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), module.__dict__)
    return module.Program


def _marked(body, lines):
    """The statements with a mark behind those of each op: from its own line to the next op's (values put back, variables deleted)."""
    found, op = [], None
    for statement in body:
        compound = isinstance(statement, (ast.For, ast.If, ast.While))
        if op is not None and (statement.lineno in lines or compound or isinstance(statement, ast.Return)):
            found.append(_mark(op))
            op = None
        if compound:
            statement.body, statement.orelse = _marked(statement.body, lines), _marked(statement.orelse, lines)
        elif statement.lineno in lines:
            op = statement.lineno
        found.append(statement)
    return found if op is None else [*found, _mark(op)]


def _mark(line):
    return ast.parse(f"_log(({line}, _look()))").body[0]


# ---------------------------------------------------------------- collectives


class TimedFuture:
    """A started collective that notes when it is waited for."""

    def __init__(self, future, number, log):
        self.future, self.number, self.log = future, number, log

    def wait(self):
        for work in self.future._work:
            work.wait()
        done = time.perf_counter_ns()
        results = self.future.wait()
        self.log((WAITED, self.number, time.perf_counter_ns() - done))
        return results


def timed_collectives(base, log, done, clock):
    """The runtime's class `base` with starts that note how long they packed and when they were called, and, in `done`, when they were over."""

    def timed(name):
        start = getattr(base, name)

        def call(self, *args, **kwargs):
            begin = time.perf_counter_ns()
            future = start(self, *args, **kwargs)
            number, packed = len(done), time.perf_counter_ns() - begin
            done.append(None)
            log((CALLED, number, packed, clock.look()))
            for work in future._work:
                work.get_future().then(lambda _: done.__setitem__(number, clock.stamp()))
            return TimedFuture(future, number, log)

        return call

    return type("TimedCollectives", (base,), {name: timed(name) for name in dir(base) if name.endswith("_start")})


# ---------------------------------------------------------------- a step's record


def events_of(log, done, lines, clock):
    """A step's log as events [op, which of its runs, begin, end, packing, unpacking] in nanoseconds from the step's begin."""
    step = Step(log[0][1], done, lines, clock)
    for entry in log[1:]:
        step.take(entry)
    return step.events


class Step:
    """Reads a log. An op lasts from the mark before its own to its own; a collective from its call, or from the end of the one before on its
    row, until it is done."""

    def __init__(self, first, done, lines, clock):
        self.first, self.done, self.lines, self.clock = first, done, lines, clock
        self.events, self.runs, self.previous = [], {}, 0
        self.free, self.called, self.waited, self.of = {}, None, None, {}

    def take(self, entry):
        if entry[0] == CALLED:
            self.called = entry
        elif entry[0] == WAITED:
            self.waited = entry
        else:
            now = self.clock.nanoseconds(self.first, entry[1])
            event = self._event(self.lines[entry[0]], now)
            self._add(self.lines[entry[0]]["op"], event)
            for op in self.lines[entry[0]].get("with", ()):
                self._add(op, [now, now, 0, 0])  # its time is in that of the op whose line does it
            self.previous, self.called, self.waited = now, None, None

    def _add(self, op, event):
        run = self.runs[op] = self.runs.get(op, -1) + 1
        event[0:0] = [op, run]
        self.events.append(event)

    def _event(self, what, now):
        """[begin, end, packing, unpacking]."""
        unpacking = self.waited[2] if self.waited is not None else 0
        if what["kind"] == "comm.wait":
            started = self.of[self.waited[1]]
            started[-3] = max(started[-4], min(started[-3], now - unpacking))  # the call back may come late
        if self.called is None:
            return [self.previous, now, 0, unpacking]
        _, number, packing, look = self.called
        if self.waited is None:
            packing = now - self.previous  # all that a start takes of the program's own time
        begin = max(self.clock.nanoseconds(self.first, look), self.free.get(what["row"], 0))
        end = self.clock.nanoseconds(self.first, self.done[number])
        end = self.free[what["row"]] = max(begin, end if self.waited is None else min(end, now - unpacking))
        self.of[number] = event = [begin, end, packing, unpacking]
        return event


def read_lines():
    text = json.loads((HERE / "lines.json").read_text())
    return {int(line): entry for line, entry in text["lines"].items()}


def read_ops():
    """What lines.json says of each op, by its id."""
    text = json.loads((HERE / "lines.json").read_text())
    return {**{entry["op"]: entry for entry in text["lines"].values()}, **text["merged"]}


def machine(device):
    """What a measurement depends on besides the program."""
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else processor()
    return {"device": device.type, "name": name, "threads": str(torch.get_num_threads()), "torch": torch.__version__}


def processor():
    """The processor's name, as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor() or platform.machine())


def needed(steps):
    """Calls of the program that a profile of so many steps takes."""
    return WARM + 2 * steps


class Profiled:
    """A program that, after a few calls, times itself: `steps` calls as it is and as many with looks at the clock, by turns."""

    def __init__(self, program, mesh, device, steps, save):
        self.program, self.mesh, self.device, self.steps, self.save = program, mesh, device, steps, save
        self.lines, self.log, self.done = read_lines(), [], []
        self.clock = StreamClock() if device.type == "cuda" else HostClock()
        self.timed = timed_class(HERE / "model.py", self.lines, self.log.append, self.clock.look)(mesh, device, *([program.sizes] if hasattr(program, "sizes") else []))
        self.timed.comm = timed_collectives(type(program.comm), self.log.append, self.done, self.clock)(mesh)
        self.calls = 0
        self.plain, self.marked, self.events = [], [], []

    def __call__(self, weights, inputs):
        number = self.calls - WARM
        self.calls += 1
        if not 0 <= number < 2 * self.steps:
            return self.program(weights, inputs)
        results = self._measure(self.timed if number % 2 else self.program, weights, inputs, self.marked if number % 2 else self.plain)
        if number % 2:
            self._take()
        if number == 2 * self.steps - 1:
            self.save(self)
        return results

    def _measure(self, program, weights, inputs, times):
        self.clock.synchronize()
        begin = time.perf_counter_ns()
        results = program(weights, inputs)
        self.clock.synchronize()
        times.append(time.perf_counter_ns() - begin)
        return results

    def _take(self):
        """Keep the last step's events."""
        deadline = time.monotonic() + 10
        while None in self.done and time.monotonic() < deadline:
            time.sleep(0.001)  # a collective's future calls back from a thread of its own
        self.events.append(events_of(self.log, self.done, self.lines, self.clock))
        self.log.clear()
        self.done.clear()

    @property
    def needed(self):
        """Calls after which everything is measured."""
        return needed(self.steps)

    @property
    def plain_seconds(self):
        """Of the calls as the program is."""
        return [t / 1e9 for t in self.plain]

    def record(self):
        """This rank's part of profile.json."""
        return {"rank": self.mesh.rank, "machine": machine(self.device), "plain_ns": self.plain, "timed_ns": self.marked, "steps": self.events}
