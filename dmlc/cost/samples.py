"""Prices corrected by samples: single calls that `dmlc profile` timed, by kind and features (`dmlc.measure.calls` says which)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from dmlc.cost import work
from dmlc.cost.cost import PICO
from dmlc.cost.measured import Features
from dmlc.cost.work import Product
from dmlc.ir.core import Op

REDUCTIONS = ("reduction", "softmax", "log_softmax", "layer_norm", "rms_norm", "batch_norm")
STAND_IN = {work.REDUCTION: "reduction", work.MOVEMENT: "copy", work.INDEXED: "indexed"}  # for an op of the class that was not sampled itself


def like(op: Op, kind: str | None, moved: int, sampled: Callable[[str], bool]) -> tuple[str, Features]:
    """The kind of sample that an op of class `kind` is like, and its features; `sampled` says what there are samples of."""
    name = op.name.partition(".")[2]
    if kind == work.CONTRACTION:
        p = work.product_of(op)
        return "matmul", (p.batch, p.m, p.n, p.k)
    if kind == work.CONVOLUTION:
        return name, convolution_features(op)
    if kind == work.ATTENTION:
        first = 0 if name == "attention" else 1
        (b, h, t, d), s = op.operands[first].shape, op.operands[first + 1].shape[2]
        return name, (b * h, t, s, d)
    return (name if sampled(name) else STAND_IN.get(kind or "", "pointwise")), (moved,)


def convolution_features(op: Op) -> Features:
    """Images, input and output channels a group, groups, cells of the kernel, windows of an image."""
    groups = op.attrs.get("groups", 1)
    weight = op.results[0].shape if op.name == "dmlc.conv_weight_grad" else op.operands[1].shape
    images, cells = op.operands[0].shape[0], 1
    for n in weight[2:]:
        cells *= n
    each = max(images * groups * weight[1] * max(weight[0] // groups, 1) * cells, 1)
    return images, weight[1], weight[0] // groups, groups, cells, max(work.multiply_adds(op) // each, 1)


def product_like(kind: str, features: Features) -> Product:
    """The matrix product that a sample of a product or a convolution is."""
    if kind == "matmul":
        return Product(*features)
    images, c, o, groups, cells, windows = features
    if kind == "conv_weight_grad":
        return Product(groups, o, c * cells, images * windows)
    return Product(groups, images * windows, c, o * cells) if kind == "conv_input_grad" else Product(groups, images * windows, o, c * cells)


@lru_cache(maxsize=1 << 16)
def corrected(plain: int, features: Features, samples: tuple[tuple[Features, int, int], ...]) -> int:
    """`plain` times measured / modelled of the samples around, each with the weight 1 / distance^2 (in octaves of the features): of one feature
    the two neighbours, of several the four nearest."""
    weights = []
    for at, time, modelled in samples:
        distance = sum((octaves(a) - octaves(b)) ** 2 for a, b in zip(at, features))
        weights.append((distance, time, max(modelled, 1)))
    weights.sort(key=lambda w: w[0])
    if weights[0][0] == 0:
        return plain * weights[0][1] // weights[0][2]
    nearest = weights[: 4 if len(features) > 1 else 2]
    total = sum(PICO // d for d, _, _ in nearest)
    return sum(PICO // d * (plain * time // modelled) for d, time, modelled in nearest) // max(total, 1)


@lru_cache(maxsize=1 << 14)
def octaves(size: int) -> int:
    """16 log2(size), rounded down, without floating point."""
    return (max(size, 1) ** 16).bit_length()
