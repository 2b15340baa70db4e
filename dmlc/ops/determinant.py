"""The determinant of square matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dmlc.ir.types import TensorType
from dmlc.ops.base import InferError, OpDef, Sample


class Determinant(OpDef):
    """Of the last two dims; leading ones are a batch."""

    name = "dmlc.det"
    rule = "... r! c! -> ..."
    torch = "torch.linalg.det({0})"
    precision = "high"
    no_vjp = "gradients of determinants are not taken"

    @staticmethod
    def dtype(types: Sequence[TensorType], attrs: dict[str, Any]) -> str:
        (x,) = types
        if x.rank < 2 or x.shape[-1] != x.shape[-2] or x.dtype not in ("f32", "f64"):
            raise InferError(f"'dmlc.det' takes square matrices of f32 or f64, not {x}")
        return x.dtype

    @staticmethod
    def samples() -> list[Sample]:
        return [Sample((TensorType(s, "f32"),)) for s in ((5, 3, 3), (7, 7), (1, 1), (0, 3, 3), (2, 5, 2, 2))]
