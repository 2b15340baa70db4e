"""Operators of onnxruntime's own domain (com.microsoft), as its optimiser and its exporters write them."""

from __future__ import annotations

from dmlc.frontend.onnx.emit import type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.ops.contraction import channel_bias, product, scaled
from dmlc.frontend.onnx.ops.quant import centred, dynamically_quantized, integer_product
from dmlc.frontend.onnx.ops.recurrent import Activation, lstm_step, recurrent
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


@op("FusedMatMul", 1, domain=MS)
def fused_matmul(n: Node) -> Tensor:
    if n.attr("transBatchA", 0) or n.attr("transBatchB", 0):
        raise Unsupported("transBatchA and transBatchB")
    a, b = (_last_two_swapped(n, n.param(i)) if n.attr(name, 0) else n.param(i) for i, name in enumerate(("transA", "transB")))
    return scaled(n, product(n, a, b), n.attr("alpha", 1.0))


def _last_two_swapped(n: Node, t: Tensor) -> Tensor:
    rank = len(type_of(t).shape)
    return n.transpose(t, (*range(rank - 2), rank - 1, rank - 2)) if rank > 1 else t


@op("FusedConv", 1, domain=MS)
def fused_conv(n: Node) -> Tensor:
    """A convolution, a bias, maybe a sum with operand 3, an activation."""
    x: Tensor = n.emit("dmlc.conv", n[0], n.param(1), groups=n.attr("group", 1), **window_attributes(n, n.shape(0)[2:], n.shape(1)[2:]))
    x = channel_bias(n, n.value(x), 2)
    if n.has(3):
        x = n.pointwise("dmlc.add", x, n[3])
    parameters = n.attr("activation_params", ())
    name = n.attr("activation", "")
    if name == "":
        return x
    if name in ("Relu", "Sigmoid", "Tanh"):
        return n.emit(f"dmlc.{name.lower()}", x)
    if name == "LeakyRelu":
        return n.emit("dmlc.leaky_relu", x, slope=parameters[0])
    if name == "Clip":
        return n.emit("dmlc.clamp", x, min=parameters[0], max=parameters[1])
    if name == "HardSigmoid":
        return n.emit("dmlc.hardsigmoid", x, alpha=parameters[0], beta=parameters[1])
    raise Unsupported(f"the activation {name}")


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
    if n.wants(1):
        raise Unsupported("the mask index as a result")
    total: Tensor = n.emit("dmlc.embedding", n.param(2), n.cast(n[0], "i64"))
    length = n.shape(0)[1]
    positions = n.emit("dmlc.embedding", n.param(3), n.cast(n[8], "i64")) if n.has(8) else n.slice(n.param(3), 0, 0, length)
    total = n.pointwise("dmlc.add", total, positions)
    if n.has(1):
        total = n.pointwise("dmlc.add", total, n.emit("dmlc.embedding", n.param(4), n.cast(n[1], "i64")))
    return [_layer_norm(n, total, 5, 6), total, total]


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


