"""Files of both PyTorch exporters: equal to eager PyTorch, and through every door the same program."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx_files import computed

from dmlc.frontend.onnx import ImportResult, import_onnx
from dmlc.frontend.torch_export import import_exported
from dmlc.ir.core import Module
from dmlc.ir.verifier import verify
from dmlc.ops.base import own_attrs
from dmlc.passmanager.context import Context
from dmlc.passmanager.manager import PassManager
from dmlc.passmanager.pipeline import parse_pipeline
from dmlc.pipelines import PIPELINES


def perceptron() -> tuple[torch.nn.Module, torch.Tensor]:
    return torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.GELU(), torch.nn.Linear(24, 8), torch.nn.Softmax(-1)), torch.randn(4, 16)


def convolution_block() -> tuple[torch.nn.Module, torch.Tensor]:
    layers = [torch.nn.Conv2d(3, 6, 3, padding=1, stride=2), torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2, 1), torch.nn.Conv2d(6, 6, 3, groups=2, bias=False), torch.nn.Sigmoid(), torch.nn.Flatten(), torch.nn.Linear(24, 5)]
    return torch.nn.Sequential(*layers), torch.randn(4, 3, 16, 16)


def encoder_layer() -> tuple[torch.nn.Module, torch.Tensor]:
    class Block(torch.nn.Module):
        """Pre-norm attention and MLP, with attention through PyTorch's own function."""

        def __init__(self) -> None:
            super().__init__()
            self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(32) for _ in range(2))
            self.q, self.k, self.v, self.out = (torch.nn.Linear(32, 32) for _ in range(4))
            self.mlp = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.norms[0](x)
            q, k, v = (w(h).unflatten(-1, (4, 8)).transpose(1, 2) for w in (self.q, self.k, self.v))
            x = x + self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            return x + self.mlp(self.norms[1](x))

    return Block(), torch.randn(4, 6, 32)


MODELS = {f.__name__: f for f in (perceptron, convolution_block, encoder_layer)}


def made(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    for p in model.parameters():
        p.data += 0.1 * torch.randn_like(p)  # exporters merge weights that are equal, such as two norms' ones
    return model.eval(), x


def exported(name: str, folder: Path, dynamo: bool) -> Path:
    """The model as a file of one of the two exporters, its batch open."""
    model, x = made(name)
    path = folder / f"{name}_{'dynamo' if dynamo else 'script'}.onnx"
    open_batch: dict[str, Any] = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)} if dynamo else {"dynamic_axes": {"x": {0: "batch"}}}
    if name == "encoder_layer" and dynamo:
        open_batch = {"dynamic_shapes": {"x": {0: torch.export.Dim("batch")}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        torch.onnx.export(model, (x,), str(path), input_names=["x"], output_names=["y"], dynamo=dynamo, verbose=False, **open_batch)
        logging.disable(logging.NOTSET)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[tuple[str, bool], Path]:
    folder = tmp_path_factory.mktemp("exported")
    return {(name, dynamo): exported(name, folder, dynamo) for name in MODELS for dynamo in (True, False)}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dynamo", [True, False])
def test_equals_eager(files, name, dynamo):
    result = import_onnx(files[name, dynamo], dims={"batch": 3})
    verify(result.module)
    model, x = made(name)
    with torch.no_grad():
        wanted = model(x[:3]).numpy()
    (found,) = computed(result, {"x": x[:3].numpy()})
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    assert result.inputs[0].batch_dim == 0
    parameters = sum(p.numel() for p in model.parameters())
    assert sum(a.tensor.numel for a in result.module.main.args if a.attrs["dmlc.role"] == "param") == parameters, result.trainable


def canonical(module: Module, result: Any, passes: str = "simplify") -> list[tuple]:
    """Ops in order: name, attributes, operands (an op's number or an argument's type), result types."""
    PassManager(parse_pipeline(passes, PIPELINES)).run(module, Context(result.weights))
    numbers: dict[Any, Any] = {a: (a.attrs["dmlc.role"], a.type) for a in module.main.args}
    listed = []
    for number, op in enumerate(module.main.body):
        numbers.update({r: (number, i) for i, r in enumerate(op.results)})
        listed.append((op.name, sorted(own_attrs(op).items()), [numbers[v] for v in op.operands], [r.type for r in op.results]))
    return listed


def through_torch(name: str) -> Any:
    model, x = made(name)
    return import_exported(torch.export.export(model, (x,)), eager=model)


def imported(path: Path) -> ImportResult:
    return import_onnx(path, dims={"batch": 4})


@pytest.mark.parametrize("name", ["perceptron", "convolution_block"])
@pytest.mark.parametrize("dynamo", [True, False])
def test_both_exporters_and_torch_export_give_one_program(files, name, dynamo):
    result, direct = imported(files[name, dynamo]), through_torch(name)
    assert canonical(result.module, result) == canonical(direct.module, direct)


COMPOSITES = ("dmlc.attention", "dmlc.layer_norm", "dmlc.linear", "dmlc.matmul", "dmlc.gelu", "dmlc.softmax")


@pytest.mark.parametrize("dynamo", [True, False])
def test_a_transformer_block_has_the_same_composites(files, dynamo):
    """The file writes attention out; raising finds it again. A weight may come transposed, so both kinds of matrix product count as one."""
    result, direct = imported(files["encoder_layer", dynamo]), through_torch("encoder_layer")
    found, wanted = ([n.replace("matmul", "linear") for n, *_ in canonical(r.module, r, "simplify,raise-composites,dce") if n in COMPOSITES] for r in (result, direct))
    assert found == wanted and wanted.count("dmlc.attention") == 1
