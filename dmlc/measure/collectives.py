"""Times collectives between the ranks of a job, and what they and computation take from each other. Every rank calls these functions together."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.grad import conv2d_weight

from dmlc.codegen.output import in_order

KIB, MIB = 2**10, 2**20
SIZES = (4, KIB, 16 * KIB, 128 * KIB, MIB, 8 * MIB, 64 * MIB)
QUICK_SIZES = (4, 64 * KIB, 2 * MIB)
LARGE, QUICK_LARGE = 16 * MIB, 2 * MIB  # for overlap
ROUNDS, QUICK_ROUNDS = 7, 3
FEW = 3  # rounds of collectives that take longer than `LONG` seconds
LONG = 0.3
CALLED, CALLS = 64 * KIB, 25  # bytes and number of the collectives whose calls are timed
PRODUCT = 384  # side of the matrix products that compute during a collective


@dataclass
class Found:
    """Seconds by (kind, ranks, bytes); percent of a core while moving; percent of speed kept by (computation, collectives); seconds of a call."""

    seconds: dict[tuple[str, int, int], list[float]] = field(default_factory=dict)
    core: int | None = None
    overlap: tuple[int, int] | None = None
    call: float | None = None


def measure_collectives(device: torch.device, quick: bool, say: Callable[[str], None]) -> Found:
    """All kinds and sizes on groups of 2, 4, 8, ... and of all ranks; overlap and processor time on all ranks."""
    found = Found()
    world = dist.get_world_size()
    for ranks in dict.fromkeys((*(2**i for i in range(1, world.bit_length()) if 2**i <= world), world)):
        group = dist.new_group(list(range(ranks)), backend=in_order.backend(dist.get_backend()))
        if dist.get_rank() < ranks:
            measure_group(found, device, group, ranks, quick, say)
        dist.barrier()
    say("collectives beside computation")
    size = QUICK_LARGE if quick else LARGE
    if device.type == "cpu":
        found.core = core_percent(size)
    found.call = call_seconds(device)
    found.overlap = overlap(device, size, FEW if quick else ROUNDS)
    return found


def measure_group(found: Found, device: torch.device, group: Any, ranks: int, quick: bool, say: Callable[[str], None]) -> None:
    """Every kind at every size once a round."""
    jobs = [(kind, size, make(kind, size, ranks, device, group)) for size in (QUICK_SIZES if quick else SIZES) for kind in KINDS]
    rounds = QUICK_ROUNDS if quick else ROUNDS
    for _, _, run in jobs:
        run()
    for number in range(rounds):
        say(f"collectives on {ranks} ranks, round {number + 1} of {rounds}")
        for kind, size, run in jobs:
            known = found.seconds.setdefault((kind, ranks, size), [])
            if number < FEW or known[0] < LONG:
                known.append(aligned(run, kind, device, group))


def expected(seconds: Sequence[float]) -> float:
    """The mean of repeats without the least and the greatest tenth (of fewer than five their median): what a collective adds to a step. Small
    ones of a processor take one of two times, as its threads are awake or have to be woken, and a median jumps between the two."""
    if len(seconds) < 5:
        return statistics.median(seconds)
    cut = -(-len(seconds) // 10)
    return statistics.mean(sorted(seconds)[cut:-cut])


def aligned(run: Callable[[], object], kind: str, device: torch.device, group: Any) -> float:
    """Seconds from when the last rank of the group calls until it is done: the shortest of the ranks' own times, equal on all ranks. Who
    sends does not wait for who receives, so of one-sided kinds it is the longest."""
    _synchronize(device)
    dist.barrier(group)
    begin = time.perf_counter()
    run()
    _synchronize(device)
    seconds = torch.tensor(time.perf_counter() - begin, dtype=torch.float64, device=device)
    dist.all_reduce(seconds, dist.ReduceOp.MAX if kind in ("send", "broadcast") else dist.ReduceOp.MIN, group=group)
    return float(seconds)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---------------------------------------------------------------- kinds


def make(kind: str, size: int, ranks: int, device: torch.device, group: Any) -> Callable[[], object]:
    """One collective as compiled programs do it. `size`: the larger of the bytes that a rank puts in and gets out."""
    each = max(1, size // 4 // ranks)
    return KINDS[kind](torch.zeros(each * ranks, device=device), torch.zeros(each, device=device), ranks, group)


def _all_reduce(whole: Tensor, part: Tensor, ranks: int, group: Any) -> Callable[[], object]:
    return lambda: dist.all_reduce(whole, group=group)


def _all_gather(whole: Tensor, part: Tensor, ranks: int, group: Any) -> Callable[[], object]:
    out = list(whole.chunk(ranks))
    return lambda: dist.all_gather(out, part, group=group)


def _all_to_all(whole: Tensor, part: Tensor, ranks: int, group: Any) -> Callable[[], object]:
    out = torch.empty_like(whole)
    return lambda: dist.all_to_all_single(out, whole, group=group)


def _reduce_scatter(whole: Tensor, part: Tensor, ranks: int, group: Any) -> Callable[[], object]:
    """On Gloo an all-to-all: what the ranks then add up is computation."""
    if in_order.is_gloo(dist.get_backend(group)):
        return _all_to_all(whole, part, ranks, group)
    parts = list(whole.chunk(ranks))
    return lambda: dist.reduce_scatter(part, parts, group=group)


def _broadcast(whole: Tensor, part: Tensor, ranks: int, group: Any) -> Callable[[], object]:
    return lambda: dist.broadcast(whole, 0, group=group)


def _send(whole: Tensor, part: Tensor, ranks: int, group: Any) -> Callable[[], object]:
    """From the first rank to the last."""
    rank = dist.get_rank()
    if rank == 0:
        return lambda: dist.send(whole, ranks - 1, group=group)
    return (lambda: dist.recv(whole, 0, group=group)) if rank == ranks - 1 else (lambda: None)


KINDS: dict[str, Callable[[Tensor, Tensor, int, Any], Callable[[], object]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "send": _send,
}


# ---------------------------------------------------------------- beside computation


def core_percent(size: int) -> int:
    """Processor time of this process during all-reduces of `size` bytes, in percent of the time they take; the mean over the ranks."""
    x = torch.zeros(size // 4)
    dist.all_reduce(x)
    dist.barrier()
    begin, used = time.perf_counter(), time.process_time()
    for _ in range(FEW):
        dist.all_reduce(x)
    percent = torch.tensor(100 * (time.process_time() - used) / (time.perf_counter() - begin), dtype=torch.float64)
    dist.all_reduce(percent)
    return max(1, round(float(percent) / dist.get_world_size()))


def call_seconds(device: torch.device) -> float:
    """Seconds from calling an asynchronous all-reduce to going on: on a processor its own threads take the core meanwhile. What is
    expected of calls with computation before and behind them, the mean over the ranks."""
    compute, x, found = _Products(device), torch.zeros(CALLED // 4, device=device), []
    for _ in range(CALLS):
        compute.run(2)
        _synchronize(device)
        begin = time.perf_counter()
        work = dist.all_reduce(x, async_op=True)
        found.append(time.perf_counter() - begin)
        compute.run(2)
        work.wait()  # type: ignore[union-attr]
    mean = torch.tensor(expected(found), dtype=torch.float64, device=device)
    dist.all_reduce(mean)
    return float(mean) / dist.get_world_size()


def overlap(device: torch.device, size: int, rounds: int) -> tuple[int, int]:
    """Percent of their speed that matrix products and an all-reduce of `size` bytes keep while both run, the mean over the ranks: products that
    take some three times as long are started beside it, and the work they have left when it is done tells how fast they were."""
    compute = _Products(device)
    x = torch.zeros(size // 4, device=device)
    alone = statistics.median(aligned(lambda: dist.all_reduce(x), "all_reduce", device, None) for _ in range(rounds))
    count = torch.tensor(max(1, round(3 * alone / compute.seconds(5))), device=device)
    dist.all_reduce(count, dist.ReduceOp.MAX)
    kept = [_overlapped(compute, x, int(count), alone, device) for _ in range(rounds)]
    percents = torch.tensor([statistics.median(k[i] for k in kept) for i in (0, 1)], dtype=torch.float64, device=device)
    dist.all_reduce(percents)
    computing, moving = (max(1, min(100, round(float(p) / dist.get_world_size()))) for p in percents)
    return computing, moving


class _Products:
    """Matrix products, one after the other; on a processor a small one, one with more weights than a core's cache holds, and the gradient of a
    convolution in turns: a collective's own use of the caches costs each of them differently."""

    def __init__(self, device: torch.device):
        side = PRODUCT if device.type == "cpu" else 4096
        self.device = device
        self.a, self.out = torch.randn(side, side, device=device), torch.empty(side, side, device=device)
        self.wide = torch.randn(side, 8 * side, device=device) if device.type == "cpu" else None
        self.images, self.kernels = torch.randn(2, 256, 4, 4, device=device), torch.randn(256, 256, 3, 3, device=device)
        self.run(3)

    def run(self, count: int) -> None:
        for _ in range(count):
            torch.mm(self.a, self.a, out=self.out)
            if self.wide is not None:
                torch.mm(self.a, self.wide)
                conv2d_weight(self.images, self.kernels.shape, self.images, padding=1)

    def seconds(self, count: int) -> float:
        """Of one product."""
        _synchronize(self.device)
        begin = time.perf_counter()
        self.run(count)
        _synchronize(self.device)
        return (time.perf_counter() - begin) / count


def _overlapped(compute: _Products, x: Tensor, count: int, alone: float, device: torch.device) -> tuple[float, float]:
    from dmlc.codegen.output.timing import HostClock, StreamClock

    clock: Any = StreamClock() if device.type == "cuda" else HostClock()
    single = compute.seconds(count) * count
    _synchronize(device)
    dist.barrier()
    marks: dict[str, Any] = {"begin": clock.stamp()}
    work = dist.all_reduce(x, async_op=True)
    work.get_future().then(lambda _: marks.__setitem__("done", clock.stamp()))  # type: ignore[union-attr]
    compute.run(count)
    marks["computed"] = clock.stamp()
    work.wait()  # type: ignore[union-attr]
    _synchronize(device)
    while "done" not in marks:
        time.sleep(1e-4)
    done, computed = (clock.nanoseconds(marks["begin"], marks[name]) / 1e9 for name in ("done", "computed"))
    beside = min(done, computed)
    work_beside = single - max(0.0, computed - done)
    return max(0.0, 100 * work_beside / beside), 100 * alone / done
