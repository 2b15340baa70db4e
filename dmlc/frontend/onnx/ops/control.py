"""Branches and loops. What is known at import is resolved: a branch is chosen, a loop is written out."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from dmlc.frontend.onnx.emit import type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.values import POISON, Known, Poison, Tensor
from dmlc.frontend.onnx.versions import REFINED
from dmlc.ir.location import DmlcError

MAX_ITERATIONS = 1024


@op("If", 1, 11, 13, 16, 19, *REFINED, static=True)
def if_(n: Node) -> list[Tensor | Poison]:
    """A condition that depends on the data runs both branches and selects, when their results have the same types."""
    condition = n.number(0)
    if condition is not None:
        return _branch(n, "then" if condition else "else")
    branches = _possible_branches(n)
    if len(branches) == 1:
        return branches[0]
    if any(isinstance(t, Poison) for b in branches for t in b):
        return [POISON] * len(n.proto.output)
    pairs = list(zip(*branches, strict=True))
    if any(type_of(a) != type_of(b) for a, b in pairs):  # type: ignore[arg-type]
        raise Unsupported("the condition depends on the data and the branches' results have different shapes or dtypes")
    flag = n.reshape(n[0], ())
    return [n.select(flag, a, b) for a, b in pairs]  # type: ignore[arg-type]


def _branch(n: Node, which: str) -> list[Tensor | Poison]:
    return n.importer.subgraph(n.attr(f"{which}_branch"), n, [], f".{which}")


def _possible_branches(n: Node) -> list[list[Tensor | Poison]]:
    """Both branches; only one of them when the other is impossible with the sizes at hand, so that no valid run takes it."""
    branches, errors = [], []
    for which in ("then", "else"):
        listed = len(n.importer.unsupported)
        try:
            branches.append(_branch(n, which))
        except DmlcError as e:
            del n.importer.unsupported[listed:]
            errors.append((which, e))
    if len(errors) == 2:
        raise errors[0][1]
    for which, e in errors:
        n.importer.remark(n, f"the {which} branch cannot run with these sizes ({e.loc}: {e.message}), so the other one is always taken")
    return branches


@op("Loop", 1, 11, 13, 16, 19, *REFINED, static=True)
def loop(n: Node) -> list[Tensor | Poison]:
    """Written out when the number of iterations is known. Results: the carried values, then each scanned value stacked along a new first dim."""
    body: onnx.GraphProto = n.attr("body")
    count = n.number(0) if n.has(0) else None
    if n.has(0) and count is None:
        raise Unsupported("the number of a loop's iterations must be known at import, but it depends on the data")
    carried: list[Tensor] = [n[i] for i in range(2, len(n.operands))]
    going = n.number(1) if n.has(1) else True
    scanned: list[list[Tensor]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    step = 0
    while going and (count is None or step < count):
        if step >= MAX_ITERATIONS:
            raise Unsupported(f"a loop of more than {MAX_ITERATIONS} iterations")
        results = n.importer.subgraph(body, n, [Known.of(step), Known.of(True, "i1"), *carried], f".{step}")
        if any(isinstance(t, Poison) for t in results):
            return [POISON] * len(n.proto.output)
        going, carried = _condition(n, results[0]), list(results[1 : 1 + len(carried)])  # type: ignore[arg-type]
        for rows, row in zip(scanned, results[1 + len(carried) :]):
            rows.append(row)  # type: ignore[arg-type]
        step += 1
    if not all(scanned):
        raise Unsupported("a loop of no iterations with scanned results")
    return [*carried, *(stacked(n, rows, 0) for rows in scanned)]


def _condition(n: Node, condition: Tensor | Poison) -> bool:
    known = n.single(condition) if not isinstance(condition, Poison) else None
    if known is None:
        raise Unsupported("the end of a loop must be known at import, but it depends on the data")
    return bool(known.array.reshape(-1)[0])


def stacked(n: Node, rows: Sequence[Tensor], dim: int) -> Tensor:
    """Tensors of one shape side by side along a new dim."""
    shape = type_of(rows[0]).shape
    return n.concat([n.reshape(r, (*shape[:dim], 1, *shape[dim:])) for r in rows], dim)


@op("Scan", 9, 11, 16, 19, *REFINED, static=True)
def scan(n: Node) -> list[Tensor | Poison]:
    """Written out: one copy of the body for each place of the scanned dim."""
    body: onnx.GraphProto = n.attr("body")
    inputs = n.attr("num_scan_inputs")
    states: list[Tensor] = [n[i] for i in range(len(n.operands) - inputs)]
    sources = [n[i] for i in range(len(n.operands) - inputs, len(n.operands))]
    outputs = len(body.output) - len(states)
    axes = [n.axis(a, len(type_of(t).shape)) for a, t in zip(n.attr("scan_input_axes", (0,) * inputs), sources)]
    backward, out_axes, out_backward = n.attr("scan_input_directions", (0,) * inputs), n.attr("scan_output_axes", (0,) * outputs), n.attr("scan_output_directions", (0,) * outputs)
    if not sources or inputs < 1:
        raise DmlcError("nothing is scanned")
    length = type_of(sources[0]).shape[axes[0]]
    if not 0 < length <= MAX_ITERATIONS:
        raise Unsupported(f"a scan over {length} places")
    scanned: list[list[Tensor]] = [[] for _ in range(outputs)]
    for step in range(length):
        places = [length - 1 - step if b else step for b in backward]
        rows = [n.pick(t, a, p) for t, a, p in zip(sources, axes, places)]
        results = n.importer.subgraph(body, n, [*states, *rows], f".{step}")
        if any(isinstance(t, Poison) for t in results):
            return [POISON] * len(n.proto.output)
        states = list(results[: len(states)])  # type: ignore[arg-type]
        for column, row in zip(scanned, results[len(states) :]):
            column.append(row)  # type: ignore[arg-type]
    columns = [list(reversed(c)) if b else c for c, b in zip(scanned, out_backward)]
    return [*states, *(stacked(n, c, n.axis(a, len(type_of(c[0]).shape) + 1)) for c, a in zip(columns, out_axes))]


def _sequence(n: Node) -> list[Tensor]:
    raise Unsupported("sequences of tensors")


for _name, _versions in {
    "SequenceConstruct": (11,), "SequenceEmpty": (11,), "SequenceAt": (11,), "SequenceInsert": (11,), "SequenceErase": (11,), "SequenceLength": (11,),
    "SplitToSequence": (11, 24), "ConcatFromSequence": (11,), "SequenceMap": (17,),
}.items():  # fmt: skip
    op(_name, *_versions, static=True)(_sequence)


@op("Optional", 15, 28, static=True)
def optional(n: Node) -> Tensor:
    """An optional that holds a tensor is that tensor."""
    if not n.has(0):
        raise Unsupported("an optional without an element, as a value")
    return n[0]


@op("OptionalGetElement", 15, 18, 28, static=True)
def optional_get_element(n: Node) -> Tensor:
    return n[0]


@op("OptionalHasElement", 15, 18, 28, static=True)
def optional_has_element(n: Node) -> Known:
    return Known.of(n.has(0), "i1")
