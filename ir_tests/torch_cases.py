"""Functions of tensors imported and compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import dmlc.ops  # noqa: F401
from dmlc.frontend.torch_export import import_exported
from dmlc.interpret.run import run
from dmlc.ir.core import Module
from dmlc.ir.verifier import verify


class Call(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def check(function: Callable[..., Any], *args: torch.Tensor, train: bool = False) -> Module:
    """The imported module, which gives what eager gives in float64: values, shapes and kinds of dtypes."""
    module = function if isinstance(function, torch.nn.Module) else Call(function)
    module.train(train)
    with torch.no_grad():
        result = import_exported(torch.export.export(module, args), eager=module)
    verify(result.module)
    assert result.reference is not None
    expected = result.reference(result.inputs, double=True)
    actual = run(result.module, result.inputs, promote="f64", weights=result.weights)
    for key, value in expected.items():
        assert actual[key].shape == value.shape
        np.testing.assert_allclose(actual[key], value, rtol=1e-9, atol=1e-9)
        type_ = result.module.main.results[list(expected).index(key)].type
        assert str(np.asarray(value).dtype).replace("float64", "float32")[0] == {"f": "f", "i": "i", "u": "u"}[type_.dtype[0]] or type_.dtype == "i1"
    return result.module
