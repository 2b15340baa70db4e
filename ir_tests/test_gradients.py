"""Gradients of whole models by every parameter, against torch.autograd, both in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import dmlc.ops  # noqa: F401
from dmlc.frontend.torch_export import export, import_exported, load_model
from dmlc.frontend.torch_reference import Promoted
from dmlc.interpret.run import run
from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import BlockArgument, Module
from dmlc.passmanager import Context, PassManager, parse_pipeline
from dmlc.pipelines import PIPELINES, TRAINING

MODELS = Path(__file__).parent.parent / "models"
BEFORE = ",".join(TRAINING[: TRAINING.index("optimizer")])
TOLERANCE = 1e-9
IGNORED = -100

torch.set_num_threads(1)


def cross_entropy(output: Any, target: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return F.cross_entropy(output.movedim(dim, -1).reshape(-1, output.shape[dim]), target.reshape(-1), label_smoothing=0.1)


def bce(output: Any, target: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(output, target)


CASES: dict[str, tuple[str, str, dict[str, Any], Callable[..., torch.Tensor]]] = {
    "perceptron": ("mlp.py:tiny", "mse", {}, F.mse_loss),
    "digits perceptron": ("digits.py:tiny_perceptron", "cross-entropy", {"label_smoothing": 0.1}, cross_entropy),
    "cnn with batch norm": ("digits.py:tiny", "cross-entropy", {"label_smoothing": 0.1}, cross_entropy),
    "bert": ("bert.py:tiny", "cross-entropy", {"label_smoothing": 0.1}, cross_entropy),
    "tied gpt2": ("gpt2.py:tiny", "cross-entropy", {"label_smoothing": 0.1}, cross_entropy),
    "llama": ("llama.py:tiny", "cross-entropy", {"label_smoothing": 0.1}, cross_entropy),
    "vit": ("vit.py:tiny", "cross-entropy", {"label_smoothing": 0.1}, cross_entropy),
    "resnet": ("resnet.py:tiny", "cross-entropy", {"label_smoothing": 0.1}, cross_entropy),
    "unet3d": ("unet3d.py:tiny", "bce", {}, bce),
    "unet3d with batch norm": ("unet3d.py:tiny_batch_norm", "bce", {}, bce),
}


def without_dropout(module: torch.nn.Module) -> torch.nn.Module:
    """Every dropout's probability, also those that attention layers keep as plain numbers, is zero."""
    for m in module.modules():
        for name, value in list(vars(m).items()):
            if isinstance(value, float) and ("drop" in name or (isinstance(m, torch.nn.Dropout) and name == "p")):
                setattr(m, name, 0.0)
    return module


def target_for(output: torch.Tensor, loss: str) -> torch.Tensor:
    """Seeded targets; a quarter of the class numbers are ignored."""
    g = torch.Generator().manual_seed(3)
    if loss != "cross-entropy":
        return torch.rand(output.shape, generator=g)
    classes = torch.randint(0, output.shape[-1], output.shape[:-1], generator=g)
    return torch.where(torch.rand(classes.shape, generator=g) < 0.25, IGNORED, classes)


def in_double(eager: torch.nn.Module, args: Any, loss: Callable[..., torch.Tensor], target: torch.Tensor) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients by name, in training mode, from torch.autograd."""
    module = copy.deepcopy(eager).double().train()
    wide = [a.double() if a.is_floating_point() else a for a in args]
    with Promoted():
        value = loss(module(*wide), target.double() if target.is_floating_point() else target)
        value.backward()
    return float(value.detach()), {n: p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}


def differentiated(name: str, make: str, loss: str, settings: dict[str, Any]) -> tuple[Module, Any, torch.nn.Module, Any]:
    eager, args, kwargs, shapes = load_model(f"{MODELS / make.split(':')[0]}:{make.split(':')[1]}")
    eager = without_dropout(eager)
    result = import_exported(export(eager, args, kwargs, shapes, True, name), None, shapes, eager)
    result.module.attrs.update({"dmlc.mode": "train", "dmlc.train": AttrDict(loss=loss, **settings)})
    PassManager(parse_pipeline(BEFORE, PIPELINES), verify=True).run(result.module, Context(result.weights))
    return result.module, result, eager, args


def in_arguments(module: Module, gradients: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gradients by the model's names as gradients of the program's parameters: a part of a split parameter has that part of its gradient."""
    return {a.name: _of_argument(a, gradients) for a in module.main.args if a.attrs.get("dmlc.role") == "param" and a.uses}


def _of_argument(arg: BlockArgument, gradients: dict[str, np.ndarray]) -> np.ndarray:
    part = arg.attrs.get("dmlc.part")
    if part is None:
        return gradients[arg.attrs["dmlc.names"][0]]
    whole = gradients[part["names"][0]].reshape(part["split"])
    return whole.take(range(part["start"], part["stop"]), part["dim"]).reshape(arg.shape)


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_autograd(name: str) -> None:
    make, loss, settings, reference = CASES[name]
    module, result, eager, args = differentiated(name, make, loss, settings)
    with torch.no_grad():
        output = copy.deepcopy(eager).train()(*args)
    target = target_for(output, loss)
    expected_loss, expected = in_double(eager, args, reference, target)
    actual = run(module, {**result.inputs, "target": target.numpy()}, promote="f64", weights=result.weights)
    assert float(actual["loss"]) == pytest.approx(expected_loss, rel=TOLERANCE)
    wanted = in_arguments(module, expected)
    largest = max(np.abs(v).max() for v in wanted.values())
    assert {f"{name}.grad" for name in wanted} == {k for k in actual if k.endswith(".grad")}
    for key, want in wanted.items():
        scale = max(np.abs(want).max(), 1e-3 * largest)
        error = np.abs(actual[f"{key}.grad"] - want).max() / scale
        assert error <= TOLERANCE, f"{key}: {error}"
    zero = [k for k, v in wanted.items() if not np.abs(v).max()]
    assert len(zero) < len(wanted) / 4, "gradients that are zero prove nothing"
