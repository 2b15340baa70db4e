"""Operators of onnxruntime's own domain (com.microsoft), as its optimiser and its exporters write them."""

from __future__ import annotations

from collections.abc import Sequence

from dmlc.frontend.onnx.emit import type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.ops.constants import range_
from dmlc.frontend.onnx.ops.contraction import channel_bias, gemm, product, scaled
from dmlc.frontend.onnx.ops.gather import gather_nd
from dmlc.frontend.onnx.ops.microsoft_quant import real
from dmlc.frontend.onnx.ops.parts import pad, trilu
from dmlc.frontend.onnx.ops.quant import centred, dynamically_quantized, integer_product
from dmlc.frontend.onnx.ops.recurrent import Activation, lstm_step, recurrent
from dmlc.frontend.onnx.ops.sampling import grid_sample
from dmlc.frontend.onnx.ops.windows import window_attributes
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.values import Tensor
from dmlc.ir.core import Value

MS = "com.microsoft"


@op("Gelu", 1, domain=MS)
def gelu(n: Node) -> Value:
    return n.emit("dmlc.gelu", n[0], approximate="none")


@op("BiasGelu", 1, domain=MS)
def bias_gelu(n: Node) -> Value:
    return n.emit("dmlc.gelu", n.pointwise("dmlc.add", n[0], n.param(1)), approximate="none")


@op("FastGelu", 1, domain=MS)
def fast_gelu(n: Node) -> Value:
    return n.emit("dmlc.gelu", n.pointwise("dmlc.add", n[0], n.param(1)) if n.has(1) else n[0], approximate="tanh")


@op("QuickGelu", 1, domain=MS)
def quick_gelu(n: Node) -> Value:
    return n.pointwise("dmlc.mul", n[0], n.emit("dmlc.sigmoid", n.pointwise("dmlc.mul", n[0], n.attr("alpha", 1.702))))


@op("TransposeMatMul", 1, domain=MS)
@op("FusedMatMul", 1, domain=MS)
def fused_matmul(n: Node) -> Tensor:
    """alpha A B, each with its last two dims swapped on demand, after its first dim was moved before the last (`transBatch`)."""
    a, b = (_turned(n, n.param(i), n.attr(f"transBatch{which}", 0), n.attr(f"trans{which}", 0)) for i, which in enumerate("AB"))
    return scaled(n, product(n, a, b), n.attr("alpha", 1.0))


def _turned(n: Node, t: Tensor, batch: int, last: int) -> Tensor:
    rank = len(type_of(t).shape)
    if rank < 2:
        return t
    dims = [*range(1, rank - 1), 0, rank - 1] if batch else list(range(rank))
    if last:
        dims[-2:] = dims[-1], dims[-2]
    return n.transpose(t, dims)


@op("FusedGemm", 1, domain=MS)
def fused_gemm(n: Node) -> Tensor:
    parameters = [n.attr(f"activation_{name}", None) for name in ("alpha", "beta", "gamma")]
    return _activated(n, gemm(n), n.attr("activation", ""), [p for p in parameters if p is not None])


@op("FusedConv", 1, domain=MS)
def fused_conv(n: Node) -> Tensor:
    """A convolution, a bias, maybe a sum with operand 3, an activation."""
    x: Tensor = n.emit("dmlc.conv", n[0], n.param(1), groups=n.attr("group", 1), **window_attributes(n, n.shape(0)[2:], n.shape(1)[2:]))
    x = channel_bias(n, n.value(x), 2)
    if n.has(3):
        x = n.pointwise("dmlc.add", x, n[3])
    return _activated(n, x, n.attr("activation", ""), n.attr("activation_params", ()))


def _activated(n: Node, x: Tensor, name: str, parameters: Sequence[float]) -> Tensor:
    """An activation by its name, with its parameters in the order of the operator's attributes."""
    if name == "":
        return x
    if name in ("Relu", "Sigmoid", "Tanh", "Softplus"):
        return n.emit(f"dmlc.{name.lower()}", x)
    if name == "Softsign":
        return n.pointwise("dmlc.div", x, n.pointwise("dmlc.add", n.emit("dmlc.abs", x), 1.0))
    keys = {"LeakyRelu": ("leaky_relu", "slope"), "Elu": ("elu", "alpha"), "Clip": ("clamp", "min", "max"), "HardSigmoid": ("hardsigmoid", "alpha", "beta")}
    if name not in keys or len(parameters) < len(keys[name]) - 1:
        raise Unsupported(f"the activation {name} with {len(parameters)} parameters")
    return n.emit(f"dmlc.{keys[name][0]}", x, **dict(zip(keys[name][1:], parameters)))


@op("ExpandDims", 1, domain=MS)
def expand_dims(n: Node) -> Tensor:
    shape = n.shape(0)
    axis = n.axis(n.ints(1, "the axis")[0], len(shape) + 1)
    return n.reshape(n[0], (*shape[:axis], 1, *shape[axis:]))


for _name, _handler in {"Trilu": trilu, "Pad": pad, "GatherND": gather_nd, "Range": range_, "GridSample": grid_sample}.items():
    op(_name, 1, domain=MS)(_handler)


@op("NhwcMaxPool", 1, domain=MS)
def channels_last_max_pool(n: Node) -> Tensor:
    """A pooling of integers whose channels are the last dim."""
    rank, kernel = n.rank(0), n.attr("kernel_shape")
    x = n.transpose(n[0], (0, rank - 1, *range(1, rank - 1)))
    y = n.emit("dmlc.max_pool", x, kernel=kernel, **window_attributes(n, type_of(x).shape[2:], kernel), ceil_mode=bool(n.attr("ceil_mode", 0)))
    return n.transpose(y, (0, *range(2, rank), 1))


# ---------------------------------------------------------------- norms


def _layer_norm(n: Node, x: Tensor, weight: int, bias: int) -> Value:
    size = type_of(x).shape[-1:]
    shift = n.param(bias) if n.has(bias) else n.full(0.0, type_of(x).dtype, size)
    return n.emit("dmlc.layer_norm", x, n.param(weight), shift, eps=n.attr("epsilon", 1e-5), dims=1)


@op("SkipLayerNormalization", 1, domain=MS)
def skip_layer_normalization(n: Node) -> list[Tensor]:
    """Operands: x, skip, scale, shift, bias. Result 3 is the sum that is normalised; statistics are not available."""
    _no_statistics(n)
    total = _skipped(n, 4)
    y = _layer_norm(n, total, 2, 3)
    return [y, y, y, total]


@op("SkipSimplifiedLayerNormalization", 1, domain=MS)
def skip_rms_normalization(n: Node) -> list[Tensor]:
    _no_statistics(n)
    total = _skipped(n, 3)
    y = n.emit("dmlc.rms_norm", total, n.param(2), eps=n.attr("epsilon", 1e-5))
    return [y, y, y, total]


def _no_statistics(n: Node) -> None:
    if n.wants(1) or n.wants(2):
        raise Unsupported("the statistics as results")


def _skipped(n: Node, bias: int) -> Value:
    total = n.pointwise("dmlc.add", n[0], n[1])
    return n.pointwise("dmlc.add", total, n.param(bias)) if n.has(bias) else total


@op("SimplifiedLayerNormalization", 1)
@op("SimplifiedLayerNormalization", 1, domain=MS)
def rms_normalization(n: Node) -> list[Tensor]:
    """onnxruntime writes it into the standard domain too, which has no schema for it."""
    if n.axis(n.attr("axis", -1), n.rank(0)) != n.rank(0) - 1 or n.wants(1):
        raise Unsupported("an axis other than the last, and the statistics as a result")
    return [n.emit("dmlc.rms_norm", n[0], n.param(1), eps=n.attr("epsilon", 1e-5))]


@op("EmbedLayerNormalization", 1, domain=MS)
def embed_layer_normalization(n: Node) -> list[Tensor]:
    """Word, position and segment rows added and normalised. Operands: ids, segments, three tables, scale, shift, mask, positions."""
    rows = [n.emit("dmlc.embedding", n.param(2), n.cast(n[0], "i64")), _position_rows(n, n.param(3), 8)]
    if n.has(1):
        rows.append(n.emit("dmlc.embedding", n.param(4), n.cast(n[1], "i64")))
    total = _summed(n, rows)
    return [_layer_norm(n, total, 5, 6), _counted(n, 7) if n.wants(1) else total, total]


def _position_rows(n: Node, table: Tensor, ids: int) -> Tensor:
    return n.emit("dmlc.embedding", table, n.cast(n[ids], "i64")) if n.has(ids) else n.slice(table, 0, 0, n.shape(0)[1])


def _summed(n: Node, rows: Sequence[Tensor]) -> Tensor:
    total = rows[0]
    for row in rows[1:]:
        total = n.pointwise("dmlc.add", total, row)
    return total


def _counted(n: Node, mask: int) -> Tensor:
    """How many tokens of each sequence the mask admits; 0 without one, as onnxruntime has it."""
    return n.reduce("sum", n.cast(n[mask], "i32"), (1,), False) if n.has(mask) else n.full(0, "i32", n.shape(0)[:1])


@op("QEmbedLayerNormalization", 1, domain=MS)
def quantised_embed_layer_normalization(n: Node) -> list[Tensor]:
    """Operands: ids, segments, three tables, scale, shift (all five as integers), mask, five scales, five zero points."""
    rows = []
    for table, ids in ((2, n.cast(n[0], "i64")), (3, None), (4, n.cast(n[1], "i64") if n.has(1) else None)):
        if table != 3 and ids is None:
            continue
        row = n.emit("dmlc.take", n[table], ids, dim=0) if ids is not None else n.slice(n[table], 0, 0, n.shape(0)[1])
        rows.append(real(n, row, 6 + table, 11 + table))
    scale, shift = real(n, n[5], 11, 16), real(n, n[6], 12, 17)
    y = n.emit("dmlc.layer_norm", _summed(n, rows), scale, shift, eps=n.attr("epsilon", 1e-5), dims=1)
    return [y, _counted(n, 7)]


# ---------------------------------------------------------------- quantised


@op("MatMulIntegerToFloat", 1, domain=MS)
def matmul_integer_to_float(n: Node) -> Tensor:
    """Operands: a, b, their scales, their zero points, a bias."""
    y = n.cast(integer_product(n, 0, 1, 4, 5), "f32")
    y = n.pointwise("dmlc.mul", y, n.pointwise("dmlc.mul", n[2], n[3]))
    return n.pointwise("dmlc.add", y, n[6]) if n.has(6) else y


@op("DynamicQuantizeMatMul", 1, domain=MS)
def dynamic_quantize_matmul(n: Node) -> Tensor:
    """Operands: a (quantised by its range), b, scale, zero point, bias."""
    y = _dynamic_product(n, n[0], n[1], n[2], n.get(3))
    return n.pointwise("dmlc.add", y, n.param(4)) if n.has(4) else y


def _dynamic_product(n: Node, a: Tensor, b: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    quantised, scale_a, zero_a = dynamically_quantized(n, a)
    dtype = "f32" if type_of(b).shape[-2] <= 256 else "f64"
    exact = n.emit("dmlc.matmul", centred(n, quantised, zero_a, dtype), centred(n, b, zero, dtype))
    return n.pointwise("dmlc.mul", n.cast(exact, "f32"), n.pointwise("dmlc.mul", scale_a, scale))


@op("DynamicQuantizeLSTM", 1, domain=MS)
def dynamic_quantize_lstm(n: Node) -> list[Tensor]:
    """An LSTM whose weights [directions, inputs, 4 h] are integers with scales and zero points in operands 8 to 11."""

    def product_of(n: Node, i: int, d: int) -> Activation:
        scale, zero = (n.pick(n[k], 0, d) for k in (6 + 2 * i, 7 + 2 * i))
        weight = n.pick(n[i], 0, d)
        return lambda t: _rows(n, t, lambda rows: _dynamic_product(n, rows, weight, scale, zero))

    return recurrent(n, 4, ("Sigmoid", "Tanh", "Tanh"), (5, 6), lstm_step, product_of)


def _rows(n: Node, t: Tensor, then: Activation) -> Tensor:
    """Applied to the tensor as a matrix: all leading dims are rows."""
    shape = type_of(t).shape
    if len(shape) == 2:
        return then(t)
    return n.reshape(then(n.reshape(t, (shape[0] * shape[1], shape[2]))), (*shape[:2], 4 * n.attr("hidden_size")))
