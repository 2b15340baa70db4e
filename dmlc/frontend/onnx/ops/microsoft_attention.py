"""Attention operators of onnxruntime's own domain. Caches of earlier keys and values are not supported."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dmlc.frontend.onnx.emit import concrete, type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.ops.attention import heads, joined, rotated
from dmlc.frontend.onnx.ops.contraction import product
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.values import Tensor

MS = "com.microsoft"


def _attended(n: Node, q: Tensor, k: Tensor, v: Tensor, masks: Sequence[Tensor]) -> Tensor:
    """[b, s, h d] from q, k, v [b, h, s, d]; float masks [b|1, h|1, s|1, t] are added up."""
    total = [masks[0] if len(masks) == 1 else n.pointwise("dmlc.add", masks[0], masks[1])] if masks else []
    scale = n.attr("scale", 0.0) or 1 / math.sqrt(concrete(q)[3])
    y = n.emit("dmlc.attention", q, k, v, *total, scale=scale, causal=bool(n.attr("unidirectional", 0)), offset=0)
    return joined(n, y)


def _padding_mask(n: Node, i: int, keys: int) -> Tensor:
    """Operand i, [b, keys] with 1 where a key counts, as a number to add: 0 or `mask_filter_value`."""
    if n.shape(i)[1:] != (keys,):
        raise Unsupported("a mask that is not [batch, keys]")
    seen = n.pointwise("dmlc.ne", n[i], 0)
    added = n.select(seen, n.full(0.0, n.dtype(0)), n.full(n.attr("mask_filter_value", -10000.0), n.dtype(0)))
    return n.reshape(added, (n.shape(i)[0], 1, 1, keys))


@op("Attention", 1, domain=MS)
def attention(n: Node) -> list[Tensor]:
    """Operands: x [b, s, c], one weight for q, k and v [c, 3 h d], its bias, mask [b, s], past, a bias for the scores."""
    if n.has(4) or n.wants(1) or n.attr("do_rotary", 0):
        raise Unsupported("a cache, and rotary positions inside attention")
    count, width = n.attr("num_heads"), n.shape(1)[1]
    sizes = n.attr("qkv_hidden_sizes", (width // 3,) * 3)
    packed = product(n, n[0], n.param(1))
    packed = n.pointwise("dmlc.add", packed, n.param(2)) if n.has(2) else packed
    starts = (0, sizes[0], sizes[0] + sizes[1], width)
    q, k, v = (heads(n, n.slice(packed, 2, low, high), count) for low, high in zip(starts, starts[1:]))
    masks = ([_padding_mask(n, 3, n.shape(0)[1])] if n.has(3) else []) + ([n[5]] if n.has(5) else [])
    return [_attended(n, q, k, v, masks)]


@op("MultiHeadAttention", 1, domain=MS)
def multi_head_attention(n: Node) -> list[Tensor]:
    """Operands: q [b, s, h d], k and v [b, t, h d] or [b, h, t, d], one bias for the three, mask [b, t], a bias for the scores, then caches."""
    if any(n.has(i) for i in (6, 7, 8, 9)) or n.wants(1) or not (n.has(1) and n.has(2)):
        raise Unsupported("a cache, and packed keys and values")
    count = n.attr("num_heads")
    parts = [n[i] for i in range(3)]
    if n.has(3):
        size = n.shape(0)[2]
        parts = [n.pointwise("dmlc.add", t, n.slice(n.param(3), 0, i * size, i * size + type_of(t).shape[-1])) for i, t in enumerate(parts)]  # type: ignore[arg-type]
    q, k, v = (heads(n, t, count) for t in parts)
    masks = ([_padding_mask(n, 4, concrete(k)[2])] if n.has(4) else []) + ([n[5]] if n.has(5) else [])
    return [_attended(n, q, k, v, masks)]


@op("RotaryEmbedding", 1, domain=MS)
def rotary_embedding(n: Node) -> Tensor:
    """Operands: x [b, s, h d] or [b, h, s, d], position ids [b, s] (or one start), cos and sin [positions, r / 2]."""
    if n.attr("is_packed_batching", 0) or n.attr("scale", 1.0) != 1.0:
        raise Unsupported("packed batches and a scale")
    flat, half = n.rank(0) == 3, n.shape(2)[1]
    width = n.attr("rotary_embedding_dim", 0)
    count = n.attr("num_heads", 0) or (n.shape(0)[2] // (2 * half) if flat else n.shape(0)[1])
    x = heads(n, n[0], count)
    batch, _, length, _ = concrete(x)
    ids: Tensor = n.cast(n[1], "i64")
    if n.rank(1) < 2:
        ids = n.broadcast(n.pointwise("dmlc.add", n.iota((1, length), 1), n.reshape(ids, (1, 1))), (batch, length))
    cos, sin = (n.emit("dmlc.take", n[i], ids, dim=0) for i in (2, 3))
    y = rotated(n, x, cos, sin, width, bool(n.attr("interleaved", 0)))
    return joined(n, y) if flat else y
