"""`lines.json`: which op each line of model.py runs, and what a trace says of it. With it a run can time itself without the compiler."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from dmlc.cost.model import bytes_of
from dmlc.ir.core import Function, Op, Value
from dmlc.ir.open_sizes import representative
from dmlc.ops.comm import base_name, is_start, result_types_of
from dmlc.simulate.kinds import kind_of
from dmlc.simulate.rows import axes_of, id_of, is_shown, is_traffic, name_of, row_of


def lines_text(function: Function, placed: Mapping[int, Op]) -> str:
    """Text of `lines.json`: line number -> op, one line each. `with` lists ops behind it that have no line of their own: another op's line does
    them too, and has their time. `merged` holds their entries."""
    behind = _without_line(function, placed)
    rows = []
    for line, op in sorted(placed.items()):
        if op.name != "func.return":
            more = {"with": [id_of(o) for o in behind[op]]} if op in behind else {}
            rows.append(f'    "{line}": {json.dumps(line_entry(op) | more)}')
    merged = [f"    {json.dumps(id_of(o))}: {json.dumps(line_entry(o))}" for ops in behind.values() for o in ops]
    return '{\n  "lines": {\n' + ",\n".join(rows) + '\n  },\n  "merged": {\n' + ",\n".join(merged) + "\n  }\n}\n"


def _without_line(function: Function, placed: Mapping[int, Op]) -> dict[Op, list[Op]]:
    """Ops without a line that a trace shows, by the op with a line that they stand behind in the program: one of their own block, which runs as
    often as they do."""
    have = set(placed.values())
    found: dict[Op, list[Op]] = {}
    last: Op | None = None
    for op in function.ops():
        if op in have:
            last = op
        elif is_shown(op):
            near = last if last is not None and last.block is op.block else next((v.op for v in op.operands if v.op in have), None)
            if near is not None:
                found.setdefault(near, []).append(op)
    return found


def line_entry(op: Op) -> dict[str, Any]:
    """What is told of an op: its id, name and row in a trace, whether it is an event there; of a wait what it waits for; of a collective its sizes.

    What a loop's body yields is added up by lines of its own; they count as the loop's `dmlc.yield`.
    """
    entry: dict[str, Any] = {"op": id_of(op), "name": name_of(op), "kind": op.name, "category": kind_of(op), "row": row_of(op), "shown": is_shown(op)}
    if op.name == "comm.wait" and op.operands[0].op is not None:
        entry["of"] = op.operands[0].op.id
    return entry | (traffic_entry(op) if is_traffic(op) else {})


def traffic_entry(op: Op) -> dict[str, Any]:
    """Of a collective or a message: its kind, axes, bytes as costs count them (the larger of what goes in and comes out), dtype and elements."""
    delivered = [Value(t) for t in result_types_of(op)]
    dtype = next((v.tensor.dtype for v in (*op.operands, *delivered)), "")
    return {
        "collective": base_name(op).removeprefix("comm."),
        "start": is_start(op),
        "axes": list(axes_of(op)),
        "bytes": max(bytes_of(op.operands), bytes_of(delivered)),
        "dtype": dtype,
        "in": _elements(op.operands),
        "out": _elements(delivered),
    }


def _elements(values: Any) -> int:
    return sum(math.prod(map(representative, v.tensor.shape)) for v in values)
