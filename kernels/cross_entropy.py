"""Cross entropy of rows of logits in one pass over the classes, and its gradient from the kept log-sum-exp."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

PIECE = 4096  # classes that one step holds


def cross_entropy_reference(logits: torch.Tensor, targets: torch.Tensor, ignore: int = -100) -> torch.Tensor:
    """Loss of each row, f32."""
    return F.cross_entropy(logits.float(), targets, reduction="none", ignore_index=ignore)


@triton.jit
def cross_entropy_kernel(x_ptr, target_ptr, loss_ptr, lse_ptr, classes, ignore, BLOCK: tl.constexpr):
    """One row a program: each lane keeps its own maximum and sum, joined once at the end."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * classes
    cell = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, classes, BLOCK):
        x = tl.load(x_ptr + first + cell, mask=first + cell < classes, other=float("-inf")).to(tl.float32)
        new = tl.maximum(top, x)
        safe = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(top - safe) + tl.exp(x - safe)
        top = new
    best = tl.max(top, 0)
    lse = tl.log(tl.sum(total * tl.exp(top - best), 0)) + best
    target = tl.load(target_ptr + row)
    counts = target != ignore
    picked = tl.load(x_ptr + target, mask=counts, other=0.0).to(tl.float32)
    tl.store(loss_ptr + row, tl.where(counts, lse - picked, 0.0))
    tl.store(lse_ptr + row, lse)


@triton.jit
def cross_entropy_grad_kernel(g_ptr, x_ptr, target_ptr, lse_ptr, dx_ptr, classes, ignore, BLOCK: tl.constexpr):
    """(softmax - one-hot) g: programs are pieces of rows."""
    row = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < classes
    target = tl.load(target_ptr + row)
    g = tl.where(target != ignore, tl.load(g_ptr + row), 0.0)
    x = tl.load(x_ptr + row * classes + cell, mask=inside, other=0.0).to(tl.float32)
    dx = (tl.exp(x - tl.load(lse_ptr + row)) - tl.where(cell == target, 1.0, 0.0)) * g
    tl.store(dx_ptr + row * classes + cell, dx.to(dx_ptr.dtype.element_ty), mask=inside)


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor, ignore: int = -100) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and log-sum-exp of each row (f32): logits [rows, classes], targets [rows] (i64); 0 where the target is `ignore`."""
    logits, (rows, classes) = logits.contiguous(), logits.shape
    loss, lse = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    if rows:
        block = min(triton.next_power_of_2(classes), PIECE)
        cross_entropy_kernel[(rows,)](logits, targets, loss, lse, classes, ignore, block, num_warps=max(1, block // 512))
    return loss, lse


def cross_entropy_grad(g: torch.Tensor, logits: torch.Tensor, targets: torch.Tensor, lse: torch.Tensor, ignore: int = -100) -> torch.Tensor:
    """Gradient in the logits, from the gradient of each row's loss (f32)."""
    logits, (rows, classes) = logits.contiguous(), logits.shape
    dx = torch.empty_like(logits)
    if logits.numel():
        block = min(triton.next_power_of_2(classes), PIECE)
        cross_entropy_grad_kernel[(rows, triton.cdiv(classes, block))](g, logits, targets, lse, dx, classes, ignore, block, num_warps=max(1, block // 512))
    return dx


_ROWS = {"x_ptr": "*bf16", "target_ptr": "*i64", "lse_ptr": "*fp32", "classes": "i32", "ignore": "i32"}
AHEAD_OF_TIME = {
    "cross_entropy": {"kernel": cross_entropy_kernel, "pointers": {**_ROWS, "loss_ptr": "*fp32"}, "constants": {"BLOCK": PIECE}, "num_warps": 8},
    "cross_entropy_grad": {"kernel": cross_entropy_grad_kernel, "pointers": {**_ROWS, "g_ptr": "*fp32", "dx_ptr": "*bf16"}, "constants": {"BLOCK": PIECE}, "num_warps": 8},
}
