"""Branches and loops of PyTorch programs: eight ranks against eager PyTorch, training steps against autograd, what is refused."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from model_cases import compile_copy, difference, emit, in_double, loaded
from rank_pool import shared_pool
from torch import nn
from torch._higher_order_ops.scan import scan

from dmlc import driver
from dmlc.cli._check_training import compare_step
from dmlc.frontend.torch_export import import_exported
from dmlc.ir.core import Module
from dmlc.ir.location import DmlcError
from dmlc.ir.verifier import verify
from dmlc.training import Training

FILE = Path(__file__).parent / "control_models.py"
INSIDE = {"gated": "dmlc.cond", "recurrent": "dmlc.scan", "layer": "dmlc.scan", "mapped": "dmlc.scan", "converging": "dmlc.while"}


@functools.cache
def model(name: str) -> driver.Loaded:
    return loaded(f"{FILE}:{name}")


def control_ops(module: Module) -> list[str]:
    return [op.name for op in module.main.ops() if op.name in INSIDE.values()]


@pytest.mark.parametrize("name", INSIDE)
def test_eight_processes_compute_what_eager_does(name, tmp_path):
    found, inputs = model(name), dict(model(name).examples)
    compiled = compile_copy(found)
    assert INSIDE[name] in control_ops(compiled.module) and found.reference is not None
    folder = emit(compiled, tmp_path / "out")
    assert difference(found.reference(inputs), shared_pool().run(folder, inputs).results) < 1e-5
    text = (folder / "model.py").read_text()
    assert {"dmlc.cond": "if bool(", "dmlc.scan": "for ", "dmlc.while": "while True:"}[INSIDE[name]] in text


@pytest.mark.parametrize(
    ("name", "plan", "devices"), [("layer", "dp=8", 8), ("layer", "dp=3", 3), ("gated", "dp=3", 3), ("recurrent", "dp=2,tp=2", 4), ("converging", "auto", 3)]
)
def test_plans(name, plan, devices):
    found, inputs = model(name), dict(model(name).examples)
    compiled = compile_copy(found, plan=plan, devices=devices)
    assert difference(in_double(found.module, found.weights, inputs), in_double(compiled.module, compiled.weights, inputs)) < 1e-9


def test_a_loop_whose_samples_meet_runs_whole_and_the_plan_says_so():
    compiled = compile_copy(model("recurrent"), plan="dp=8")
    (loop,) = [op for op in compiled.module.main.ops() if op.name == "dmlc.scan"]
    assert loop.results[0].shape == (8, 6)
    assert any("'dmlc.scan' runs whole on every rank, what it reads gathered for it" in r.text for r in compiled.remarks)


def test_a_loop_whose_samples_do_not_meet_runs_on_parts_of_the_batch():
    """Nothing is sent before the loop's results are used; each of eight ranks has one of the eight samples."""
    compiled = compile_copy(model("layer"), plan="dp=8")
    (loop,) = [op for op in compiled.module.main.ops() if op.name == "dmlc.scan"]
    assert loop.results[0].shape == (1, 6) and not [op for op in compiled.module.main.ops() if op.dialect == "comm" and op.name != "comm.axis_index"]


@pytest.mark.parametrize(("name", "plan", "devices", "microbatches"), [("gated", "auto", 8, 1), ("recurrent", "auto", 2, 1), ("layer", "dp=3", 3, 2)])
def test_a_training_step_is_autograds(name, plan, devices, microbatches, capsys):
    options = driver.Options(train=Training(loss="cross-entropy", optimizer="adamw"), devices=devices, plan=plan, microbatches=microbatches, check=True)
    compiled = driver.compile_model(driver.load(f"{FILE}:{name}", options), options)
    compare_step(compiled)
    assert "from PyTorch in float64" in capsys.readouterr().out


# ---------------------------------------------------------------- what is refused


def test_training_through_a_loop_of_unknown_length():
    options = driver.Options(train=Training(loss="mse", optimizer="sgd"), devices=1)
    with pytest.raises(DmlcError, match="'dmlc.while' has no gradient"):
        driver.compile_model(driver.load(f"{FILE}:converging", options), options)


def test_samples_that_meet_in_a_branch_are_not_cut_into_microbatches():
    options = driver.Options(train=Training(loss="cross-entropy", optimizer="sgd"), devices=2, plan="dp=2", microbatches=2)
    with pytest.raises(DmlcError, match="'dmlc.cond' needs samples of all microbatches at once"):
        driver.compile_model(driver.load(f"{FILE}:gated", options), options)


class Dropping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scan(lambda h, r: (h + nn.functional.dropout(r, 0.5, True), h * 2), x[0] * 0, x, dim=0)[1]


class Sized(nn.Module):
    """A predicate that sizes decide; the exported program has no branch any more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(torch.tensor(x.shape[0] > 3), lambda x: x.sin(), lambda x: x.cos(), (x,))


def test_random_numbers_in_a_loop_are_refused():
    found = import_exported(torch.export.export(Dropping().train(), (torch.randn(4, 3),)), train=True)
    with pytest.raises(DmlcError, match="in the body of 'dmlc.scan' would draw the same numbers in every iteration"):
        verify(found.module)


def test_a_predicate_of_sizes():
    x = torch.randn(4, 3)
    found = import_exported(torch.export.export(Sized().eval(), (x,)))
    verify(found.module)
    assert difference({"output": x.sin().numpy()}, in_double(found.module, found.weights, dict(found.inputs))) < 1e-6
