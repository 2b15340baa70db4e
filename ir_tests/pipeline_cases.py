"""Programs for tests of reported faults: written in a line each, exported from PyTorch or read from ONNX, and run through the whole inference pipeline."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx_files import imported, under_onnxruntime

import dmlc.ops  # noqa: F401
from dmlc.driver import Options, annotate
from dmlc.frontend.torch_export import import_exported
from dmlc.interpret.run import run
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError
from dmlc.ir.parser import parse_module
from dmlc.ir.verifier import verify
from dmlc.passmanager.context import Context
from dmlc.passmanager.manager import PassManager
from dmlc.passmanager.pipeline import parse_pipeline
from dmlc.pipelines import PIPELINES

everywhere = pytest.mark.parametrize(("devices", "plan"), [(1, "auto"), (2, "dp=2"), (3, "tp=3")])


@functools.cache
def passes(text: str):
    return parse_pipeline(text, PIPELINES)


def through(module: Module, context: Context, devices: int = 1, plan: str = "auto", pipeline: str = "inference", **options: Any) -> Module:
    """A copy of the program after a pipeline; after the automatic plan where no op can use the one asked for."""
    for asked in (plan, "auto"):
        copy = module.clone()
        annotate(copy, Options(devices=devices, plan=asked, **options))
        try:
            PassManager(passes(pipeline)).run(copy, context)
        except DmlcError as e:
            if asked == "auto" or "no op of this model can use" not in e.message:
                raise
            continue
        return copy
    raise AssertionError("unreachable")


def compiled(text: str, devices: int = 1, plan: str = "auto", **options: Any) -> Module:
    module = parse_module(text, "case.mlir")
    verify(module)
    return through(module, Context(), devices, plan, **options)


def exported(model: torch.nn.Module, *args: torch.Tensor):
    """A PyTorch model, imported."""
    with torch.no_grad():
        return import_exported(torch.export.export(model.eval(), args))


def run_exported(
    model: torch.nn.Module, *args: torch.Tensor, devices: int = 1, plan: str = "auto", promote: str | None = None
) -> tuple[Module, list[np.ndarray]]:
    """The compiled program of a PyTorch model, and its results on ranks."""
    found = exported(model, *args)
    context = Context(found.weights)
    module = through(found.module, context, devices, plan)
    return module, list(run(module, dict(found.inputs), promote=promote, weights=context.weights, poison_pads=True).values())


def run_onnx(
    folder: Path, model: onnx.ModelProto, inputs: Mapping[str, Any], devices: int = 1, plan: str = "auto", **options: Any
) -> tuple[Module, list[np.ndarray]]:
    """The compiled program of an ONNX model of these inputs' sizes, and its results on ranks."""
    found = imported(folder, model, **({"shapes": {n: np.shape(x) for n, x in inputs.items()}, "devices": devices} | options))
    context = Context(found.weights)
    module = through(found.module, context, devices, plan)
    names = {a.attrs.get("dmlc.name", a.name): a.name for a in module.main.args}
    return module, list(run(module, {names[n]: x for n, x in inputs.items()}, weights=context.weights, poison_pads=True).values())


def compiled_agrees(
    folder: Path, model: onnx.ModelProto, inputs: Mapping[str, Any], devices: int, plan: str, tolerance: float = 1e-5
) -> tuple[Module, list[np.ndarray]]:
    """The same, compared with onnxruntime: integers equal, floats within a share of the largest value."""
    module, found = run_onnx(folder, model, inputs, devices, plan)
    for ours, theirs in zip(found, under_onnxruntime(folder / "model.onnx", inputs), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        limit = tolerance * max(1e-6, float(np.nanmax(np.abs(theirs), initial=0))) if theirs.dtype.kind == "f" else 0
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=limit)
    return module, found


def results(text: str, inputs: dict[str, Any], devices: int = 1, plan: str = "auto", **options: Any) -> list[np.ndarray]:
    return list(run(compiled(text, devices, plan, **options), inputs, poison_pads=True).values())


def program(signature: str, returned: str, *lines: str) -> str:
    """A function with arguments `x: 4xf32, ...`; the first dim of each input is the batch."""
    args = ", ".join(f"%{name}: tensor<{type_}> {{dmlc.batch_dim = 0 : i64}}" for name, type_ in (part.split(": ") for part in signature.split(", ")))
    values, types = zip(*(part.split(": ") for part in returned.split(", ")))
    tensors = ", ".join(f"tensor<{t}>" for t in types)
    body = "\n".join(lines)
    return f"func.func @main({args}) -> ({tensors}) {{\n{body}\nfunc.return {', '.join('%' + v for v in values)} : {tensors}\n}}"


def ops_of(module: Module, name: str) -> list[Any]:
    return [op for op in module.walk() if op.name == name]
