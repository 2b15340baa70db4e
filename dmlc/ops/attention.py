"""Scaled dot-product attention (Vaswani et al. 2017), its gradients, and the ways to split them that their rules do not give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Op, Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import TensorType
from dmlc.ops import attention_strategies
from dmlc.ops.base import InferError, OpDef, Sample, attribute, own_attrs
from dmlc.ops.emit import cast, f32, i1, i64, reshaped, scaled, wide
from dmlc.ops.rule import Rule
from dmlc.ops.sized import sized_rule
from dmlc.ops.terms import Term

if TYPE_CHECKING:
    from dmlc.ir.builder import Builder

START = TensorType((), "i64")


class Attends(OpDef):
    """Base. Operands (after a gradient, where there is one): q [b, h, t, d], k [b, kv, s, d], v [b, kv, s, e], then maybe a mask, then maybe
    a start (i64, rank 0: what the first query's position adds to `offset`, for a rank that holds some of the queries).

    kv divides h: query head i uses key head i // (h / kv). The mask (i1: true means seen; float: added to the scores) has rank 4 and
    broadcasts over b, h, t. With `causal`, query i sees keys up to i + offset. A query that sees nothing gives 0. `scale` left out is 1 / sqrt(d).
    """

    attributes = {"scale": None, "causal": False, "offset": 0}
    precision = "low"
    cost = "mac"
    same_dtype = False
    first = 0  # index of q among the operands

    @classmethod
    def parts(cls, op: Any) -> tuple[Value, Value, Value, Value | None, Value | None]:
        """q, k, v, mask, start."""
        rest = list(op.operands[cls.first + 3 :])
        start = rest.pop() if rest and rest[-1].type == START else None
        return (*op.operands[cls.first : cls.first + 3], rest.pop() if rest else None, start)

    @classmethod
    def check(cls, op: Op) -> None:
        super().check(op)
        check_shapes(op.name, [v.tensor for v in op.operands[cls.first :]])
        q, mask = cls.parts(op)[0], cls.parts(op)[3]
        dtypes = {v.dtype for v in op.operands[: cls.first + 3]}
        if len(dtypes) != 1 or (mask is not None and mask.dtype not in ("i1", q.dtype)):
            raise DmlcError(f"'{op.name}' takes q, k, v of one dtype and a mask of i1 or that dtype", op.loc)

    @classmethod
    def dims(cls, op: Any, whole: str = "") -> tuple[list[str], int]:
        """The rule's terms for q, k, v, mask and start as they are present, and the size of the group (queries a key head serves)."""
        q, k, _, mask, start = cls.parts(op)
        group = q.shape[1] // k.shape[1] if k.shape[1] else 1
        heads, keys = ("(kv g)", "kv") if group != 1 else ("h", "h")
        if whole:
            heads = heads.replace("g)", "g!)")
        t = "t!" if attribute(op, "causal") or whole else "t"
        terms = [f"b {heads} {t} d!", f"b {keys} s! d!", f"b {keys} s! e" + whole]
        return terms + ([f"b {heads} {t} s!"] if mask is not None else []) + (["()"] if start is not None else []), group

    @classmethod
    def arguments(cls, op: Op) -> str:
        """Text of q, k, v, mask, scale, causal and offset as the helpers take them."""
        _, _, _, mask, start = cls.parts(op)
        q, k, v, after = (f"{{{cls.first + i}}}" for i in range(4))
        offset = "{offset}" if start is None else f"{{{len(op.operands) - 1}}} + {{offset}}"
        return f"{q}, {k}, {v}, {None if mask is None else after}, {{scale}}, {{causal}}, {offset}"


def check_shapes(name: str, types: list[TensorType]) -> None:
    """Raises `InferError` unless q, k, v (and a mask, and a start) fit together."""
    q, k, v, *rest = types
    if rest and rest[-1] == START:
        rest.pop()
    ranks_fit = len(rest) <= 1 and all(x.rank == 4 for x in (q, k, v, *rest))
    if not ranks_fit or k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or (k.shape[1] != q.shape[1] and q.shape[1] % k.shape[1] != 0):
        raise InferError(f"'{name}' takes q [b, h, t, d], k [b, kv, s, d], v [b, kv, s, e] and a mask of rank 4, not ({', '.join(map(str, types))})")
    scores = (*q.shape[:3], k.shape[2])
    if rest and any(m not in (1, n) for m, n in zip(rest[0].shape, scores)):
        raise InferError(f"'{name}': a mask of shape {rest[0].shape} does not broadcast to scores of {scores}")


class Attention(Attends):
    """softmax(scale q k^T + mask) v."""

    name = "dmlc.attention"
    linear = [{2}]
    strategies = attention_strategies.of_attention

    @staticmethod
    def rule(op: Any) -> str | Rule:
        terms, group = Attention.dims(op)
        text = f"{', '.join(terms)} -> {terms[0].replace('d!', 'e')}"
        return text if group == 1 else sized_rule(op, text, g=group)

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if len(types) < 3:
            raise InferError("'dmlc.attention' takes q, k and v")
        check_shapes("dmlc.attention", types)
        return [types[0].with_shape((*types[0].shape[:3], types[2].shape[3]))]

    @staticmethod
    def torch(op: Op) -> str:
        q, k, _, mask, start = Attention.parts(op)
        square = q.shape[2] == k.shape[2] and attribute(op, "offset") == 0 and start is None
        if attribute(op, "causal") and (mask is not None or not square):
            return f"attention({Attention.arguments(op)})"
        extra = (", {3}" if mask is not None else "") + (", is_causal=True" if attribute(op, "causal") else "")
        return f"F.scaled_dot_product_attention({{0}}, {{1}}, {{2}}{extra}, scale={{scale}}{', enable_gqa=True' if q.shape[1] != k.shape[1] else ''})"

    @staticmethod
    def flops(op: Op) -> int:
        return scores_of(op, Attention) * (op.operands[0].shape[3] + op.operands[2].shape[3])

    @staticmethod
    def vjp(b: Builder, op: Op, grads: list[Value]) -> list[Value | None]:
        """The mask's gradient is an op of its own: it is dropped where the mask needs none."""
        operands, attrs = [grads[0], *op.operands], own_attrs(op)
        mask = Attention.parts(op)[3]
        made: list[Value | None] = list(b.op("dmlc.attention_grad", operands, attrs).results)
        if mask is not None:
            made.append(b.op("dmlc.attention_mask_grad", operands, attrs).result if mask.tensor.is_float else None)
        return made + [None] * (len(op.operands) - len(made))

    @staticmethod
    def decompose(b: Builder, op: Op) -> list[Value]:
        """Scores, mask, softmax, product. Rows without a visible key have a sum of 0, which is divided by as 1."""
        p, v = probabilities(b, op), _split_heads(b, op.operands[2], op, 1)
        y = b.op("dmlc.contract", [p.value, wide(b, v)], {"equation": "bkgts,bkse->bkgte"}).result
        return [reshaped(b, cast(b, y, op.result.dtype), op.result.shape)]

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample(types, AttrDict(attrs)) for types, attrs in cases()]


def scores_of(op: Op, family: type[Attends]) -> int:
    """Number of scores: b h t s."""
    q, k = family.parts(op)[:2]
    return q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]


def _split_heads(b: Builder, x: Value, op: Op, group: int) -> Value:
    """Heads as [b, kv, group, ...]; keys and values (group 1) keep rank 4."""
    if group == 1:
        return x
    kv = op.operands[1].shape[1]
    return reshaped(b, x, (x.shape[0], kv, x.shape[1] // kv, *x.shape[2:]))


def probabilities(b: Builder, op: Op) -> Term:
    """Attention weights [b, kv, g, t, s] of a `dmlc.attention`, in f32 at least."""
    q, k, _, mask, _ = Attention.parts(op)
    scale = attribute(op, "scale")
    kv, group = k.shape[1], q.shape[1] // k.shape[1] if k.shape[1] else 1
    split = reshaped(b, q, (q.shape[0], kv, group, *q.shape[2:]))
    raw = b.op("dmlc.contract", [wide(b, split), wide(b, k)], {"equation": "bkgtd,bksd->bkgts"}).result
    scores = Term(b, scaled(b, raw, (q.shape[3] ** -0.5 if q.shape[3] else 1.0) if scale is None else scale))
    if mask is not None:
        heads = (kv, group) if mask.shape[1] == kv * group else (1, 1)
        m = Term(b, reshaped(b, mask, (mask.shape[0], *heads, *mask.shape[2:])))
        scores = m.select(scores, float("-inf")) if mask.dtype == "i1" else scores + Term(b, wide(b, m.value))
    if attribute(op, "causal"):
        scores = _visible(b, op).select(scores, float("-inf"))
    top = scores.reduce_max(dims=(4,), keepdim=True)
    e = (scores - top.eq(float("-inf")).select(0, top)).exp()
    total = e.reduce_sum(dims=(4,), keepdim=True)
    return e / total.eq(0).select(1, total)


def _visible(b: Builder, op: Op) -> Term:
    """Which keys a query of a causal attention sees: [t, s]."""
    q, k, _, _, start = Attention.parts(op)
    t, s = q.shape[2], k.shape[2]
    rows = Term(b, b.emit("dmlc.iota", *([start] if start is not None else []), types=[i64(t, 1)], dim=0)) + attribute(op, "offset")
    return Term(b, b.emit("dmlc.iota", types=[i64(1, s)], dim=1)) <= rows


def cases() -> list[tuple[tuple[TensorType, ...], dict[str, Any]]]:
    """Plain, masked both ways, causal with and without offset, grouped, a start, size 1, size 0."""

    def qkv(b: int, h: int, t: int, d: int, kv: int, s: int, e: int) -> tuple[TensorType, ...]:
        return f32(b, h, t, d), f32(b, kv, s, d), f32(b, kv, s, e)

    return [
        (qkv(2, 3, 5, 4, 3, 7, 6), {}),
        ((*qkv(2, 3, 5, 4, 3, 7, 4), f32(2, 1, 1, 7)), {"scale": 0.3}),
        ((*qkv(2, 2, 3, 4, 2, 5, 4), i1(1, 2, 3, 5)), {"scale": 0.5}),
        (qkv(1, 2, 5, 4, 2, 5, 4), {"causal": True, "scale": 0.5}),
        (qkv(1, 2, 3, 4, 2, 5, 3), {"causal": True, "offset": 1}),
        (qkv(2, 6, 3, 4, 2, 4, 5), {}),
        ((*qkv(1, 4, 3, 4, 2, 3, 4), f32(1, 4, 3, 3)), {"causal": True, "scale": 0.5}),
        ((*qkv(1, 2, 3, 4, 2, 6, 4), START), {"causal": True}),
        (qkv(1, 1, 1, 1, 1, 1, 1), {}),
        (qkv(0, 2, 3, 4, 2, 3, 4), {}),
    ]


class AttentionGrad(Attends):
    """Gradients of `dmlc.attention` in q, k and v, from the result's gradient and the same operands. Scores are computed again, not kept."""

    name = "dmlc.attention_grad"
    results = 3
    first = 1
    linear = [{0}]
    no_vjp = "gradients of this gradient are not taken"
    strategies = attention_strategies.of_attention_grad

    @staticmethod
    def rule(op: Any) -> str | Rule:
        terms, group = AttentionGrad.dims(op, whole="!")
        text = f"{terms[0].replace('d!', 'e!')}, {', '.join(terms)} -> {', '.join(terms[:3])}"
        return text if group == 1 else sized_rule(op, text, g=group)

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if len(types) < 4:
            raise InferError("'dmlc.attention_grad' takes a gradient, q, k and v")
        check_shapes("dmlc.attention_grad", types[1:])
        return types[1:4]

    @staticmethod
    def torch(op: Op) -> str:
        return f"attention_grad({{0}}, {AttentionGrad.arguments(op)})"

    @staticmethod
    def flops(op: Op) -> int:
        """Scores again, then products for dp, dq, dk, dv."""
        return scores_of(op, AttentionGrad) * (3 * op.operands[1].shape[3] + 2 * op.operands[3].shape[3])

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((f32(*t[0].shape[:3], t[2].shape[3]), *t), AttrDict(a)) for t, a in cases()]


class AttentionMaskGrad(Attends):
    """Gradient of `dmlc.attention` in its float mask, summed over the dims the mask broadcasts along."""

    name = "dmlc.attention_mask_grad"
    first = 1
    linear = [{0}]
    no_vjp = "gradients of this gradient are not taken"

    @staticmethod
    def rule(op: Any) -> str | Rule:
        """A dim the mask lacks is summed; b, h and t may be split (h only where heads are not grouped)."""
        terms, group = AttentionMaskGrad.dims(op, whole="!")
        mask = AttentionMaskGrad.parts(op)[3]
        assert mask is not None
        batch, heads, queries, keys = mask.shape
        result = " ".join(["1" if batch == 1 else "b", "1" if heads == 1 else terms[0][2 : terms[0].index(" t")], "1" if queries == 1 else "t!", "1" if keys == 1 else "s!"])
        text = f"{terms[0].replace('d!', 'e!')}, {', '.join(terms)} -> {result}"
        return text if group == 1 else sized_rule(op, text, g=group)

    @staticmethod
    def infer(types: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if len(types) < 5 or types[4].rank != 4:
            raise InferError("'dmlc.attention_mask_grad' takes a gradient, q, k, v and a mask")
        check_shapes("dmlc.attention_mask_grad", types[1:])
        return [types[4]]

    @staticmethod
    def torch(op: Op) -> str:
        return f"attention_mask_grad({{0}}, {AttentionMaskGrad.arguments(op)})"

    @staticmethod
    def flops(op: Op) -> int:
        return scores_of(op, AttentionMaskGrad) * (op.operands[1].shape[3] + op.operands[3].shape[3])

    @staticmethod
    def samples() -> list[Sample]:
        masked = [(t, a) for t, a in cases() if len(t) == 4 and t[3].dtype == "f32" and t[3].rank == 4]
        masked += [((*(f32(*s),) * 3, f32(*s)), {}) for s in ((1, 1, 1, 1), (0, 1, 1, 1))]
        return [Sample((f32(*t[0].shape[:3], t[2].shape[3]), *t), AttrDict(a)) for t, a in masked]

