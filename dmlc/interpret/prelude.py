"""Helpers that op texts call. Needs torch alone: code generation copies this file into the output folder, dmlc is not there."""

import math  # noqa: F401

import torch
import torch.nn.functional as F  # noqa: F401

# ---------------------------------------------------------------- integers, ranges, reductions, padding


def nonzero_divisor(y):
    """An integer divisor with 1 in place of 0: padding may hold zeros, and the processor would trap."""
    return torch.where(y == 0, torch.ones_like(y), y)


def divide_integers(x, y, rounding):
    return torch.div(x, nonzero_divisor(y), rounding_mode=rounding)


def iota(shape, dim, step, dtype, start=0):
    """start + index * step along `dim`, equal along the others."""
    line = [n if d == dim else 1 for d, n in enumerate(shape)]
    return (torch.arange(shape[dim]) * step + start).to(dtype).reshape(line).expand(shape)


def reduce_prod(x, dims, keepdim):
    for d in sorted(dims, reverse=True):
        x = torch.prod(x, d, keepdim=keepdim, dtype=x.dtype)
    return x


def reduce_max(x, dims, keepdim):
    return reduce_extremum(torch.amax, x, dims, keepdim, largest=True)


def reduce_min(x, dims, keepdim):
    return reduce_extremum(torch.amin, x, dims, keepdim, largest=False)


def reduce_extremum(function, x, dims, keepdim, largest):
    """amax or amin; the identity over a dim of size 0, where PyTorch raises."""
    if not dims:
        return x
    if all(x.shape[d] for d in dims):
        return function(x, dims, keepdim=keepdim)
    shape = [1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims]
    if x.dtype.is_floating_point:
        return x.new_full(shape, float("-inf") if largest else float("inf"))
    return x.new_full(shape, torch.iinfo(x.dtype).min if largest else torch.iinfo(x.dtype).max)


def cumulative_sum(x, dim, exclusive, reverse):
    if reverse:
        return cumulative_sum(x.flip(dim), dim, exclusive, False).flip(dim)
    if exclusive and x.shape[dim]:
        x = torch.cat([torch.zeros_like(x.narrow(dim, 0, 1)), x.narrow(dim, 0, x.shape[dim] - 1)], dim)
    return torch.cumsum(x, dim, dtype=x.dtype)


def topk(x, k, dim, largest):
    """Values and positions, best first; a stable sort, since torch.topk leaves the order of equal elements open."""
    values, positions = torch.sort(x, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k), positions.narrow(dim, 0, k)


def pad(x, low, high, mode, value):
    """Elements added before and after each dim, or cut where a count is negative."""
    for d, (before, after) in enumerate(zip(low, high)):
        if before or after:
            x = pad_dim(x, d, before, after, mode, value)
    return x


def pad_dim(x, dim, before, after, mode, value):
    n = x.shape[dim]
    if mode == "constant":
        kept = x.narrow(dim, max(-before, 0), n - max(-before, 0) - max(-after, 0))
        ends = [[max(c, 0) if d == dim else m for d, m in enumerate(x.shape)] for c in (before, after)]
        return torch.cat([x.new_full(ends[0], value), kept, x.new_full(ends[1], value)], dim)
    at = torch.arange(-before, n + after, device=x.device)
    if mode == "edge":
        at = at.clamp(0, n - 1)
    elif mode == "wrap" or n == 1:
        at = at % n
    else:
        at = at % (2 * (n - 1))
        at = torch.minimum(at, 2 * (n - 1) - at)
    return torch.index_select(x, dim, at)


def index_add(shape, values, *indices):
    """Zeros with `values` added at the indices of the leading dims."""
    return add_rows(values.new_zeros(shape), values, *indices)


def add_rows(total, values, *indices):
    """`values` added to `total`, in its memory, at the indices of the leading dims."""
    if len(indices) > 1 or total.dim() < 2 or total.device.type != "cpu":
        return total.index_put_(indices, values, accumulate=True)
    rows = next(iter(indices)).reshape(-1).long()
    rows = torch.where(rows < 0, rows + total.shape[0], rows)
    return total.index_add_(0, rows, values.reshape(rows.numel(), *total.shape[1:]))


def plus(total, x):
    """What a loop added up, None if it ran no time, and x; in the memory of one of them."""
    return x if total is None else total.add_(x)
