"""A simulated step beside the profile of a real one: op by op, by kind, exposed communication, and what the simulation does not know of.

A profile is what a compiled folder writes with --profile (`timing.py` in it): for each rank the steps' events [op, which of its runs, begin, end,
packing, unpacking] in nanoseconds, and `ops`, what `lines.json` says of each op. All times here are picoseconds.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dmlc.ir.location import DmlcError
from dmlc.simulate.kinds import COMPUTATION, COPIES
from dmlc.simulate.step import StepReport

PS = 1000  # a nanosecond
Key = tuple[str, str]  # row, op


@dataclass(frozen=True)
class Line:
    """An op over all its runs in a step; None where one side does not have it. `source` is that of the predicted price."""

    op: str
    name: str
    row: str
    kind: str
    runs: int
    predicted: int | None
    measured: int | None
    source: str = ""

    @property
    def difference(self) -> int:
        return (self.measured or 0) - (self.predicted or 0)


@dataclass(frozen=True)
class Comparison:
    """`parts`: what the step's time is spent on, (predicted, measured) each; each column adds up to its step. `streams`: busy time of
    communication by kind. `step` and `exposed`: (predicted, measured). `plain`: the measured step without looks at the clock."""

    step: tuple[int, int]
    plain: int
    exposed: tuple[int, int]
    parts: Mapping[str, tuple[int, int]]
    streams: Mapping[str, tuple[int, int]]
    lines: tuple[Line, ...]
    steps: int
    alone: bool = False
    unknown: tuple[Line, ...] = field(default=())

    @property
    def error(self) -> float:
        """How far the prediction is from the step without looks at the clock: 0.1 = ten percent too long."""
        return self.step[0] / self.plain - 1


def compare(report: StepReport, profile: Mapping[str, Any], rank: int = 0) -> Comparison:
    """The class of ranks that `rank` is in, beside its profile. Raises `DmlcError` where the profile has no such rank."""
    record = next((r for r in profile["ranks"] if r["rank"] == rank), None)
    if record is None or not record["steps"]:
        raise DmlcError(f"the profile has no steps of rank {rank}")
    simulated = next((r for r in report.classes if rank in r.ranks), report)
    entries = profile["ops"]
    medians = _medians(record["steps"])
    step = (simulated.time, round(statistics.median(record["timed_ns"]) * PS))
    lines = _lines(simulated, medians, entries)
    parts = _parts(simulated, record["steps"], entries, step)
    return Comparison(
        step,
        round(statistics.median(record["plain_ns"]) * PS),
        parts.get(EXPOSED, (0, 0)),
        parts,
        _streams(simulated, lines),
        lines,
        len(record["steps"]),
        profile["alone"],
        tuple(line for line in lines if line.predicted is None or line.measured is None),
    )


# ---------------------------------------------------------------- measured


@dataclass(frozen=True)
class Measured:
    """Medians over the steps of one run of an op."""

    time: int
    packing: int
    unpacking: int


def _medians(steps: list[list]) -> dict[tuple[str, int], Measured]:
    """(op, which of its runs) -> what it took."""
    found: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
    for step in steps:
        for op, run, begin, end, packing, unpacking in step:
            found[op, run].append((end - begin, packing, unpacking))
    return {key: Measured(*(round(statistics.median(column) * PS) for column in zip(*times))) for key, times in found.items()}


EXPOSED, HIDDEN = "exposed communication", "views, constants, sums of loops"


def _spent(step: list, entries: Mapping[str, Any]) -> dict[str, int]:
    """Nanoseconds of one step by what they went to. Exposed are waits, without the copies after them, and collectives that are waited for where
    they start."""
    found: dict[str, int] = defaultdict(int)
    for op, _, begin, end, packing, unpacking in step:
        entry, time = entries[op], end - begin
        found[COPIES] += packing + unpacking
        if entry["kind"] == "comm.wait":
            found[EXPOSED] += time - unpacking
        elif "axes" in entry:
            found[EXPOSED] += 0 if entry["start"] else time
        else:
            found[entry["category"] if entry["shown"] else HIDDEN] += time
    return found


def _parts(simulated: StepReport, steps: list[list], entries: Mapping[str, Any], step: tuple[int, int]) -> dict[str, tuple[int, int]]:
    """Medians over the steps; what they leave of the median step is what medians do: they need not add up."""
    spent = [_spent(s, entries) for s in steps]
    measured = {name: round(statistics.median(s[name] for s in spent) * PS) for name in {name for s in spent for name in s}}
    predicted = {**_computed(simulated), COPIES: simulated.by_kind.get(COPIES, 0), EXPOSED: simulated.exposed, "waiting for the host": simulated.starved}
    predicted[HIDDEN] = step[0] - sum(predicted.values())
    order = (*COMPUTATION, EXPOSED, "waiting for the host", HIDDEN)
    found = {name: (predicted.get(name, 0), measured.get(name, 0)) for name in order}
    found["rest"] = (0, step[1] - sum(measured.values()))
    return {name: both for name, both in found.items() if any(both)}


def _computed(simulated: StepReport) -> dict[str, int]:
    """Kind -> time of the computations that a trace shows; those of no row of their own are left out, as they are of what is measured."""
    found: dict[str, int] = defaultdict(int)
    for e in simulated.events:
        if e.number < 0 and not e.wait:
            found[e.item.kind] += e.end - e.begin
    return found


# ---------------------------------------------------------------- op by op


def _lines(simulated: StepReport, medians: Mapping[tuple[str, int], Measured], entries: Mapping[str, Any]) -> tuple[Line, ...]:
    """Every op that is shown on a trace, once, in the order of the simulation; those that only the profile has at the end."""
    predicted: dict[Key, list[int]] = {}
    said: dict[Key, tuple[str, str, str]] = {}
    for e in simulated.events:
        key = (e.stream, e.op)
        predicted.setdefault(key, []).append(e.end - e.begin)
        said[key] = (e.name, e.item.kind, "" if e.wait else e.source)
    measured: dict[Key, list[int]] = {}
    for (op, _), m in medians.items():
        entry = entries[op]
        if entry["shown"]:
            measured.setdefault((entry["row"], op), []).append(m.time - (m.unpacking if entry["kind"] == "comm.wait" else 0))
            said.setdefault((entry["row"], op), (entry["name"], entry["category"], ""))
    return tuple(_line(key, said[key], predicted.get(key), measured.get(key)) for key in {**predicted, **measured})


def _line(key: Key, said: tuple[str, str, str], predicted: list[int] | None, measured: list[int] | None) -> Line:
    name, kind, source = said
    runs = len(measured if measured is not None else predicted or ())
    return Line(key[1], name, key[0], kind, runs, None if predicted is None else sum(predicted), None if measured is None else sum(measured), source)


def _streams(simulated: StepReport, lines: tuple[Line, ...]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for line in lines:
        if line.row != "compute":
            before = found.get(line.kind, (0, 0))
            found[line.kind] = (before[0] + (line.predicted or 0), before[1] + (line.measured or 0))
    return found


# ---------------------------------------------------------------- text


def comparison_lines(found: Comparison, worst: int = 10) -> list[str]:
    """The comparison as a table for people."""
    predicted, measured = found.step
    looks = f"; {_ms(measured)} with looks at the clock" if measured != found.plain else ""
    text = [f"predicted {_ms(predicted)}, measured {_ms(found.plain)} ({found.error:+.1%} off{looks}; median of {found.steps} steps)", ""]
    text += _table("what the step is spent on", [*found.parts.items(), ("step", found.step)], measured)
    if found.streams:
        text += ["", *_table("collectives, busy", list(found.streams.items()), measured)]
    shown = sorted((line for line in found.lines if line.predicted is not None and line.measured is not None), key=lambda line: -abs(line.difference))[:worst]
    text += ["", f"farthest off, of {len(found.lines)} ops:"]
    text += [f"  {_called(line):52} {_ms(line.predicted or 0):>11} {_ms(line.measured or 0):>11}  {line.source}" for line in shown if line.difference]
    if found.unknown:
        text += ["", "only on one side:"]
        text += [
            f"  {_called(line):52} {'predicted' if line.measured is None else 'measured'} only, {_ms(line.predicted or line.measured or 0)}"
            for line in found.unknown[:worst]
        ]
    if found.alone:
        text += ["", "the profile is of one rank alone: its collectives were local copies"]
    return text


def _called(line: Line) -> str:
    runs = f" x{line.runs}" if line.runs > 1 else ""
    text = f"{line.name} [{line.op}]{runs}"
    return text if len(text) <= 52 else text[:51] + "…"


def _table(title: str, rows: list[tuple[str, tuple[int, int]]], whole: int) -> list[str]:
    head = f"{title:36} {'predicted':>11} {'measured':>11} {'difference':>11}   of the step"
    return [head, *(f"  {name:34} {_ms(p):>11} {_ms(m):>11} {_ms(p - m):>11} {(p - m) / whole if whole else 0:+9.1%}" for name, (p, m) in rows)]


def _ms(picoseconds: int) -> str:
    return f"{picoseconds / 1e9:.3f} ms"


def comparison_facts(found: Comparison) -> dict[str, Any]:
    """The comparison as plain data, for --json."""
    both = ("predicted_ps", "measured_ps")
    renamed = {"predicted": "predicted_ps", "measured": "measured_ps"}
    rows = [{renamed.get(key, key): value for key, value in vars(line).items()} for line in found.lines]
    return {
        "step": dict(zip(both, (found.step[0], found.plain))),
        "profiled_step_ps": found.step[1],
        "exposed": dict(zip(both, found.exposed)),
        "parts": {name: dict(zip(both, pair)) for name, pair in found.parts.items()},
        "collectives": {name: dict(zip(both, pair)) for name, pair in found.streams.items()},
        "ops": rows,
        "alone": found.alone,
    }
