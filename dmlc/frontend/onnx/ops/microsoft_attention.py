"""Attention operators of onnxruntime's own domain. Caches are tensors: earlier keys and values come in, all of them go out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dmlc.frontend.onnx.emit import concrete, type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.ops.attention import heads, joined, rotated
from dmlc.frontend.onnx.ops.contraction import product
from dmlc.frontend.onnx.ops.quant import integer_product
from dmlc.frontend.onnx.regions import stacked
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.values import Tensor
from dmlc.ir.location import DmlcError

MS = "com.microsoft"
MASKED = -10000.0  # `mask_filter_value` left out


def _attended(n: Node, q: Tensor, k: Tensor, v: Tensor, masks: Sequence[Tensor]) -> Tensor:
    """[b, s, h d] from q [b, h, s, d] and k, v [b, h, t, d], the last query beside the last key; float masks [b|1, h|1, s|1, t] are added up."""
    total = [masks[0] if len(masks) == 1 else n.pointwise("dmlc.add", masks[0], masks[1])] if masks else []
    (queries, size), keys = concrete(q)[2:], concrete(k)[2]
    causal = bool(n.attr("unidirectional", 0))
    y = n.emit("dmlc.attention", q, k, v, *total, scale=n.attr("scale", 0.0) or 1 / math.sqrt(size), causal=causal, offset=keys - queries if causal else 0)
    return joined(n, y)


def _padding_mask(n: Node, i: int, dtype: str, batch: int, keys: int) -> Tensor:
    """Operand i as a number to add: 0 where a key counts, else `mask_filter_value`.

    It is [batch, keys] or [batch, queries, keys] with 1 where a key counts, the number of keys [batch], or their ends and then their starts [2 batch].
    """
    shape = n.shape(i)
    if len(shape) in (2, 3) and shape[-1] == keys:
        seen = n.reshape(n.pointwise("dmlc.ne", n[i], 0), (shape[0], 1, shape[1] if len(shape) == 3 else 1, keys))
    elif shape in ((batch,), (2 * batch,)):
        places = n.iota((1, 1, 1, keys), 3, n.dtype(i))
        seen = n.pointwise("dmlc.lt", places, n.reshape(n.slice(n[i], 0, 0, batch), (batch, 1, 1, 1)))
        if shape[0] == 2 * batch:
            starts = n.reshape(n.slice(n[i], 0, batch, 2 * batch), (batch, 1, 1, 1))
            seen = n.pointwise("dmlc.logical_and", seen, n.pointwise("dmlc.ge", places, starts))
    else:
        raise Unsupported(f"a mask of shape {list(shape)} for {batch} sequences of {keys} keys")
    return n.select(seen, n.full(0.0, dtype), n.full(n.attr("mask_filter_value", MASKED), dtype))


def _packed_attention(n: Node, packed: Tensor, sizes: Sequence[int], mask: int, past: int, bias: int) -> list[Tensor]:
    """Result and cache [2, b, h, t, d] from q, k and v [b, s, all sizes]; the other operands by their numbers."""
    if n.attr("do_rotary", 0) or n.attr("past_present_share_buffer", 0):
        raise Unsupported("rotary positions inside attention, and a cache that is changed in place")
    starts = (0, sizes[0], sizes[0] + sizes[1], sum(sizes))
    if starts[-1] != concrete(packed)[2]:
        raise DmlcError(f"q, k and v of sizes {list(sizes)} are not {concrete(packed)[2]} channels")
    q, k, v = (heads(n, n.slice(packed, 2, low, high), n.attr("num_heads")) for low, high in zip(starts, starts[1:]))
    if n.has(past):
        k, v = (n.concat([n.pick(n[past], 0, i), t], 2) for i, t in enumerate((k, v)))
    masks = [_padding_mask(n, mask, type_of(q).dtype, concrete(q)[0], concrete(k)[2])] if n.has(mask) else []
    y = _attended(n, q, k, v, masks + ([n[bias]] if n.has(bias) else []))
    return [y, stacked(n, [k, v], 0)] if n.wants(1) else [y]


@op("Attention", 1, domain=MS)
def attention(n: Node) -> list[Tensor]:
    """Operands: x [b, s, c], one weight for q, k and v [c, 3 h d], its bias, mask, cache [2, b, h, p, d], a bias for the scores."""
    width = n.shape(1)[1]
    packed = product(n, n[0], n.param(1))
    packed = n.pointwise("dmlc.add", packed, n.param(2)) if n.has(2) else packed
    return _packed_attention(n, packed, n.attr("qkv_hidden_sizes", (width // 3,) * 3), 3, 4, 5)


@op("QAttention", 1, domain=MS)
def quantised_attention(n: Node) -> list[Tensor]:
    """Operands: x and weight as integers, the bias, their scales, mask, their zero points, cache."""
    packed = n.cast(integer_product(n, 0, 1, 6, 7), "f32")
    packed = n.pointwise("dmlc.mul", packed, n.pointwise("dmlc.mul", n.reshape(n[3], ()), n[4] if math.prod(n.shape(4)) > 1 else n.reshape(n[4], ())))
    return _packed_attention(n, n.pointwise("dmlc.add", packed, n[2]), (n.shape(1)[1] // 3,) * 3, 5, 8, 9)


@op("MultiHeadAttention", 1, domain=MS)
def multi_head_attention(n: Node) -> list[Tensor]:
    """Operands: q [b, s, h d], k and v [b, t, h d] or [b, h, t, d], one bias for the three, mask, a bias for the scores, cached k and v [b, h, p, d].

    q alone may be all three, [b, s, h, 3, d]; k both k and v, [b, t, h, 2, d].
    """
    if n.has(8) or n.has(9) or n.wants(3):
        raise Unsupported("a cache that is changed in place, and the scores as a result")
    parts = _separate(n)
    if n.has(3):
        ends = [0]
        for t in parts:
            ends.append(ends[-1] + concrete(t)[-1])
        parts = [n.pointwise("dmlc.add", t, n.slice(n.param(3), 0, low, high)) if len(concrete(t)) == 3 else t for t, low, high in zip(parts, ends, ends[1:])]
    q, k, v = (heads(n, t, n.attr("num_heads")) for t in parts)
    if n.has(6) and n.has(7):
        k, v = n.concat([n[6], k], 2), n.concat([n[7], v], 2)
    masks = [_padding_mask(n, 4, n.dtype(0), concrete(q)[0], concrete(k)[2])] if n.has(4) else []
    return [_attended(n, q, k, v, masks + ([n[5]] if n.has(5) else [])), k, v]


def _separate(n: Node) -> list[Tensor]:
    if n.has(1) and n.has(2):
        return [n[0], n[1], n[2]]
    packed, count = (n[1], 2) if n.has(1) else (n[0], 3)
    shape = concrete(packed)
    if len(shape) != 5 or shape[3] != count:
        raise DmlcError(f"{count} tensors packed into one are not of shape {list(shape)}")
    parts = [n.reshape(n.pick(packed, 3, i), (*shape[:2], shape[2] * shape[4])) for i in range(count)]
    return [n[0], *parts] if count == 2 else parts


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
