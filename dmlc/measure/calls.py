"""The single PyTorch calls that `dmlc profile` times, and the features their times are kept under.

kind                                       features
dispatch                                   ()                       one addition of one element
pointwise, exp, gelu, ...                  (bytes read + written,)  into a new tensor; "pointwise" is an addition
copy                                       (bytes read + written,)  a transposed square matrix
concat                                     (bytes read + written,)  of eight vectors
reduction                                  (bytes read + written,)  sums of rows of 512
softmax, layer_norm, batch_norm            (bytes read + written,)  of rows of 512; of images with 64 channels
indexed                                    (bytes of the result twice,)  rows of 512 from a table
matmul                                     (batch, m, n, k)         linear for a batch of 1, else a batched product
conv, conv_input_grad, conv_weight_grad    (images, channels a group, output channels a group, groups, kernel positions, output positions)
attention, attention_grad                  (batch x heads, queries, keys, head size)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dmlc.measure.timer import Run

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
KIB, MIB = 2**10, 2**20
ROW = 512
COLD = 64 * MIB  # bytes that no cache holds

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "pow": lambda x: torch.pow(x, 3.0),
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"mul": torch.mul, "div": torch.div, "maximum": torch.maximum}
IMAGES = (  # images, channels, output channels, groups, kernel, stride, size of the input: layers of ResNets and a depthwise one
    (8, 3, 64, 1, 7, 2, 112),
    (8, 64, 64, 1, 3, 1, 28),
    (8, 128, 128, 1, 3, 2, 28),
    (8, 256, 256, 1, 3, 1, 14),
    (8, 64, 256, 1, 1, 1, 28),
    (8, 128, 128, 128, 3, 1, 28),
)
HEADS = ((8, 64, 64, 64), (16, 256, 256, 64), (4, 1024, 1024, 64), (16, 32, 512, 64))


@dataclass(frozen=True)
class Call:
    """`make()` gives what is run, with its tensors; they live until it is measured."""

    kind: str
    dtype: str
    features: tuple[int, ...]
    make: Callable[[], Run]


def calls(device: torch.device, quick: bool) -> list[Call]:
    """What is timed on a device; `quick` leaves out most sizes."""
    dtypes = ("f32", "bf16", "f16") if device.type == "cuda" else ("f32", "bf16")
    found = [Call("dispatch", "f32", (), lambda: _binary(torch.add, 1, torch.float32, device))]
    for dtype in dtypes:
        small = quick or (device.type == "cpu" and dtype != "f32")
        found += [*_pointwise(dtype, device, small), *_concats(dtype, device, small), *_rows(dtype, device, small), *_matmuls(dtype, device, small), *_convolutions(dtype, device, small)]
        found += _attentions(dtype, device, small)
    return found


# ---------------------------------------------------------------- bound by memory


def _draw(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Values in 0.5 to 1.5, where every function is at home."""
    return (torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 0.5).to(device, dtype)


def _binary(function: Callable, n: int, dtype: torch.dtype, device: torch.device) -> Run:
    a, b = _draw((n,), dtype, device), _draw((n,), dtype, device)
    return lambda: function(a, b)


def _unary(function: Callable, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Run:
    x = _draw(shape, dtype, device)
    return lambda: function(x)


def _pointwise(dtype: str, device: torch.device, small: bool) -> Iterator[Call]:
    kind, item = DTYPES[dtype], DTYPES[dtype].itemsize
    for total in (64 * KIB, 16 * MIB) if small else (KIB * 4**i for i in range(10)):
        n = total // 3 // item
        yield Call("pointwise", dtype, (3 * n * item,), lambda n=n: _binary(torch.add, n, kind, device))
    for total in (64 * KIB,) if small else (64 * KIB, 16 * MIB):
        n = total // 2 // item
        for name, unary in UNARY.items():
            yield Call(name, dtype, (2 * n * item,), lambda f=unary, n=n: _unary(f, (n,), kind, device))
        n = total // 3 // item
        for name, binary in BINARY.items():
            yield Call(name, dtype, (3 * n * item,), lambda f=binary, n=n: _binary(f, n, kind, device))


def _concats(dtype: str, device: torch.device, small: bool) -> Iterator[Call]:
    """As gradients are packed: each time other vectors, which have left the caches."""
    for total in (256 * KIB,) if small else (256 * KIB, 4 * MIB, 32 * MIB, 96 * MIB):
        n = total // 16 // DTYPES[dtype].itemsize
        yield Call("concat", dtype, (16 * n * DTYPES[dtype].itemsize,), lambda n=n: _packed(n, DTYPES[dtype], device))


def _packed(n: int, dtype: torch.dtype, device: torch.device) -> Run:
    sets = itertools.cycle(_draw((max(2, COLD // (8 * n * dtype.itemsize)), 8, n), dtype, device).unbind())
    return lambda: torch.cat(next(sets).unbind())


def _rows(dtype: str, device: torch.device, small: bool) -> Iterator[Call]:
    kind, item = DTYPES[dtype], DTYPES[dtype].itemsize
    for n in (256,) if small else (64, 512, 2048):
        yield Call("copy", dtype, (2 * n * n * item,), lambda n=n: _unary(lambda x: x.permute(1, 0).contiguous(), (n, n), kind, device))
    for n in (128,) if small else (16, 256, 4096):
        size = n * ROW * item
        yield Call("reduction", dtype, (size + n * item,), lambda n=n: _unary(lambda x: x.sum(-1), (n, ROW), kind, device))
        yield Call("softmax", dtype, (2 * size,), lambda n=n: _unary(lambda x: torch.softmax(x, -1), (n, ROW), kind, device))
        yield Call("layer_norm", dtype, (2 * size,), lambda n=n: _unary(lambda x: F.layer_norm(x, (ROW,)), (n, ROW), kind, device))
        yield Call("indexed", dtype, (2 * size,), lambda n=n: _lookup(n, kind, device))
    for side in (14,) if small else (7, 28, 56):
        shape = (8, 64, side, side)
        yield Call("batch_norm", dtype, (2 * math.prod(shape) * item,), lambda s=shape: _unary(_batch_norm, s, kind, device))


def _batch_norm(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, training=True)


def _lookup(n: int, dtype: torch.dtype, device: torch.device) -> Run:
    table = _draw((4096, ROW), dtype, device)
    index = torch.randint(0, 4096, (n,), generator=torch.Generator().manual_seed(0)).to(device)
    return lambda: F.embedding(index, table)


# ---------------------------------------------------------------- bound by arithmetic


def _matmuls(dtype: str, device: torch.device, small: bool) -> Iterator[Call]:
    sizes = (64, 512) if small else (8, 64, 256, 1024)
    kind = DTYPES[dtype]
    for m, n, k in itertools.product(sizes, repeat=3):
        if small or sorted((m, n, k))[1] != 8:  # products with two sides of 8 are dispatch
            yield Call("matmul", dtype, (1, m, n, k), lambda m=m, n=n, k=k: _linear(m, n, k, kind, device))
    for n in (64,) if small else (32, 128, 256):
        yield Call("matmul", dtype, (16, n, n, 64), lambda n=n: _batched(16, n, n, 64, kind, device))


def _linear(m: int, n: int, k: int, dtype: torch.dtype, device: torch.device) -> Run:
    x, w = _draw((m, k), dtype, device), _draw((n, k), dtype, device)
    return lambda: F.linear(x, w)


def _batched(batch: int, m: int, n: int, k: int, dtype: torch.dtype, device: torch.device) -> Run:
    a, b = _draw((batch, m, k), dtype, device), _draw((batch, k, n), dtype, device)
    return lambda: torch.matmul(a, b)


def _convolutions(dtype: str, device: torch.device, small: bool) -> Iterator[Call]:
    kind = DTYPES[dtype]
    for layer in IMAGES[1:2] if small else IMAGES:
        images, channels, out, groups, kernel, stride, side = layer
        places = ((side + 2 * (kernel // 2) - kernel) // stride + 1) ** 2
        features = (images, channels // groups, out // groups, groups, kernel**2, places)
        for number, name in enumerate(("conv", "conv_input_grad", "conv_weight_grad")):
            yield Call(name, dtype, features, lambda n=number, layer=layer: _convolution(n, layer, kind, device))


def _convolution(number: int, layer: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Run:
    images, channels, out, groups, kernel, stride, side = layer
    x, w = _draw((images, channels, side, side), dtype, device), _draw((out, channels // groups, kernel, kernel), dtype, device)
    steps, pad = (stride, stride), (kernel // 2, kernel // 2)
    if number == 0:
        return lambda: F.conv2d(x, w, None, steps, pad, 1, groups)
    grad = torch.ones_like(F.conv2d(x, w, None, steps, pad, 1, groups))
    wanted = [number == 1, number == 2, False]
    return lambda: torch.ops.aten.convolution_backward(grad, x, w, None, steps, pad, (1, 1), False, (0, 0), groups, wanted)


def _attentions(dtype: str, device: torch.device, small: bool) -> Iterator[Call]:
    for shape in HEADS[:1] if small else HEADS:
        yield Call("attention", dtype, shape, lambda s=shape: _attention(s, DTYPES[dtype], device))
        yield Call("attention_grad", dtype, shape, lambda s=shape: _attention_grad(s, DTYPES[dtype], device))


def _operands(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    heads, queries, keys, size = shape
    return _draw((1, heads, queries, size), dtype, device), _draw((1, heads, keys, size), dtype, device), _draw((1, heads, keys, size), dtype, device)


def _attention(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Run:
    q, k, v = _operands(shape, dtype, device)
    return lambda: F.scaled_dot_product_attention(q, k, v)


def _attention_grad(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Run:
    q, k, v = (x.requires_grad_() for x in _operands(shape, dtype, device))
    with torch.enable_grad():
        out = F.scaled_dot_product_attention(q, k, v)
    grad = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
