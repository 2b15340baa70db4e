"""Helpers of attention, normalisation and random numbers. Needs torch alone."""

import functools
import math

import torch
import torch.nn.functional as F

# ---------------------------------------------------------------- attention


def causal_mask(t, s, offset, device):
    """Whether query i sees key j: j <= i + offset."""
    return torch.arange(s, device=device) <= torch.arange(t, device=device)[:, None] + offset


def attention(q, k, v, mask, scale, causal, offset):
    """Scaled dot-product attention with any mask and causal offset; a query that sees no key gives 0."""
    if causal:
        seen = causal_mask(q.shape[2], k.shape[2], offset, q.device)
        if mask is None or mask.dtype == torch.bool:
            mask = seen if mask is None else mask & seen
        else:
            mask = mask.masked_fill(~seen, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=k.shape[1] != q.shape[1])


def _attention_leaves(g, q, k, v, mask, scale, causal, offset, wanted):
    """Gradients of `wanted` (of q, k, v, mask) through the library's own attention, which is run again for it."""
    if g.numel() == 0 or k.numel() == 0:
        return [torch.zeros_like((q, k, v, mask)[i]) for i in wanted]
    with torch.enable_grad():
        leaves = [x if x is None else x.detach().requires_grad_(i in wanted) for i, x in enumerate((q, k, v, mask))]
        plain = mask is None and causal and q.shape[2] == k.shape[2] and isinstance(offset, int) and offset == 0
        if plain:
            y = F.scaled_dot_product_attention(*leaves[:3], is_causal=True, scale=scale, enable_gqa=k.shape[1] != q.shape[1])
        else:
            y = attention(*leaves, scale, causal, offset)
        return torch.autograd.grad(y, [leaves[i] for i in wanted], g)


def attention_grad(g, q, k, v, mask, scale, causal, offset):
    """Gradients of attention in q, k and v."""
    return _attention_leaves(g, q, k, v, mask, scale, causal, offset, (0, 1, 2))


def attention_mask_grad(g, q, k, v, mask, scale, causal, offset):
    """Gradient of attention in its float mask, summed over the dims along which the mask was broadcast."""
    return _attention_leaves(g, q, k, v, mask, scale, causal, offset, (3,))[0]


# ---------------------------------------------------------------- normalisation


def layer_norm_and_statistics(x, shape, w, b, eps):
    """Layer norm, and each row's mean and 1 / standard deviation; those of 16-bit floats in f32."""
    lead = x.shape[: x.dim() - len(shape)]
    y, mean, rstd = torch.native_layer_norm(widened(x), shape, widened(w), widened(b), eps)
    return y.to(x.dtype), mean.reshape(lead), rstd.reshape(lead)


def widened(x):
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _layer_norm_backward(g, x, w, mean, rstd, wanted):
    """The library's gradients in x and weight, as `wanted` says. It takes the statistics for contiguous without looking."""
    mean, rstd = (t.contiguous().reshape(mean.shape + (1,) * w.dim()) for t in (mean, rstd))
    made = torch.ops.aten.native_layer_norm_backward(widened(g), widened(x), w.shape, mean, rstd, widened(w), None, [*wanted, False])
    return made[0] if wanted[0] else made[1]


def layer_norm_grad(g, x, w, mean, rstd):
    """Gradient of layer norm in x, by the statistics of its rows."""
    return _layer_norm_backward(g, x, w, mean, rstd, [True, False]).to(x.dtype)


def layer_norm_weight_grad(g, x, mean, rstd, shape):
    """Gradient of layer norm in the weight of `shape`."""
    return _layer_norm_backward(g, x, x.new_empty(shape), mean, rstd, [False, True]).to(x.dtype)


def batch_norm_train(x, w, b, groups, eps, correction):
    """Batch normalisation by the statistics of each of `groups` parts of the batch (or of all): y, mean, variance."""
    parts, dims, cells = batch_parts(x, groups)
    mean = parts.mean(dims, keepdim=True)
    var = (parts - mean).square().mean(dims, keepdim=True)
    side = (-1,) + (1,) * (x.dim() - 2)
    y = (parts - mean) * torch.rsqrt(var + eps) * w.reshape(side) + b.reshape(side)
    stats = (x.shape[1],) if groups is None else (groups, x.shape[1])
    var = var * (cells / max(cells - correction, 1))
    return y.to(x.dtype).reshape(x.shape), mean.to(x.dtype).reshape(stats), var.to(x.dtype).reshape(stats)


def batch_norm_grad(x, w, mean, var, g, groups, eps, correction):
    """Gradients of `batch_norm_train` through y, in x, weight and bias."""
    parts, dims, cells = batch_parts(x, groups)
    dy, _, _ = batch_parts(g, groups)
    kept = [1 if d in dims else n for d, n in enumerate(parts.shape)]
    side = (-1,) + (1,) * (x.dim() - 2)
    rstd = torch.rsqrt(var.to(parts.dtype).reshape(kept) * (max(cells - correction, 1) / max(cells, 1)) + eps)
    y = (parts - mean.to(parts.dtype).reshape(kept)) * rstd
    gw = dy * w.reshape(side)
    dx = (gw - gw.mean(dims, keepdim=True) - y * (gw * y).mean(dims, keepdim=True)) * rstd
    dw, db = ((t.sum(dims).sum(0)).to(w.dtype) for t in (dy * y, dy))
    return dx.to(x.dtype).reshape(x.shape), dw, db


def _there(valid, *images):
    """The samples of images that are there, all laid out as the first one is."""
    n = int(valid)
    if all(x.shape[0] <= n and x.is_contiguous() for x in images):
        return images
    there = [x.narrow(0, 0, min(n, x.shape[0])) for x in images]
    last = torch.channels_last if there[0].dim() == 4 and not there[0].is_contiguous() else torch.contiguous_format
    return [x.contiguous(memory_format=last) for x in there]


def channel_moments(x, valid):
    """Mean and biased variance of each channel over the samples that are there; 0 where there is none."""
    (there,) = _there(valid, x)
    if not there.numel():
        return x.new_zeros(x.shape[1]), x.new_zeros(x.shape[1])
    if x.device.type == "cpu":
        return torch.batch_norm_update_stats(there, None, None, 0.0)
    return torch.var_mean(there, [0, *range(2, x.dim())], correction=0)[::-1]


def _batch_norm_backward(x, g, w, mean, rstd, valid, wanted):
    """The library's gradients in x, weight and bias, as `wanted` says; None where there is nothing."""
    there, gradient = _there(valid, x, g)
    if not there.numel():
        return None
    return torch.ops.aten.native_batch_norm_backward(gradient, there, w, None, None, mean.contiguous(), rstd.contiguous(), True, 0.0, wanted)


def batch_norm_sums(x, g, mean, valid):
    """Per channel, over the samples that are there, the sums of g (x - mean) and of g."""
    made = _batch_norm_backward(x, g, None, mean, torch.ones_like(mean), valid, [False, True, True])
    return (torch.zeros_like(mean), torch.zeros_like(mean)) if made is None else made[1:]


def batch_norm_rank_grad(x, w, mean, var, g, valid, eps):
    """Gradients of batch norm in x, weight and bias by the statistics of the samples that are there."""
    made = _batch_norm_backward(x, g, w, mean, torch.rsqrt(var + eps), valid, [True, True, True])
    if made is None:
        return torch.zeros_like(x), torch.zeros_like(w), torch.zeros_like(w)
    dx, dw, db = made
    missing = x.shape[0] - dx.shape[0]
    return (torch.cat([dx, dx.new_zeros((missing, *x.shape[1:]))]) if missing else dx), dw, db


def rank_moments(mean, var, valid, cells, correction):
    """This rank's part of the average over ranks of mean and variance: both and a 1, or zeros where it has no sample. [3, channels]."""
    n = int(valid) * cells
    if not n:
        return mean.new_zeros((3, *mean.shape))
    return torch.stack([mean, var * (n / max(n - correction, 1)), torch.ones_like(mean)])


def mean_over_ranks(total):
    """The summed parts of `rank_moments` as the averages of mean and variance."""
    return (total[:2] / total[2].clamp(min=1)).unbind()


def running_part(running, batch, index, filled, momentum):
    """What microbatch `index` of `filled` adds to the running statistics after all of them; with one microbatch it is these."""
    i, k = int(index), int(filled)
    part = batch * (momentum * (1 - momentum) ** (k - 1 - i)) if i < k else torch.zeros_like(batch)
    return torch.add(part, running, alpha=(1 - momentum) ** k) if i == 0 else part


def batch_parts(x, groups):
    """The batch as [groups, n, c, ...] in a dtype to sum in, the dims of a part but the channels, and how many values they hold."""
    parts = x.reshape(groups or 1, x.shape[0] // (groups or 1), *x.shape[1:])
    dims = [1, *range(3, parts.dim())]
    wide = parts.float() if x.dtype in (torch.float16, torch.bfloat16) else parts
    return wide, dims, math.prod(parts.shape[d] for d in dims)


def _row_pieces(x, *others):
    """x [..., n] as [rows, n], with others of the same rows, in pieces that a core's cache holds."""
    n = x.shape[-1]
    rows = math.prod(x.shape[:-1])
    size = max(_CHUNK // max(n, 1), 1) if x.device.type == "cpu" else max(rows, 1)
    return zip(*(t.reshape(rows, *t.shape[x.dim() - 1 :]).split(size) for t in (x, *others)))


def cross_entropy_and_lse(x, targets, ignore, smoothing):
    """Each row's cross entropy (0 where the target is `ignore`) and log-sum-exp: both from one sum of exponentials."""
    loss = torch.empty(targets.shape, dtype=widened(x).dtype, device=x.device)
    lse = torch.empty_like(loss)
    for part, target, cost, total in _row_pieces(x, targets, loss, lse):
        wide = widened(part)
        top = wide.amax(-1, keepdim=True)
        summed = (wide - top).exp_().sum(-1).log_()
        picked = (wide.gather(-1, target.long().unsqueeze(-1).clamp(0, x.shape[-1] - 1)) - top).squeeze(-1)
        if smoothing:
            picked = picked * (1 - smoothing) + (wide.mean(-1, keepdim=True) - top).squeeze(-1) * smoothing
        torch.sub(summed, picked, out=cost)
        torch.add(summed, top.squeeze(-1), out=total)
    return torch.where(targets == ignore, 0.0, loss).to(x.dtype), lse.to(x.dtype)


def cross_entropy_grad(x, targets, lse, g, smoothing, classes, out=None):
    """Gradient of `cross_entropy_and_lse`'s first result in x, in `out` (maybe x) if that is given; a target that is none of x's columns is
    not there."""
    made = out if out is not None and out.is_contiguous() else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    count = x.shape[-1]
    for part, target, total, column, result in _row_pieces(x, targets, lse, g, made) if x.numel() else ():
        wide = widened(part)
        column = column.to(wide.dtype).unsqueeze(-1)
        p = torch.sub(wide, total.to(wide.dtype).unsqueeze(-1), out=result if wide.dtype == x.dtype else None).exp_()
        if smoothing:
            p -= smoothing / (classes or count)
        p *= column
        index = target.long().unsqueeze(-1)
        here = (index >= 0) & (index < count)
        p.scatter_add_(-1, index.clamp(0, count - 1), torch.where(here, column * (smoothing - 1), 0.0))
        if p is not result:
            result.copy_(p)
    return made


def channel_windows(x, low, high):
    """Sum of each channel (dim 1) with `low` channels before and `high` after it."""
    x = F.pad(x.movedim(1, -1), (low, high))
    return x.unfold(-1, low + high + 1, 1).sum(-1).movedim(-1, 1)


# ---------------------------------------------------------------- optimizers

_CHUNK = 1 << 16  # elements: what one pass over them leaves in a core's cache, the next finds there
_LATE = 1e9  # a step by which Adam's own bias corrections are 1


@functools.cache
def _late():
    return torch.tensor(_LATE)


def square_sum(x):
    """Sum of the squares; on a CPU piece by piece, so that no sum of many numbers is one running total."""
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return torch.linalg.vector_norm(x, dtype=torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else None).square().to(x.dtype)
    flat = x.reshape(-1)
    return torch.dot(flat, flat) if flat.numel() <= _CHUNK else torch.stack([torch.dot(c, c) for c in flat.split(_CHUNK)]).sum()


def adam_update(p, g, m, v, scale, shrink, step, root, beta1, beta2, eps, out=None):
    """New parameter and moments of Adam, in `out` where that is given: other tensors, or p, m and v themselves.

    On a CPU by the library's one pass over memory, told a step so late that its bias corrections are 1, since `step` and `root` hold them:
    step m / (sqrt(v) / root + eps) = step root m / (sqrt(v) + eps root).
    """
    numbers = (scale, shrink, step, root)
    in_place = out is not None and out[0] is p and out[1] is m and out[2] is v
    if in_place and p.is_cpu and p.is_contiguous() and g.is_contiguous() and m.is_contiguous() and v.is_contiguous():
        adam_in_place(p, g, m, v, *(float(x) for x in numbers), beta1, beta2, eps)
        return p, m, v
    out = (None, None, None) if out is None else out
    if not p.is_cpu or not is_dense(p):
        made = adam_part(p, g, m, v, scale, shrink, step, root, beta1, beta2, eps)
        return tuple(x if o is None else o.copy_(x) for o, x in zip(out, made))
    new = [x if o is x and x.stride() == p.stride() else torch.empty_strided(p.shape, p.stride(), dtype=p.dtype).copy_(x) for o, x in zip(out, (p, m, v))]
    g = g if g.stride() == p.stride() else torch.empty_strided(p.shape, p.stride(), dtype=g.dtype).copy_(g)
    flat = [x if x.is_contiguous() else x.as_strided((x.numel(),), (1,)) for x in (new[0], g, new[1], new[2])]
    adam_in_place(*flat, *(float(x) for x in numbers), beta1, beta2, eps)
    return tuple(x if o is None or o is x else o.copy_(x) for o, x in zip(out, new))


def is_dense(x):
    """Whether a tensor fills its memory, in whatever order of its dims."""
    kept = [(stride, n) for n, stride in zip(x.shape, x.stride()) if n != 1]
    size = 1
    for stride, n in sorted(kept):
        if stride != size:
            return False
        size *= n
    return True


def adam_in_place(p, g, m, v, scale, shrink, step, root, beta1, beta2, eps):
    """Adam on contiguous tensors of a CPU."""
    rate = step * root
    if rate == 0:
        p.mul_(shrink)
    options = {"lr": rate, "beta1": beta1, "beta2": beta2, "weight_decay": (1 - shrink) / rate if rate else 0.0, "eps": eps * root}
    late = _late()
    if scale == 1:
        torch._fused_adamw_([p], [g], [m], [v], [], [late], amsgrad=False, maximize=False, **options)  # pyright: ignore[reportPrivateImportUsage]
        return
    pieces = [x.view(-1).split(_CHUNK) for x in (p, g, m, v)]
    for part, gradient, first, second in zip(*pieces):
        torch._fused_adamw_([part], [gradient * scale], [first], [second], [], [late], amsgrad=False, maximize=False, **options)  # pyright: ignore[reportPrivateImportUsage]


def adam_part(p, g, m, v, scale, shrink, step, root, beta1, beta2, eps):
    g = g * scale
    m = m + (g - m).mul_(1 - beta1)
    v = (v * beta2).addcmul_(g, g, value=1 - beta2)
    below = v.sqrt().div_(root).add_(eps)
    return (p * shrink).sub_(torch.div(m, below, out=below).mul_(step)), m, v


# ---------------------------------------------------------------- random numbers

_WORD = 0xFFFFFFFF


def _multiply(a, b):
    """High and low words of the product of a 32-bit constant and 32-bit words held in int64, without overflow."""
    upper, lower = (a >> 16) * b, (a & 0xFFFF) * b
    return (upper + (lower >> 16)) >> 16, ((upper << 16) + lower) & _WORD


def philox(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC11). Words are int64 tensors below 2^32."""
    for _ in range(10):
        (high0, low0), (high2, low2) = _multiply(0xD2511F53, c0), _multiply(0xCD9E8D57, c2)
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return c0, c1, c2, c3


def philox_word(index, seed, step, stream):
    """The first word for each element: key = seed, counter = (64-bit element index, step, stream)."""
    return philox(index & _WORD, (index >> 32) & _WORD, step & _WORD, torch.full_like(step, stream & _WORD), seed & _WORD, (seed >> 32) & _WORD)[0]


def element_index(local, shape, starts, device):
    """Row-major index, in a tensor of `shape`, of each element of a part of shape `local` that begins at `starts`."""
    index = torch.zeros((), dtype=torch.int64, device=device)
    for d, n in enumerate(local):
        start = starts[d] if starts else 0
        index = index.unsqueeze(-1) * shape[d] + (torch.arange(n, device=device) + start)
    return index


def random_words(seed, step, stream, local, shape, starts):
    """Four 32-bit words for each element: key = seed, counter = (64-bit element index, step, stream)."""
    index = element_index(local, shape, starts, seed.device)
    return philox(index & _WORD, (index >> 32) & _WORD, step & _WORD, torch.full_like(step, stream & _WORD), seed & _WORD, (seed >> 32) & _WORD)


def random_uniform(seed, step, stream, local, shape, starts, dtype):
    """Uniform on [0, 1): as many leading bits of the first word as the dtype holds exactly, at most 24."""
    bits = {torch.float16: 11, torch.bfloat16: 8}.get(dtype, 24)
    word = random_words(seed, step, stream, local, shape, starts)[0]
    return ((word >> (32 - bits)).double() * 2.0**-bits).to(dtype)


def random_normal(seed, step, stream, local, shape, starts, dtype):
    """Standard normal by the Box-Muller transform of the first two words, in float64."""
    u, v, _, _ = random_words(seed, step, stream, local, shape, starts)
    radius = torch.sqrt(-2 * torch.log(((u >> 8) + 1).double() * 2.0**-24))
    return (radius * torch.cos(2 * math.pi * 2.0**-24 * (v >> 8).double())).to(dtype)


def dropout_mask(seed, step, stream, local, shape, starts, p):
    """Whether each element is kept, which happens with probability 1 - p."""
    return (random_words(seed, step, stream, local, shape, starts)[0] >> 8) >= round(p * 2**24)


def dropout(x, seed, step, stream, shape, starts, p):
    """x * 1 / (1 - p) where kept, else 0."""
    keep = dropout_mask(seed, step, stream, x.shape, shape, starts, p)
    return torch.where(keep, x * (1 / (1 - p) if p < 1 else 0.0), torch.zeros((), dtype=x.dtype, device=x.device))
