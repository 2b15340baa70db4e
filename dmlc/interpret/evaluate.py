"""Evaluating one op on tensors through its `torch` text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
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
def _function(text: str, operands: int) -> Callable[..., Any]:
    names = ", ".join(f"a{i}" for i in range(operands))
    return eval(compile(f"lambda {names}: {text}", "<op>", "eval"), dict(HELPERS))


class Evaluator:
    """A region-free, communication-free op ready to be evaluated again and again, as long as it stays as it is."""

    def __init__(self, op: Op, dtype: Callable[[str], str] = lambda d: d):
        self.results = len(op.results)
        self.function = _function(render_torch(op, [f"a{i}" for i in range(len(op.operands))], dtype), len(op.operands))
        self.types = tuple((tuple(v.shape), DTYPES[dtype(v.dtype)]) for v in op.results)

    def __call__(self, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        value = self.function(*operands)
        return list(value) if self.results != 1 or isinstance(value, (tuple, list)) else [value]


def evaluate(op: Op, operands: Sequence[torch.Tensor], dtype: Callable[[str], str] = lambda d: d) -> list[torch.Tensor]:
    """Results of a region-free, communication-free op on concrete tensors."""
    return Evaluator(op, dtype)(operands)
