"""Ops on a processor: what PyTorch's dispatch of each call costs, plus its arithmetic or its memory.

A fused region runs there as the PyTorch ops of its body one after the other. Shares, dispatches and what an element costs were measured with
torch 2.13 on one core (AVX2, EPYC): they hold relative to the device's peak, bandwidth and launch (taken as the dispatch of an everyday op). Samples that
`dmlc profile` took on the machine at hand correct them: the ratio of measured to modelled time, between the nearest samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from dmlc.cluster import Device
from dmlc.cost import work
from dmlc.cost.cost import transfer
from dmlc.cost.measured import Features, Measurements
from dmlc.cost.samples import REDUCTIONS, corrected, like, product_like
from dmlc.cost.work import Product
from dmlc.ir.core import Op

# Percent of the device's `launch` that dispatching a call takes; launch is 5 us, an addition takes 1.6 us of a fast core and 3 us within a program.
DISPATCH = {
    work.CONTRACTION: 150, work.CONVOLUTION: 400, work.ATTENTION: 800, work.POINTWISE: 60, work.REDUCTION: 100, work.MOVEMENT: 80, work.INDEXED: 150, work.VIEW: 40,
}  # fmt: skip
USUAL_DISPATCH = 100
DISPATCHES = {  # of ops that are other than one call
    "dmlc.contract": 500, "dmlc.attention_grad": 2500, "dmlc.attention_mask_grad": 2500, "dmlc.adam_update": 500, "dmlc.batch_norm_train": 1200,
    "dmlc.batch_norm_grad": 2000, "dmlc.cross_entropy": 1200, "dmlc.cross_entropy_grad": 1000, "dmlc.dropout": 12_000, "dmlc.dropout_mask": 12_000,
    "dmlc.random_uniform": 12_000, "dmlc.random_normal": 20_000, "dmlc.philox": 12_000, "dmlc.mask_pad": 100, "dmlc.index_add": 300, "dmlc.window": 600,
    "dmlc.shard_slice": 500, "dmlc.max_pool_grad": 3000, "dmlc.max_pool_index_grad": 250,
    "dmlc.rank_moments": 250, "dmlc.mean_over_ranks": 250, "dmlc.running_part": 120,
}  # fmt: skip
NOTHING = frozenset({"dmlc.barrier", "dmlc.gradient", "dmlc.reshard", "func.return", "dmlc.yield", "kernel.yield"})  # not in the program, or no call
# Operations at the float32 peak that an element of the largest tensor is worth beside being read and written.
ELEMENT = {
    "exp": 56, "exp2": 56, "expm1": 70, "log": 56, "log1p": 70, "log2": 56, "gelu": 60, "gelu_grad": 120, "tanh": 160, "erf": 64, "sigmoid": 42, "silu": 50, "silu_grad": 60,
    "softplus": 160, "mish": 200, "elu": 80, "sin": 80, "cos": 80, "tan": 120, "asin": 120, "acos": 120, "atan": 120, "sinh": 120, "cosh": 120, "sqrt": 30, "rsqrt": 16, "div": 8,
    "pow": 260, "select": 20, "softmax": 60, "log_softmax": 60, "logsumexp": 60, "layer_norm": 30, "rms_norm": 30, "group_norm": 30, "batch_norm": 10, "batch_norm_train": 20,
    "batch_norm_grad": 30, "cross_entropy": 70, "cross_entropy_grad": 70, "adam_update": 40, "dropout": 2500, "dropout_mask": 2500, "random_uniform": 2500, "random_normal": 3000,
    "philox": 2500, "argmax": 40, "argmin": 40, "cumsum": 30, "cumprod": 30, "sort": 2000, "topk": 1000, "max_pool": 250, "max_pool_grad": 800, "max_pool_index_grad": 20, "avg_pool": 60,
    "avg_pool_grad": 60, "relayout": 20, "copy": 20, "index_add": 8, "scatter": 20, "index_put": 20,
}  # fmt: skip
# Passes over memory that what an op's definition calls makes of its operands and results.
PASSES = {"batch_norm_train": 5, "batch_norm_grad": 6, "cross_entropy": 3, "cross_entropy_grad": 3, "dropout": 30, "dropout_mask": 60, "random_uniform": 60, "random_normal": 60}
CACHE = 16 << 20  # bytes of cache where the device's is not known
CACHE_SPEED = 3  # times the memory's bandwidth: in a program most operands have left the cache nearest the core
REACHED = {work.CONTRACTION: 95, work.CONVOLUTION: 60, work.ATTENTION: 60}  # percent of the peak, large shapes
BACKWARD = {"dmlc.attention_grad": 45, "dmlc.attention_mask_grad": 45, "dmlc.conv_weight_grad": 70}  # percent of that: the forward pass is run again, rows are gathered
HALF_RATE = (6, 6, 12)  # of m, n and k: at this size half of the rate


class Processor:
    """Prices of single PyTorch calls on one kind of processor."""

    def __init__(self, device: Device, measured: Measurements | None = None):
        self.device, self.measured = device, measured
        self.cache = device.cache or CACHE
        dispatch = self._samples("dispatch", "f32")
        self.dispatch_unit = dispatch[0][1] * 100 // DISPATCH[work.POINTWISE] if dispatch else device.launch

    # -------------------------------------------------- one op

    def time(self, op: Op, moved: int) -> tuple[int, bool]:
        """Picoseconds of the op and whether samples that were measured are in it."""
        if op.name in NOTHING:
            return 0, False
        kind = work.VIEW if work.is_view(op) else work.kind_of(op)
        dtype = op.results[0].dtype if op.results else "f32"
        if kind == work.VIEW:
            return self.dispatch(op.name, kind), False
        plain = self.modelled(op.name, kind, op, moved)
        sampled, features = like(op, kind, moved, lambda named: bool(self._samples(named, dtype)))
        samples = self._samples(sampled, dtype)
        if not samples:
            return plain, False
        ratios = [(f, time, self._sample_model(sampled, f, dtype)) for f, time in samples]
        return max(1, corrected(plain, features, tuple(ratios))), True

    def dispatch(self, name: str, kind: str | None) -> int:
        return self.dispatch_unit * DISPATCHES.get(name, DISPATCH.get(kind or "", USUAL_DISPATCH)) // 100

    def modelled(self, name: str, kind: str | None, op: Op, moved: int) -> int:
        """Picoseconds by the tables above."""
        short = name.partition(".")[2]
        macs = work.multiply_adds(op)
        dtype = op.operands[0].dtype if op.operands else "f32"
        if macs and kind in (work.CONTRACTION, work.CONVOLUTION):
            busy = self.product(work.product_of(op), kind, dtype)
        elif macs:
            busy = transfer(2 * macs * 100, self.device.rate(dtype) * REACHED[work.ATTENTION])
        else:
            busy = transfer(work.elements_of(op) * ELEMENT.get(short, 0), self.device.rate("f32"))
        busy = busy * 100 // BACKWARD.get(name, 100)
        calls = max(1, len(op.operands) - 1) if name == "dmlc.add_n" else 1
        return self.dispatch(name, kind) * calls + max(busy, self.memory(moved * PASSES.get(short, 1)))

    def memory(self, moved: int) -> int:
        """Picoseconds of reading and writing: what fits the cache at its speed, the rest at memory's."""
        cached = min(moved, self.cache)
        return transfer(cached, self.device.bandwidth * CACHE_SPEED) + transfer(moved - cached, self.device.bandwidth)

    def product(self, shape: Product, kind: str, dtype: str) -> int:
        """Picoseconds of a batch of matrix products: slower where a dim is short; a product with a vector is left to memory."""
        if 1 in (shape.m, shape.n) and kind == work.CONTRACTION:
            return 0
        time = transfer(2 * shape.macs * 100, self.device.rate(dtype) * REACHED[kind])
        for size, half in zip((shape.m, shape.n, shape.k), HALF_RATE):
            time = -(-time * (size + half) // max(size, 1))
        return time

    # -------------------------------------------------- what was measured

    def _samples(self, kind: str, dtype: str) -> Sequence[tuple[Features, int]]:
        return self.measured.samples(kind, dtype) if self.measured is not None else ()

    def _sample_model(self, kind: str, features: Features, dtype: str) -> int:
        """What the tables above say of a sample."""
        return _sample_model(self, kind, features, dtype)


def _sample_model(processor: Processor, kind: str, features: Features, dtype: str) -> int:
    item = {"f64": 8, "f16": 2, "bf16": 2}.get(dtype, 4)
    name = f"dmlc.{kind}"
    if kind == "matmul":
        shape = product_like(kind, features)
        moved = item * shape.batch * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n)
        return processor.dispatch(name, work.CONTRACTION) + max(processor.product(shape, work.CONTRACTION, dtype), processor.memory(moved))
    if kind.startswith("conv"):
        images, c, o, groups, cells, windows = features
        shape = product_like(kind, features)
        moved = item * groups * (images * windows * (o + c) + o * c * cells)
        busy = processor.product(shape, work.CONVOLUTION, dtype) * 100 // BACKWARD.get(name, 100)
        return processor.dispatch(name, work.CONVOLUTION) + max(busy, processor.memory(moved))
    if kind.startswith("attention"):
        heads, t, s, d = features
        products = 2 if kind == "attention" else 5
        busy = transfer(2 * heads * t * s * d * products * 100, processor.device.rate(dtype) * REACHED[work.ATTENTION]) * 100 // BACKWARD.get(name, 100)
        return processor.dispatch(name, work.ATTENTION) + max(busy, processor.memory(item * heads * d * 2 * (t + s)))
    known = {"pointwise": work.POINTWISE, "copy": work.MOVEMENT, "concat": work.MOVEMENT, "indexed": work.INDEXED}.get(kind, work.REDUCTION if kind in REDUCTIONS else work.POINTWISE)
    (moved,) = features
    busy = transfer(moved // (2 * item) * ELEMENT.get(kind, 0), processor.device.rate("f32"))
    return processor.dispatch(name, known) + max(busy, processor.memory(moved * PASSES.get(kind, 1)))
