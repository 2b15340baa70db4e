"""Attention split by queries where the rule has them whole (causal; gradients), and grouped attention split by query heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dmlc.ir.core import Op, Value
from dmlc.ir.types import TensorType
from dmlc.ops.base import Strategy, attribute, own_attrs
from dmlc.ops.emit import cast
from dmlc.ops.strategies import SUM
from dmlc.ops.terms import Term

START = TensorType((), "i64")


def _split(op: Op, first: int) -> tuple[Value | None, bool]:
    """The mask and whether there is a start operand. `first` is q's index."""
    rest = list(op.operands[first + 3 :])
    start = bool(rest) and rest[-1].type == START
    masks = rest[:-1] if start else rest
    return (masks[0] if masks else None), start


def _operand_states(op: Op, first: int, dim: int) -> tuple[Any, ...]:
    """Split along `dim` of g and q, and of the mask where it has that dim; keys and values on every rank."""
    mask, start = _split(op, first)
    states: list[Any] = [dim] * first + [dim, None, None]
    if mask is not None:
        states.append(dim if mask.shape[dim] != 1 else None)
    return tuple(states + [None] * start)


def of_attention(op: Op) -> list[Strategy]:
    found = []
    if attribute(op, "causal"):
        found.append(Strategy("queries", _operand_states(op, 0, 2), (2,), _emit_queries))
    if op.operands[0].shape[1] != op.operands[1].shape[1]:
        found.append(Strategy("heads", _operand_states(op, 0, 1), (1,), _emit_heads))
    return found


def of_attention_grad(op: Op) -> list[Strategy]:
    found = [Strategy("queries", _operand_states(op, 1, 2), (2, SUM, SUM), _emit_queries_grad)]
    if op.operands[1].shape[1] != op.operands[2].shape[1]:
        found.append(Strategy("heads", _operand_states(op, 1, 1), (1, SUM, SUM), _emit_heads_grad))
    return found


# ---------------------------------------------------------------- by queries


def _started(env: Any, op: Op, operands: Sequence[Value], first: int) -> list[Value]:
    """Operands with this rank's first query added to the start."""
    start, _ = env.window(op.operands[first].shape[2])
    if _split(op, first)[1]:
        return [*operands[:-1], env.b.emit("dmlc.add", operands[-1], start)]
    return [*operands, start]


def _emit_queries(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
    return [env.b.op(op.name, _started(env, op, operands, 0), own_attrs(op)).result]


def _cleared(env: Any, op: Op, operands: Sequence[Value], dim: int, n: int) -> list[Value]:
    """g, q and a float mask with the padding of the split dim set to 0: what a padded query adds to keys and values is then 0."""
    _, valid = env.window(n)
    split = _operand_states(op, 1, dim)
    return [env.b.emit("dmlc.mask_pad", v, valid, dim=dim, identity=0.0) if s == dim and v.tensor.is_float else v for v, s in zip(operands, split)]


def _emit_queries_grad(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
    operands = _cleared(env, op, operands, 2, op.operands[1].shape[2])
    if attribute(op, "causal"):
        operands = _started(env, op, operands, 1)
    return list(env.b.op(op.name, operands, own_attrs(op)).results)


# ---------------------------------------------------------------- by query heads


def _local_keys(env: Any, q: Value, k: Value, v: Value, group: int) -> tuple[list[Value], Term]:
    """Keys and values of this rank's query heads, and which head each is.

    One slice where a rank's heads lie within one group or fill whole groups; else one key head for each query head.
    """
    b, mine, heads = env.b, q.shape[1], k.shape[1]
    start, _ = env.window(heads * group)
    even = env.ranks * mine == heads * group and (group % mine == 0 or mine % group == 0)
    count = max(mine // group, 1) if even else mine
    step = group if even else 1
    positions = Term(b, b.emit("dmlc.iota", types=[TensorType((count,), "i64")], dim=0, step=step)) + Term(b, start)
    index = positions.div(group, rounding="floor").clamp(min=0, max=heads - 1)
    if even:
        first = Term(b, start).div(group, rounding="floor").value
        return [b.emit("dmlc.shard_slice", x, first, dim=1, size=count) for x in (k, v)], index
    return [b.emit("dmlc.take", x, index.value, dim=1) for x in (k, v)], index


def _emit_heads(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
    q, k, v, *rest = operands
    keys, _ = _local_keys(env, q, k, v, op.operands[0].shape[1] // op.operands[1].shape[1])
    return [env.b.op(op.name, [q, *keys, *rest], own_attrs(op)).result]


def _emit_heads_grad(env: Any, op: Op, operands: Sequence[Value]) -> list[Value]:
    """Gradients of a rank's keys go back to the heads they are, by a product with the 0-1 matrix that says so."""
    b, group, heads = env.b, op.operands[1].shape[1] // op.operands[2].shape[1], operands[2].shape[1]
    g, q, k, v, *rest = _cleared(env, op, operands, 1, heads * group)
    keys, index = _local_keys(env, q, k, v, group)
    dq, *partial = b.op(op.name, [g, q, *keys, *rest], own_attrs(op)).results
    columns = Term(b, b.emit("dmlc.iota", types=[TensorType((1, heads), "i64")], dim=1))
    rows = Term(b, b.emit("dmlc.reshape", index.value, types=[TensorType((*index.value.shape, 1), "i64")]))
    onehot = cast(b, rows.eq(columns).value, dq.dtype)
    return [dq, *(b.op("dmlc.contract", [d, onehot], {"equation": "bnsd,nm->bmsd"}).result for d in partial)]
