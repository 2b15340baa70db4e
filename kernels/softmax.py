"""Softmax over the last dim: a row in registers while it fits, else two passes with running maximum and sum."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

IN_REGISTERS = 16384  # columns; 64 values a thread with 8 warps is where spilling starts
PIECE = 4096  # columns of a row that one step of the looped kernels holds


def softmax_reference(x: torch.Tensor) -> torch.Tensor:
    """What the kernels compute, in x's dtype."""
    return torch.softmax(x, -1)


@triton.jit
def softmax_rows_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    """One row a program. Masked cells are -inf: they neither win nor count. A NaN reaches the sum, hence the whole row."""
    start = tl.program_id(0).to(tl.int64) * columns
    cell = tl.arange(0, BLOCK)
    inside = cell < columns
    x = tl.load(x_ptr + start + cell, mask=inside, other=float("-inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + start + cell, (e / tl.sum(e, 0)).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def softmax_looped_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    """One row a program, `BLOCK` columns at a time: each lane keeps its own maximum and sum, joined once at the end."""
    start = tl.program_id(0).to(tl.int64) * columns
    cell = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, columns, BLOCK):
        x = tl.load(x_ptr + start + first + cell, mask=first + cell < columns, other=float("-inf")).to(tl.float32)
        new = tl.maximum(top, x)
        safe = tl.where(new == float("-inf"), 0.0, new)  # -inf - -inf is NaN
        total = total * tl.exp(top - safe) + tl.exp(x - safe)
        top = new
    best = tl.max(top, 0)
    total = tl.sum(total * tl.exp(top - tl.where(best == float("-inf"), 0.0, best)), 0)
    for first in range(0, columns, BLOCK):
        inside = first + cell < columns
        x = tl.load(x_ptr + start + first + cell, mask=inside, other=float("-inf")).to(tl.float32)
        tl.store(y_ptr + start + first + cell, (tl.exp(x - best) / total).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def softmax_grad_kernel(g_ptr, y_ptr, dx_ptr, columns, BLOCK: tl.constexpr):
    """dx = y (g - sum(g y)), one row a program."""
    start = tl.program_id(0).to(tl.int64) * columns
    cell = tl.arange(0, BLOCK)
    dot = tl.zeros([BLOCK], tl.float32)
    for first in range(0, columns, BLOCK):
        inside = first + cell < columns
        g = tl.load(g_ptr + start + first + cell, mask=inside, other=0.0).to(tl.float32)
        dot += g * tl.load(y_ptr + start + first + cell, mask=inside, other=0.0).to(tl.float32)
    total = tl.sum(dot, 0)
    for first in range(0, columns, BLOCK):
        inside = first + cell < columns
        g = tl.load(g_ptr + start + first + cell, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + start + first + cell, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + start + first + cell, (y * (g - total)).to(dx_ptr.dtype.element_ty), mask=inside)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dim; computed in f32, the result in x's dtype."""
    x = x.contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    if x.numel() == 0:
        return y
    block = triton.next_power_of_2(columns)
    kernel = softmax_rows_kernel if block <= IN_REGISTERS else softmax_looped_kernel
    kernel[(x.numel() // columns,)](x, y, columns, min(block, IN_REGISTERS if kernel is softmax_rows_kernel else PIECE), num_warps=warps_for(block))
    return y


def softmax_grad(g: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Gradient of softmax from its result y."""
    g, y = g.contiguous(), y.contiguous()
    dx, columns = torch.empty_like(g), g.shape[-1]
    if g.numel():
        block = min(triton.next_power_of_2(columns), PIECE)
        softmax_grad_kernel[(g.numel() // columns,)](g, y, dx, columns, block, num_warps=warps_for(block))
    return dx


def warps_for(block: int) -> int:
    """About 16 values a thread, 1 to 8 warps."""
    return max(1, min(8, block // 512))


_BF16 = {"x_ptr": "*bf16", "y_ptr": "*bf16", "columns": "i32"}
AHEAD_OF_TIME = {
    "softmax_rows": {"kernel": softmax_rows_kernel, "pointers": _BF16, "constants": {"BLOCK": IN_REGISTERS}, "num_warps": 8},
    "softmax_looped": {"kernel": softmax_looped_kernel, "pointers": _BF16, "constants": {"BLOCK": PIECE}, "num_warps": 8},
    "softmax_grad": {"kernel": softmax_grad_kernel, "pointers": {"g_ptr": "*bf16", "dx_ptr": "*bf16", **_BF16}, "constants": {"BLOCK": PIECE}, "num_warps": 8},
}
