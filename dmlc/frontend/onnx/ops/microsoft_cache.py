"""GroupQueryAttention: the attention of decoders that onnxruntime's model builder writes, with its cache, rotary positions, windows and sinks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dmlc.frontend.onnx.emit import concrete, type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.ops.attention import heads, joined, rotated
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.values import Known, Tensor
from dmlc.ir.location import DmlcError

REFUSED = {12: "a cache of integers", 13: "a cache of integers", 16: "chunks of different lengths"}


@dataclass
class Step:
    """Where the new tokens stand. `start`: the place of each sequence's first new token [b, 1], or one number for all.

    `past`: places of the cache that comes in; `total`: keys there are, the new ones included.
    """

    start: Tensor | int
    new: int
    past: int
    total: int


@op("GroupQueryAttention", 1, domain="com.microsoft")
def group_query_attention(n: Node) -> list[Tensor]:
    """Operands: q [b, s, h d] (or q, k and v in one), k, v [b, s, kv d], cached k and v [b, kv, p, d], last place of each sequence [b],
    number of keys, cos and sin, places, a bias for the scores, sinks [h], scales of the cache, weights of norms of q and k."""
    _refuse_forms(n)
    q, k, v = _separate(n)
    step = _step(n, concrete(q)[2])
    if n.has(14):
        q, k = (
            n.emit("dmlc.rms_norm", t, n.param(14 + i), eps=n.attr(f"{name}_norm_epsilon", n.attr("qk_norm_epsilon", 1e-6)))
            for i, (name, t) in enumerate((("q", q), ("k", k)))
        )
    if n.attr("do_rotary", 0):
        q, k = _turned(n, (q, k), step)
    keys, values = (_with_cache(n, t, i, step) for i, t in ((3, k), (4, v)))
    k, v = (n.slice(t, 2, 0, step.total) for t in (keys, values))
    return [joined(n, _attended(n, q, k, v, step)), keys, values]


def _refuse_forms(n: Node) -> None:
    for i, what in REFUSED.items():
        if n.has(i):
            raise Unsupported(what)
    if n.wants(3) or n.attr("sliding_window_cache", 0) or n.attr("kv_cache_bit_width", 0):
        raise Unsupported("the scores as a result, and caches of a window or of integers")


def _separate(n: Node) -> list[Tensor]:
    """q [b, h, s, d], k and v [b, kv, s, d]."""
    count, groups = n.attr("num_heads"), n.attr("kv_num_heads")
    if n.has(1):
        return [heads(n, n[0], count), heads(n, n[1], groups), heads(n, n[2], groups)]
    if n.shape(0)[2] % (count + 2 * groups):
        raise DmlcError(f"{n.shape(0)[2]} channels do not split into {count} + 2 × {groups} heads")
    size = n.shape(0)[2] // (count + 2 * groups)
    ends = [0, count * size, (count + groups) * size, (count + 2 * groups) * size]
    return [heads(n, n.slice(n[0], 2, low, high), c) for low, high, c in zip(ends, ends[1:], (count, groups, groups))]


def _step(n: Node, new: int) -> Step:
    """A first prompt starts at 0 whatever the cache holds."""
    past = n.shape(3)[2] if n.has(3) else 0
    total = n.number(6)
    if total is None and past:
        raise Unsupported("the number of keys must be known at import, but it depends on the data")
    total = new if total is None else int(total)
    if total == new:
        return Step(0, new, past, total)
    last = n.maybe_known(5)
    if last is not None and (last == total - 1).all():
        return Step(total - new, new, past, total)
    batch = n.shape(0)[0]
    return Step(n.pointwise("dmlc.add", n.cast(n.reshape(n[5], (batch, 1)), "i64"), 1 - new), new, past, total)


def _turned(n: Node, parts: tuple[Tensor, ...], step: Step) -> list[Tensor]:
    """q and k turned by the angles of their places."""
    if n.has(9) and step.total == step.new:
        first = n.reshape(n.slice(n.reshape(n.cast(n[9], "i64"), (math.prod(n.shape(9)),)), 0, 0, 1), (1, 1))
        ids = n.pointwise("dmlc.add", n.iota((1, step.new), 1), first)
    elif n.has(9):
        ids = n.cast(n[9], "i64")
    else:
        ids = _places(n, step)
    cos, sin = (n.emit("dmlc.take", n[i], ids, dim=0) for i in (7, 8))
    width, interleaved = 2 * n.shape(7)[1], bool(n.attr("rotary_interleaved", 0))
    return [rotated(n, t, cos, sin, width, interleaved) for t in parts]


def _places(n: Node, step: Step) -> Tensor:
    """Of the new tokens, [b, s] or [1, s]."""
    if isinstance(step.start, int):
        return Known.of(np.arange(step.start, step.start + step.new)[None])
    return n.pointwise("dmlc.add", n.iota((1, step.new), 1), step.start)


def _with_cache(n: Node, fresh: Tensor, i: int, step: Step) -> Tensor:
    """The cache in operand i with the new keys or values in their places, [b, kv, max(p, total), d]."""
    if not step.past:
        return fresh
    length = max(step.past, step.total)
    if isinstance(step.start, int):
        before, after = n.slice(n[i], 2, 0, step.start), n.slice(n[i], 2, step.total, step.past) if step.past > step.total else None
        return n.concat([t for t in (before, fresh, after) if t is not None and concrete(t)[2]], 2)
    places = n.iota((1, length), 1)
    moved = n.pointwise("dmlc.minimum", n.pointwise("dmlc.maximum", n.pointwise("dmlc.sub", places, step.start), 0), step.new - 1)
    kept = n.pointwise("dmlc.minimum", places, step.past - 1)
    index = n.select(n.pointwise("dmlc.lt", places, step.start), kept, n.pointwise("dmlc.add", moved, step.past))
    batch, groups, _, size = concrete(fresh)
    wide = n.broadcast(n.reshape(index, (batch, 1, length, 1)), (batch, groups, length, size))
    return n.emit("dmlc.take_along", n.concat([n[i], fresh], 2), wide, dim=2)


def _attended(n: Node, q: Tensor, k: Tensor, v: Tensor, step: Step) -> Tensor:
    scale = n.attr("scale", 0.0) or 1 / math.sqrt(concrete(q)[3])
    causal, window = bool(n.attr("causal", 1)), n.attr("local_window_size", -1)
    plain = not (n.attr("softcap", 0.0) or n.attr("smooth_softmax", 0) or n.has(11))
    if plain and isinstance(step.start, int) and window < 0 and not n.has(10):
        return n.emit("dmlc.attention", q, k, v, scale=scale, causal=causal, offset=step.start if causal else 0)
    seen = _seen(n, step, causal, window)
    if plain and not n.has(10):
        return n.emit("dmlc.attention", q, k, v, seen, scale=scale)
    return _by_scores(n, q, k, v, seen, scale)


def _seen(n: Node, step: Step, causal: bool, window: int) -> Tensor:
    """[b|1, 1, s, t]: which keys a query sees: those up to its place, and no more than `window` of them."""
    places = _places(n, step)
    batch = concrete(places)[0]
    places = n.reshape(places, (batch, 1, step.new, 1))
    keys = Known.of(np.arange(step.total).reshape(1, 1, 1, step.total))
    if not causal:
        places = n.slice(places, 2, step.new - 1, step.new)
    seen = n.broadcast(n.pointwise("dmlc.le", keys, places), (batch, 1, step.new, step.total))
    return n.pointwise("dmlc.logical_and", seen, n.pointwise("dmlc.gt", keys, n.pointwise("dmlc.sub", places, window))) if window >= 0 else seen


def _by_scores(n: Node, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    """softmax(softcap tanh(scale q k^T / softcap) + bias) v, with a sink a head as one more score that stands for nothing."""
    (batch, count, new, size), groups, total, dtype = concrete(q), concrete(k)[1], concrete(k)[2], type_of(q).dtype
    grouped = n.reshape(q, (batch, groups, count // groups, new, size))
    scores: Tensor = n.pointwise("dmlc.mul", n.emit("dmlc.contract", grouped, k, equation="bkgsd,bktd->bkgst"), scale)
    cap = n.attr("softcap", 0.0)
    if cap:
        scores = n.pointwise("dmlc.mul", n.emit("dmlc.tanh", n.pointwise("dmlc.mul", scores, 1 / cap)), cap)
    scores = n.reshape(scores, (batch, count, new, total))
    scores = n.pointwise("dmlc.add", scores, n[10]) if n.has(10) else scores
    scores = n.select(seen, scores, n.full(-math.inf, dtype))
    if n.has(11) or n.attr("smooth_softmax", 0):
        sink = n.reshape(n[11], (1, count, 1, 1)) if n.has(11) else n.full(0.0, dtype, (1, 1, 1, 1))
        scores = n.concat([scores, n.broadcast(sink, (batch, count, new, 1))], 3)
    shares = n.slice(n.emit("dmlc.softmax", scores, dim=3), 3, 0, total)
    y = n.emit("dmlc.contract", n.reshape(shares, (batch, groups, count // groups, new, total)), v, equation="bkgst,bkte->bkgse")
    return n.reshape(y, (batch, count, new, concrete(v)[3]))
