"""Dropout whose mask is a function of seed, step, stream and the element's index in the whole tensor: nothing is stored for the backward pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024


def dropout_reference(x: torch.Tensor, seed: torch.Tensor, step: torch.Tensor, stream: int, p: float, width: int, first_row: int = 0, first_column: int = 0) -> torch.Tensor:
    """What the kernel computes: Philox4x32-10 on Python's integers, one element after another."""
    rows, columns = x.numel() // max(x.shape[-1], 1), x.shape[-1]
    places = [(first_row + r) * width + first_column + c for r in range(rows) for c in range(columns)]
    keep = [(first_word(index, int(step), stream, int(seed)) >> 8) >= round(p * 2**24) for index in places]
    mask = torch.tensor(keep, dtype=torch.bool, device=x.device).reshape(x.shape)
    return torch.where(mask, x * (1 / (1 - p) if p < 1 else 0.0), torch.zeros_like(x))


def first_word(index: int, step: int, stream: int, seed: int) -> int:
    """Of Philox4x32-10 with key = seed, counter = (64-bit index, step, stream) (Salmon, Moraes, Dror, Shaw, SC11)."""
    word = 0xFFFFFFFF
    c, k = [index & word, index >> 32 & word, step & word, stream & word], [seed & word, seed >> 32 & word]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & word, (a >> 32) ^ c[3] ^ k[1], a & word]
        k = [(k[0] + 0x9E3779B9) & word, (k[1] + 0xBB67AE85) & word]
    return c[0]


@triton.jit
def dropout_kernel(x_ptr, y_ptr, seed_ptr, step_ptr, stream, size, columns, width, first_row, first_column, threshold, scale, BLOCK: tl.constexpr):
    """Elements of a part of `columns` columns whose corner is (first_row, first_column) in a matrix of `width` columns."""
    cell = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < size
    index = (first_row + cell // columns) * width + first_column + cell % columns
    seed, step = tl.load(seed_ptr), tl.load(step_ptr)
    low, high = (index & 0xFFFFFFFF).to(tl.uint32), (index >> 32).to(tl.uint32)
    zeros = tl.zeros([BLOCK], tl.int64)
    word, _, _, _ = tl.philox(seed, low, high, (zeros + step).to(tl.uint32), (zeros + stream).to(tl.uint32), 10)
    x = tl.load(x_ptr + cell, mask=inside, other=0.0).to(tl.float32)
    y = tl.where((word >> 8).to(tl.int32) >= threshold, x * scale, 0.0)
    tl.store(y_ptr + cell, y.to(y_ptr.dtype.element_ty), mask=inside)


def dropout(x: torch.Tensor, seed: torch.Tensor, step: torch.Tensor, stream: int, p: float, width: int | None = None, first_row: int = 0, first_column: int = 0) -> torch.Tensor:
    """x * 1 / (1 - p) where kept, else 0. The last dim of x is columns; by default x is the whole tensor.

    `seed` and `step` are i64 tensors of rank 0. The gradient is the same function of the result's gradient.
    """
    x = x.contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    if p >= 1 or x.numel() == 0:
        return torch.zeros_like(x)
    grid = (triton.cdiv(x.numel(), BLOCK),)
    dropout_kernel[grid](x, y, seed, step, stream, x.numel(), columns, width or columns, first_row, first_column, round(p * 2**24), 1 / (1 - p), BLOCK, num_warps=4)
    return y


_SIZES = dict.fromkeys(("size", "columns", "width", "first_row", "first_column"), "i64")
AHEAD_OF_TIME = {
    "dropout": {
        "kernel": dropout_kernel,
        "pointers": {"x_ptr": "*bf16", "y_ptr": "*bf16", "seed_ptr": "*i64", "step_ptr": "*i64", "stream": "i32", **_SIZES, "threshold": "i32", "scale": "fp32"},
        "constants": {"BLOCK": BLOCK},
        "num_warps": 4,
    }
}
