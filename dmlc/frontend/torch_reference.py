"""Running the original PyTorch model, also with every float as float64."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dmlc.frontend.torch_control import CONTROL
from dmlc.frontend.torch_draws import Drawn, draws
from dmlc.frontend.torch_import import output_names
from dmlc.frontend.torch_sizes import input_leaves
from dmlc.ir.location import DmlcError

DOUBLE = {torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.complex64: torch.complex128}


class Promoted(TorchDispatchMode):
    """Whoever asks for a float dtype below float64 gets float64: casts and factories inside the model. Grouped products, which PyTorch has up to
    float32 only, are made one by one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {k: DOUBLE.get(v, v) if isinstance(v, torch.dtype) else v for k, v in (kwargs or {}).items()}
        args = [DOUBLE.get(a, a) if isinstance(a, torch.dtype) else a for a in args]
        if func is torch.ops.aten._grouped_mm.default and args[0].dtype == torch.float64:
            return grouped_product(*args[:2], *args[2:3], **{k: v for k, v in kwargs.items() if k == "offs"})
        return func(*args, **kwargs)


class Reference:
    """Calls `eager` if given, else the exported program itself."""

    def __init__(self, program: torch.export.ExportedProgram, eager: torch.nn.Module | None):
        self.program = program
        self.eager = eager

    def __call__(self, inputs: Mapping[str, Any], double: bool = False) -> dict[str, numpy.ndarray]:
        module = self.eager if self.eager is not None else self.program.module()
        args, kwargs = self.arguments(inputs, double)
        with torch.no_grad(), self.drawing():
            if double:
                wide = copy.deepcopy(module).double()
                outputs = self.in_double(lambda: wide(*args, **kwargs))
            else:
                outputs = module(*args, **kwargs)
        leaves = pytree.tree_leaves(outputs)
        named = zip(output_names(self.program), leaves, strict=True)
        return {name: _numpy(x) for name, x in named if isinstance(x, torch.Tensor)}

    def drawing(self) -> contextlib.AbstractContextManager:
        """Random numbers of the model are those of a compiled program with seed 0 at step 0."""
        random = any(draws(n.target) for n in self.program.graph.nodes if n.op == "call_function")
        return Drawn() if random else contextlib.nullcontext()

    def arguments(self, inputs: Mapping[str, Any], double: bool = False) -> tuple[tuple, dict]:
        """What the model is called with, from inputs by name."""
        flat = [self._value(name, val, inputs, double) for name, val in input_leaves(self.program)]
        return pytree.tree_unflatten(flat, self.program.call_spec.in_spec)

    def in_double(self, compute: Callable[[], Any]) -> Any:
        """What `compute` gives while every float dtype that is asked for is float64: by default, and where no branch or loop is in the way (PyTorch
        loses gradients of what these capture under a dispatch mode) in the model's own casts too."""
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with contextlib.nullcontext() if self.has_control_flow else Promoted():
                return compute()
        finally:
            torch.set_default_dtype(default)

    @property
    def has_control_flow(self) -> bool:
        return any(str(node.target) in CONTROL for node in self.program.graph.nodes)

    @staticmethod
    def _value(name: str, traced: Any, inputs: Mapping[str, Any], double: bool) -> Any:
        if not isinstance(traced, torch.Tensor):
            return traced  # a number that was traced as a constant
        if name not in inputs:
            raise DmlcError(f"no value for the input '{name}'")
        x = torch.as_tensor(numpy.array(inputs[name]))
        x = x.view(torch.bfloat16) if x.dtype == torch.uint16 and traced.dtype == torch.bfloat16 else x.to(traced.dtype)
        return x.double() if double and x.is_floating_point() else x


def grouped_product(x: torch.Tensor, y: torch.Tensor, offs: torch.Tensor | None = None) -> torch.Tensor:
    """`torch._grouped_mm`: group i ends at `offs[i]` in the rows of `x` (y: [groups, k, n]), in the columns of `y` (x: [groups, m, k]), or in what is
    summed over (both matrices; the result is [groups, m, n]). Without `offs` both have groups. What is behind the last end gives zeros."""
    if offs is None:
        return x @ y
    ends = [0, *offs.tolist()]
    spans = list(enumerate(zip(ends, ends[1:])))
    if x.dim() == y.dim() == 2:
        return torch.stack([x[:, a:b] @ y[a:b] for _, (a, b) in spans])
    if x.dim() == 2:
        return torch.cat([*(x[a:b] @ y[i] for i, (a, b) in spans), x.new_zeros(x.shape[0] - ends[-1], y.shape[2])])
    return torch.cat([*(x[i] @ y[:, a:b] for i, (a, b) in spans), y.new_zeros(x.shape[1], y.shape[1] - ends[-1])], dim=1)


def _numpy(x: torch.Tensor) -> numpy.ndarray:
    return (x.float() if x.dtype == torch.bfloat16 else x).detach().cpu().numpy()
