"""Evaluating one op on tensors through its `torch` text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

import torch

from dmlc.interpret import prelude, prelude_nn, prelude_shards, prelude_windows
from dmlc.ir.core import Op
from dmlc.ops.text import render_torch

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "ui8": torch.uint8, "i1": torch.bool,
}  # fmt: skip

NAMES = {v: k for k, v in DTYPES.items()}

# What op texts may name. Code generation copies these files into the output folder.
PRELUDES = (prelude, prelude_nn, prelude_windows, prelude_shards)
HELPERS: dict[str, Any] = {name: value for module in PRELUDES for name, value in vars(module).items() if not name.startswith("__")}


def promoted(dtype: str) -> str:
    """Every float becomes f64 (the check mode of the pass manager)."""
    return "f64" if dtype in ("f32", "f16", "bf16", "f8E4M3FN", "f8E5M2") else dtype


@lru_cache(maxsize=65536)
def _compiled(text: str) -> CodeType:
    return compile(text, "<op>", "eval")


def evaluate(op: Op, operands: Sequence[torch.Tensor], dtype: Callable[[str], str] = lambda d: d) -> list[torch.Tensor]:
    """Results of a region-free, communication-free op on concrete tensors."""
    names = [f"a{i}" for i in range(len(operands))]
    scope: dict[str, Any] = {**HELPERS, **dict(zip(names, operands))}
    value = eval(_compiled(render_torch(op, names, dtype)), scope)
    return list(value) if len(op.results) != 1 or isinstance(value, (tuple, list)) else [value]
