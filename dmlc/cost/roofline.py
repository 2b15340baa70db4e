"""Ops on a gpu: the longer of arithmetic and memory, plus what starting a kernel costs.

Matrix products and convolutions run as tiles of the result, shared out over the device's units in waves: the last wave is as long as a full one, and tiles at the
edge are computed whole. The best of a few tiles and splits of the inner dim is taken, as cuBLAS and cuDNN choose by heuristics. Rates are a share of
the data sheet's that real kernels reach: matrix products what the best shape reaches (measured "maximum achievable FLOPS" in
stas00/ml-engineering, compute/accelerator), attention what FlashAttention-2 reports (Dao 2023), memory what streaming kernels reach by class.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from dmlc.cluster import Device
from dmlc.cost import work
from dmlc.cost.cost import PICO
from dmlc.cost.measured import Features
from dmlc.cost.samples import REDUCTIONS, product_like
from dmlc.cost.work import Product
from dmlc.ir.core import Op

# Percent of the dense peak that the best matrix product reaches.
REACHED = {"a100": 87, "h100": 80, "h200": 82, "gh200": 84, "b200": 78, "mi300x": 51}
USUAL_REACHED = 80
# Rows and columns of a tile, and percent of a unit's best rate: a smaller tile reads more for each product.
TILES = ((256, 128, 100), (128, 256, 100), (128, 128, 95), (128, 64, 80), (64, 128, 80), (64, 64, 62), (64, 32, 42), (32, 64, 42), (32, 32, 28), (16, 64, 25), (64, 16, 25))
LEAST_PART = 128  # of the inner dim; a shorter one takes as long
SPLITS = (1, 2, 4, 8, 16, 32)
FILL = 96  # products of the inner dim that filling the pipeline and writing the tile are worth
# Percent of the best product's rate.
CONVOLVED = 85  # gathering windows is not free
ATTENDED = {"dmlc.attention": 68, "dmlc.attention_grad": 55, "dmlc.attention_mask_grad": 40}
# Percent of the memory's bandwidth.
STREAMED = {
    work.CONTRACTION: 85, work.CONVOLUTION: 80, work.ATTENTION: 80, work.POINTWISE: 88, work.REDUCTION: 80, work.MOVEMENT: 72, work.INDEXED: 50,
}  # fmt: skip
USUAL_STREAMED = 60
CACHE_SPEED = 3  # times the memory's bandwidth, for the part of an op's bytes that the one before left in the cache
CACHE_SHARE = 4  # of the cache: 1 / CACHE_SHARE holds such bytes
HOST_ISSUE = 6_000_000  # picoseconds in which the host issues one op; see `issue`
VIEW_ISSUE = 1_500_000


def issue(op: Op) -> int:
    """Picoseconds that the host takes to issue an op from eager PyTorch: a dispatch of 2 to 4 us and a launch of 2 to 3 us (a view has no launch). A generated
    Triton kernel's wrapper takes as long. Dispatch: measured with torch 2.13 on an EPYC core (add 1.6 us, layer_norm 6.2, linear 8.7, a view 1.5 to 2.4); launch: 2.5 us as
    in Kineto traces of cudaLaunchKernel."""
    return VIEW_ISSUE if work.is_view(op) else HOST_ISSUE


def overhead(device: Device) -> int:
    """What one more kernel costs a busy queue: half of the launch latency, the other half runs while the kernel before does."""
    return device.launch // 2


def memory(device: Device, kind: str | None, moved: int) -> int:
    """Picoseconds of moving bytes to and from memory."""
    cached = min(moved, device.cache // CACHE_SHARE)
    share = STREAMED.get(kind or "", USUAL_STREAMED)
    return -(-((moved - cached) * CACHE_SPEED + cached) * PICO * 100 // (device.bandwidth * CACHE_SPEED * share))


def arithmetic(device: Device, op: Op, macs: int) -> int:
    """Picoseconds of an op's multiply-adds."""
    dtype = op.operands[0].dtype if op.operands else "f32"
    kind = work.kind_of(op)
    rate = best_rate(device, dtype)
    if kind == work.CONTRACTION:
        return product(work.product_of(op), rate, device.units)
    if kind == work.CONVOLUTION:
        return product(work.product_of(op), rate * CONVOLVED // 100, device.units)
    if kind == work.ATTENTION:
        return _attention(op, macs, rate, device.units)
    return -(-2 * macs * PICO // rate)


@lru_cache(maxsize=64)
def best_rate(device: Device, dtype: str) -> int:
    """Operations a second of the best matrix product."""
    reached = next((percent for name, percent in REACHED.items() if device.name.startswith(name)), USUAL_REACHED)
    return device.rate(dtype) * reached // 100


@lru_cache(maxsize=1 << 16)
def product(shape: Product, rate: int, units: int) -> int:
    """Picoseconds of a batch of matrix products on `units` that together do `rate` operations a second. Where the device does not say its
    units, nothing is rounded up to tiles and waves."""
    if shape.macs == 0:
        return 0
    if not units:
        return -(-2 * shape.macs * PICO // rate)
    return min(_tiled(shape, rate, units, tile, split) for tile in TILES for split in SPLITS)


def _tiled(shape: Product, rate: int, units: int, tile: tuple[int, int, int], split: int) -> int:
    rows, columns, share = tile
    tiles = shape.batch * -(-shape.m // rows) * -(-shape.n // columns) * split
    waves = -(-tiles // units)
    part = shape.k if split == 1 else max(-(-shape.k // split), LEAST_PART)
    inner = part + FILL + (FILL // 2 if split > 1 else 0)  # parts are added up
    return -(-waves * 2 * rows * columns * inner * PICO * 100 * units // (rate * share))


def _attention(op: Op, macs: int, rate: int, units: int) -> int:
    """Blocks of 128 queries, shared out over the units."""
    share = ATTENDED.get(op.name, 50)
    first = 0 if op.name == "dmlc.attention" else 1
    batch, heads, queries = op.operands[first].shape[:3]
    blocks = batch * heads * -(-queries // 128)
    waves = -(-blocks // (units or 1)) * (units or 1)
    return -(-2 * macs * waves * PICO * 100 // (max(blocks, 1) * rate * share))


def kernel(device: Device, ops: Sequence[Op], moved: int) -> int:
    """Picoseconds of one kernel that runs `ops` and moves `moved` bytes."""
    computing = sum(arithmetic(device, o, n) for o in ops if (n := work.multiply_adds(o)))
    kinds = {work.kind_of(o) for o in ops if not work.is_view(o)}
    slowest = min(kinds, key=lambda kind: STREAMED.get(kind or "", USUAL_STREAMED), default=work.POINTWISE)
    return max(computing, memory(device, slowest, moved)) + overhead(device)


def sampled(device: Device, kind: str, features: Features, dtype: str) -> int:
    """Picoseconds that the model says for a sample."""
    rate, item = best_rate(device, dtype), {"f64": 8, "f16": 2, "bf16": 2}.get(dtype, 4)
    if kind == "matmul" or kind.startswith("conv"):
        shape = product_like(kind, features)
        moved = item * shape.batch * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n)
        share, streamed = (100, work.CONTRACTION) if kind == "matmul" else (CONVOLVED, work.CONVOLUTION)
        return max(product(shape, rate * share // 100, device.units), memory(device, streamed, moved)) + overhead(device)
    if kind.startswith("attention"):
        heads, t, s, d = features
        work_done = 2 * heads * t * s * d * (2 if kind == "attention" else 5)
        return -(-work_done * PICO * 100 // (rate * ATTENDED.get(f"dmlc.{kind}", 50))) + overhead(device)
    known = {"copy": work.MOVEMENT, "indexed": work.INDEXED}.get(kind, work.REDUCTION if kind in REDUCTIONS else work.POINTWISE)
    return memory(device, known, features[0]) + overhead(device)
