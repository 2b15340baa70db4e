"""`dmlc compile --explain-import`: what each operator of a model becomes, what is not supported, what is slow. Writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dmlc.ir.core import Module, Op
from dmlc.ir.location import DmlcError, Loc

if TYPE_CHECKING:
    from dmlc.driver import Options
    from dmlc.frontend.trace import Entry, Trace

SHOWN = 5  # kinds of ops and names of nodes listed for one operator
MANY_OPS = 24  # of one node: more are worth a note


@dataclass
class Row:
    """All nodes of one operator: how many, the ops they became by name, why some are not supported (and which), notes."""

    operator: str
    count: int = 0
    ops: Counter[str] = field(default_factory=Counter)
    known: int = 0  # nodes that make no op
    waiting: int = 0
    problems: dict[str, list[str]] = field(default_factory=dict)
    bodies: list[tuple[int, int]] = field(default_factory=list)  # of nodes with a body: nodes in its place, how often each
    whole: set[str] = field(default_factory=set)
    largest: int = 0

    @property
    def became(self) -> str:
        if not self.ops:
            return "not supported" if self.problems else ""
        listed = [f"{n} {name}" if n > 1 else name for name, n in self.ops.most_common(SHOWN)]
        return ", ".join(listed) + (", …" if len(self.ops) > SHOWN else "")

    @property
    def notes(self) -> list[str]:
        notes = [f"{why} ({_names(places)})" for why, places in self.problems.items()]
        if self.known:
            notes.append(f"{'' if self.known == self.count else f'{self.known} take '}no op: known at import, or passed on")
        if self.bodies:
            times = max(n for _, n in self.bodies)
            notes.append(f"its body written out {times} times" if times > 1 else f"its body of {max(n for n, _ in self.bodies)} nodes in its place")
        if self.whole:
            notes.append(f"computed whole on every rank: {', '.join(sorted(self.whole))}")
        if self.largest > MANY_OPS:
            notes.append(f"up to {self.largest} ops a node")
        if self.waiting:
            notes.append(f"{self.waiting} not looked at: they read what is not supported")
        return notes


def explain(source: str, options: Options) -> int:
    """Print the table. 0 when all of the model is imported, else 1."""
    trace, module, error = imported(source, options)
    rows = rows_of(trace.entries, module)
    print(text_of(source, rows))
    broken = {row.operator: sum(map(len, row.problems.values())) for row in rows if row.problems}
    if error is not None and not broken:
        print(f"the import stops: {error}")
    elif broken:
        print(f"not supported: {', '.join(f'{name} ({count}×)' for name, count in broken.items())}")
    else:
        print("all of it is supported")
    return int(bool(broken) or error is not None)


def imported(source: str, options: Options) -> tuple[Trace, Module | None, DmlcError | None]:
    """What the import did as far as it got, its module or its error."""
    import dmlc.ops  # noqa: F401  (registers the op set)
    from dmlc.frontend.trace import Trace

    trace = Trace()
    try:
        if Path(source).suffix == ".onnx":
            from dmlc.frontend.onnx.api import import_onnx

            mode = "train" if options.train is not None else ""
            return trace, import_onnx(source, options.dims, options.shapes, options.devices, options.batch_dims, options.trainable, mode, trace=trace).module, None
        if Path(source).suffix == ".pt2" or ":" in source:
            from dmlc.frontend.torch_export import import_program

            return trace, import_program(source, options.dims, options.train is not None, trace=trace).module, None
    except DmlcError as e:
        if not trace.entries:
            raise
        return trace, None, e
    raise DmlcError("--explain-import takes an ONNX file or a PyTorch model", Loc(source))


# ---------------------------------------------------------------- rows


def rows_of(entries: Sequence[Entry], module: Module | None) -> list[Row]:
    """One row an operator, what is not supported first, then by number of nodes. Ops that the finished program lacks do not count."""
    rows: dict[str, Row] = {}
    alive = {id(op) for f in module.functions for op in f.op.walk()} if module is not None else None
    for entry in entries:
        _add(rows, entry, alive)
    return sorted(rows.values(), key=lambda row: (not row.problems, -row.count, row.operator))


def _add(rows: dict[str, Row], entry: Entry, alive: set[int] | None) -> None:
    row = rows.setdefault(entry.operator, Row(entry.operator))
    row.count += 1
    if entry.problem:
        row.problems.setdefault(entry.problem, []).append(entry.place)
        return
    row.waiting += entry.waits
    inner = [e for e in entry.inner if alive is None or not e.ops or any(id(op) in alive for e2 in e.walk() for op in e2.ops)]
    if inner:
        times = Counter(e.place.removeprefix(entry.place).partition("/")[2] for e in inner)  # what tells the copies apart stands before the first slash
        row.bodies.append((len(times), max(times.values())))
    ops = [op for op in entry.ops if alive is None or id(op) in alive]
    row.known += not ops and not inner and not entry.ops and not entry.waits
    row.largest = max(row.largest, len(ops))
    row.ops.update(op.name.removeprefix("dmlc.") for op in ops)
    row.whole |= {op.name.removeprefix("dmlc.") for op in ops if is_whole(op)}
    for e in inner:
        _add(rows, e, alive)


def is_whole(op: Op) -> bool:
    """Whether no rule lets the op be split: every rank computes all of it."""
    from dmlc.ops.base import rule_of, strategies_of

    if op.dialect != "dmlc" or not op.operands:
        return False
    rule = rule_of(op)
    return bool(rule.factors) and rule.is_opaque and not strategies_of(op)


# ---------------------------------------------------------------- text


def text_of(source: str, rows: Sequence[Row]) -> str:
    nodes = sum(row.count for row in rows)
    lines = [f"{source}: {nodes} nodes of {len(rows)} operators", ""]
    table = [("operator", "nodes", "became", "note"), *((r.operator, str(r.count), r.became, "; ".join(r.notes)) for r in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(3)]
    lines += [f"{name:{widths[0]}}  {count:>{widths[1]}}  {became:{widths[2]}}  {note}".rstrip() for name, count, became, note in table]
    return "\n".join([*lines, ""])


def _names(places: Sequence[str]) -> str:
    more = len(places) - SHOWN
    return ", ".join(places[:SHOWN]) + (f" and {more} more" if more > 0 else "")
