"""Matrix products and convolutions. A bias is an op of its own: a contraction that is summed over ranks must not add it once a rank."""

from __future__ import annotations

from collections.abc import Sequence

from dmlc.frontend.onnx.emit import type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.ops.windows import conv_transpose_padding, window_attributes
from dmlc.frontend.onnx.table import Unsupported, op
from dmlc.frontend.onnx.values import Tensor
from dmlc.ir.core import Value
from dmlc.ir.location import DmlcError
from dmlc.ir.types import FLOATS

EXACT_INTEGERS = {"f32": 1 << 24, "f64": 1 << 53}  # integers a float dtype holds exactly


@op("MatMul", 1, 9, 13)
def matmul(n: Node) -> Tensor:
    return product(n, n.param(0), n.param(1))


def product(n: Node, a: Tensor, b: Tensor) -> Tensor:
    """NumPy's matrix product: a vector on the left is a row, on the right a column, and the added dim goes away again.

    A right factor that is a transposed matrix makes a linear layer.
    """
    shape_a, shape_b = type_of(a).shape, type_of(b).shape
    if not shape_a or not shape_b:
        raise DmlcError("a scalar has no matrix product")
    if type_of(a).dtype not in FLOATS:
        raise Unsupported(f"a matrix product of {type_of(a).dtype}")
    weight = transposed_weight(n.value(b))
    if weight is not None:
        return n.emit("dmlc.linear", a, weight)
    left = n.reshape(a, (1, *shape_a)) if len(shape_a) == 1 else a
    right = n.reshape(b, (*shape_b, 1)) if len(shape_b) == 1 else b
    result = n.emit("dmlc.matmul", left, right)
    lead, rows, columns = result.shape[:-2], result.shape[-2:-1], result.shape[-1:]
    return n.reshape(result, (*lead, *(rows if len(shape_a) > 1 else ()), *(columns if len(shape_b) > 1 else ())))


def transposed_weight(value: Value) -> Value | None:
    """The matrix behind a value that is its plain transpose."""
    made = value.op
    if made is None or made.name != "dmlc.transpose" or made.attrs["perm"] != (1, 0):
        return None
    return made.operands[0]


def exact_float(terms: int, largest_product: int = 255 * 255) -> str:
    """The float dtype in which a sum of so many integer products is exact."""
    return "f32" if terms * largest_product <= EXACT_INTEGERS["f32"] else "f64"


@op("Gemm", 7, 9, 11, 13)
def gemm(n: Node) -> Tensor:
    """alpha A B + beta C, A and B transposed on demand; a transposed B is the weight of a linear layer."""
    a = n.transpose(n[0], (1, 0)) if n.attr("transA", 0) else n[0]
    if n.rank(0) != 2 or n.rank(1) != 2:
        raise DmlcError(f"A and B must be matrices, not of rank {n.rank(0)} and {n.rank(1)}")
    y: Tensor = n.emit("dmlc.linear", a, n.param(1)) if n.attr("transB", 0) else product(n, a, n.param(1))
    y = scaled(n, y, n.attr("alpha", 1.0))
    return n.pointwise("dmlc.add", y, scaled(n, n.param(2), n.attr("beta", 1.0))) if n.has(2) and n.attr("beta", 1.0) else y


@op("Gemm", 6)
def gemm_broadcast(n: Node) -> Tensor:
    if n.attr("broadcast", 0) == 0 and n.shape(2) != (n.shape(0)[1 if n.attr("transA", 0) else 0], n.shape(1)[0 if n.attr("transB", 0) else 1]):
        raise DmlcError(f"C has shape {list(n.shape(2))} and broadcast is not set")
    return gemm(n)


def scaled(n: Node, t: Tensor, factor: float) -> Tensor:
    return t if factor == 1.0 else n.pointwise("dmlc.mul", t, factor)


@op("Det", 11, 22)
def det(n: Node) -> Tensor:
    if n.rank(0) < 2 or n.shape(0)[-1] != n.shape(0)[-2]:
        raise DmlcError(f"a tensor of shape {list(n.shape(0))} holds no square matrices")
    wide = n.dtype(0) if n.dtype(0) == "f64" else "f32"
    return n.cast(n.emit("dmlc.det", n.cast(n[0], wide)), n.dtype(0))


# ---------------------------------------------------------------- convolution


@op("Conv", 1, 11, 22)
def conv(n: Node) -> Tensor:
    kernel = n.shape(1)[2:]
    _check_kernel(n, kernel)
    x = n.emit("dmlc.conv", n[0], n.param(1), groups=n.attr("group", 1), **window_attributes(n, n.shape(0)[2:], kernel))
    return channel_bias(n, x, 2)


@op("ConvTranspose", 1, 11, 22)
def conv_transpose(n: Node) -> Tensor:
    kernel = n.shape(1)[2:]
    _check_kernel(n, kernel)
    x = n.emit("dmlc.conv_transpose", n[0], n.param(1), groups=n.attr("group", 1), **conv_transpose_padding(n, n.shape(0)[2:], kernel))
    return channel_bias(n, x, 2)


def _check_kernel(n: Node, kernel: Sequence[int]) -> None:
    named = n.attr("kernel_shape", tuple(kernel))
    if tuple(named) != tuple(kernel):
        raise DmlcError(f"kernel_shape {list(named)} differs from the weight's {list(kernel)}")


def channel_bias(n: Node, x: Value, i: int) -> Value:
    """Add operand i, if given, along dim 1."""
    if not n.has(i):
        return x
    return n.pointwise("dmlc.add", x, n.reshape(n.param(i), (n.shape(i)[0], *(1,) * (len(x.shape) - 2))))
