"""Reading the values of a model's tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import torch

from dmlc.ir.location import DmlcError

BITS = {"bf16": torch.uint16, "f8E4M3FN": torch.uint8, "f8E5M2": torch.uint8}


def reader(tensor: torch.Tensor, dtype: str, name: str) -> Callable[[], numpy.ndarray]:
    """Reads a tensor as numpy when asked; bf16 and the 8-bit floats as their bits."""

    def read() -> numpy.ndarray:
        if tensor.is_meta:
            raise DmlcError(f"the weight '{name}' is on the meta device: it has a shape but no values")
        data = tensor.detach().cpu().contiguous()
        return (data.view(BITS[dtype]) if dtype in BITS else data).numpy()

    return read
