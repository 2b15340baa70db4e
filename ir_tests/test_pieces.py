"""Elementwise kernels on a processor: large tensors are worked through piece by piece, with the results of the whole."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import dmlc.interpret.prelude as prelude
import dmlc.ops  # noqa: F401
from dmlc.codegen.triton_source import LARGE, emit_functions
from dmlc.ir.parser import parse_module

torch.set_num_threads(1)

UPDATE = """
func.func @update(%g: tensor<{shape}xf32>, %m: tensor<{shape}xf32>, %rate: tensor<f32>) -> (tensor<{shape}xf32>, tensor<{shape}xf32>) {{
  %half = dmlc.full {{value = 0.5 : f64}} : () -> tensor<f32>
  %a = dmlc.mul %g, %half : (tensor<{shape}xf32>, tensor<f32>) -> tensor<{shape}xf32>
  %b = dmlc.add %a, %m : (tensor<{shape}xf32>, tensor<{shape}xf32>) -> tensor<{shape}xf32>
  %c = dmlc.mul %b, %rate : (tensor<{shape}xf32>, tensor<f32>) -> tensor<{shape}xf32>
  func.return %b, %c : tensor<{shape}xf32>, tensor<{shape}xf32>
}}
"""
BIASED = """
func.func @biased(%x: tensor<1024x512xf32>, %b: tensor<512xf32>) -> tensor<1024x512xf32> {
  %a = dmlc.add %x, %b : (tensor<1024x512xf32>, tensor<512xf32>) -> tensor<1024x512xf32>
  %c = dmlc.exp %a : (tensor<1024x512xf32>) -> tensor<1024x512xf32>
  %d = dmlc.neg %c : (tensor<1024x512xf32>) -> tensor<1024x512xf32>
  func.return %d : tensor<1024x512xf32>
}
"""


def kernels_of(text: str, folder: Path) -> ModuleType:
    source = emit_functions(parse_module(text).functions, prelude.__name__)
    (folder / "pieces_kernels.py").write_text(source)
    spec = importlib.util.spec_from_file_location("pieces_kernels", folder / "pieces_kernels.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def operands(*shape: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator), torch.tensor(0.1)


@pytest.mark.parametrize("shape", [(1024, 512), (7, 99991)])
def test_pieces_are_the_whole(shape, tmp_path, monkeypatch):
    """Also where the last piece is a short one, and where operands are not dense; no piece is larger than promised."""
    assert math.prod(shape) >= LARGE
    kernels = kernels_of(UPDATE.format(shape="x".join(map(str, shape))), tmp_path)
    sizes = []
    whole = kernels.update_torch
    monkeypatch.setattr(kernels, "update_torch", lambda *args: sizes.append(args[0].numel()) or whole(*args))
    gradient, moment, rate = operands(*shape)
    for found, expected in zip(kernels.update(gradient, moment, rate), whole(gradient, moment, rate), strict=True):
        assert torch.equal(found, expected) and found.shape == shape
    assert max(sizes) <= kernels.PIECE and sum(sizes) == math.prod(shape)
    turned = operands(*reversed(shape))[0].T
    assert torch.equal(kernels.update(turned, moment, rate)[1], whole(turned, moment, rate)[1])
    out = torch.zeros(shape)
    assert kernels.update(gradient, moment, rate, out_1=out)[1] is out and torch.equal(out, whole(gradient, moment, rate)[1])


@pytest.mark.parametrize("text", [UPDATE.format(shape="64x64"), BIASED])
def test_small_and_broadcast_kernels_are_not_cut(text, tmp_path):
    kernels = kernels_of(text, tmp_path)
    assert "in_pieces(update" not in Path(kernels.__file__).read_text() and "in_pieces(biased" not in Path(kernels.__file__).read_text()
