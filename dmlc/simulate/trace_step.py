"""A simulated step as plain events for `dmlc.simulate.trace`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dmlc.ir.core import Op, Value
from dmlc.ops.comm import result_types_of
from dmlc.simulate.categories import CATEGORIES
from dmlc.simulate.run import Event, Run
from dmlc.simulate.trace import Place

# The names that PyTorch's own records use (c10/core/ScalarType.h).
C10_NAMES = {
    "f32": "Float", "f64": "Double", "f16": "Half", "bf16": "BFloat16", "i64": "Long", "i32": "Int", "i16": "Short", "i8": "Char", "ui8": "Byte",
    "i1": "Bool", "f8E4M3FN": "Float8_e4m3fn", "f8E5M2": "Float8_e5m2",
}  # fmt: skip


def events_of(run: Run, errors: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """What `dmlc.simulate.trace.document` takes, of each shown event."""
    return (_event(e, errors) for e in run.events)


def counters_of(run: Run) -> list[dict[str, Any]]:
    return [*_memory(run), *_exposed(run)]


def place_of(run: Run) -> Place:
    device, rank = run.ranks.device, run.ranks.first
    groups = {",".join(s.axes): run.mesh.group(rank, s.axes) for s in run.lane.program.streams}
    backend = "gloo" if device.kind == "cpu" else "nccl"
    return Place(rank, run.mesh.devices, device.name, device.kind, backend, device.memory, device.units, groups, run.ranks.ranks)


def _event(event: Event, errors: Mapping[str, float]) -> dict[str, Any]:
    cost, op = event.item.cost, event.item.op
    args: dict[str, Any] = {"dmlc.kind": event.item.kind}
    if not event.wait:
        args |= {"dmlc.cost_source": cost.source, "dmlc.flops": cost.flops, "dmlc.bytes": cost.bytes}
        args |= {"dmlc.err_pct": errors[cost.source]} if cost.source in errors else {}
    made: dict[str, Any] = {"row": event.stream, "name": event.name, "op": event.op, "begin": event.begin, "end": event.end, "args": args}
    if event.wait:
        made["waits"] = event.number
    elif event.item.moves:
        made |= {"number": event.number, "collective": _collective(op, event.item.kind)}
    return {**made, "issued": event.issued, "issue": event.item.host} if event.item.host else made


def _collective(op: Op, kind: str) -> dict[str, Any]:
    given, delivered = list(op.operands), [Value(t) for t in result_types_of(op)]
    dtype = next((v.dtype for v in (*given, *delivered)), "")
    return {"Collective name": kind, "dtype": C10_NAMES.get(dtype, dtype), "In msg nelems": _elements(given), "Out msg nelems": _elements(delivered)}


def _elements(values: list[Value]) -> int:
    return sum(math.prod(n if isinstance(n, int) else 1 for n in v.shape) for v in values)


def _memory(run: Run) -> Iterator[dict[str, Any]]:
    for time, held in run.memory:
        yield {"name": "memory", "time": time, "values": dict(zip(CATEGORIES, held))}


def _exposed(run: Run) -> Iterator[dict[str, Any]]:
    """1 from the begin of each wait to its end, else 0."""
    now = 0
    for begin, end in run.exposed:
        if begin > now:
            yield _level(now, 0)
        yield _level(begin, 1)
        now = end
    yield _level(now, 0)


def _level(time: int, value: int) -> dict[str, Any]:
    return {"name": "exposed communication", "time": time, "values": {"exposed": value}}
