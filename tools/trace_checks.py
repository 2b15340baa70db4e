"""What a trace has to be, one check a rule; `dmlc.tools.validate_trace` is the command."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

Event = dict[str, Any]
Row = tuple[Any, Any]  # (pid, tid)

NEEDED = {
    "X": ("name", "ts", "dur", "pid", "tid"),
    "M": ("name", "args"),
    "C": ("name", "ts", "pid", "args"),
    "s": ("name", "cat", "id", "ts", "pid", "tid"),
    "i": ("name", "ts"),
}
NEEDED["f"] = NEEDED["s"]
NUMBERS = ("ts", "dur")
NCCL = {
    "Collective name": str, "dtype": str, "In msg nelems": int, "Out msg nelems": int, "In split size": list, "Out split size": list, "Group size": int,
    "Process Group Name": str, "Process Group Description": str, "Process Group Ranks": list, "Rank": int,
}  # fmt: skip
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "recv")


def problems(document: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a trace, in words."""
    fields = list(_fields(document["traceEvents"]))
    yield from fields
    yield from _head(document)
    if fields:
        return  # the other checks read these fields
    trace = Trace(document)
    for check in (_names, _nesting, _counters, _arrows, _launches, _collectives, _waits, _steps):
        yield from check(trace)


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


class Trace:
    """A document's events by what they are."""

    def __init__(self, document: dict[str, Any]):
        self.document = document
        by_phase: dict[str, list[Event]] = defaultdict(list)
        for event in document["traceEvents"]:
            by_phase[event["ph"]].append(event)
        self.spans, self.counters, self.starts, self.ends = by_phase["X"], by_phase["C"], by_phase["s"], by_phase["f"]
        self.names: dict[Row, str] = {(e["pid"], e["tid"]): e["args"].get("name", "") for e in by_phase["M"] if e["name"] == "thread_name"}
        self.processes = {e["pid"] for e in by_phase["M"] if e["name"] == "process_name"}
        self.rows: dict[Row, list[Event]] = defaultdict(list)
        for event in self.spans:
            self.rows[event["pid"], event["tid"]].append(event)
        self.ops = [e for e in self.spans if "dmlc.op" in e["args"]]
        self._by_time: dict[Row, tuple[list[Event], list[int]]] = {}

    @property
    def measured(self) -> bool:
        return self.document.get("dmlc", {}).get("kind") == "measured"

    def by_time(self, row: Row) -> tuple[list[Event], list[int]]:
        """A row's events but for annotations, and their begins."""
        if row not in self._by_time:
            events = sorted((e for e in self.rows.get(row, ()) if not e["name"].startswith("ProfilerStep#")), key=begin_of)
            self._by_time[row] = events, [begin_of(e) for e in events]
        return self._by_time[row]

    def row(self, event: Event) -> str:
        return self.names.get((event["pid"], event["tid"]), "")

    def traffic(self) -> list[Event]:
        return [e for e in self.ops if self.row(e).startswith("comm ")]


def begin_of(event: Event) -> int:
    return nanoseconds(event["ts"])


def end_of(event: Event) -> int:
    return nanoseconds(event["ts"]) + nanoseconds(event.get("dur", 0))


def shown(event: Event) -> str:
    return f"{event.get('name')!r} at {event.get('ts')} us on {event.get('pid')}/{event.get('tid')}"


# ---------------------------------------------------------------- fields


def _head(document: dict[str, Any]) -> Iterator[str]:
    if document.get("schemaVersion") != 1:
        yield "schemaVersion is not 1"
    if not isinstance(document.get("deviceProperties"), list):
        yield "there is no list of deviceProperties"
    about = document.get("distributedInfo")
    if (
        not isinstance(about, dict)
        or not all(isinstance(about.get(k), int) for k in ("rank", "world_size", "pg_count"))
        or not isinstance(about.get("pg_config"), list)
    ):
        yield "distributedInfo does not name backend, rank, world_size, pg_count and pg_config"
    elif not (0 <= about["rank"] < about["world_size"] and len(about["pg_config"]) == about["pg_count"] and isinstance(about.get("backend"), str)):
        yield "distributedInfo contradicts itself"
    elif any(about["rank"] not in g.get("ranks", ()) or len(g["ranks"]) != g.get("pg_size") for g in about["pg_config"]):
        yield "a group of distributedInfo lacks its rank, or is not of its size"


def _fields(events: Sequence[Event]) -> Iterator[str]:
    for event in events:
        phase = event.get("ph")
        if phase not in NEEDED:
            yield f"phase {phase!r} of {shown(event)} is none of {', '.join(NEEDED)}"
            continue
        lacking = [k for k in NEEDED[phase] if k not in event]
        if lacking:
            yield f"{shown(event)} (phase {phase}) lacks {', '.join(lacking)}"
        elif any(not isinstance(event.get(k, 0), (int, float)) or not 0 <= event.get(k, 0) < float("inf") for k in NUMBERS):
            yield f"{shown(event)} has a time or length that is no number from 0 on"
        elif not isinstance(event.get("args", {}), dict):
            yield f"{shown(event)} has args that are no object"
        elif phase == "X":
            event.setdefault("args", {})


def _names(trace: Trace) -> Iterator[str]:
    for row in trace.rows:
        if row not in trace.names:
            yield f"row {row[0]}/{row[1]} has events and no name"
        if row[0] not in trace.processes:
            yield f"process {row[0]} has events and no name"
    places = [(pid, name) for (pid, _), name in trace.names.items()]
    yield from (f"process {pid} has two rows named {name!r}" for pid, name in dict.fromkeys(places) if places.count((pid, name)) > 1)


# ---------------------------------------------------------------- times


def _nesting(trace: Trace) -> Iterator[str]:
    """Events of a row are in order and nest: one that begins inside another ends inside it."""
    for events in trace.rows.values():
        ops = [e for e in events if "dmlc.op" in e["args"]]
        yield from (f"{shown(b)} stands after {shown(a)}" for a, b in zip(ops, ops[1:]) if begin_of(b) < begin_of(a))
        open_: list[Event] = []
        for event in sorted(events, key=lambda e: (begin_of(e), -end_of(e))):
            while open_ and end_of(open_[-1]) <= begin_of(event):
                open_.pop()
            if open_ and end_of(event) > end_of(open_[-1]):
                yield f"{shown(event)} overlaps {shown(open_[-1])} in part"
            if open_ and end_of(event) > begin_of(event) and "dmlc.op" in event["args"] and "dmlc.op" in open_[-1]["args"]:
                yield f"{shown(event)} runs inside {shown(open_[-1])}"
            open_.append(event)


def _counters(trace: Trace) -> Iterator[str]:
    last: dict[tuple, int] = {}
    for event in trace.counters:
        key = (event["pid"], event["name"])
        if begin_of(event) < last.get(key, 0):
            yield f"counter {shown(event)} goes back in time"
        last[key] = begin_of(event)
        if not event["args"] or any(not isinstance(v, (int, float)) or v < 0 for v in event["args"].values()):
            yield f"counter {shown(event)} has a value that is no number from 0 on"


def _steps(trace: Trace) -> Iterator[str]:
    """A ProfilerStep on each process spans what runs there."""
    steps: dict[Any, list[Event]] = defaultdict(list)
    for event in trace.spans:
        if event["name"].startswith("ProfilerStep#"):
            steps[event["pid"]].append(event)
    for event in trace.ops:
        around = steps.get(event["pid"], ())
        if not any(begin_of(s) <= begin_of(event) and end_of(event) <= end_of(s) for s in around):
            yield f"{shown(event)} lies in no ProfilerStep of its process"


# ---------------------------------------------------------------- arrows


def _arrows(trace: Trace) -> Iterator[str]:
    """Each arrow has one begin and one end, in that order, and both lie on an event."""
    begins, ends = _by_id(trace.starts), _by_id(trace.ends)
    for key in dict.fromkeys([*begins, *ends]):
        if len(begins.get(key, ())) != 1 or len(ends.get(key, ())) != 1:
            yield f"arrow {key[1]} ({key[0]}) has {len(begins.get(key, ()))} begins and {len(ends.get(key, ()))} ends"
        elif begin_of(begins[key][0]) > begin_of(ends[key][0]):
            yield f"arrow {key[1]} ({key[0]}) goes back in time"
    for event in (*trace.starts, *trace.ends):
        if not _bound(trace, event):
            yield f"arrow {event['id']} ({event['cat']}) is bound to no event at {event['ts']} us on {event['pid']}/{event['tid']}"


def _by_id(events: Sequence[Event]) -> dict[tuple, list[Event]]:
    found: dict[tuple, list[Event]] = defaultdict(list)
    for event in events:
        found[event["cat"], event["id"]].append(event)
    return found


def _bound(trace: Trace, arrow: Event) -> list[Event]:
    """The ops and launches that an arrow's end lies on."""
    at = begin_of(arrow)
    events, begins = trace.by_time((arrow["pid"], arrow["tid"]))
    found = []
    for i in reversed(range(bisect_right(begins, at))):
        if end_of(events[i]) >= at:
            found.append(events[i])
        elif begins[i] < end_of(events[i]):
            break  # events of a row follow each other, so none before it lasts longer
    return found


def _launches(trace: Trace) -> Iterator[str]:
    """No two kernels have one correlation; a launch's kernel begins no earlier than the launch."""
    kernels: dict[Any, Event] = {}
    for event in trace.ops:
        number = event["args"].get("correlation")
        if number is None or number in kernels:
            yield f"{shown(event)} has {'no correlation' if number is None else f'the correlation {number} of another'}"
        kernels[number] = event
    for event in trace.spans:
        if event["name"] == "cudaLaunchKernel":
            kernel = kernels.get(event["args"].get("correlation"))
            if kernel is None:
                yield f"{shown(event)} launches no kernel of the trace"
            elif begin_of(kernel) < begin_of(event):
                yield f"{shown(kernel)} begins before its launch"


# ---------------------------------------------------------------- communication


def _collectives(trace: Trace) -> Iterator[str]:
    described = [e for e in trace.spans if e["name"] == "record_param_comms"]
    for event in (*trace.traffic(), *described):
        args = event["args"]
        wrong = [k for k, kind in NCCL.items() if not isinstance(args.get(k), kind)]
        if wrong:
            yield f"{shown(event)} lacks {', '.join(wrong)}"
        elif len(args["Process Group Ranks"]) != args["Group size"] or args["Rank"] not in args["Process Group Ranks"]:
            yield f"{shown(event)} is of rank {args['Rank']}, whose group of {args['Group size']} is {args['Process Group Ranks']}"
        elif args["Collective name"] not in COLLECTIVES:
            yield f"{shown(event)} is a collective of an unknown kind, {args['Collective name']!r}"


def _waits(trace: Trace) -> Iterator[str]:
    """Each wait has an arrow from a collective that had begun when the wait was over; in a simulation it was over too."""
    begins = {key: events[0] for key, events in _by_id(trace.starts).items() if key[0] == "comm"}
    sources: dict[Any, Event] = {e["args"].get("correlation"): e for e in trace.traffic()}
    waited: dict[int, Event] = {}
    for end in trace.ends:
        if end["cat"] == "comm" and (end["cat"], end["id"]) in begins:
            waits = [e for e in _bound(trace, end) if e["args"].get("dmlc.kind") == "wait" and id(e) not in waited]
            if not waits or end["id"] not in sources:
                yield f"arrow {end['id']} does not go from a collective to a wait"
            for event in waits[:1]:
                waited[id(event)] = sources.get(end["id"], event)
    for event in trace.ops:
        if event["args"].get("dmlc.kind") == "wait":
            source = waited.get(id(event))
            if source is None:
                yield f"{shown(event)} waits for no collective of the trace"
            elif end_of(event) < (begin_of(source) if trace.measured else end_of(source)):
                yield f"{shown(event)} is over before {shown(source)}"
