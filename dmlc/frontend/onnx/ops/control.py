"""Branches and loops. What import can decide is resolved: a branch is chosen, a short loop written out. Others become ops with regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx

from dmlc.frontend.onnx.emit import type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.program import discard
from dmlc.frontend.onnx.regions import MAX_ITERATIONS, WRITTEN_OUT, NotThisWay, attempted, counted, loop, region, stacked, while_loop
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.values import POISON, Known, Poison, Tensor
from dmlc.frontend.onnx.versions import REFINED
from dmlc.ir.core import Block, Region
from dmlc.ir.location import DmlcError

# ---------------------------------------------------------------- branches


@op("If", 1, 11, 13, 16, 19, *REFINED, static=True)
def if_(n: Node) -> list[Tensor | Poison]:
    """A condition that depends on the data becomes a branch of the program, when the results of both sides have the same types."""
    condition = n.number(0)
    if condition is not None:
        return _branch(n, "then" if condition else "else")
    listed = len(n.importer.unsupported)
    blocks, impossible = _branches(n)
    try:
        if len(n.importer.unsupported) > listed:
            return [POISON] * len(n.proto.output)
        found = None if impossible else _chosen(n, blocks)
    finally:
        for block in blocks:
            if block.region is None:
                discard(block)
    return _branch(n, "else" if impossible == "then" else "then") if found is None else list(found)


def _chosen(n: Node, blocks: Sequence[Block]) -> list[Tensor]:
    """The results of the branch."""
    then, otherwise = (block.terminator.operands for block in blocks)
    if [v.type for v in then] != [v.type for v in otherwise]:
        raise Unsupported("the condition depends on the data and the branches' results have different shapes or dtypes")
    flag = n.value(n.reshape(n[0], ()))
    if all(len(block) == 1 for block in blocks):  # nothing is computed on either side
        return [n.select(flag, a, b) for a, b in zip(then, otherwise)]
    regions = [Region([block]) for block in blocks]
    return list(n.importer.program.region_op("dmlc.cond", [flag], {}, [v.type for v in then], regions).results)


def _branch(n: Node, which: str) -> list[Tensor | Poison]:
    return n.importer.subgraph(n.attr(f"{which}_branch"), n, [], f".{which}")


def _branches(n: Node) -> tuple[list[Block], str]:
    """Both sides as blocks, and which of them is impossible with the sizes at hand, so that no valid run takes it."""
    blocks, errors = [], []
    for which in ("then", "else"):
        listed = len(n.importer.unsupported)
        try:
            blocks.append(region(n, [], lambda args, which=which: [n.value(t) for t in _whole(n, _branch(n, which))]))
        except _Poisoned:
            continue
        except DmlcError as e:
            del n.importer.unsupported[listed:]
            errors.append((which, e))
    if len(errors) == 2:
        raise errors[0][1]
    for which, e in errors:
        n.importer.remark(n, f"the {which} branch cannot run with these sizes ({e.loc}: {e.message}), so the other one is always taken")
    return blocks, errors[0][0] if errors else ""


class _Poisoned(NotThisWay):
    """A subgraph holds what cannot be imported; that is reported already."""


def _whole(n: Node, results: Sequence[Tensor | Poison]) -> list[Tensor]:
    if any(isinstance(t, Poison) for t in results):
        raise _Poisoned("a node of the subgraph is not supported")
    return list(results)  # type: ignore[arg-type]


# ---------------------------------------------------------------- loops


@op("Loop", 1, 11, 13, 16, 19, *REFINED, static=True)
def loop_(n: Node) -> list[Tensor | Poison]:
    """Results: the carried values, then each scanned value stacked along a new first dim.

    A loop whose length is known is written out when it is short, else one of the program; so is one that its data ends, which can stack nothing.
    """
    most = n.number(0) if n.has(0) else None
    going = n.number(1) if n.has(1) else True
    carried: list[Tensor] = [n[i] for i in range(2, len(n.operands))]
    if (n.has(0) and most is None) or going is None:
        return _guarded(n, lambda: _while(n, carried))
    if going is False or most == 0 or (most is not None and most < 0):
        return _no_iteration(n, carried)
    if most is not None and most > WRITTEN_OUT:
        found = attempted(n, lambda: _for(n, int(most), carried))
        if isinstance(found, list):
            return found  # type: ignore[return-value]
    found = attempted(n, lambda: _unrolled(n, most, carried))
    return found if isinstance(found, list) else _guarded(n, lambda: _while(n, carried, str(found)))  # type: ignore[return-value]


def _guarded(n: Node, build: Callable[[], list[Tensor]]) -> list[Tensor | Poison]:
    try:
        return build()  # type: ignore[return-value]
    except _Poisoned:
        return [POISON] * len(n.proto.output)


def _stacks(n: Node, carried: Sequence[Tensor]) -> int:
    return len(n.attr("body").output) - 1 - len(carried)


def _no_iteration(n: Node, carried: list[Tensor]) -> list[Tensor | Poison]:
    """The carried values as they are, stacks of no rows (whose shape the body tells)."""
    if not _stacks(n, carried):
        return list(carried)
    return _guarded(n, lambda: _for(n, 0, carried))


def _for(n: Node, count: int, carried: list[Tensor]) -> list[Tensor]:
    """A loop that goes on for as long as it counts."""

    def body(index: Tensor, states: list[Tensor], rows: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        results = _whole(n, n.importer.subgraph(n.attr("body"), n, [index, Known.of(True, "i1"), *states], ".body"))
        if count and not _condition(n, results[0]):
            raise NotThisWay("the loop ends before its count")
        return results[1 : 1 + len(states)], results[1 + len(states) :]

    return counted(n, count, carried, [], body)


def _unrolled(n: Node, most: int | float | bool | None, carried: list[Tensor]) -> list[Tensor]:
    scanned: list[list[Tensor]] = [[] for _ in range(_stacks(n, carried))]
    going, step = True, 0
    while going and (most is None or step < most):
        if step >= MAX_ITERATIONS:
            raise Unsupported(f"a loop of more than {MAX_ITERATIONS} iterations")
        results = _whole(n, n.importer.subgraph(n.attr("body"), n, [Known.of(step), Known.of(True, "i1"), *carried], f".{step}"))
        going, carried = _condition(n, results[0]), results[1 : 1 + len(carried)]
        for rows, row in zip(scanned, results[1 + len(carried) :]):
            rows.append(row)
        step += 1
    return [*carried, *(stacked(n, rows, 0) for rows in scanned)]


def _condition(n: Node, condition: Tensor) -> bool:
    known = n.single(condition)
    if known is None:
        raise Unsupported("the end of a loop must be known at import, but it depends on the data")
    return bool(known.array.reshape(-1)[0])


def _while(n: Node, carried: list[Tensor], otherwise: str = "") -> list[Tensor]:
    """A loop that its data ends carries the number of the iteration and whether to go on, beside its own values."""
    if _stacks(n, carried):
        raise Unsupported(
            f"the number of iterations of a loop with stacked results must be known at import, but it depends on the data{f' ({otherwise})' if otherwise else ''}"
        )
    most = n.value(n.reshape(n[0], ())) if n.has(0) else None
    going = n.reshape(n[1], ()) if n.has(1) else Known.of(True, "i1")

    def condition(values: list[Tensor]) -> Tensor:
        return values[1] if most is None else n.emit("dmlc.logical_and", values[1], n.emit("dmlc.lt", values[0], most))

    def body(values: list[Tensor]) -> list[Tensor]:
        results = _whole(n, n.importer.subgraph(n.attr("body"), n, values, ".body"))
        return [n.pointwise("dmlc.add", values[0], 1), n.reshape(results[0], ()), *results[1:]]

    return while_loop(n, [Known.of(0), going, *carried], condition, body)[2:]


@op("Scan", 9, 11, 16, 19, *REFINED, static=True)
def scan(n: Node) -> list[Tensor | Poison]:
    """One iteration for each place of the scanned dims."""
    inputs = n.attr("num_scan_inputs")
    states = [n[i] for i in range(len(n.operands) - inputs)]
    sources = [n[i] for i in range(len(n.operands) - inputs, len(n.operands))]
    if not sources or inputs < 1:
        raise DmlcError("nothing is scanned")
    axes = [n.axis(a, len(type_of(t).shape)) for a, t in zip(n.attr("scan_input_axes", (0,) * inputs), sources)]
    sources = [n.transpose(t, (a, *(d for d in range(len(type_of(t).shape)) if d != a))) for t, a in zip(sources, axes)]
    return _guarded(n, lambda: _scanned(n, states, sources, n.attr("scan_input_directions", (0,) * inputs)))


def _scanned(n: Node, states: list[Tensor], sources: list[Tensor], backward: Sequence[int]) -> list[Tensor]:
    """`sources` have the scanned dim first."""
    graph: onnx.GraphProto = n.attr("body")
    outputs, reverse = len(graph.output) - len(states), all(backward)
    out_axes, out_backward = n.attr("scan_output_axes", (0,) * outputs), n.attr("scan_output_directions", (0,) * outputs)
    length = type_of(sources[0]).shape[0]
    if any(type_of(t).shape[0] != length for t in sources):
        raise DmlcError(f"the scanned dims have different sizes: {', '.join(str(type_of(t).shape[0]) for t in sources)}")
    sources = [t if bool(b) == reverse else n.emit("dmlc.flip", t, dims=(0,)) for t, b in zip(sources, backward)]
    found = loop(n, length, states, sources, subgraph_body(n, graph), reverse)
    stacks = [t if bool(b) == reverse else n.emit("dmlc.flip", t, dims=(0,)) for t, b in zip(found[len(states) :], out_backward)]
    return [*found[: len(states)], *(_moved(n, t, n.axis(a, len(type_of(t).shape))) for t, a in zip(stacks, out_axes))]


def subgraph_body(n: Node, graph: onnx.GraphProto) -> Callable[[Tensor, list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]]:
    """The subgraph as the body of a loop that does not tell it where it is."""

    def body(index: Tensor, states: list[Tensor], rows: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        label = f".{int(index.array)}" if isinstance(index, Known) else ".body"
        results = _whole(n, n.importer.subgraph(graph, n, [*states, *rows], label))
        return results[: len(states)], results[len(states) :]

    return body


def _moved(n: Node, t: Tensor, axis: int) -> Tensor:
    """The first dim at place `axis`."""
    rank = len(type_of(t).shape)
    order = list(range(1, rank))
    order.insert(axis, 0)
    return n.transpose(t, order)


@op("Scan", 8, static=True)
def scan_of_batches(n: Node) -> list[Tensor | Poison]:
    """Operator set 8: every state and scanned tensor has a leading batch dim, the scanned dim is the second, and the body sees one sample."""
    inputs = n.attr("num_scan_inputs")
    values = [n[i] for i in range(1, len(n.operands))]
    if not values or inputs < 1:
        raise DmlcError("nothing is scanned")
    states = values[: len(values) - inputs]
    batch, length = type_of(values[-1]).shape[:2]
    if n.has(0) and ((lengths := n.maybe_known(0)) is None or not (lengths == length).all()):
        raise Unsupported("sequences of different lengths")
    backward = n.attr("directions", (0,) * inputs)

    def sample(index: Tensor, carried: list[Tensor], rows: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return [], _scanned(n, rows[: len(states)], rows[len(states) :], backward)

    return _guarded(n, lambda: loop(n, batch, [], values, sample))


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
