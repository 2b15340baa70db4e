"""Helpers of sharded programs: windows, slices, masks, and the local halves of collectives. Needs torch alone."""

import torch


def window(n, *indices, counts, grain):
    """Global start and valid count of the part with the given index at each nesting level (tensors or integers)."""
    n = int(n)
    capacity = valid = -(-n // grain)
    start = 0
    for index, count in zip(indices, counts):
        width = -(-capacity // count)
        offset = min(int(index) * width, capacity)
        start += offset
        valid = min(max(valid - offset, 0), width)
        capacity = width
    return torch.tensor(start * grain), torch.tensor(min(valid * grain, max(n - start * grain, 0)))


def identity_of(combiner, dtype):
    """The identity of a combiner (`sum prod max min and or`), or the number itself."""
    if not isinstance(combiner, str):
        return combiner
    if combiner in ("sum", "or"):
        return 0
    if combiner in ("prod", "and"):
        return 1
    if dtype.is_floating_point:
        return float("-inf") if combiner == "max" else float("inf")
    if dtype == torch.bool:
        return combiner == "min"
    return torch.iinfo(dtype).min if combiner == "max" else torch.iinfo(dtype).max


def pad_to(x, dim, size, value=0):
    """`x` made `size` long along `dim`."""
    missing = size - x.shape[dim]
    if missing <= 0:
        return x
    shape = list(x.shape)
    shape[dim] = missing
    return torch.cat([x, torch.full(shape, value, dtype=x.dtype, device=x.device)], dim)


def shard_slice(x, start, dim, size):
    """`size` elements of `dim` from `start`, zeros past the end."""
    n = x.shape[dim]
    start = min(int(start), n)
    return pad_to(x.narrow(dim, start, min(size, n - start)), dim, size)


def mask_pad(x, valid, dim, identity):
    """Everything from `valid` on along `dim` becomes the identity."""
    valid = int(valid)
    if valid >= x.shape[dim]:
        return x
    y = x.clone()
    y.narrow(dim, valid, x.shape[dim] - valid).fill_(identity_of(identity, x.dtype))
    return y


def part_of(x, dim, size, grain, index, count):
    """Part `index` of `count` of a dim of `size` elements, padded with zeros to the common local size."""
    width = -(-(-(-size // grain)) // count) * grain
    start = min(index * width, size)
    return pad_to(x.narrow(dim, start, min(width, size - start)), dim, width)


def join_parts(parts, dim, size):
    """Parts in group order joined along `dim`, padding at the end dropped."""
    return torch.cat(list(parts), dim).narrow(dim, 0, size)


def combine(parts, combiner):
    """Elementwise combination in group order."""
    total = parts[0]
    for p in parts[1:]:
        total = COMBINE[combiner](total, p)
    return total


COMBINE = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "and": torch.logical_and,
    "or": torch.logical_or,
}
