"""Attention and rotary positions of the standard operator set. Forms not handled here go through the specification's own definition."""

from __future__ import annotations

import math

from dmlc.frontend.onnx.emit import concrete, type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.values import Tensor
from dmlc.ir.location import DmlcError


def heads(n: Node, t: Tensor, count: int) -> Tensor:
    """[b, s, h d] as [b, h, s, d]."""
    shape = type_of(t).shape
    if len(shape) == 4:
        return t
    if count < 1 or len(shape) != 3 or shape[2] % count:
        raise DmlcError(f"a tensor of shape {list(shape)} does not split into {count} heads")
    return n.transpose(n.reshape(t, (shape[0], shape[1], count, shape[2] // count)), (0, 2, 1, 3))


def joined(n: Node, t: Tensor) -> Tensor:
    """[b, h, s, d] as [b, s, h d]."""
    b, h, s, d = type_of(t).shape
    return n.reshape(n.transpose(t, (0, 2, 1, 3)), (b, s, h * d))


def mask_of_rank_4(n: Node, mask: Tensor, dtype: str) -> Tensor:
    shape = type_of(mask).shape
    mask = n.reshape(mask, (*(1,) * (4 - len(shape)), *shape))
    return mask if type_of(mask).dtype == "i1" else n.cast(mask, dtype)


@op("Attention", 23, 24)
def attention(n: Node) -> list[Tensor]:
    """Operands: Q, K, V, mask, past key, past value."""
    if n.attr("softcap", 0.0) or n.wants(3) or n.attr("softmax_precision", 0) or n.has(6) or (n.has(4) and n.attr("is_causal", 0)):
        raise Unsupported("softcap, score results, softmax precision, padded keys, and causal masks over a past")
    flat = n.rank(0) == 3
    q, k, v = heads(n, n[0], n.attr("q_num_heads", 0)), heads(n, n[1], n.attr("kv_num_heads", 0)), heads(n, n[2], n.attr("kv_num_heads", 0))
    if n.has(4) and n.has(5):
        k, v = n.concat([n[4], k], 2), n.concat([n[5], v], 2)
    if type_of(v).shape[2] != type_of(k).shape[2] or (n.has(3) and n.shape(3)[-1] != type_of(k).shape[2]):
        raise Unsupported("a mask shorter than the keys")
    mask = [mask_of_rank_4(n, n[3], n.dtype(0))] if n.has(3) else []
    scale = n.attr("scale", 1 / math.sqrt(type_of(q).shape[3]))
    y: Tensor = n.emit("dmlc.attention", q, k, v, *mask, scale=scale, causal=bool(n.attr("is_causal", 0)), offset=0)
    return [joined(n, y) if flat else y, k, v]


@op("RotaryEmbedding", 23)
def rotary_embedding(n: Node) -> Tensor:
    """Operands: x [b, h, s, d] or [b, s, h d], cos and sin [positions, r / 2] (or [b, s, r / 2] without ids), position ids [b, s]."""
    flat = n.rank(0) == 3
    x = heads(n, n[0], n.attr("num_heads", 0))
    cos, sin = (n.emit("dmlc.take", n[i], n.cast(n[3], "i64"), dim=0) if n.has(3) else n[i] for i in (1, 2))
    y = rotated(n, x, cos, sin, n.attr("rotary_embedding_dim", 0), bool(n.attr("interleaved", 0)))
    return joined(n, y) if flat else y


def rotated(n: Node, x: Tensor, cos: Tensor, sin: Tensor, width: int, interleaved: bool) -> Tensor:
    """The first `width` (0: all) channels of x [b, h, s, d] turned by angles [b, s, width / 2]: pairs are neighbours, or halves."""
    b, h, s, d = concrete(x)
    width = width or d
    cos, sin = (n.reshape(n.slice(t, 2, 0, width // 2), (type_of(t).shape[0], 1, s, width // 2)) for t in (cos, sin))
    turned, rest = n.slice(x, 3, 0, width), n.slice(x, 3, width, d) if width < d else None
    if interleaved:
        pairs = n.reshape(turned, (b, h, s, width // 2, 2))
        first, second = n.pick(pairs, 4, 0), n.pick(pairs, 4, 1)
    else:
        first, second = n.slice(turned, 3, 0, width // 2), n.slice(turned, 3, width // 2, width)
    real = n.pointwise("dmlc.sub", n.pointwise("dmlc.mul", cos, first), n.pointwise("dmlc.mul", sin, second))
    imaginary = n.pointwise("dmlc.add", n.pointwise("dmlc.mul", sin, first), n.pointwise("dmlc.mul", cos, second))
    if interleaved:
        wide = [n.reshape(t, (b, h, s, width // 2, 1)) for t in (real, imaginary)]
        y = n.reshape(n.concat(wide, 4), (b, h, s, width))
    else:
        y = n.concat([real, imaginary], 3)
    return y if rest is None else n.concat([y, rest], 3)
