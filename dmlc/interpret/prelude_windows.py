"""Helpers of convolutions, pools and resizing. Needs torch alone. Paddings are (low, high) per spatial dim, flattened."""

import math

import torch
import torch.nn.functional as F

_convolution_backward = torch.ops.aten.convolution_backward.default


def _pad_list(low, high, sign=1):
    """`F.pad` lists the last dim first."""
    return [sign * p for pair in reversed(list(zip(low, high))) for p in pair]


def conv_input_grad(g, w, shape, stride, padding, dilation, groups):
    """Gradient of a convolution in its input of `shape`, by the library's backward pass; where paddings differ, on the padded input."""
    low, high, n = padding[::2], padding[1::2], w.dim() - 2
    native = tuple(low) == tuple(high)
    padded = shape if native else (*shape[:2], *(s + a + b for s, a, b in zip(shape[2:], low, high)))
    if 0 in padded or g.numel() == 0:
        return g.new_zeros(shape)
    image = g.new_empty(padded)  # only its shape counts
    own = low if native else (0,) * n
    dx = _convolution_backward(g, image, w, None, stride, own, dilation, False, (0,) * n, groups, (True, False, False))[0]
    return dx if native else F.pad(dx, _pad_list(low, high, -1))


def conv_weight_grad(x, g, shape, stride, padding, dilation, groups):
    """Gradient of a convolution in its weight of `shape`."""
    low, high, n = padding[::2], padding[1::2], x.dim() - 2
    native = tuple(low) == tuple(high)
    if not native:
        x = F.pad(x, _pad_list(low, high))
    if x.numel() == 0 or g.numel() == 0:
        return g.new_zeros(shape)
    weight = g.new_empty(shape)  # only its shape counts
    own = low if native else (0,) * n
    return _convolution_backward(g, x, weight, None, stride, own, dilation, False, (0,) * n, groups, (False, True, False))[1]


def _fit(x, counts, kernel, stride, padding, dilation, value):
    """x padded by `padding`'s low side with `value`, its end padded or cut to what `counts` windows cover."""
    low = padding[::2]
    need = [(c - 1) * s + (k - 1) * d + 1 for c, k, s, d in zip(counts, kernel, stride, dilation)]
    high = [e - n - a for e, n, a in zip(need, x.shape[2:], low)]
    return F.pad(x, _pad_list(low, high), value=value), low, high


def _lowest(dtype):
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _max_windows(x, counts, kernel, stride, padding, dilation):
    """All windows of x: [n, c, counts..., kernel...]."""
    x, low, high = _fit(x, counts, kernel, stride, padding, dilation, _lowest(x.dtype))
    for i, (k, s, d) in enumerate(zip(kernel, stride, dilation)):
        x = x.unfold(2 + i, (k - 1) * d + 1, s)[..., ::d]
    return x, low, high


def max_pool(x, counts, kernel, stride, padding, dilation):
    """Largest cell of each window, for any padding. NaN wins."""
    windows, _, _ = _max_windows(x, counts, kernel, stride, padding, dilation)
    return windows.flatten(2 + len(kernel)).amax(-1) if windows.numel() else x.new_empty((*x.shape[:2], *counts))


def max_pool_grad(g, x, kernel, stride, padding, dilation):
    """The gradient of each window's maximum goes to its first largest cell, for any padding."""
    counts, n = g.shape[2:], len(kernel)
    if g.numel() == 0:
        return torch.zeros_like(x)
    windows, low, high = _max_windows(x, counts, kernel, stride, padding, dilation)
    best = windows.flatten(2 + n).argmax(-1)
    padded = [s + a + b for s, a, b in zip(x.shape[2:], low, high)]
    flat = torch.zeros_like(best)
    for i in range(n):
        inside = best // math.prod(kernel[i + 1 :]) % kernel[i]
        start = (torch.arange(counts[i], device=x.device) * stride[i]).reshape((-1,) + (1,) * (n - 1 - i))
        flat = flat * padded[i] + start + inside * dilation[i]
    dx = torch.zeros((*x.shape[:2], math.prod(padded)), dtype=g.dtype, device=g.device)
    dx.scatter_add_(2, flat.flatten(2), g.flatten(2))
    return F.pad(dx.reshape((*x.shape[:2], *padded)), _pad_list(low, high, -1))


def max_pool_index_grad(g, indices, shape, kernel, stride, padding, dilation, ceil_mode):
    """The gradient of each window's maximum goes to the cell of the plane that `indices` names: the library's backward pass."""
    if g.numel() == 0:
        return g.new_zeros(shape)
    options = [list(kernel), list(stride), list(padding), list(dilation)]
    if len(kernel) == 1:  # a plane of one row
        g, indices, shape = g.unsqueeze(2), indices.unsqueeze(2), (*shape[:2], 1, *shape[2:])
        options = [[neutral, *o] for neutral, o in zip((1, 1, 0, 1), options)]
    last = g.dim() == 4 and not g.is_contiguous() and g.is_contiguous(memory_format=torch.channels_last)
    order = torch.channels_last if last else torch.contiguous_format
    image = torch.empty(shape, dtype=g.dtype, device=g.device, memory_format=order)  # only its shape and order count
    backward = torch.ops.aten.max_pool3d_with_indices_backward if g.dim() == 5 else torch.ops.aten.max_pool2d_with_indices_backward
    dx = backward(g, image, *options, ceil_mode, indices)
    return dx.squeeze(2) if len(kernel) == 1 else dx


def _window_sizes(size, count, kernel, stride, low, high, count_pad, device):
    """Cells each window along one dim is divided by: real ones, or those of the padding too (never those past it)."""
    start = torch.arange(count, device=device) * stride - low
    first, last = (-low, size + high) if count_pad else (0, size)
    return ((start + kernel).clamp(max=last) - start.clamp(min=first)).clamp(min=1)


def _divisors(x, sizes, counts, kernel, stride, padding, count_pad):
    """Product over the dims of the window sizes, in x's dtype: [counts...]."""
    total = torch.ones((), dtype=x.dtype, device=x.device)
    for i, (n, c, k, s) in enumerate(zip(sizes, counts, kernel, stride)):
        cells = _window_sizes(n, c, k, s, padding[2 * i], padding[2 * i + 1], count_pad, x.device)
        total = total.unsqueeze(-1) * cells.to(x.dtype)
    return total


def avg_pool(x, counts, kernel, stride, padding, count_pad):
    """Mean of each window, for any padding: windows are divided by their cells that count."""
    ones, sizes = (1,) * len(kernel), x.shape[2:]
    divisors = _divisors(x, sizes, counts, kernel, stride, padding, count_pad)
    x, _, _ = _fit(x, counts, kernel, stride, padding, ones, 0)
    for i, (k, s) in enumerate(zip(kernel, stride)):
        x = x.unfold(2 + i, k, s)
    return x.flatten(2 + len(kernel)).sum(-1) / divisors


def avg_pool_grad(g, shape, kernel, stride, padding, count_pad):
    """Each window's gradient, divided as the mean was, goes to all its cells."""
    n, counts = len(kernel), g.shape[2:]
    g = g / _divisors(g, shape[2:], counts, kernel, stride, padding, count_pad)
    if g.numel() == 0:
        return g.new_zeros(shape)
    ones = g.new_ones((1, 1, *kernel))
    transposed = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
    cells = transposed(g.reshape((-1, 1, *counts)), ones, None, stride)
    low = padding[::2]
    high = [c - s - a for c, s, a in zip(cells.shape[2:], shape[2:], low)]
    return F.pad(cells, _pad_list(low, high, -1)).reshape(shape)


# ---------------------------------------------------------------- linear maps along one dim: (index, weight) taps


def _apply_taps(x, dim, index, weight):
    """y[o] = sum over t of weight[o, t] x[index[o, t]] along `dim`; taps of weight zero are not read, so that NaN stays where it is."""
    total = torch.zeros((), dtype=x.dtype, device=x.device)
    side = (-1,) + (1,) * (x.dim() - dim - 1)
    for t in range(index.shape[1]):
        w = weight[:, t].reshape(side).to(x.dtype)
        total = total + torch.where(w == 0, torch.zeros((), dtype=x.dtype, device=x.device), x.index_select(dim, index[:, t]) * w)
    return total


def _apply_taps_transposed(g, dim, size, index, weight):
    """The adjoint of `_apply_taps`, onto a dim of `size`."""
    dx = torch.zeros((*g.shape[:dim], size, *g.shape[dim + 1 :]), dtype=g.dtype, device=g.device)
    for t in range(index.shape[1]):
        dx.index_add_(dim, index[:, t], g * weight[:, t].reshape((-1,) + (1,) * (g.dim() - dim - 1)).to(g.dtype))
    return dx


def _adaptive_taps(size, count, device):
    """Cell o averages cells floor(o n / m) to ceil((o + 1) n / m) - 1."""
    o = torch.arange(count, device=device)
    start, stop = o * size // count, ((o + 1) * size + count - 1) // count
    width = int((stop - start).max()) if count else 1
    index = start[:, None] + torch.arange(width, device=device)
    inside = index < stop[:, None]
    return index.clamp(max=max(size - 1, 0)), inside.double() / (stop - start)[:, None]


def adaptive_avg_pool_grad(g, shape):
    """Gradient of an adaptive average pool in its input of `shape`."""
    for d in range(2, len(shape)):
        g = _apply_taps_transposed(g, d, shape[d], *_adaptive_taps(shape[d], g.shape[d], g.device))
    return g


def _source_positions(size, count, scale, coordinate, device):
    """Where each of `count` output cells lies among `size` input cells (ONNX Resize, coordinate_transformation_mode)."""
    o = torch.arange(count, dtype=torch.float64, device=device)
    if coordinate == "asymmetric":
        return o / scale
    if coordinate == "align_corners":
        return o * ((size - 1) / (count - 1)) if count > 1 else o * 0
    if coordinate == "pytorch_half_pixel" and count <= 1:
        return o * 0
    if coordinate == "tf_half_pixel_for_nn":
        return (o + 0.5) / scale
    x = (o + 0.5) / scale - 0.5
    if coordinate == "half_pixel_symmetric":
        x = x + size / 2 * (1 - count / (scale * size))
    return x


def _nearest_taps(x, size, rounding):
    """One tap: the cell nearest to each position."""
    index = {
        "round_prefer_floor": lambda: torch.ceil(x - 0.5),
        "round_prefer_ceil": lambda: torch.floor(x + 0.5),
        "floor": lambda: torch.floor(x),
        "ceil": lambda: torch.ceil(x),
    }[rounding]()
    return index.long().clamp(0, max(size - 1, 0))[:, None], torch.ones((x.shape[0], 1), dtype=torch.float64, device=x.device)


def _cubic(d, a):
    """Keys' convolution kernel at distance d."""
    d = d.abs()
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return torch.where(d <= 1, near, torch.where(d < 2, far, torch.zeros_like(d)))


def _smooth_taps(x, size, scale, mode, a, exclude_outside, antialias):
    """Taps of linear or cubic interpolation; with `antialias` the kernel is stretched when shrinking. Outside cells repeat the edge or are left out."""
    stretch = min(scale, 1.0) if antialias else 1.0
    reach = (1 if mode == "linear" else 2) / stretch
    first = torch.floor(x - reach).long() + 1
    cells = first[:, None] + torch.arange(int(2 * math.ceil(reach)) + (stretch != 1.0), device=x.device)
    d = (cells - x[:, None]) * stretch
    weight = (1 - d.abs()).clamp(min=0) if mode == "linear" else _cubic(d, a)
    if exclude_outside:
        weight = weight * ((cells >= 0) & (cells < size))
    if exclude_outside or antialias:
        weight = weight / weight.sum(1, keepdim=True)
    return cells.clamp(0, max(size - 1, 0)), weight


def _resize_taps(size, count, scale, options, device):
    mode, coordinate, rounding, a, exclude_outside, antialias = options
    scale = scale or count / size
    x = _source_positions(size, count, scale, coordinate, device)
    if mode == "nearest":
        return _nearest_taps(x, size, rounding)
    return _smooth_taps(x, size, scale, mode, a, exclude_outside, antialias)


def resize(x, shape, scales, *options):
    """ONNX Resize, one dim after another. `scales[d]` 0 means the ratio of the sizes; dims that keep size and scale are left alone."""
    for d, (count, scale) in enumerate(zip(shape, scales or (0,) * len(shape))):
        if count != x.shape[d] or scale not in (0, 1):
            index, weight = _resize_taps(x.shape[d], count, scale, options, x.device)
            x = x.index_select(d, index[:, 0]) if options[0] == "nearest" else _apply_taps(x, d, index, weight)
    return x


def resize_grad(g, shape, scales, *options):
    """The adjoint of `resize`: each tap's gradient goes back to its cell."""
    for d, (size, scale) in reversed(list(enumerate(zip(shape, scales or (0,) * len(shape))))):
        if size != g.shape[d] or scale not in (0, 1):
            g = _apply_taps_transposed(g, d, size, *_resize_taps(size, g.shape[d], scale, options, g.device))
    return g
