"""`mixed-precision`: which ops compute in bf16 (or f16), by lists and a minimum cut.

Contractions, convolutions and attention (`precision = low`) run in bf16; norms, softmax, losses, and sums of two activations (the
residual stream) stay in f32; all else follows at the least cost: an edge between an op of each kind costs the cast's bytes, once a
value and direction, and a following op costs its own bytes, which f32 doubles. The cut is exact for two precisions. Weights are
cast once, when they are loaded (`fold` turns their casts into recipes). Casts of the user's own stay.

In training parameters stay f32 and are cast in every step. Gradients, accumulators and the update stay f32, and so does the backward
pass of what is f32 in the forward pass (`dmlc.of`): norms, softmax, losses. Bodies of loops and branches are decided on their own: what these
take, carry and give stays f32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import Block, BlockArgument, Function, Module, Op, Value
from dmlc.ir.types import BYTES, TensorType
from dmlc.ops.base import definition
from dmlc.ops.control import LOOPS
from dmlc.passmanager.base import Pass
from dmlc.passmanager.context import Context
from dmlc.simulate.choice import Choice

HIGH, LOW = "f32", "bf16"  # what is said of bf16 holds of f16 too: they have the same size
LOWS = {"bf16": "bf16", "fp16": "f16"}
SUMS = ("dmlc.add", "dmlc.sub")
CONTROL = ("dmlc.cond", *LOOPS)
UNTOUCHED = ("dmlc.cast", "func.return")


@dataclass(frozen=True)
class MixedPrecision(Pass):
    name = "mixed-precision"
    decides = True
    numerics = "lower-precision"
    requires = ("global",)

    def run(self, module: Module, context: Context) -> bool:
        low = LOWS.get(module.attrs.get("dmlc.request", {}).get("precision", "fp32"))
        if low is None:
            return False
        function = module.main
        if any("dmlc.precision" in op.attrs for op in function.ops()):
            choice = Choice.of(function, order=False)  # decided by hand
        else:
            choice = decide(function, module.attrs.get("dmlc.mode") == "train")
        if not choice.precision:
            context.remark(None, f"no op gains from {low}: the program has no f32 contraction")
            return False
        return apply(module, choice, low)


def participates(op: Op) -> bool:
    """Ops whose precision is ours to choose: those that compute on f32 tensors."""
    if op.regions or op.name in UNTOUCHED or op.dialect != "dmlc":
        return False
    floats = [v for v in (*op.operands, *op.results) if isinstance(v.type, TensorType) and v.tensor.is_float]
    return any(isinstance(r.type, TensorType) and r.tensor.is_float for r in op.results) and all(v.dtype == HIGH for v in floats)


def wanted(op: Op, forward: Mapping[str, Op] | None = None) -> str:
    """`low`, `high` or `follow`. `forward` holds the ops by id, so that a backward op can go by the op it is of."""
    kind = definition(op).precision
    if op.attrs.get("dmlc.phase") == "update" or op.name == "dmlc.gradient" or not op.results[0].tensor.rank:
        return "high" if kind != "low" else kind
    full = [v for v in op.operands if v.tensor.rank and v.shape == op.results[0].shape and not _is_weight(v)]
    if kind == "follow" and op.name in SUMS and len(full) == 2:
        return "high"
    of = (forward or {}).get(op.attrs.get("dmlc.of", ""))
    return "high" if kind == "follow" and of is not None and of is not op and definition(of).precision == "high" else kind


def _is_weight(value: Value) -> bool:
    return isinstance(value, BlockArgument) and value.attrs.get("dmlc.role", "input") not in ("input", "state")


def decide(function: Function, training: bool = False) -> Choice:
    """Precision by op id (`low` and `high`), from a minimum s-t cut (Goldberg-Tarjan's preflow push through networkx). In training a cast of
    a weight has its price like any other."""
    by_id = {op.id: op for op in function.ops()}
    found: dict[str, str] = {}
    for block in blocks_of(function):
        found |= _decide_block(block, by_id, training)
    return Choice(precision=AttrDict(found)) if "low" in found.values() else Choice()


def blocks_of(function: Function) -> Iterator[Block]:
    """The body, then those of loops and branches, outer ones first. What these take and give stays as it is."""
    yield function.body
    for op in function.ops():
        if op.name in CONTROL:
            yield from (region.block for region in op.regions)


def _decide_block(block: Block, by_id: Mapping[str, Op], training: bool) -> dict[str, str]:
    import networkx

    ops = [op for op in block if participates(op)]
    kinds = [wanted(op, by_id) for op in ops]
    if "low" not in kinds:
        return {}
    graph = networkx.DiGraph()
    for n, op in enumerate(ops):
        _pin(graph, n, op, kinds[n])
    number = {op: n for n, op in enumerate(ops)}
    for n, op in enumerate(ops):
        for r in op.results:
            if r.tensor.is_float:
                _tie(graph, n, r, [number.get(u, "high") for u in r.users])
    for value in _from_outside(block, ops):
        if training or not _is_weight(value):
            _tie(graph, "high", value, [number.get(u, "high") for u in value.users if u in number or u.block is block])
    _, (low, _) = networkx.minimum_cut(graph, "low", "high")
    return {op.id: "low" if n in low else "high" for n, op in enumerate(ops)}


def _from_outside(block: Block, ops: Sequence[Op]) -> list[Value]:
    """Floats that the ops read and the block does not make: its arguments, what it captures."""
    made = {r for op in block for r in op.results}
    read = dict.fromkeys([*block.args, *(v for op in ops for v in op.operands if v not in made)])
    return [v for v in read if isinstance(v.type, TensorType) and v.tensor.is_float]


def _pin(graph: Any, n: int, op: Op, kind: str) -> None:
    """Lists are hard; a following op pays its bytes, twice as many in f32, and half a byte more in bf16 so that ties stay f32."""
    if kind == "follow":
        moved = sum(v.tensor.numel for v in (*op.operands, *op.results) if v.tensor.is_float and not _is_weight(v))
        free = definition(op).view is not None or definition(op).cost == "free"
        graph.add_edge("low", n, capacity=0 if free else moved * (BYTES[HIGH] - BYTES[LOW]))
        graph.add_edge(n, "high", capacity=1)
    elif kind == "low":
        graph.add_edge("low", n)  # no capacity: infinite
    else:
        graph.add_edge(n, "high")


def _tie(graph: Any, source: Any, value: Value, users: list[Any]) -> None:
    """A value with one label at its source and another at a user is cast once for each direction."""
    price = value.tensor.numel * (BYTES[HIGH] + BYTES[LOW])
    down, up = ("down", value), ("up", value)
    graph.add_edge(source, up, capacity=price)  # source low, some user high
    graph.add_edge(down, source, capacity=price)  # source high, some user low
    for user in dict.fromkeys(users):
        if user != source:
            graph.add_edge(up, user)
            graph.add_edge(user, down)


def apply(module: Module, choice: Choice, low: str = LOW) -> bool:
    """Cast operands to each op's precision and retype its results; results of the program keep their dtype. `low` is the lower one's dtype."""
    ids = IdPool(module.main)
    return any([_apply_block(block, choice, low, ids) for block in list(blocks_of(module.main))])


def _apply_block(block: Block, choice: Choice, low: str, ids: IdPool) -> bool:
    casts: dict[tuple[Value, str], Value] = {}

    def cast(value: Value, dtype: str, before: Op) -> Value:
        if value.dtype == dtype:
            return value
        if (value, dtype) not in casts:
            b = Builder.before(before, ids)
            of = {"dmlc.of": value.op.attrs["dmlc.of"]} if value.op is not None and "dmlc.of" in value.op.attrs else {}
            casts[value, dtype] = b.op("dmlc.cast", [value], {"to": dtype, **of}, tag="cast").result
        return casts[value, dtype]

    last = block.terminator
    kept = [v.type for v in last.operands]
    changed = False
    for op in block.ops:
        if op is last:
            break
        label = choice.precision.get(op.id)
        if label is None:
            changed |= _keep(op, cast)
            continue
        dtype = low if label == "low" else HIGH
        op.attrs["dmlc.precision"] = label
        changed |= label == "low"
        for i, v in enumerate(op.operands):
            if v.tensor.is_float:
                op.set_operand(i, cast(v, dtype, op))
        for r in op.results:
            if r.tensor.is_float:
                r.type = r.tensor.with_dtype(dtype)
    for i, type_ in enumerate(kept):
        if isinstance(type_, TensorType) and last.operands[i].dtype != type_.dtype:
            last.set_operand(i, cast(last.operands[i], type_.dtype, last))
    return changed


def _keep(op: Op, cast: Any) -> bool:
    """Ops outside the choice, and what regions take from outside, see f32 as before; an explicit cast reads whatever there is."""
    if op.name in UNTOUCHED:
        return False
    for reader in op.walk():
        for i, v in enumerate(reader.operands):
            if isinstance(v.type, TensorType) and v.dtype in LOWS.values() and v.op is not None and v.op.block is op.block and v.op.attrs.get("dmlc.precision") == "low":
                reader.set_operand(i, cast(v, HIGH, op))
    return False
