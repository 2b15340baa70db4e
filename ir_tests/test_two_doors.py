"""Two front doors, one IR: a module imported through torch.export, and through ONNX from both of PyTorch's exporters."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import dmlc.ops  # noqa: F401
from dmlc.frontend.onnx import import_onnx
from dmlc.frontend.torch_export import import_exported
from dmlc.interpret.arguments import Arguments
from dmlc.interpret.run import run
from dmlc.ir.core import Module
from dmlc.ir.verifier import verify
from dmlc.ops.base import own_attrs
from dmlc.passmanager.context import Context
from dmlc.passmanager.pipeline import parse_pipeline
from dmlc.pipelines import INFERENCE

F = nn.functional
BEFORE_PLAN = ",".join(INFERENCE[: INFERENCE.index("mixed-precision")])
COMPOSITES = ("attention", "layer_norm", "rms_norm", "softmax", "gelu", "silu", "relu", "batch_norm")
torch.set_num_threads(1)


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 9), nn.Linear(9, 4)

    def forward(self, x):
        return self.b(F.gelu(self.a(x)))


class ConvolutionBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)
        nn.init.uniform_(self.norm.running_var, 0.5, 1.5)
        nn.init.normal_(self.norm.running_mean)

    def forward(self, x):
        y = torch.relu(self.norm(self.a(x)))
        y = F.max_pool2d(y + self.b(y), 2)
        return self.head(torch.flatten(self.pool(y), 1))


class RmsNorm(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class TransformerBlock(nn.Module):
    """Causal attention with a fused projection, a gated MLP behind an RMS norm, a GELU MLP."""

    def __init__(self, size: int = 16, heads: int = 4, spelled_out: bool = False):
        super().__init__()
        self.heads, self.spelled_out = heads, spelled_out
        self.first, self.second = nn.LayerNorm(size), RmsNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.gate, self.up, self.down = nn.Linear(size, 24), nn.Linear(size, 24), nn.Linear(24, size)
        self.wide, self.narrow = nn.Linear(size, 20), nn.Linear(20, size)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.reshape(b, t, self.heads, d // self.heads).transpose(1, 2) for y in self.qkv(self.first(x)).chunk(3, -1))
        if self.spelled_out:
            scores = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5
            hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
            y = scores.masked_fill(hidden, torch.finfo(torch.float32).min).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        y = self.second(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return x + self.narrow(F.gelu(self.wide(x)))


def through_all_doors(model: nn.Module, x: torch.Tensor, folder) -> dict[str, tuple[Module, object]]:
    """The simplified module and its weights by door."""
    model.eval()
    results = {}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results["torch.export"] = import_exported(torch.export.export(model, (x,)), eager=model)
        for name, dynamo in (("torchscript exporter", False), ("dynamo exporter", True)):
            path = folder / f"{dynamo}.onnx"
            torch.onnx.export(model, (x,), path, dynamo=dynamo, **({"verbose": False} if dynamo else {}))
            results[name] = import_onnx(path)
    for result in results.values():
        context = Context(result.weights)
        for pass_ in parse_pipeline(BEFORE_PLAN):
            pass_.run(result.module, context)
        verify(result.module)
    return {name: (r.module, r.weights) for name, r in results.items()}


def outputs(module: Module, weights, x: torch.Tensor) -> np.ndarray:
    (name,) = [a.name for a in module.main.args if a.attrs.get("dmlc.role") == "input"]
    (value,) = run(module, {name: x.numpy()}, weights=weights).values()
    return value


def program(module: Module, weights) -> list:
    """The ops with own attributes, types, and operands by number: arguments in order of first use, with their values."""
    arguments = Arguments(module, {}, weights)
    numbers, text = {}, []
    for op in module.main.body:
        for v in op.operands:
            if v not in numbers:
                numbers[v] = len(numbers)
                stored = v.op is None and v.attrs["dmlc.role"] != "input"
                text.append(("argument", v.type, arguments.value(v).numpy() if stored else None))
        text.append((op.name, own_attrs(op), [numbers[v] for v in op.operands], [r.type for r in op.results]))
        for r in op.results:
            numbers[r] = len(numbers)
    return text


def assert_same(first: list, second: list) -> None:
    assert [line[:2] for line in first if line[0] != "argument"] == [line[:2] for line in second if line[0] != "argument"]
    for a, b in zip(first, second, strict=True):
        if a[0] == "argument":
            assert a[:2] == b[:2]
            assert (a[2] is None) == (b[2] is None)
            if a[2] is not None:
                np.testing.assert_allclose(a[2], b[2], rtol=1e-5, atol=1e-6)
        else:
            assert a == b


@pytest.mark.parametrize(("model", "shape"), [(Perceptron, (5, 6)), (ConvolutionBlock, (2, 3, 8, 8))])
def test_same_program(model, shape, tmp_path):
    torch.manual_seed(0)
    doors = through_all_doors(model(), torch.randn(shape), tmp_path)
    first, *others = (program(*door) for door in doors.values())
    assert len(first) > 6
    for other in others:
        assert_same(first, other)


@pytest.mark.parametrize("spelled_out", [False, True])
def test_same_composites_of_a_transformer_block(spelled_out, tmp_path):
    torch.manual_seed(0)
    model, x = TransformerBlock(spelled_out=spelled_out), torch.randn(2, 5, 16)
    expected = model(x).detach().numpy()
    sequences = []
    for module, weights in through_all_doors(model, x, tmp_path).values():
        composites = [op for op in module.main.ops() if op.name.removeprefix("dmlc.") in COMPOSITES]
        sequences.append([(op.name, op.attrs.get("causal")) for op in composites])
        assert np.abs(outputs(module, weights, x) - expected).max() < 1e-5 * np.abs(expected).max()
    names = ["layer_norm", "attention", "rms_norm", "silu", "gelu"]
    assert [name.removeprefix("dmlc.") for name, _ in sequences[0]] == names
    assert all(s == sequences[0] for s in sequences) and sequences[0][1][1] is True
