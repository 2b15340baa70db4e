"""What an op does, as prices need it: its class, the matrix product it is, how much it computes and moves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dmlc.ir import registry
from dmlc.ir.core import Op, Value
from dmlc.ir.open_sizes import representative
from dmlc.ir.types import FutureType, TensorType, Type
from dmlc.ops.base import flops_of, index_of, rule_of

CONTRACTION, CONVOLUTION, ATTENTION = "contraction", "convolution", "attention"
POINTWISE, REDUCTION, MOVEMENT, INDEXED, VIEW = "pointwise", "reduction", "movement", "indexed", "view"

# Definitions by the file of `dmlc.ops` that holds them; what differs from its file's class is named.
CLASSES = {
    "contraction": CONTRACTION, "convolution": CONVOLUTION, "attention": ATTENTION, "pointwise": POINTWISE, "pointwise_binary": POINTWISE, "pointwise_unary": POINTWISE,
    "activation_grads": POINTWISE, "updates": POINTWISE, "random": POINTWISE, "training": POINTWISE, "source": POINTWISE, "residual": POINTWISE,
    "reduction": REDUCTION, "softmax": REDUCTION, "norm": REDUCTION, "norm_channels": REDUCTION, "batch_norm": REDUCTION, "loss": REDUCTION, "pooling": REDUCTION, "scan": REDUCTION,
    "movement": MOVEMENT, "layout": MOVEMENT, "padding": MOVEMENT, "resizing": MOVEMENT, "structural": MOVEMENT,
    "gather": INDEXED, "scatter": INDEXED,
}  # fmt: skip
OTHERS = dict.fromkeys(("dmlc.running_average", "dmlc.running_part", "dmlc.rank_moments", "dmlc.mean_over_ranks"), POINTWISE)
UNSURE = frozenset({"dmlc.sort", "dmlc.topk", "dmlc.resize", "dmlc.resize_grad"})  # far from one pass over memory: their price is a default


def kind_of(op: Op) -> str | None:
    """The class of an op by which its efficiency is known; None when no price but a default fits."""
    found = registry.lookup(op.name)
    if found is None or op.name in UNSURE:
        return None
    return OTHERS.get(op.name) or CLASSES.get(found.__module__.rpartition(".")[2])


def is_view(op: Op) -> bool:
    """Whether the op moves nothing: a view, or something that costs no time by its definition."""
    found = registry.lookup(op.name)
    return found is not None and op.name not in ("kernel.fused", "kernel.call") and (found.view is not None or found.cost == "free")


def type_bytes(type_: Type) -> int:
    """Bytes of a value, at the representative sizes where some are open."""
    if isinstance(type_, TensorType):
        return type_.least_bytes
    return sum(map(type_bytes, type_.types)) if isinstance(type_, FutureType) else 0


def bytes_of(values: Iterable[Value]) -> int:
    return sum(type_bytes(v.type) for v in values)


def elements_of(op: Op) -> int:
    """Elements of the largest operand or result."""
    return max((math.prod(map(representative, v.shape)) for v in (*op.operands, *op.results) if isinstance(v.type, TensorType)), default=0)


def read_bytes(ops: Sequence[Op], reads: Iterable[Value]) -> int:
    """Bytes read; a table that is indexed is read only where the result asks for it."""
    values = dict.fromkeys(reads)
    if len(ops) == 1 and registry.lookup(ops[0].name) is not None and index_of(ops[0]):
        return sum(min(type_bytes(v.type), bytes_of(ops[0].results)) for v in values)
    return bytes_of(values)


def multiply_adds(op: Op) -> int:
    """Of one op without regions; 0 for one that is memory bound or not known."""
    return flops_of(op) if registry.lookup(op.name) is not None and not op.regions else 0


@dataclass(frozen=True)
class Product:
    """A batch of matrix products of m x k by k x n."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def macs(self) -> int:
        return self.batch * self.m * self.n * self.k


def product_of(op: Op) -> Product:
    """The matrix product that a contraction is, or that a convolution is once its windows are rows (implicit GEMM): the number of
    multiply-adds is the op's own."""
    return _convolution(op) if kind_of(op) == CONVOLUTION else _contraction(op)


def _contraction(op: Op) -> Product:
    rule, sizes = rule_of(op), rule_of(op).sizes
    left = {f for dim in rule.operands[0] for f in dim}
    right = {f for dims in rule.operands[1:] for dim in dims for f in dim}
    out = rule.result_factors

    def size(factors: Iterable[str]) -> int:
        return math.prod(n if isinstance(n := sizes[f], int) else 1 for f in factors)

    return Product(size(left & right & out), size((left & out) - right), size((right & out) - left), size((left | right) - out))


def _convolution(op: Op) -> Product:
    """Rows are windows (or cells of the image, for its gradient), columns output channels; of a weight's gradient, rows are output channels."""
    macs = multiply_adds(op)
    groups = op.attrs.get("groups", 1)
    weight = op.results[0].shape if op.name == "dmlc.conv_weight_grad" else op.operands[1].shape
    kernel = math.prod(weight[1:])
    outputs = max(weight[0] // groups, 1)
    if op.name == "dmlc.conv_weight_grad":
        m, n = outputs, kernel
    elif op.name == "dmlc.conv":
        m, n = max(macs // max(groups * outputs * kernel, 1), 1), outputs
        return Product(groups, m, n, kernel)
    else:
        n = max(weight[1], 1)
        k = max(outputs * kernel // n, 1)
        return Product(groups, max(macs // max(groups * n * k, 1), 1), n, k)
    return Product(groups, m, n, max(macs // max(groups * m * n, 1), 1))
