"""`mixed-precision`: which ops compute in bf16, by lists and a minimum cut.

Contractions, convolutions and attention (`precision = low`) run in bf16; norms, softmax, losses, and sums of two activations (the
residual stream) stay in f32; all else follows at the least cost: an edge between an op of each kind costs the cast's bytes, once a
value and direction, and a following op costs its own bytes, which f32 doubles. The cut is exact for two precisions. Weights are
cast once, when they are loaded (`fold` turns their casts into recipes). Casts of the user's own stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.builder import Builder, IdPool
from dmlc.ir.core import BlockArgument, Function, Module, Op, Value
from dmlc.ir.types import BYTES, TensorType
from dmlc.ops.base import definition
from dmlc.passmanager.base import Pass
from dmlc.passmanager.context import Context
from dmlc.simulate.choice import Choice

HIGH, LOW = "f32", "bf16"
SUMS = ("dmlc.add", "dmlc.sub")
UNTOUCHED = ("dmlc.cast", "func.return")


@dataclass(frozen=True)
class MixedPrecision(Pass):
    name = "mixed-precision"
    numerics = "lower-precision"
    requires = ("global",)

    def run(self, module: Module, context: Context) -> bool:
        if module.attrs.get("dmlc.request", {}).get("precision", "fp32") != LOW:
            return False
        function = module.main
        if any("dmlc.precision" in op.attrs for op in function.ops()):
            choice = Choice.of(function, order=False)  # decided by hand
        else:
            choice = decide(function)
        if not choice.precision:
            context.remark(None, "no op gains from bf16: the program has no f32 contraction")
            return False
        return apply(module, choice)


def participates(op: Op) -> bool:
    """Ops whose precision is ours to choose: those that compute on f32 tensors."""
    if op.regions or op.name in UNTOUCHED or op.dialect != "dmlc":
        return False
    floats = [v for v in (*op.operands, *op.results) if isinstance(v.type, TensorType) and v.tensor.is_float]
    return any(isinstance(r.type, TensorType) and r.tensor.is_float for r in op.results) and all(v.dtype == HIGH for v in floats)


def wanted(op: Op) -> str:
    """`low`, `high` or `follow`."""
    kind = definition(op).precision
    full = [v for v in op.operands if v.tensor.rank and v.shape == op.results[0].shape and not _is_weight(v)]
    if kind == "follow" and op.name in SUMS and len(full) == 2:
        return "high"
    return kind


def _is_weight(value: Value) -> bool:
    return isinstance(value, BlockArgument) and value.attrs.get("dmlc.role", "input") not in ("input", "state")


def decide(function: Function) -> Choice:
    """Precision by op id (`low` and `high`), from a minimum s-t cut (Goldberg-Tarjan's preflow push through networkx)."""
    import networkx

    ops = [op for op in function.body if participates(op)]
    if not any(wanted(op) == "low" for op in ops):
        return Choice()
    graph = networkx.DiGraph()
    for n, op in enumerate(ops):
        _pin(graph, n, op)
    number = {op: n for n, op in enumerate(ops)}
    for n, op in enumerate(ops):
        for r in op.results:
            if r.tensor.is_float:
                _tie(graph, n, r, [number.get(u, "high") for u in r.users])
    for arg in function.args:
        if arg.tensor.is_float and not _is_weight(arg):
            _tie(graph, "high", arg, [number.get(u, "high") for u in arg.users])
    _, (low, _) = networkx.minimum_cut(graph, "low", "high")
    return Choice(precision=AttrDict((op.id, "low" if n in low else "high") for n, op in enumerate(ops)))


def _pin(graph: Any, n: int, op: Op) -> None:
    """Lists are hard; a following op pays its bytes, twice as many in f32, and half a byte more in bf16 so that ties stay f32."""
    kind = wanted(op)
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


def apply(module: Module, choice: Choice) -> bool:
    """Cast operands to each op's precision and retype its results; results of the program keep their dtype."""
    function = module.main
    ids = IdPool(function)
    casts: dict[tuple[Value, str], Value] = {}

    def cast(value: Value, dtype: str, before: Op) -> Value:
        if value.dtype == dtype:
            return value
        if (value, dtype) not in casts:
            b = Builder.before(before, ids)
            casts[value, dtype] = b.emit("dmlc.cast", value, tag="cast", to=dtype)
        return casts[value, dtype]

    kept = [v.type for v in function.results]
    changed = False
    for op in function.body.ops:
        label = choice.precision.get(op.id)
        if label is None:
            changed |= _keep(op, cast)
            continue
        dtype = LOW if label == "low" else HIGH
        op.attrs["dmlc.precision"] = label
        changed |= label == "low"
        for i, v in enumerate(op.operands):
            if v.tensor.is_float:
                op.set_operand(i, cast(v, dtype, op))
        for r in op.results:
            if r.tensor.is_float:
                r.type = r.tensor.with_dtype(dtype)
    last = function.return_op
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
            if isinstance(v.type, TensorType) and v.dtype == LOW and v.op is not None and v.op.attrs.get("dmlc.precision") == "low":
                reader.set_operand(i, cast(v, HIGH, op))
    return False
