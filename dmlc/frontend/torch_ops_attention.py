"""Attention and losses."""

from __future__ import annotations

import math

from dmlc.frontend.torch_graph import Call, aten
from dmlc.ir.core import Value


@aten("scaled_dot_product_attention", "_scaled_dot_product_attention_math", "_scaled_dot_product_flash_attention_for_cpu")
def attention(c: Call) -> Value:
    """Kept as one op. Dropout inside it is spelled out, since the composite has none."""
    query, key, value = (_four_dims(c, c.value(name)) for name in ("query", "key", "value"))
    scale = c["scale"] if "scale" in c else 1 / math.sqrt(query.shape[-1])
    mask = _mask(c, query)
    if c["dropout_p"]:
        return c.reshape(_with_dropout(c, query, key, value, mask, scale), c.type.shape)
    operands = [query, key, value] + ([mask] if mask is not None else [])
    y = c.emit("attention", *operands, scale=float(scale), causal=bool(c["is_causal"]), offset=0)
    return c.reshape(y, c.type.shape)


def _four_dims(c: Call, x: Value) -> Value:
    """[batch, heads, sequence, size]; further leading dims are merged into the batch, a missing one is 1."""
    lead = x.shape[:-3] if x.tensor.rank >= 3 else ()
    heads = x.shape[-3] if x.tensor.rank >= 3 else 1
    return c.reshape(x, (math.prod(lead), heads, *x.shape[-2:]))


def _mask(c: Call, query: Value) -> Value | None:
    if "attn_mask" not in c:
        return None
    mask = c.value("attn_mask")
    mask = c.cast(mask, query.dtype) if mask.dtype != "i1" else mask
    rank = c.value("query").tensor.rank
    if mask.tensor.rank <= 4 and rank <= 4:
        return c.reshape(mask, (1,) * (4 - mask.tensor.rank) + tuple(mask.shape))
    lead = c.value("query").shape[:-3]
    full = c.broadcast(mask, (*lead, *((1,) * 3 + tuple(mask.shape))[-3:])) if math.prod(mask.shape[:-3]) != 1 else mask
    return c.reshape(full, (math.prod(full.shape[:-3]), *full.shape[-3:]))


def _with_dropout(c: Call, query: Value, key: Value, value: Value, mask: Value | None, scale: float) -> Value:
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (_repeated(c, x, groups) for x in (key, value))
    scores = c.emit("matmul", query, c.transpose(key, (0, 1, 3, 2)), label="scores")
    scores = c.emit("mul", scores, c.full(scale, scores.dtype), label="scaled")
    t, s = scores.shape[-2:]
    if c["is_causal"]:
        mask = c.emit("tril", c.full(True, "i1", (t, s)), diagonal=0)
    if mask is not None and mask.dtype == "i1":
        scores = c.emit("select", mask, scores, c.full(-math.inf, scores.dtype), label="masked")
    elif mask is not None:
        scores = c.emit("add", scores, mask, label="masked")
    weights = c.emit("softmax", scores, dim=3, label="weights")
    weights = c.emit("dropout", weights, *c.importer.seed_and_step(), p=float(c["dropout_p"]), stream=c.importer.stream(), label="dropout")
    return c.emit("matmul", weights, value)


def _repeated(c: Call, x: Value, groups: int) -> Value:
    b, h, s, d = x.shape
    return c.reshape(c.broadcast(c.reshape(x, (b, h, 1, s, d)), (b, h, groups, s, d)), (b, h * groups, s, d))


@aten("dropout", "native_dropout", "feature_dropout", "alpha_dropout")
def dropout(c: Call) -> Value | list[Value]:
    """The identity in evaluation. In training the mask is drawn by definition (seed, step, stream); its second result is not available."""
    p, native = c["p"], "native" in str(c.node.target)
    if not c["train"] or not p:
        return [c.x()] if native else c.x()
    if "feature" in str(c.node.target) or "alpha" in str(c.node.target):
        raise c.error("only plain dropout can be trained")
    y = c.emit("dropout", c.x(), *c.importer.seed_and_step(), p=float(p), stream=c.importer.stream())
    return [y] if native else y


@aten("softmax", "_softmax", "log_softmax", "_log_softmax")
def softmax(c: Call) -> Value:
    return c.emit("log_softmax" if "log" in str(c.node.target) else "softmax", c.x(c.type.dtype), dim=c.dim())


@aten("cross_entropy_loss")
def cross_entropy(c: Call) -> Value:
    """Per row, then summed or divided by the count of targets that are not ignored. Classes are moved to the last dim."""
    logits, targets = c.value("self"), c.value("target")
    if targets.tensor.is_float or "weight" in c:
        raise c.error("class weights and probabilities as targets are not supported")
    rank = logits.tensor.rank
    if rank > 2:
        logits = c.transpose(logits, (0, *range(2, rank), 1))
    ignore = c["ignore_index"]
    rows = c.emit("cross_entropy", logits, targets, ignore=ignore, label_smoothing=float(c["label_smoothing"]))
    return _over_rows(c, rows, targets, ignore)


def _over_rows(c: Call, rows: Value, targets: Value, ignore: int) -> Value:
    """`rows` reduced as the loss says: 0 none, 1 mean over valid targets, 2 sum."""
    dims = tuple(range(rows.tensor.rank))
    if c["reduction"] == 0:
        return rows
    total = c.emit("reduce_sum", rows, dims=dims, keepdim=False, label="sum") if dims else rows
    if c["reduction"] == 2:
        return total
    valid = c.cast(c.emit("ne", targets, c.full(ignore, targets.dtype), label="valid"), rows.dtype)
    count = c.emit("reduce_sum", valid, dims=dims, keepdim=False, label="count") if dims else valid
    return c.emit("div", total, count, rounding="none")


@aten("nll_loss_nd", "nll_loss")
def nll_loss(c: Call) -> Value:
    """Of log probabilities [rows, classes]: minus the target's, ignored targets count nothing."""
    x, targets, ignore = c.value("self"), c.value("target"), c["ignore_index"]
    if x.tensor.rank != 2 or "weight" in c:
        raise c.error("only [rows, classes] without class weights is supported")
    valid = c.emit("ne", targets, c.full(ignore, targets.dtype), label="valid")
    safe = c.emit("select", valid, targets, c.full(0, targets.dtype))
    picked = c.reshape(c.emit("take_along", x, c.reshape(safe, (*safe.shape, 1)), dim=1), targets.shape)
    rows = c.emit("select", valid, c.emit("neg", picked), c.full(0, x.dtype))
    return _over_rows(c, rows, targets, ignore)


@aten("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
def elementwise_loss(c: Call) -> Value:
    difference = c.emit("sub", c.value("self"), c.value("target"))
    name = str(c.node.target).split(".")[1]
    if name == "mse_loss":
        losses = c.emit("mul", difference, difference)
    elif name == "l1_loss":
        losses = c.emit("abs", difference)
    else:
        losses = _smooth(c, difference, c["beta"] if name == "smooth_l1_loss" else c["delta"], name == "huber_loss")
    dims = tuple(range(losses.tensor.rank))
    if c["reduction"] == 0:
        return losses
    return c.mean(losses, dims, False) if c["reduction"] == 1 else c.emit("reduce_sum", losses, dims=dims, keepdim=False)


def _smooth(c: Call, difference: Value, beta: float, huber: bool) -> Value:
    """0.5 d² / beta where |d| < beta, else |d| - 0.5 beta; Huber's is beta times that."""
    size = c.emit("abs", difference)
    inner = c.emit("mul", c.emit("mul", difference, difference), c.full(0.5 / beta, size.dtype))
    y = c.emit("select", c.emit("lt", size, c.full(beta, size.dtype)), inner, c.emit("sub", size, c.full(0.5 * beta, size.dtype)))
    return c.emit("mul", y, c.full(beta, size.dtype)) if huber else y
