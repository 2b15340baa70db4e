"""Layer norm and RMS norm over the last dim, forward and backward. RMS norm is layer norm without the mean and the bias."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

IN_REGISTERS = 8192  # columns of a row that stay in registers between the passes
PIECE = 2048  # columns that one step of the looped kernel holds
PROGRAMS = 256  # of the backward kernel: each keeps one partial weight gradient


def layer_norm_reference(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float) -> torch.Tensor:
    return F.layer_norm(x.float(), w.shape, w.float(), b.float(), eps).to(x.dtype)


def rms_norm_reference(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x.float(), w.shape, w.float(), eps).to(x.dtype)


@triton.jit
def norm_rows_kernel(x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, columns, eps, CENTRED: tl.constexpr, BLOCK: tl.constexpr):
    """One row a program, kept in registers: the mean, then the squares about it."""
    row = tl.program_id(0).to(tl.int64)
    cell = tl.arange(0, BLOCK)
    inside = cell < columns
    x = tl.load(x_ptr + row * columns + cell, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + cell, mask=inside, other=0.0).to(tl.float32)
    if CENTRED:
        mean = tl.sum(x, 0) / columns
        x = tl.where(inside, x - mean, 0.0)
        tl.store(mean_ptr + row, mean)
    rstd = tl.rsqrt(tl.sum(x * x, 0) / columns + eps)
    tl.store(rstd_ptr + row, rstd)
    y = x * rstd * w
    if CENTRED:
        y += tl.load(b_ptr + cell, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * columns + cell, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def norm_looped_kernel(x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, columns, eps, CENTRED: tl.constexpr, BLOCK: tl.constexpr):
    """One row a program, `BLOCK` columns at a time, read once for the mean, once for the squares about it (no cancellation) and once to write."""
    row = tl.program_id(0).to(tl.int64)
    cell = tl.arange(0, BLOCK)
    x_ptr += row * columns
    mean = 0.0
    if CENTRED:
        total = tl.zeros([BLOCK], tl.float32)
        for first in range(0, columns, BLOCK):
            total += tl.load(x_ptr + first + cell, mask=first + cell < columns, other=0.0).to(tl.float32)
        mean = tl.sum(total, 0) / columns
        tl.store(mean_ptr + row, mean)
    squares = tl.zeros([BLOCK], tl.float32)
    for first in range(0, columns, BLOCK):
        x = tl.load(x_ptr + first + cell, mask=first + cell < columns, other=0.0).to(tl.float32) - mean
        squares += tl.where(first + cell < columns, x * x, 0.0)
    rstd = tl.rsqrt(tl.sum(squares, 0) / columns + eps)
    tl.store(rstd_ptr + row, rstd)
    for first in range(0, columns, BLOCK):
        inside = first + cell < columns
        y = (tl.load(x_ptr + first + cell, mask=inside, other=0.0).to(tl.float32) - mean) * rstd
        y *= tl.load(w_ptr + first + cell, mask=inside, other=0.0).to(tl.float32)
        if CENTRED:
            y += tl.load(b_ptr + first + cell, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * columns + first + cell, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def norm_grad_kernel(g_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, dw_ptr, db_ptr, rows, columns, CENTRED: tl.constexpr, BLOCK: tl.constexpr):
    """Every program takes every n-th row: it writes their dx, and its sums for w and b at the end (added up outside, in one order)."""
    program = tl.program_id(0).to(tl.int64)
    cell = tl.arange(0, BLOCK)
    inside = cell < columns
    w = tl.load(w_ptr + cell, mask=inside, other=0.0).to(tl.float32)
    dw = tl.zeros([BLOCK], tl.float32)
    db = tl.zeros([BLOCK], tl.float32)
    row = program
    while row < rows:
        start = row * columns
        rstd = tl.load(rstd_ptr + row)
        mean = tl.load(mean_ptr + row) if CENTRED else 0.0
        g = tl.load(g_ptr + start + cell, mask=inside, other=0.0).to(tl.float32)
        y = (tl.load(x_ptr + start + cell, mask=inside, other=0.0).to(tl.float32) - mean) * rstd
        y = tl.where(inside, y, 0.0)
        gw = g * w
        dx = gw - y * (tl.sum(gw * y, 0) / columns)
        if CENTRED:
            dx -= tl.sum(gw, 0) / columns
        tl.store(dx_ptr + start + cell, (dx * rstd).to(dx_ptr.dtype.element_ty), mask=inside)
        dw += g * y
        db += g
        row += tl.num_programs(0)
    tl.store(dw_ptr + program * columns + cell, dw, mask=inside)
    if CENTRED:
        tl.store(db_ptr + program * columns + cell, db, mask=inside)


def _forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float, centred: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = x.contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    rows = x.numel() // columns if columns else 0
    mean, rstd = (torch.zeros(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    if x.numel() == 0:
        return y, mean, rstd
    block = triton.next_power_of_2(columns)
    kernel = norm_rows_kernel if block <= IN_REGISTERS else norm_looped_kernel
    kernel[(rows,)](x, w, b, y, mean, rstd, columns, eps, centred, block if block <= IN_REGISTERS else PIECE, num_warps=_warps(block))
    return y, mean, rstd


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y, and the mean and 1 / std of each row (f32) that the backward pass takes."""
    return _forward(x, w, b, eps, True)


def rms_norm(x: torch.Tensor, w: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """y, and 1 / root mean square of each row (f32)."""
    y, _, rstd = _forward(x, w, w, eps, False)
    return y, rstd


def norm_grad(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor | None, rstd: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Gradients in x, w and (with a mean: layer norm) b. Rows of up to `IN_REGISTERS` columns.

    Raises ValueError for longer rows.
    """
    columns = x.shape[-1]
    if columns > IN_REGISTERS:
        raise ValueError(f"rows of {columns} columns are longer than {IN_REGISTERS}")
    g, x = g.contiguous(), x.contiguous()
    dx, rows = torch.empty_like(x), x.numel() // columns if columns else 0
    programs = max(1, min(PROGRAMS, rows))
    dw, db = (torch.zeros((programs, columns), dtype=torch.float32, device=x.device) for _ in range(2))
    if x.numel():
        block = triton.next_power_of_2(columns)
        statistics = rstd if mean is None else mean
        norm_grad_kernel[(programs,)](g, x, w, statistics, rstd, dx, dw, db, rows, columns, mean is not None, block, num_warps=_warps(block))
    return dx, dw.sum(0).to(w.dtype), None if mean is None else db.sum(0).to(w.dtype)


def _warps(block: int) -> int:
    """About 16 values a thread, 1 to 16 warps."""
    return max(1, min(16, block // 512))


_FORWARD = {**dict.fromkeys(("x_ptr", "w_ptr", "b_ptr", "y_ptr"), "*bf16"), "mean_ptr": "*fp32", "rstd_ptr": "*fp32", "columns": "i32", "eps": "fp32"}
_BACKWARD = {**dict.fromkeys(("g_ptr", "x_ptr", "w_ptr", "dx_ptr"), "*bf16"), **dict.fromkeys(("mean_ptr", "rstd_ptr", "dw_ptr", "db_ptr"), "*fp32"), "rows": "i32", "columns": "i32"}
AHEAD_OF_TIME = {
    f"{name}{suffix}": {"kernel": kernel, "pointers": pointers, "constants": {"CENTRED": centred, "BLOCK": block}, "num_warps": warps}
    for centred, suffix in ((True, "_layer"), (False, "_rms"))
    for name, kernel, pointers, block, warps in (
        ("norm_rows", norm_rows_kernel, _FORWARD, IN_REGISTERS, 16),
        ("norm_looped", norm_looped_kernel, _FORWARD, PIECE, 4),
        ("norm_grad", norm_grad_kernel, _BACKWARD, IN_REGISTERS, 16),
    )
}
