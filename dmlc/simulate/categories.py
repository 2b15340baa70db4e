"""What a rank's memory is taken by: parameters, gradients, optimizer state, activations, all else.

`gradients` are the accumulators of a training step: what its microbatch loops add up and what the update reads, with the sums, casts
and collectives these come through. `updates` are the update's own intermediate values.
"""

from __future__ import annotations

from collections.abc import Iterable

from dmlc.cost.model import type_bytes
from dmlc.ir.core import BlockArgument, Function, Op, Value
from dmlc.simulate.liveness import root_of

CATEGORIES = ("parameters", "gradients", "states", "activations", "updates", "other")
OF_ROLE = {"param": "parameters", "state": "states"}
PASSED_ON = ("dmlc.add", "dmlc.cast", "dmlc.gradient")  # a sum or a cast of gradients is one


def categories_of(function: Function) -> dict[Value, str]:
    """The category of every value that has a buffer and is no activation."""
    found: dict[Value, str] = {a: OF_ROLE.get(a.attrs.get("dmlc.role", "input"), "other") for a in function.args}
    for op in function.ops():
        if op.attrs.get("dmlc.phase") == "update":
            found.update(dict.fromkeys(op.results, "updates"))
    for value in gradients_of(function):
        found[value] = "gradients"
    roles = {a.name: found[a] for a in function.args}
    for value, attrs in zip(function.results, function.result_attrs):
        if attrs.get("dmlc.updates") in roles:
            found[root_of(value)] = roles[attrs["dmlc.updates"]]
    return found


def gradients_of(function: Function) -> list[Value]:
    """Buffers that hold gradients, each once, in no particular order of the program."""
    found: dict[Value, None] = {}
    todo = [root_of(v) for v in _gradient_roots(function)]
    while todo:
        value = todo.pop()
        if value in found or isinstance(value, BlockArgument) or value.op is None:
            continue
        found[value] = None
        todo += [root_of(v) for v in _passed_on(value.op, value)]
    return [v for v in found if type_bytes(v.type)]


def _gradient_roots(function: Function) -> Iterable[Value]:
    for op in function.ops():
        if op.name == "dmlc.microbatch":
            yield from (v for v in (*op.results, *op.region.block.terminator.operands) if v.type.rank)  # type: ignore[union-attr]
        elif op.name == "dmlc.gradient":
            yield op.operands[0]
        elif is_update(op):
            yield from (v for v in op.operands if getattr(v.type, "rank", 0) and v.op is not None and not is_update(v.op))


def is_update(op: Op) -> bool:
    """Whether the op belongs to the optimizer; of a kernel, whether its ops do."""
    inside = op.region.block if op.name == "kernel.fused" else ()
    return op.attrs.get("dmlc.phase") == "update" or any(o.attrs.get("dmlc.phase") == "update" for o in inside)


def _passed_on(op: Op, value: Value) -> list[Value]:
    """The operands that `value`, a gradient, comes from and that are gradients too."""
    if op.name == "comm.wait":
        start = op.operands[0].op
        return [] if start is None else list(start.operands)
    if op.dialect == "comm":
        return [v for v, r in zip(op.operands, op.results) if r is value]
    if op.name in PASSED_ON:
        return [v for v in op.operands if v.type == value.type or op.name == "dmlc.cast"]
    return []
