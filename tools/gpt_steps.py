"""Steps of GPT-like models as analytic programs: what one rank does in a training step, op by op, with the compiler's own prices.

The ops are those of Megatron's and of FSDP's implementations as one rank runs them; a layer's are priced once. The host issues one op after the other, the device begins
each no earlier than that, and tensor-parallel collectives block. Gradients are reduced after the last microbatch (Megatron-DeepSpeed) or gathered and scattered
layer by layer beside the computation (FSDP).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dmlc.cluster import Cluster
from dmlc.cost import CostModel, roofline
from dmlc.ir.attributes import AttrDict
from dmlc.ir.builder import Builder
from dmlc.ir.core import Block, Op
from dmlc.ir.sharding import Mesh
from dmlc.ir.types import BYTES, TensorType


@dataclass(frozen=True)
class Gpt:
    """A decoder and how it is trained. `kv` heads of keys, `gated` a SwiGLU of three matrices, `flash` attention as one kernel, `recompute` all layers again
    in the backward pass; `batch` sequences a step over all ranks, `micro` a microbatch; tp x dp ranks, `sharded` parameters (FSDP)."""

    layers: int
    hidden: int
    heads: int
    kv: int
    inner: int
    vocabulary: int
    sequence: int
    batch: int
    micro: int
    tp: int
    dp: int
    gated: bool = False
    flash: bool = True
    recompute: bool = False
    sharded: bool = False
    dtype: str = "bf16"
    products: str = ""  # of matrix products, where not `dtype`

    @property
    def steps(self) -> int:
        """Microbatches of a rank."""
        return max(1, self.batch // (self.micro * self.dp))

    @property
    def layer_parameters(self) -> int:
        head = self.hidden // self.heads
        return self.hidden * (2 * self.hidden + 2 * self.kv * head + (3 if self.gated else 2) * self.inner)

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden


@dataclass(frozen=True)
class Knobs:
    """What is calibrated, each a factor: of computing and memory time, of the host's time an op, of collectives' time; and microseconds that a step and a
    microbatch take besides."""

    compute: float = 1.0
    memory: float = 1.0
    host: float = 1.0
    network: float = 1.0
    step: float = 0.0


Item = tuple[float, float, float, float]  # microseconds of computing, of memory, of the network (two of them 0), and of the host that issues it
ISSUE = roofline.HOST_ISSUE / 1e6
KINDS = ("dmlc.matmul", "dmlc.linear", "dmlc.attention", "dmlc.attention_grad")


class Pricer:
    """Microseconds of single ops and collectives on one rank."""

    def __init__(self, cluster: Cluster, tp: int, dp: int):
        self.cost, self.mesh = CostModel(cluster), Mesh.make(data=dp, model=tp)

    @lru_cache(maxsize=4096)  # noqa: B019 one pricer lives as long as the report
    def op(self, name: str, operands: tuple[TensorType, ...], results: tuple[TensorType, ...] | None = None, attrs: AttrDict = AttrDict()) -> Item:  # noqa: B008
        """One op."""
        op = made(name, operands, results, attrs)
        time, host = self.cost.op(op).time / 1e6, self.cost.host(op) / 1e6
        return (time, 0.0, 0.0, host) if name in KINDS else (0.0, time, 0.0, host)

    def collective(self, kind: str, size: int, axis: str) -> float:
        return self.cost.collective(kind, size, (axis,), self.mesh).time / 1e6


def made(name: str, operands: Sequence[TensorType], results: Sequence[TensorType] | None, attrs: AttrDict) -> Op:
    block = Block(tuple(operands))
    return Builder(block).op(name, block.args, dict(attrs), results)


class Layer:
    """The ops of one layer, and of what lies around the layers, of one microbatch."""

    def __init__(self, g: Gpt, price: Pricer):
        self.g, self.price = g, price
        self.tokens = g.micro * g.sequence

    def _t(self, *shape: int, dtype: str = "") -> TensorType:
        return TensorType(shape, dtype or self.g.dtype)

    # -------------------------------------------------- parts

    def product(self, inputs: int, outputs: int) -> Item:
        low = self.g.products
        return self.price.op("dmlc.linear", (self._t(self.tokens, inputs, dtype=low), self._t(outputs, inputs, dtype=low)))

    def product_back(self, inputs: int, outputs: int) -> list[Item]:
        """Gradients of the input and of the weight."""
        low = self.g.products
        g, x, w = (self._t(*shape, dtype=low) for shape in ((self.tokens, outputs), (self.tokens, inputs), (outputs, inputs)))
        return [self.price.op("dmlc.matmul", (g, w)), self.price.op("dmlc.matmul", (self._t(outputs, self.tokens, dtype=low), x))]

    def pointwise(self, width: int, reads: int = 1, writes: int = 1, dtype: str = "") -> Item:
        """One kernel that reads and writes so many tensors of `width` a token."""
        whole = self._t(self.tokens * (reads + writes) // 2, width, dtype=dtype)
        return self.price.op("dmlc.relu", (whole,))

    def norm(self) -> Item:
        x, w = self._t(self.tokens, self.g.hidden), self._t(self.g.hidden)
        return self.price.op("dmlc.layer_norm", (x, w, w))

    # -------------------------------------------------- attention

    def attention(self) -> list[Item]:
        g, heads = self.g, self.g.heads // self.g.tp or 1
        head = g.hidden // g.heads
        if g.flash:
            return [self.price.op("dmlc.attention", self._qkv(heads, head), None, AttrDict(causal=True))]
        scores = self._t(g.micro * heads, g.sequence, g.sequence)
        q, k, v = self._t(g.micro * heads, g.sequence, head), self._t(g.micro * heads, head, g.sequence), self._t(g.micro * heads, g.sequence, head)
        dropout = self.price.op("dmlc.mul", (scores, scores))
        return [self.price.op("dmlc.matmul", (q, k)), self.price.op("dmlc.relu", (scores,)), dropout, self.price.op("dmlc.matmul", (scores, v))]

    def attention_back(self) -> list[Item]:
        g, heads = self.g, self.g.heads // self.g.tp or 1
        head = g.hidden // g.heads
        if g.flash:
            q, k, v = self._qkv(heads, head)
            return [self.price.op("dmlc.attention_grad", (q, q, k, v), None, AttrDict(causal=True))]
        scores = self._t(g.micro * heads, g.sequence, g.sequence)
        q, k = self._t(g.micro * heads, g.sequence, head), self._t(g.micro * heads, head, g.sequence)
        wide, thin = self.price.op("dmlc.matmul", (q, k)), self.price.op("dmlc.matmul", (scores, q))
        return [wide, thin, self.price.op("dmlc.mul", (scores, scores)), self.price.op("dmlc.mul", (scores, scores)), thin, thin]

    def _qkv(self, heads: int, head: int) -> tuple[TensorType, ...]:
        kv = max(1, self.g.kv // self.g.tp)
        return (self._t(self.g.micro, heads, self.g.sequence, head), *[self._t(self.g.micro, kv, self.g.sequence, head)] * 2)

    # -------------------------------------------------- whole layers

    @property
    def widths(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of the products: projections, attention's output, the perceptron."""
        g, head = self.g, self.g.hidden // self.g.heads
        qkv, inner = (g.hidden + 2 * g.kv * head) // g.tp, g.inner // g.tp
        return ((g.hidden, qkv), (g.hidden // g.tp, g.hidden), (g.hidden, inner * (2 if g.gated else 1)), (inner, g.hidden))

    def forward(self) -> list[Item]:
        g, (qkv, out, up, down) = self.g, self.widths
        reduce = self.reduced()
        first = [self.norm(), self.product(*qkv), self.pointwise(qkv[1]), *self.attention(), self.pointwise(out[0]), self.product(*out), *reduce]
        second = [self.pointwise(g.hidden, 3, 1), self.norm(), self.product(*up), self.pointwise(up[1], 1, 1), self.product(*down), *reduce]
        return [*first, *second, self.pointwise(g.hidden, 3, 1)]

    def backward(self) -> list[Item]:
        g, (qkv, out, up, down) = self.g, self.widths
        reduce, sums = self.reduced(), [self.pointwise(g.hidden, 1, 0)]
        second = [self.pointwise(g.hidden, 1, 2), *self.product_back(*down), *sums, self.pointwise(up[1], 2, 1), *self.product_back(*up), *sums, *reduce]
        norm = [self.pointwise(g.hidden, 3, 1), self.pointwise(g.hidden, 2, 0), self.pointwise(g.hidden, 2, 1)]
        first = [self.pointwise(g.hidden, 1, 2), *self.product_back(*out), *self.attention_back(), self.pointwise(qkv[1]), *self.product_back(*qkv), *sums, *reduce]
        return [*second, *norm, *first, *norm]

    def reduced(self) -> list[Item]:
        """The all-reduce that ends a tensor-parallel block."""
        if self.g.tp == 1:
            return []
        return [(0.0, 0.0, self.price.collective("all_reduce", self.tokens * self.g.hidden * BYTES[self.g.dtype], "model"), ISSUE)]

    def ends(self) -> list[Item]:
        """Embedding, logits, loss (in float32) and their gradients."""
        g, columns = self.g, self.g.vocabulary // self.g.tp
        loss = [self.pointwise(columns, 1, 1, "f32") for _ in range(5)]
        return [self.pointwise(g.hidden, 3, 1), self.product(g.hidden, columns), *loss, *self.product_back(g.hidden, columns), self.pointwise(g.hidden, 1, 1), *self.reduced()]


# ---------------------------------------------------------------- a step


def run(items: Iterable[Item], knobs: Knobs, host: float, device: float) -> tuple[float, float]:
    """The clocks of host and device (microseconds) after the ops."""
    for computing, memory, network, issue in items:
        host += issue * knobs.host
        device = max(device, host) + computing * knobs.compute + memory * knobs.memory + network * knobs.network
    return host, device


@dataclass(frozen=True)
class Step:
    """A step with prices: what the ops of one layer take, forward and back, of the ends, of a microbatch; the update's; each layer's gather and scatter."""

    g: Gpt
    forward: tuple[Item, ...]
    backward: tuple[Item, ...]
    ends: tuple[Item, ...]
    update: tuple[Item, ...]
    gather: float
    scatter: float
    reduce: float

    @classmethod
    def of(cls, g: Gpt, cluster: Cluster) -> Step:
        price = Pricer(cluster, g.tp, g.dp)
        layer = Layer(g, price)
        own = g.parameters // g.tp // (g.dp if g.sharded else 1)
        tensor, scalar = TensorType((own,), "f32"), TensorType((), "f32")
        adam = price.op("dmlc.adam_update", (*[tensor] * 4, *[scalar] * 4), None, AttrDict(beta1=0.9, beta2=0.95, eps=1e-8))
        half = price.op("dmlc.relu", (TensorType((own * 2,), "f32"),))  # unscaled, clipped, cast
        size, item = g.layer_parameters // g.tp, BYTES[g.dtype]
        gather, scatter = (price.collective(kind, size * item, "data") if g.sharded else 0.0 for kind in ("all_gather", "reduce_scatter"))
        reduce = 0.0 if g.sharded else price.collective("all_reduce", g.parameters // g.tp * item, "data")
        back = (*layer.forward(), *layer.backward()) if g.recompute else tuple(layer.backward())
        return cls(g, tuple(layer.forward()), back, tuple(layer.ends()), (half, adam), gather, scatter, reduce)

    def seconds(self, knobs: Knobs) -> float:
        first = self._microbatch(knobs, (0.0, 0.0))
        second = self._microbatch(knobs, first)
        device = first[1] + (second[1] - first[1]) * (self.g.steps - 1)
        host = first[0] + (second[0] - first[0]) * (self.g.steps - 1)
        _, device = run(self.update, knobs, host, max(device, host) + self.reduce * knobs.network)
        return (device + knobs.step) / 1e6

    def _microbatch(self, knobs: Knobs, clocks: tuple[float, float]) -> tuple[float, float]:
        """A layer's gathers and scatters run beside the one before: the longer of both counts."""
        if self.gather:
            return self._sharded(knobs, clocks)
        layers = self.g.layers
        return run((*self.forward * layers, *self.ends, *self.backward * layers), knobs, *clocks)

    def _sharded(self, knobs: Knobs, clocks: tuple[float, float]) -> tuple[float, float]:
        start = max(clocks)
        (_, forward), (_, ends), (_, backward) = (run(items * 4, knobs, 0.0, 0.0) for items in (self.forward, self.ends, self.backward))
        back = max(backward / 4, (self.gather + self.scatter) * knobs.network)
        device = start + self.g.layers * (max(forward / 4, self.gather * knobs.network) + back) + ends / 4 + self.gather * knobs.network
        return device, device
