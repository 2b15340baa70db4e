"""Operators of com.microsoft on integers with one scale and zero point: computed on the numbers they stand for and rounded once, at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dmlc.frontend.onnx.emit import concrete, type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.ops.contraction import exact_float
from dmlc.frontend.onnx.ops.quant import centred, dequantize_linear, qlinear_conv, quantize_linear, saturated
from dmlc.frontend.onnx.ops.windows import window_attributes
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.values import Known, Tensor

MS = "com.microsoft"

op("QuantizeLinear", 1, domain=MS)(quantize_linear)
op("DequantizeLinear", 1, domain=MS)(dequantize_linear)


def real(n: Node, x: Tensor | int, scale: int, zero: int) -> Tensor:
    """A tensor, or operand x, as the numbers it stands for, in f32. `scale` and `zero` are operands."""
    offset = n.reshape(n[zero], ()) if n.has(zero) else None
    return n.pointwise("dmlc.mul", centred(n, n[x] if isinstance(x, int) else x, offset, "f32"), n.cast(n.reshape(n[scale], ()), "f32"))


def stored(n: Node, y: Tensor, scale: int, zero: int, dtype: str) -> Tensor:
    """Numbers as integers of `dtype` with the scale and zero point in two operands."""
    scaled = n.pointwise("dmlc.div", y, n.cast(n.reshape(n[scale], ()), "f32"))
    return saturated(n, scaled, n.reshape(n[zero], ()) if n.has(zero) else None, dtype)


def _binary(name: str) -> Callable[[Node], Tensor]:
    """Operands: a, its scale and zero point, b, its scale and zero point, the result's scale and zero point."""
    return lambda n: stored(n, n.pointwise(name, real(n, 0, 1, 2), real(n, 3, 4, 5)), 6, 7, n.dtype(0))


op("QLinearAdd", 1, domain=MS)(_binary("dmlc.add"))
op("QLinearMul", 1, domain=MS)(_binary("dmlc.mul"))


def _unary(compute: Callable[[Node, Tensor], Tensor]) -> Callable[[Node], Tensor]:
    """Operands: x, its scale and zero point, the result's scale and zero point."""
    return lambda n: stored(n, compute(n, real(n, 0, 1, 2)), 3, 4, n.dtype(0))


def _softmax(n: Node, x: Tensor) -> Tensor:
    """Along one dim, or before operator set 13 over all dims from the axis on."""
    shape = concrete(x)
    newer = n.attr("opset") >= 13
    dim = n.axis(n.attr("axis", -1 if newer else 1), len(shape))
    if newer:
        return n.emit("dmlc.softmax", x, dim=dim)
    flat = n.reshape(x, (math.prod(shape[:dim]), math.prod(shape[dim:])))
    return n.reshape(n.emit("dmlc.softmax", flat, dim=1), shape)


def _channels_first(n: Node, x: Tensor) -> Tensor:
    rank = len(concrete(x))
    return n.transpose(x, (0, rank - 1, *range(1, rank - 1))) if n.attr("channels_last", 0) else x


def _channels_back(n: Node, x: Tensor) -> Tensor:
    rank = len(concrete(x))
    return n.transpose(x, (0, *range(2, rank), 1)) if n.attr("channels_last", 0) else x


def _average_pool(n: Node, x: Tensor) -> Tensor:
    x, kernel = _channels_first(n, x), n.attr("kernel_shape")
    attributes = window_attributes(n, concrete(x)[2:], kernel)
    del attributes["dilation"]
    y = n.emit("dmlc.avg_pool", x, kernel=kernel, **attributes, ceil_mode=bool(n.attr("ceil_mode", 0)), count_include_pad=bool(n.attr("count_include_pad", 0)))
    return _channels_back(n, y)


def _global_average_pool(n: Node, x: Tensor) -> Tensor:
    x = _channels_first(n, x)
    return _channels_back(n, n.mean(x, tuple(range(2, len(concrete(x))))))


for _name, _compute in {
    "QLinearSigmoid": lambda n, x: n.emit("dmlc.sigmoid", x),
    "QLinearLeakyRelu": lambda n, x: n.emit("dmlc.leaky_relu", x, slope=n.attr("alpha", 0.01)),
    "QLinearSoftmax": _softmax,
    "QLinearAveragePool": _average_pool,
    "QLinearGlobalAveragePool": _global_average_pool,
}.items():
    op(_name, 1, domain=MS)(_unary(_compute))


@op("QLinearConcat", 1, domain=MS)
def qlinear_concat(n: Node) -> Tensor:
    """Operands: the result's scale and zero point, then a tensor, its scale and zero point for each part."""
    parts = [real(n, i, i + 1, i + 2) for i in range(2, len(n.operands), 3)]
    return stored(n, n.concat(parts, n.axis(n.attr("axis"), len(concrete(parts[0])))), 0, 1, n.dtype(2))


@op("QLinearWhere", 1, domain=MS)
def qlinear_where(n: Node) -> Tensor:
    return stored(n, n.select(n[0], real(n, 1, 2, 3), real(n, 4, 5, 6)), 7, 8, n.dtype(1))


@op("QLinearConv", 1, domain=MS)
def qlinear_convolution(n: Node) -> Tensor:
    """As the standard one; with `channels_last` the image has its channels in the last dim, the kernel does not."""
    given, n.operands = n.operands, [_channels_first(n, n[0]), *n.operands[1:]]
    try:
        return _channels_back(n, qlinear_conv(n))
    finally:
        n.operands = given


@op("QGemm", 1, domain=MS)
def qgemm(n: Node) -> Tensor:
    """Operands: a, scale, zero point, b, scale, zero point (one, or one a column), c in i32 in units of both scales, the result's scale and zero point.

    Without the latter two the result is in f32.
    """
    a, b = (_matrix(n, i, zero, n.attr(name, 0), per_row) for i, zero, name, per_row in ((0, 2, "transA", False), (3, 5, "transB", bool(n.attr("transB", 0)))))
    dtype = exact_float(concrete(a)[1])
    total: Tensor = n.emit("dmlc.matmul", n.cast(a, dtype), n.cast(b, dtype))
    if n.has(6):
        total = n.pointwise("dmlc.add", n.cast(total, "f64"), n.cast(n[6], "f64"))
    factor = n.pointwise(
        "dmlc.mul", n.pointwise("dmlc.mul", n.reshape(n[1], ()), n[4] if math.prod(n.shape(4)) > 1 else n.reshape(n[4], ())), n.attr("alpha", 1.0)
    )
    y = n.pointwise("dmlc.mul", n.cast(total, "f32"), factor)
    return stored(n, y, 7, 8, n.dtype(8)) if n.has(7) else y


def _matrix(n: Node, i: int, zero: int, transposed: int, per_row: bool) -> Tensor:
    """Operand i less its zero point, transposed on demand."""
    offset = None
    if n.has(zero):
        offset = n.reshape(n[zero], () if math.prod(n.shape(zero)) == 1 else (n.shape(zero)[0], 1) if per_row else n.shape(zero))
    x = centred(n, n[i], offset, "f32")
    return n.transpose(x, (1, 0)) if transposed else x


@op("MatMulInteger16", 1, domain=MS)
def matmul_integer_16(n: Node) -> Tensor:
    """16-bit integers; the sum wraps at 32 bits, as i64's low half does."""
    wide = n.emit("dmlc.matmul", n.cast(n[0], "f64"), n.cast(n[1], "f64"))
    return n.cast(n.cast(wide, "i64"), "i32")


# ---------------------------------------------------------------- weights of a few bits


def unpacked(n: Node, packed: Tensor, bits: int) -> Tensor:
    """Bytes [..., m] as the integers [..., m * 8 / bits] packed in them, low bits first, in ui8."""
    if bits == 8:
        return packed
    if bits not in (2, 4):
        raise Unsupported(f"weights of {bits} bits")
    shape, mask = concrete(packed), (1 << bits) - 1
    wide = n.cast(packed, "i32")
    parts = [n.pointwise("dmlc.bitwise_and", n.pointwise("dmlc.shift_right", wide, low) if low else wide, mask) for low in range(0, 8, bits)]
    return n.cast(n.reshape(n.concat([n.reshape(p, (*shape, 1)) for p in parts], len(shape)), (*shape[:-1], shape[-1] * len(parts))), "ui8")


@op("MatMulNBits", 1, domain=MS)
def matmul_n_bits(n: Node) -> Tensor:
    """Operands: x [..., k], weights [n, blocks, bytes], scales [n, blocks], zero points, an order of groups, a bias [n].

    Zero points are packed as weights are, or of the scales' dtype; left out they are half the range. `accuracy_level` only allows less
    precision than is computed here.
    """
    if n.has(4) or n.attr("weight_prepacked", 0):
        raise Unsupported("an order of groups, and weights packed for one device")
    bits, block, rows, columns = n.attr("bits", 4), n.attr("block_size"), n.attr("N"), n.attr("K")
    blocks = -(-columns // block)
    dtype = n.dtype(0)
    weight = n.cast(unpacked(n, n.reshape(n[1], (rows, blocks, block * bits // 8)), bits), dtype)
    weight = n.pointwise("dmlc.sub", weight, _zero_points(n, bits, rows, blocks, dtype))
    weight = n.pointwise("dmlc.mul", weight, n.reshape(n[2], (rows, blocks, 1)))
    weight = n.slice(n.reshape(weight, (rows, blocks * block)), 1, 0, columns)
    y = n.emit("dmlc.linear", n[0], weight)
    return n.pointwise("dmlc.add", y, n.param(5)) if n.has(5) else y


def _zero_points(n: Node, bits: int, rows: int, blocks: int, dtype: str) -> Tensor | float:
    if not n.has(3):
        return float(1 << (bits - 1))
    zero = n[3]
    if type_of(zero).dtype == "ui8":
        packed = n.reshape(zero, (rows, -(-blocks * bits // 8)))
        zero = n.slice(unpacked(n, packed, bits), 1, 0, blocks)
    return n.cast(n.reshape(zero, (rows, blocks, 1)), dtype)


FP4 = (0.0, 0.0052083334, 0.6666667, 1.0, 0.33333334, 0.5, 0.16666667, 0.25)  # then their negatives: bitsandbytes' 4-bit float
NF4 = (-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0,
       0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0)  # fmt: skip  # Dettmers et al. 2023, appendix E


@op("MatMulBnb4", 1, domain=MS)
def matmul_bnb4(n: Node) -> Tensor:
    """Operands: x [..., k], weights (two a byte, the first in the high bits, of a flattened [n, k]), the largest magnitude of each block of them."""
    if not n.attr("transB", 1):
        raise Unsupported("transB = 0")
    rows, columns, block = n.attr("N"), n.attr("K"), n.attr("block_size")
    size = n.shape(1)[0]
    pairs = n.reshape(unpacked(n, n.reshape(n[1], (size, 1)), 4), (size, 2))
    table = NF4 if n.attr("quant_type") else (*FP4, *(-v for v in FP4))
    values = n.emit("dmlc.take", Known.of(table, n.dtype(0)), n.cast(n.reshape(n.emit("dmlc.flip", pairs, dims=(1,)), (2 * size,)), "i64"), dim=0)
    total = rows * columns
    blocks = -(-total // block)
    largest = n.slice(n.reshape(n.broadcast(n.reshape(n[2], (blocks, 1)), (blocks, block)), (blocks * block,)), 0, 0, total)
    weight = n.pointwise("dmlc.mul", n.slice(values, 0, 0, total), n.cast(largest, n.dtype(0)))
    return n.emit("dmlc.linear", n[0], n.reshape(weight, (rows, columns)))


@op("GatherBlockQuantized", 1, domain=MS)
def gather_block_quantized(n: Node) -> Tensor:
    """Rows of a table of integers, dequantised along another dim in blocks. Operands: table, places, scales, zero points."""
    rank, bits, block = n.rank(0), n.attr("bits", 4), n.attr("block_size", 128)
    gathered, blocked = n.axis(n.attr("gather_axis", 0), rank), n.axis(n.attr("quantize_axis", 1), rank)
    if gathered != 0 or blocked != rank - 1 or not block:
        raise Unsupported("rows other than along the first dim, and blocks other than along the last")
    packed = n.elements[0] is None and n.dtype(0) == "ui8" and bits < 8
    index = n.cast(n[1], "i64")
    index = n.select(n.pointwise("dmlc.lt", index, 0), n.pointwise("dmlc.add", index, n.shape(0)[0]), index)
    rows, scales = (n.emit("dmlc.take", n[i], index, dim=0) for i in (0, 2))
    dtype = n.dtype(2)
    x = n.cast(unpacked(n, rows, bits) if packed else rows, dtype)
    if n.has(3):
        zero = n.emit("dmlc.take", n[3], index, dim=0)
        zero = n.slice(unpacked(n, zero, bits), len(concrete(zero)) - 1, 0, concrete(scales)[-1]) if packed else zero
        x = n.pointwise("dmlc.sub", x, _spread(n, n.cast(zero, dtype), block, concrete(x)[-1]))
    elif n.dtype(0) == "ui8" and packed:
        x = n.pointwise("dmlc.sub", x, float(1 << (bits - 1)))
    return n.pointwise("dmlc.mul", x, _spread(n, scales, block, concrete(x)[-1]))


def _spread(n: Node, t: Tensor, block: int, size: int) -> Tensor:
    """[..., blocks] repeated to [..., size]."""
    shape: Sequence[int] = concrete(t)
    wide = n.broadcast(n.reshape(t, (*shape, 1)), (*shape, block))
    return n.slice(n.reshape(wide, (*shape[:-1], shape[-1] * block)), len(shape) - 1, 0, size)
