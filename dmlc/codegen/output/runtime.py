"""Groups, collectives and weights of a compiled program.

Collectives over named mesh axes, synchronous or started and waited for; several tensors in one call travel as one bucket.
On Gloo a reduce-scatter is an all-to-all and a local sum in rank order: Gloo's own sends as much as an all-reduce.
"""

import itertools
import math

import in_order  # type: ignore[import-not-found]
import torch
import torch.distributed as dist
from prelude import join_parts, pad_to, window  # type: ignore[import-not-found]

REDUCE = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "and": dist.ReduceOp.MIN,
    "or": dist.ReduceOp.MAX,
}


class Mesh:
    """Named axes over the ranks, row-major, first axis slowest. Process groups are made at the first use of their axes."""

    def __init__(self, axes):
        self.axes = dict(axes)
        self.size = math.prod(self.axes.values())
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self._groups = {}

    def coordinates(self, rank):
        found = {}
        for name in reversed(self.axes):
            found[name] = rank % self.axes[name]
            rank //= self.axes[name]
        return found

    def index(self, axis):
        """This rank's index along an axis, a Python integer."""
        return self.coordinates(self.rank)[axis]

    def members(self, rank, axes):
        """Ranks that differ from `rank` along `axes` only, in group order."""
        here = self.coordinates(rank)
        found = []
        for indices in itertools.product(*(range(self.axes[a]) for a in axes)):
            place = {**here, **dict(zip(axes, indices))}
            number = 0
            for name, n in self.axes.items():
                number = number * n + place[name]
            found.append(number)
        return found

    def group(self, axes):
        """(process group, its ranks) along `axes`. Every rank makes all groups of these axes, in the same order."""
        if axes not in self._groups:
            mine = None
            for ranks in dict.fromkeys(tuple(self.members(r, axes)) for r in range(self.size)):
                made = dist.new_group(list(ranks), backend=in_order.backend(dist.get_backend()))
                if self.rank in ranks:
                    mine = (made, ranks)
            self._groups[axes] = mine
        return self._groups[axes]


def keep_freed_memory():
    """Let the C library keep what a step frees, since the next step needs it again: given back, it would be cleared page by page each time.

    Large blocks come from the same heap as all others, not each from the system. Libraries other than glibc are left as they are.
    """
    import ctypes
    import platform

    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


class Future:
    """Results of a started collective: `wait` finishes the communication and then unpacks."""

    def __init__(self, work, finish):
        self._work, self._finish = work, finish

    def wait(self):
        for work in self._work:
            work.wait()
        return self._finish()


def _pack(tensors):
    """One flat contiguous buffer; a single tensor is packed by a copy, so that the operand stays as it was."""
    if len(tensors) == 1:
        return tensors[0].reshape(-1).clone()
    return torch.cat([t.reshape(-1) for t in tensors])


def _unpack(flat, shapes):
    parts = flat.split([math.prod(s) for s in shapes])
    return tuple(p.reshape(s) for p, s in zip(parts, shapes))


SENT = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)
REDUCED_AS = {torch.bool: torch.uint8, torch.int16: torch.int32}


def _wire(flat):
    """A flat tensor as what every backend can move: bytes, where it does not know the dtype."""
    return flat if flat.dtype in SENT else flat.view(torch.uint8)


class Collectives:
    """`start` forms return a Future, the others wait at once. `axes` is a tuple of axis names."""

    def __init__(self, mesh):
        self.mesh = mesh

    def _is_gloo(self, group):
        return in_order.is_gloo(dist.get_backend(group))

    def all_reduce_start(self, tensors, axes, combiner, given=False):
        """`given`: the one tensor is needed no more and may hold the result."""
        group, _ = self.mesh.group(axes)
        dtype = tensors[0].dtype
        flat = (tensors[0].reshape(-1) if given else _pack(tensors)).to(REDUCED_AS.get(dtype, dtype))
        work = dist.all_reduce(flat, REDUCE[combiner], group=group, async_op=True)
        shapes = [t.shape for t in tensors]
        return Future([work], lambda: _unpack(flat.to(dtype), shapes))

    def all_gather_start(self, tensors, axes, dims, sizes, grains):
        group, ranks = self.mesh.group(axes)
        counts = [self.mesh.axes[a] for a in axes]
        flat = _wire(_pack(tensors))
        out = [torch.empty_like(flat) for _ in ranks]
        work = dist.all_gather(out, flat, group=group, async_op=True)
        shapes, dtype = [t.shape for t in tensors], tensors[0].dtype

        def finish():
            parts = list(zip(*(_unpack(o.view(dtype), shapes) for o in out)))
            return tuple(nested_join(list(p), d, n, g, counts) for p, d, n, g in zip(parts, dims, sizes, grains))

        return Future([work], finish)

    def reduce_scatter_start(self, tensors, axes, combiner, dims, sizes, grains):
        group, ranks = self.mesh.group(axes)
        counts = [self.mesh.axes[a] for a in axes]
        split = [nested_parts(t, d, n, g, counts) for t, d, n, g in zip(tensors, dims, sizes, grains)]
        shapes = [s[0].shape for s in split]
        sends = [_pack([s[i] for s in split]) for i in range(len(ranks))]
        if not self._is_gloo(group) and combiner == "sum":
            flat = torch.empty_like(sends[0])
            work = dist.reduce_scatter(flat, sends, REDUCE[combiner], group=group, async_op=True)
            return Future([work], lambda: _unpack(flat, shapes))
        sent, dtype = _wire(torch.cat(sends)), sends[0].dtype
        received = torch.empty_like(sent)
        work = dist.all_to_all_single(received, sent, group=group, async_op=True)
        return Future([work], lambda: _unpack(_combined(received.view(dtype).chunk(len(ranks)), combiner), shapes))

    def all_to_all_start(self, tensors, axes, split_dims, split_sizes, split_grains, dims, sizes, grains):
        group, ranks = self.mesh.group(axes)
        counts = [self.mesh.axes[a] for a in axes]
        split = [nested_parts(t, d, n, g, counts) for t, d, n, g in zip(tensors, split_dims, split_sizes, split_grains)]
        shapes = [s[0].shape for s in split]
        sent, dtype = _wire(torch.cat([_pack([s[i] for s in split]) for i in range(len(ranks))])), tensors[0].dtype
        received = torch.empty_like(sent)
        work = dist.all_to_all_single(received, sent, group=group, async_op=True)

        def finish():
            parts = list(zip(*(_unpack(r, shapes) for r in received.view(dtype).chunk(len(ranks)))))
            return tuple(nested_join(list(p), d, n, g, counts) for p, d, n, g in zip(parts, dims, sizes, grains))

        return Future([work], finish)

    def all_reduce(self, *args, **options):
        return self.all_reduce_start(*args, **options).wait()

    def all_gather(self, *args):
        return self.all_gather_start(*args).wait()

    def reduce_scatter(self, *args):
        return self.reduce_scatter_start(*args).wait()

    def all_to_all(self, *args):
        return self.all_to_all_start(*args).wait()

    def send(self, tensor, axis, to, tag):
        here = self.mesh.coordinates(self.mesh.rank)
        peer = self.mesh.members(self.mesh.rank, (axis,))[to]
        assert here[axis] != to
        dist.send(tensor.contiguous(), peer, tag=tag)

    def recv(self, shape, dtype, axis, source, tag, device):
        tensor = torch.empty(shape, dtype=dtype, device=device)
        dist.recv(tensor, self.mesh.members(self.mesh.rank, (axis,))[source], tag=tag)
        return tensor


def _combined(parts, combiner):
    if combiner == "sum":
        return (
            torch.stack(list(parts)).sum(0)
            if parts[0].dtype not in (torch.float16, torch.bfloat16)
            else torch.stack(list(parts)).float().sum(0).to(parts[0].dtype)
        )
    stacked = torch.stack(list(parts))
    return {
        "prod": lambda: stacked.prod(0),
        "max": lambda: stacked.amax(0),
        "min": lambda: stacked.amin(0),
        "and": lambda: stacked.all(0),
        "or": lambda: stacked.any(0),
    }[combiner]()


def _width(size, grain, count):
    return -(-(-(-size // grain)) // count) * grain


def nested_join(parts, dim, size, grain, counts):
    """Parts in group order joined along `dim`; the padding of every nesting level is dropped."""
    if not counts:
        return parts[0].narrow(dim, 0, size)
    width, inner = _width(size, grain, counts[0]), len(parts) // counts[0]
    joined = [nested_join(parts[i * inner : (i + 1) * inner], dim, width, grain, counts[1:]) for i in range(counts[0])]
    return join_parts(joined, dim, size)


def nested_parts(x, dim, size, grain, counts):
    """The parts of `x` along `dim` in group order, zero-padded to one size."""
    if not counts:
        return [pad_to(x, dim, size)]
    width = _width(size, grain, counts[0])
    parts = []
    for i in range(counts[0]):
        start = min(i * width, size)
        piece = pad_to(x.narrow(dim, start, min(width, size - start)), dim, width)
        parts += nested_parts(piece, dim, width, grain, counts[1:])
    return parts


# ---------------------------------------------------------------- arguments and results


def local_window(mesh, rank, n, axes, grain):
    """(start, valid, local size) of a rank's part of a dim of n elements."""
    where = mesh.coordinates(rank)
    start, valid = window(n, *(where[a] for a in axes), counts=[mesh.axes[a] for a in axes], grain=grain)
    size = -(-n // grain)
    for a in axes:
        size = -(-size // mesh.axes[a])
    return int(start), int(valid), size * grain


def cut(source, mesh, rank, shape, dims, grains):
    """A rank's part of a global array (anything that can be sliced: a tensor, a safetensors slice), zero-padded."""
    spans = [local_window(mesh, rank, n, axes, g) if axes else (0, n, n) for n, axes, g in zip(shape, dims, grains)]
    part = source[tuple(slice(min(s, n), min(s, n) + v) for (s, v, _), n in zip(spans, shape))] if shape else source[...]
    for d, (_, _, size) in enumerate(spans):
        part = pad_to(part, d, size)
    return part.contiguous()


def laid_out(x, order):
    """The same tensor with its dims in memory in the given order, slowest first; None leaves it row-major."""
    return x if order is None else x.permute(order).contiguous().permute([order.index(d) for d in range(x.dim())])


def join(parts, mesh, shape, dims, grains, stage=None):
    """The global tensor from every rank's part, or from those of one pipeline stage (axis, index)."""
    whole = torch.zeros(shape, dtype=parts[0].dtype)
    for rank in reversed(range(mesh.size)):
        if stage is not None and mesh.coordinates(rank)[stage[0]] != stage[1]:
            continue
        part, where = parts[rank], []
        for d, (n, axes, g) in enumerate(zip(shape, dims, grains)):
            start, valid, _ = local_window(mesh, rank, n, axes, g) if axes else (0, n, n)
            part = part.narrow(d, 0, valid)
            where.append(slice(start, start + valid))
        whole[tuple(where)] = part
    return whole


def gather_result(x, mesh, shape, dims, grains, stage=None):
    """The global result on rank 0 (None elsewhere)."""
    x = x.detach().cpu().contiguous()
    if not any(dims) and stage is None:
        return x if mesh.rank == 0 else None
    sent = _wire(x.reshape(-1))
    parts = [torch.empty_like(sent) for _ in range(mesh.size)] if mesh.rank == 0 else None
    dist.gather(sent, parts, dst=0, group=_cpu_group())
    return join([p.view(x.dtype).reshape(x.shape) for p in parts], mesh, shape, dims, grains, stage) if mesh.rank == 0 else None


_CPU = []


def _cpu_group():
    """A Gloo group of all ranks: results are gathered on the host whatever the backend is."""
    if not _CPU:
        _CPU.append(dist.new_group(backend="gloo"))
    return _CPU[0]
