"""aten operators that move data: views, slices, joins, padding. A view becomes a reshape: strides are no part of the IR's meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dmlc.frontend.torch_graph import Call, aten
from dmlc.ir.core import Value
from dmlc.ir.open_sizes import larger, smaller
from dmlc.ir.types import Size

PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@aten("view.default", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "view_as", "reshape_as", "atleast_1d", "ravel")
def reshape(c: Call) -> Value:
    return c.reshape(c.x(), c.type.shape)


@aten("expand", "expand_as", "broadcast_to")
def expand(c: Call) -> Value:
    return c.broadcast(c.x(), c.type.shape)


@aten("broadcast_tensors")
def broadcast_tensors(c: Call) -> list[Value]:
    return [c.broadcast(v, t.shape) for v, t in zip(c.values("tensors"), c.types)]


@aten("meshgrid")
def meshgrid(c: Call) -> list[Value]:
    """Vector i runs along dim i; of "xy" the first two dims change places."""
    rank, found = c.type.rank, []
    for i, (v, t) in enumerate(zip(c.values("tensors"), c.types)):
        dim = 1 - i if c["indexing"] == "xy" and i < 2 and rank > 1 else i
        found.append(c.broadcast(c.reshape(v, [t.shape[d] if d == dim else 1 for d in range(rank)]), t.shape))
    return found


@aten("copy", "fill")
def copy(c: Call) -> Value:
    """What an assignment to a tensor's elements became: a value of its dtype and shape."""
    return c.broadcast(c.value("src" if "src" in c.arguments else "value", c.type.dtype), c.type.shape)


@aten("transpose.int", "t", "mT", "mH", "numpy_T", "adjoint", "swapaxes", "swapdims")
def transpose(c: Call) -> Value:
    rank = c.x().tensor.rank
    perm = list(range(rank))
    name = str(c.node.target).split(".")[1]
    if name == "numpy_T":
        return c.transpose(c.x(), perm[::-1])
    first, second = (c["dim0"], c["dim1"]) if "dim0" in c else (c["axis0"], c["axis1"]) if "axis0" in c else (rank - 2, rank - 1)
    if rank > 1:
        perm[first % rank], perm[second % rank] = perm[second % rank], perm[first % rank]
    return c.transpose(c.x(), perm)


@aten("permute")
def permute(c: Call) -> Value:
    rank = c.x().tensor.rank
    return c.transpose(c.x(), [d % rank for d in c["dims"]])


@aten("movedim", "moveaxis")
def movedim(c: Call) -> Value:
    rank = c.x().tensor.rank
    source, target = ([d % rank for d in (c[k] if isinstance(c[k], list) else [c[k]])] for k in ("source", "destination"))
    rest = iter(d for d in range(rank) if d not in source)
    return c.transpose(c.x(), [source[target.index(d)] if d in target else next(rest) for d in range(rank)])


def bounds(start: Size | None, stop: Size | None, n: Size) -> tuple[Any, Any]:
    """Python's slice bounds clipped into 0 <= start <= stop <= n."""
    low = 0 if start is None else smaller(larger(start + n if start < 0 else start, 0), n)
    high = n if stop is None else smaller(larger(stop + n if stop < 0 else stop, 0), n)
    return low, larger(low, high)


@aten("slice.Tensor", "narrow")
def slice_(c: Call) -> Value:
    x, dim = c.x(), c.dim()
    stop = c["start"] + c["length"] if "length" in c else c["end"]
    return c.slice(x, dim, *bounds(c["start"], stop, x.shape[dim]), c["step"] or 1)


@aten("select.int")
def select(c: Call) -> Value:
    x, dim = c.x(), c.dim()
    index = c["index"] % x.shape[dim]
    return c.reshape(c.slice(x, dim, index, index + 1), c.type.shape)


@aten("split", "split_with_sizes", "chunk", "tensor_split.sections", "unsafe_split", "unsafe_chunk", "split_with_sizes_copy")
def split(c: Call) -> list[Value]:
    """Consecutive slices; their sizes are read off the result types."""
    x, dim, start, parts = c.x(), c.dim(), 0, []
    for type_ in c.types:
        parts.append(c.slice(x, dim, start, start + type_.shape[dim]))
        start += type_.shape[dim]
    return parts


@aten("unbind.int")
def unbind(c: Call) -> list[Value]:
    x, dim = c.x(), c.dim()
    return [c.reshape(c.slice(x, dim, i, i + 1), t.shape) for i, t in enumerate(c.types)]


@aten("cat", "concat")
def cat(c: Call) -> Value:
    parts = [c.cast(v, c.type.dtype) for v in c.values("tensors") if v.tensor.rank == c.type.rank]  # torch skips empty rank-1 tensors
    dim = c["dim"] % c.type.rank
    return parts[0] if len(parts) == 1 else c.emit("concat", *parts, dim=dim)


@aten("stack")
def stack(c: Call) -> Value:
    dim = c["dim"] % c.type.rank
    shape = (*c.type.shape[:dim], 1, *c.type.shape[dim + 1 :])
    parts = [c.reshape(c.cast(v, c.type.dtype), shape) for v in c.values("tensors")]
    return parts[0] if len(parts) == 1 else c.emit("concat", *parts, dim=dim)


@aten("pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d")
def pad(c: Call) -> Value:
    """Pairs (low, high) count from the last dim."""
    x, pairs = c.x(), c["pad"] if "pad" in c else c["padding"]
    low, high = [0] * x.tensor.rank, [0] * x.tensor.rank
    for i in range(len(pairs) // 2):
        low[-1 - i], high[-1 - i] = pairs[2 * i], pairs[2 * i + 1]
    name = str(c.node.target)
    mode = "reflect" if "reflection" in name else "replicate" if "replication" in name else c["mode"] or "constant"
    if not any(low) and not any(high):
        return x
    value = c["value"] or 0
    return c.emit("pad", x, low=tuple(low), high=tuple(high), mode=PAD_MODES[mode], value=float(value) if x.tensor.is_float else int(value))


@aten("flip")
def flip(c: Call) -> Value:
    return c.emit("flip", c.x(), dims=c.dims("dims"))


@aten("roll")
def roll(c: Call) -> Value:
    x = c.x()
    if not c["dims"]:
        return c.reshape(c.emit("roll", c.reshape(x, (x.tensor.numel,)), shift=c["shifts"][0], dim=0), x.shape)
    for shift, dim in zip(c["shifts"], c["dims"]):
        x = c.emit("roll", x, shift=shift, dim=dim % x.tensor.rank)
    return x


@aten("tril", "triu")
def triangle(c: Call) -> Value:
    return c.emit("tril" if "tril" in str(c.node.target) else "triu", c.x(), diagonal=c["diagonal"] or 0)


@aten("repeat", "tile")
def repeat(c: Call) -> Value:
    """Every repeated dim is widened beside itself and merged: [n] -> [1, n] -> [r, n] -> [r n]."""
    counts = c["repeats"] if "repeats" in c else c["dims"]
    rank = max(len(counts), c.x().tensor.rank)
    counts = [1] * (rank - len(counts)) + counts
    shape = (1,) * (rank - c.x().tensor.rank) + tuple(c.x().shape)
    return widened(c, c.reshape(c.x(), shape), counts, before=True)


def widened(c: Call, x: Value, counts: Sequence[int], before: bool) -> Value:
    """x with dim d repeated counts[d] times: whole copies one after another (`before`), or each element in a row."""
    pairs = [((r, n) if before else (n, r)) for r, n in zip(counts, x.shape)]
    ones = [((1, n) if before else (n, 1)) for n in x.shape]
    keep = [r != 1 for r in counts]
    source = [m for pair, k in zip(ones, keep) for m in (pair if k else (max(pair) if 0 not in pair else 0,))]
    target = [m for pair, k in zip(pairs, keep) for m in (pair if k else (pair[1 if before else 0],))]
    return c.reshape(c.broadcast(c.reshape(x, source), target), c.type.shape)


@aten("repeat_interleave.self_int")
def repeat_interleave(c: Call) -> Value:
    x = c.x() if "dim" in c else c.reshape(c.x(), (c.x().tensor.numel,))
    dim = c["dim"] % x.tensor.rank if "dim" in c else 0
    return widened(c, x, [c["repeats"] if d == dim else 1 for d in range(x.tensor.rank)], before=False)


@aten("diff")
def diff(c: Call) -> Value:
    """Differences of neighbours along a dim, `n` times, after joining `prepend` and `append`."""
    dim = c.dim()
    parts = [c.value(name) for name in ("prepend", "self", "append") if name in c]
    x = parts[0] if len(parts) == 1 else c.emit("concat", *parts, dim=dim)
    for _ in range(c["n"]):
        n = x.shape[dim]
        high, low = c.slice(x, dim, 1, n), c.slice(x, dim, 0, n - 1)
        x = c.emit("ne", high, low) if x.dtype == "i1" else c.emit("sub", high, low)
    return x


@aten("pixel_shuffle", "pixel_unshuffle")
def pixel_shuffle(c: Call) -> Value:
    """[.., c r², h, w] <-> [.., c, h r, w r]."""
    x, up = c.x(), "unshuffle" not in str(c.node.target)
    r = c["upscale_factor"] if up else c["downscale_factor"]
    *lead, channels, h, w = x.shape
    k = len(lead)
    split_shape = (*lead, channels // r**2, r, r, h, w) if up else (*lead, channels, h // r, r, w // r, r)
    order = (k, k + 3, k + 1, k + 4, k + 2) if up else (k, k + 2, k + 4, k + 1, k + 3)
    return c.reshape(c.transpose(c.reshape(x, split_shape), (*range(k), *order)), c.type.shape)


@aten("unfold")
def unfold(c: Call) -> Value:
    """Windows of `size` every `step` along a dim, as a new last dim."""
    x, dim = c.x(), c.dim("dimension")
    count = c.type.shape[dim]
    windows = [c.slice(x, dim, i * c["step"], i * c["step"] + c["size"]) for i in range(count)]
    moved = [c.transpose(w, [d for d in range(x.tensor.rank) if d != dim] + [dim]) for w in windows]
    shape = (*moved[0].shape[:dim], 1, *moved[0].shape[dim:])
    return c.emit("concat", *(c.reshape(m, shape) for m in moved), dim=dim)


@aten("im2col")
def im2col(c: Call) -> Value:
    """[batch, channels, h, w] -> [batch, channels kh kw, windows]: a strided slice for each cell of the kernel."""
    x = c.x() if c.x().tensor.rank == 4 else c.reshape(c.x(), (1, *c.x().shape))
    (ph, pw), kernel, dilation, stride = c["padding"], c["kernel_size"], c["dilation"], c["stride"]
    if ph or pw:
        x = c.emit("pad", x, low=(0, 0, ph, pw), high=(0, 0, ph, pw), mode="constant", value=0.0)
    n, channels, *size = x.shape
    counts = [(m - d * (k - 1) - 1) // s + 1 for m, k, d, s in zip(size, kernel, dilation, stride)]
    cells = []
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            cell = x
            for dim, at, count, step in zip((2, 3), (i * dilation[0], j * dilation[1]), counts, stride):
                cell = c.slice(cell, dim, at, at + (count - 1) * step + 1, step)
            cells.append(c.reshape(cell, (n, channels, 1, counts[0] * counts[1])))
    joined = cells[0] if len(cells) == 1 else c.emit("concat", *cells, dim=2)
    return c.reshape(joined, c.type.shape)
