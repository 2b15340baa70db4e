"""Runs the hand-written kernels in a process of its own, beside their references: `hand_kernel_runner.py OUT.json`.

Writes, for each case, the largest difference over the reference's scale; NaN must lie at the same places. Without a GPU the kernels are
interpreted (TRITON_INTERPRET=1 is set by the test).
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
Pair = tuple[torch.Tensor, torch.Tensor]


def seeded(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def softmax_cases() -> Iterator[tuple[str, Callable[[], Pair]]]:
    from dmlc.kernels import softmax as k

    for dtype in DTYPES:
        for shape in ((5, 37), (3, 1), (2, 2, 8), (0, 4), (2, 20000)):
            x = seeded(*shape, dtype=dtype)
            yield f"softmax {shape} {dtype}", lambda x=x: (k.softmax(x), k.softmax_reference(x.float()).to(x.dtype))
    odd = seeded(4, 20000)
    odd[0, 3], odd[1, 19999], odd[2, :] = float("nan"), float("inf"), float("-inf")
    odd[3, :19000] = float("-inf")
    yield "softmax looped special", lambda: (k.softmax(odd), k.softmax_reference(odd))
    yield "softmax rows special", lambda: (k.softmax(odd[:, 18990:19100]), k.softmax_reference(odd[:, 18990:19100]))
    for columns in (37, 5000):
        x, g = seeded(3, columns).requires_grad_(), seeded(3, columns, seed=1)
        y = k.softmax_reference(x)
        (dx,) = torch.autograd.grad(y, x, g)
        yield f"softmax_grad {columns}", lambda g=g, y=y, dx=dx: (k.softmax_grad(g, y.detach()), dx)


def norm_cases() -> Iterator[tuple[str, Callable[[], Pair]]]:
    from dmlc.kernels import norm as k

    for dtype in DTYPES:
        for shape in ((5, 37), (3, 1), (2, 2, 64), (0, 4), (2, 9001)):
            x, w, b = seeded(*shape, dtype=dtype) + 3, seeded(shape[-1], dtype=dtype, seed=1), seeded(shape[-1], dtype=dtype, seed=2)
            yield f"layer_norm {shape} {dtype}", lambda x=x, w=w, b=b: (k.layer_norm(x, w, b, 1e-5)[0], k.layer_norm_reference(x, w, b, 1e-5))
            yield f"rms_norm {shape} {dtype}", lambda x=x, w=w: (k.rms_norm(x, w, 1e-6)[0], k.rms_norm_reference(x, w, 1e-6))
    large = torch.full((1, 8), 1000.0, dtype=torch.float16, device=DEVICE)
    yield "rms_norm of 1000s in f16", lambda: (k.rms_norm(large, torch.ones_like(large[0]), 1e-6)[0], torch.ones_like(large))
    k.PROGRAMS = 6  # so that a program has several rows
    for rows, columns in ((7, 37), (1, 1), (20, 40)):
        yield from norm_grad_cases(rows, columns)


def norm_grad_cases(rows: int, columns: int) -> Iterator[tuple[str, Callable[[], Pair]]]:
    from dmlc.kernels import norm as k

    x, w, b = (seeded(*s, seed=i).requires_grad_() for i, s in enumerate(((rows, columns), (columns,), (columns,))))
    g = seeded(rows, columns, seed=5)
    wanted = torch.autograd.grad(k.layer_norm_reference(x, w, b, 1e-2), (x, w, b), g)
    wanted_rms = torch.autograd.grad(k.rms_norm_reference(x, w, 1e-2), (x, w), g)
    x, w, b = x.detach(), w.detach(), b.detach()
    for i, name in enumerate(("x", "w", "b")):
        yield f"layer_norm_grad {name} {rows}x{columns}", lambda i=i: (k.norm_grad(g, x, w, *k.layer_norm(x, w, b, 1e-2)[1:])[i], wanted[i])  # type: ignore[return-value]
    for i, name in enumerate(("x", "w")):
        yield f"rms_norm_grad {name} {rows}x{columns}", lambda i=i: (k.norm_grad(g, x, w, None, k.rms_norm(x, w, 1e-2)[1])[i], wanted_rms[i])  # type: ignore[return-value]


def dropout_cases() -> Iterator[tuple[str, Callable[[], Pair]]]:
    from dmlc.interpret.prelude_nn import dropout as by_definition
    from dmlc.kernels import dropout as k

    seed, step = torch.tensor((5 << 32) + 9, device=DEVICE), torch.tensor(3, device=DEVICE)
    for dtype in DTYPES:
        for shape, p, stream in (((5, 37), 0.5, 1), ((3, 700), 0.1, 7), ((0, 4), 0.5, 2), ((2, 3), 0.0, 0), ((2, 3), 1.0, 0)):
            x = seeded(*shape, dtype=dtype) + 5
            yield f"dropout {shape} {p} {dtype}", lambda x=x, p=p, s=stream: (k.dropout(x, seed, step, s, p), k.dropout_reference(x.float(), seed, step, s, p, x.shape[-1]).to(x.dtype))
    x = seeded(4, 9) + 5
    yield "dropout is dmlc.dropout", lambda: (k.dropout(x, seed, step, 4, 0.5), by_definition(x, seed, step, 4, (4, 9), (), 0.5))
    for row, column, width in ((0, 3, 20), (7, 0, 9), (3, 1 << 31, 1 << 32)):
        part = (width, row, column)
        yield f"dropout part {part}", lambda part=part: (k.dropout(x, seed, step, 1, 0.5, *part), k.dropout_reference(x, seed, step, 1, 0.5, *part))


def cross_entropy_cases() -> Iterator[tuple[str, Callable[[], Pair]]]:
    from dmlc.kernels import cross_entropy as k

    for dtype in DTYPES:
        for rows, classes in ((6, 37), (1, 1), (0, 4), (3, 9001)):
            x = seeded(rows, classes, dtype=dtype)
            t = torch.arange(rows, device=DEVICE) * 5 % classes
            t[1:2] = -100
            yield f"cross_entropy {rows}x{classes} {dtype}", lambda x=x, t=t: (k.cross_entropy(x, t)[0], k.cross_entropy_reference(x, t))
            wide = x.float().requires_grad_()
            g = seeded(rows, seed=1)
            dx = torch.autograd.grad(k.cross_entropy_reference(wide, t), wide, g)[0].to(dtype)
            yield f"cross_entropy_grad {rows}x{classes} {dtype}", lambda x=x, t=t, g=g, dx=dx: (k.cross_entropy_grad(g, x, t, k.cross_entropy(x, t)[1]), dx)


def difference(pair: Pair) -> float:
    """Largest difference over the reference's scale (at least 1); infinite where shapes, dtypes or NaNs differ."""
    actual, wanted = pair
    if actual.shape != wanted.shape or actual.dtype != wanted.dtype or not torch.equal(actual.isnan(), wanted.isnan()):
        return float("inf")
    actual, wanted = actual.double().nan_to_num(), wanted.double().nan_to_num()
    return float((actual - wanted).abs().max() / max(1.0, float(wanted.abs().max()))) if wanted.numel() else 0.0


def main(out: Path) -> None:
    torch.set_num_threads(1)
    if DEVICE == "cpu":
        from dmlc.codegen import bf16_interpreter

        bf16_interpreter.install()
    found: dict[str, float | str] = {}
    for family in (softmax_cases, norm_cases, dropout_cases, cross_entropy_cases):
        for name, case in family():
            try:
                found[name] = difference(case())
            except Exception:
                found[name] = traceback.format_exc()
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
