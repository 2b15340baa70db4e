"""`trace.json`: what ran when, as Chrome's trace format with Kineto's fields, so that Perfetto shows a simulated step beside a profiled one.

Conventions, the same for a simulated step and for the record that a real run writes of itself:

    document   {"schemaVersion": 1, "deviceProperties": [{"id", "name", "totalGlobalMem", "numSms"}], "displayTimeUnit": "ms",
               "baseTimeNanoseconds": 0, "distributedInfo": {"backend", "rank", "world_size", "pg_count", "pg_config":
               [{"pg_name", "pg_desc", "backend_config", "pg_size", "ranks"}]}, "traceName", "dmlc": {"kind": "simulated" | "measured",
               "ranks": {"0": [0, 1]}} (the ranks that process 0 stands for, where it is not only itself), "traceEvents": [...]}. One
               file a rank; a merged file has the first rank's distributedInfo.
    times      `ts` and `dur` in microseconds with three decimals, the step begins at 0. Begin and end are each cut to whole nanoseconds,
               so that neighbours on a row never overlap.
    processes  the device of rank r is pid r, its host pid 1000000 + r. `M` events, all with ts 0: process_name ("rank 0 (simulated)",
               "rank 0 (measured)"; host "python"), process_labels ("GPU 0" or "CPU 0"; host "CPU"), process_sort_index
               (5000000 + r; host r), and for each row thread_name and thread_sort_index (= tid).
    rows       one a stream, named by thread_name: "compute" is tid 7; "comm data" ("comm " and the mesh axes joined by commas) is tid 20,
               21, ... in the order of first use; tid 1 of the host is "host". The names are what two traces are compared by.
    events     ph "X". An op has an event if `dmlc.simulate.rows.is_shown(op)`, on row `row_of(op)`, called `name_of(op)`; its args hold
               "dmlc.op" (the op's id; several runs in a step are several events in their order). Category "kernel" on a gpu, "cpu_op" on a cpu.
               A collective, started or waited for at once, is an event of its comm row only, under the id of its start.
               A `comm.wait` is always an event of the compute row, as long as it blocks what follows (0 where it blocks nothing).
    args       of events with "dmlc.op": "device" (= pid), "stream" (= tid), "correlation" and "External id" (rank * 10000000 + n, n from 1),
               "dmlc.kind" (category of op), and what is known of "dmlc.cost_source" (measured | table | model | default), "dmlc.flops",
               "dmlc.bytes", "dmlc.err_pct". A measured event has neither cost nor error.
    NCCL       events of comm rows also have "Collective name" ("all_reduce"), "dtype" (c10's: "Float", "BFloat16"), "In msg nelems",
               "Out msg nelems", "In split size", "Out split size" ([]), "Group size", "Process Group Name", "Process Group Description"
               (the axes), "Process Group Ranks" ([...]), "Rank".
    waits      an arrow from a collective to its wait: ph "s" at the collective's begin, ph "f" with "bp": "e" at the later of that and
               the wait's begin; both have cat "comm", name "wait" and id rank * 10000000 + the collective's n.
    step       "ProfilerStep#0" spans the step: user_annotation on the host's row, gpu_user_annotation on the compute row.
    host       on a gpu the host's row holds each launch: cuda_runtime "cudaLaunchKernel" with the kernel's correlation, inside a cpu_op
               "record_param_comms" with the NCCL args for a collective; an arrow (cat and name "ac2g") goes to the kernel.
    counters   ph "C" of the device: "memory" (bytes by category) and "exposed communication" (1 while computation waits for it, else 0).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmlc.simulate.rows import COMPUTE_ROW

if TYPE_CHECKING:
    from dmlc.simulate.step import StepReport

HOST_PID, HOST_TID = 1_000_000, 1
COMPUTE_TID, FIRST_COMM_TID = 7, 20
DEVICE_SORT_INDEX = 5_000_000
IDS_OF_A_RANK = 10_000_000
PICOSECONDS = 1000  # of a nanosecond
HOST_ROW = "host"


@dataclass(frozen=True)
class Place:
    """Whose record it is: `groups` maps the axes of each comm row ("data,model") to the ranks of this rank's group, in the order of first use."""

    rank: int
    world: int
    device: str
    kind: str = "gpu"
    backend: str = "nccl"
    memory: int = 0
    units: int = 0
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()  # that it stands for

    @property
    def host(self) -> int:
        return HOST_PID + self.rank


def microseconds(picoseconds: int) -> float:
    """Cut to whole nanoseconds."""
    return picoseconds // PICOSECONDS / 1000


def _span(begin: int, end: int) -> dict[str, float]:
    return {"ts": microseconds(begin), "dur": (end // PICOSECONDS - begin // PICOSECONDS) / 1000}


def document(
    events: Iterable[Mapping[str, Any]], place: Place, end: int, counters: Iterable[Mapping[str, Any]] = (), kind: str = "simulated"
) -> dict[str, Any]:
    """The trace of one rank's step, as the conventions above say.

    Each event is {"row", "name", "op", "begin", "end", "args"} in picoseconds, in the order of begin; of a collective also "number" and
    "collective" (its NCCL args but for the group), of a wait "waits" (that number), on a gpu "issued" and "issue" (when the host had
    issued it and how long that took). `counters` are {"name", "time", "values"}. `end` is the step's.
    """
    writer = _Writer(place, kind)
    for event in events:
        writer.event(event)
    trace = [*writer.metadata(), *writer.step(end), *writer.found, *(_counter(place, c) for c in counters)]
    device = {"id": place.rank, "name": place.device, "totalGlobalMem": place.memory, "numSms": place.units}
    head = {"schemaVersion": 1, "deviceProperties": [device], "displayTimeUnit": "ms", "baseTimeNanoseconds": 0, "distributedInfo": writer.distributed()}
    about = {"kind": kind, **({"ranks": {str(place.rank): list(place.ranks)}} if place.ranks else {})}
    return {**head, "traceName": f"rank{place.rank}", "dmlc": about, "traceEvents": trace}


def _counter(place: Place, counter: Mapping[str, Any]) -> dict[str, Any]:
    return {"ph": "C", "name": counter["name"], "pid": place.rank, "tid": 0, "ts": microseconds(counter["time"]), "args": dict(counter["values"])}


class _Writer:
    """Events of one rank; rows get their numbers as they come."""

    def __init__(self, place: Place, kind: str):
        self.place, self.kind = place, kind
        self.rows = {COMPUTE_ROW: COMPUTE_TID, **{f"comm {axes}": FIRST_COMM_TID + i for i, axes in enumerate(place.groups)}}
        self.found: list[dict[str, Any]] = []
        self.count = 0
        self.arrows: dict[int, tuple[int, dict[str, Any]]] = {}  # number of a collective -> correlation, its event
        self.waiting: dict[int, dict[str, Any]] = {}  # waits that stand before their collective, which begins later

    @property
    def gpu(self) -> bool:
        return self.place.kind == "gpu"

    def event(self, event: Mapping[str, Any]) -> None:
        self.count += 1
        number, place = self.place.rank * IDS_OF_A_RANK + self.count, self.place
        tid = self.rows.setdefault(event["row"], FIRST_COMM_TID + len(self.rows) - 1)
        args = {"dmlc.op": event["op"], "device": place.rank, "stream": tid, "correlation": number, "External id": number, **event.get("args", {})}
        args |= self._collective(event) if "collective" in event else {}
        head = {"ph": "X", "cat": "kernel" if self.gpu else "cpu_op", "name": event["name"], "pid": place.rank, "tid": tid}
        made = {**head, **_span(event["begin"], event["end"]), "args": args}
        self.found.append(made)
        if "number" in event:
            self.arrows[event["number"]] = (number, made)
            if event["number"] in self.waiting:
                self._arrow(event["number"], self.waiting.pop(event["number"]))
        if "waits" in event:
            if event["waits"] in self.arrows:
                self._arrow(event["waits"], made)
            else:
                self.waiting[event["waits"]] = made
        elif self.gpu and event.get("issued"):
            self._launch(event, args, made)

    def _collective(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """NCCL's args, with those of the group."""
        axes = event["row"].removeprefix("comm ")
        ranks = list(self.place.groups[axes])
        group = {"Group size": len(ranks), "Process Group Name": str(1 + list(self.place.groups).index(axes)), "Process Group Description": axes}
        return {**event["collective"], "In split size": [], "Out split size": [], **group, "Process Group Ranks": ranks, "Rank": self.place.rank}

    def _arrow(self, number: int, wait: Mapping[str, Any]) -> None:
        """From a collective to what waits for it."""
        identity, made = self.arrows[number]
        common = {"cat": "comm", "name": "wait", "id": identity}
        self.found.append({"ph": "s", **common, "pid": made["pid"], "tid": made["tid"], "ts": made["ts"]})
        self.found.append({"ph": "f", "bp": "e", **common, "pid": wait["pid"], "tid": wait["tid"], "ts": max(made["ts"], wait["ts"])})

    def _launch(self, event: Mapping[str, Any], args: Mapping[str, Any], made: Mapping[str, Any]) -> None:
        """What the host did for it."""
        span = {"pid": self.place.host, "tid": HOST_TID, **_span(event["issued"] - event["issue"], event["issued"])}
        number = args["correlation"]
        if "collective" in event:
            described = {k: v for k, v in args.items() if not k.startswith("dmlc.") and k not in ("device", "stream", "correlation")}
            self.found.append({"ph": "X", "cat": "cpu_op", "name": "record_param_comms", **span, "args": described})
        self.found.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **span, "args": {"correlation": number, "External id": number}})
        common = {"cat": "ac2g", "name": "ac2g", "id": number}
        self.found.append({"ph": "s", **common, "pid": self.place.host, "tid": HOST_TID, "ts": span["ts"]})
        self.found.append({"ph": "f", "bp": "e", **common, "pid": made["pid"], "tid": made["tid"], "ts": made["ts"]})

    # -------------------------------------------------- around the events

    def step(self, end: int) -> list[dict[str, Any]]:
        """The annotations that span the step."""
        common = {"ph": "X", "name": "ProfilerStep#0", **_span(0, end), "args": {}}
        device = "gpu_user_annotation" if self.gpu else "user_annotation"
        return [
            {**common, "cat": "user_annotation", "pid": self.place.host, "tid": HOST_TID},
            {**common, "cat": device, "pid": self.place.rank, "tid": COMPUTE_TID},
        ]

    def metadata(self) -> list[dict[str, Any]]:
        rank, host = self.place.rank, self.place.host
        label = f"{'GPU' if self.gpu else 'CPU'} {rank}"
        processes = [(rank, f"rank {rank} ({self.kind})", label, DEVICE_SORT_INDEX + rank), (host, "python", "CPU", rank)]
        found = [entry for process in processes for entry in _process(*process)]
        rows = [(rank, tid, row) for row, tid in self.rows.items()] + [(host, HOST_TID, HOST_ROW)]
        return found + [entry for row in rows for entry in _thread(*row)]

    def distributed(self) -> dict[str, Any]:
        backend = self.place.backend
        groups = [
            {"pg_name": str(1 + i), "pg_desc": axes, "backend_config": backend, "pg_size": len(ranks), "ranks": list(ranks)}
            for i, (axes, ranks) in enumerate(self.place.groups.items())
        ]
        return {"backend": backend, "rank": self.place.rank, "world_size": self.place.world, "pg_count": len(groups), "pg_config": groups}


def _process(pid: int, name: str, label: str, order: int) -> list[dict[str, Any]]:
    common = {"ph": "M", "pid": pid, "tid": 0, "ts": 0}
    named = {"process_name": {"name": name}, "process_labels": {"labels": label}, "process_sort_index": {"sort_index": order}}
    return [{**common, "name": key, "args": args} for key, args in named.items()]


def _thread(pid: int, tid: int, name: str) -> list[dict[str, Any]]:
    common = {"ph": "M", "pid": pid, "tid": tid, "ts": 0}
    return [{**common, "name": "thread_name", "args": {"name": name}}, {**common, "name": "thread_sort_index", "args": {"sort_index": tid}}]


# ---------------------------------------------------------------- files


def merged(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One view of several ranks."""
    first = documents[0]
    devices = [d for one in documents for d in one["deviceProperties"]]
    about = {**first["dmlc"], "ranks": {pid: ranks for one in documents for pid, ranks in one["dmlc"].get("ranks", {}).items()}}
    return {**first, "deviceProperties": devices, "traceName": "merged", "dmlc": about, "traceEvents": [e for one in documents for e in one["traceEvents"]]}


def write(report: StepReport, path: str | Path, errors: Mapping[str, float] | None = None) -> list[Path]:
    """Write a simulated step to `path`; with several classes of ranks one file each too, `trace.rank3.json`, and all of them in `path`.
    `errors` are percents by source of price, as far as they are known. Returns the files."""
    path = Path(path)
    documents = [step_document(r, errors) for r in report.classes or (report,)]
    if len(documents) == 1:
        return [save(documents[0], path)]
    single = [save(d, path.with_suffix(f".rank{r.ranks[0]}{path.suffix}")) for d, r in zip(documents, report.classes)]
    return [save(merged(documents), path), *single]


def step_document(report: StepReport, errors: Mapping[str, float] | None = None) -> dict[str, Any]:
    """The trace of one class of ranks, as its first rank's."""
    from dmlc.simulate.trace_step import counters_of, events_of, place_of

    run = report.run
    return document(events_of(run, errors or {}), place_of(run), run.end, counters_of(run))


def save(trace: Mapping[str, Any], path: Path) -> Path:
    """Write a trace: its head, then an event a line."""
    head = json.dumps({k: v for k, v in trace.items() if k != "traceEvents"})
    events = ",\n".join(json.dumps(e, separators=(",", ":")) for e in trace["traceEvents"])
    path.write_text(f'{head[:-1]}, "traceEvents": [\n{events}\n]}}\n', encoding="utf-8")
    return path
